"""Networks on sets of observations, for summaries that are learned jointly with a posterior."""

from __future__ import annotations

from torch import Tensor, nn


class SetNetwork(nn.Module):
    r"""A permutation-invariant network :math:`f(x_{1:N}) = \rho(\frac1N \sum_n \phi(x_n))`.

    Reference: Zaheer et al., Deep Sets, NeurIPS 2017.

    Arguments:
        inputs: Length of what `encoder` takes, for one observation.
        width: Units of the hidden layers.
        outputs: Length of the summary.
        encoder: A layer before :math:`\phi`, observations `(..., *event)` to `(..., inputs)`.

    Example:
        >>> import torch
        >>> SetNetwork(5, 16, 2)(torch.randn(3, 100, 5)).shape
        torch.Size([3, 2])
    """

    def __init__(
        self, inputs: int, width: int, outputs: int, encoder: nn.Module | None = None
    ) -> None:
        super().__init__()
        first = [] if encoder is None else [encoder]
        self.phi = nn.Sequential(
            *first, nn.Linear(inputs, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()
        )
        self.rho = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Summaries `(B, outputs)` of datasets `(B, N, *event)`."""
        result: Tensor = self.rho(self.phi(x).mean(-2))
        return result


class Asinh(nn.Module):
    """The inverse hyperbolic sine: a logarithm for large values of either sign, as an encoder.

    Example:
        >>> import torch
        >>> Asinh()(torch.tensor([-1e4, 0.0, 1e4]))
        tensor([-9.9035,  0.0000,  9.9035])
    """

    def forward(self, x: Tensor) -> Tensor:
        """As many values as came in, none of them large."""
        return x.asinh()
