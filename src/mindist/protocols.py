r"""Protocols: a summary, a decoder, a bank of simulations.

Parts meet only through these shapes: any object that has them can replace one.

.. math:: f : x_{1:N} \mapsto s \in \mathbb{R}^{d_s}, \quad z : x \mapsto z(x) \in \mathbb{R}^K,
    \quad \mu : s \mapsto \mathbb{E}[z(x) \mid S = s] \in \mathbb{R}^K .
"""
# ruff: noqa: D102  (what the members of a bank are is said of all of them together)

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import torch
from numpy.typing import NDArray
from torch import Tensor

Array = Tensor | NDArray[Any]
"""Data as people have it: a tensor or a NumPy array."""

State = tuple[dict[str, Any], dict[str, Tensor]]
"""The stored form of a fitted part: JSON-able settings and named tensors."""


class Summary(Protocol):
    """A summary statistic: datasets `(B, N, *event)` to summaries `(B, d_s)`.

    It treats the B datasets independently. Tensors in, tensors out; a function written for NumPy
    arrays is recognised when `MinimumDistance.fit` first calls it.

    Example:
        >>> summary: Summary = lambda x: torch.cat([x.mean(1), x.std(1).log()], dim=1)
        >>> summary(torch.randn(3, 50, 2)).shape
        torch.Size([3, 4])
    """

    def __call__(self, x: Any, /) -> Any:
        """Summarise datasets `(B, N, *event)` to `(B, d_s)`."""


@runtime_checkable
class Decoder(Protocol):
    r"""The mean embedding of a dataset as a function of its summary, with a linear last layer.

    .. math:: \mu(s) = h(s) W + b, \qquad h(s) \in \mathbb{R}^H .

    The last layer is exposed because it makes the search cheap: the residual
    :math:`\mu(s) - \bar z` lives, up to a constant, in the row space of :math:`W`.
    A decoder without such a layer has :math:`h = \mu`, :math:`W = I`, :math:`b = 0`.

    Example:
        >>> from mindist.decoders import RidgeDecoder
        >>> s, z_bar = torch.rand(100, 5).split([1, 4], dim=1)
        >>> decoder: Decoder = RidgeDecoder().fit(s, z_bar, generator=torch.Generator())
        >>> decoder(s[:3].double()).shape
        torch.Size([3, 4])
    """

    weight: Tensor
    """W, `(H, K)`, float64."""
    bias: Tensor
    """b, `(K,)`, float64."""
    num_points: int
    """How many observations of each simulated dataset `fit` wants to see as `x`; often 0."""

    def fit(
        self,
        s: Tensor,
        z_bar: Tensor,
        *,
        generator: torch.Generator,
        x: Tensor | None = None,
        features: Any = None,
    ) -> "Decoder":
        """Learn from summaries `(M, d_s)`, embeddings `(M, K)`, observations `(M, n, *event)`.

        `features` are the `mindist.features.FourierFeatures` that made the embeddings.
        """

    def __call__(self, s: Tensor, /) -> Tensor:
        """Decoded mean embeddings `(B, K)` of summaries `(B, d_s)`, differentiable in `s`."""

    def basis(self, s: Tensor, /) -> Tensor:
        """h(s), `(B, H)`, differentiable in `s`."""

    def basis_and_jacobian(self, s: Tensor, /) -> tuple[Tensor, Tensor]:
        """h(s), `(B, H)`, and dh/ds, `(B, H, d_s)`, without an autograd graph."""


@runtime_checkable
class DensityDecoder(Protocol):
    r"""A decoder that knows the density :math:`q(x \mid s)` and can draw from it.

    Example:
        >>> from mindist.decoders import FlowDecoder
        >>> isinstance(FlowDecoder(), DensityDecoder)
        True
    """

    def log_prob(self, x: Tensor, s: Tensor, /) -> Tensor:
        """log q(x given s), `(B, N)`, of datasets `(B, N, *event)` at summaries `(B, d_s)`."""

    def resampled(self, s: Tensor, generator: torch.Generator, /) -> Tensor:
        """Mean embeddings `(B, K)` of fresh draws from q(x given s), differentiable in `s`."""


@runtime_checkable
class LeaveOneOut(Protocol):
    """A decoder that knows, in closed form, how it would do on each simulation without it.

    Example:
        >>> from mindist.decoders import MLPDecoder, RidgeDecoder
        >>> isinstance(RidgeDecoder(), LeaveOneOut), isinstance(MLPDecoder(), LeaveOneOut)
        (True, False)
    """

    def leave_one_out_residuals(self, s: Tensor, z_bar: Tensor, /) -> Tensor:
        """Return residuals `(n, K)` of fitted simulations, each held out in turn."""


class StoredSimulations(Protocol):
    """A bank of simulations in random order, larger than memory: `mindist.SimulationBank` is one.

    Its arrays are on disk and give NumPy arrays when sliced: parameters `theta` `(M, d_theta)`,
    summaries `s` `(M, d_s)`, mean embeddings `z_bar` `(M, K)` and data `x` `(M, N, *event)`, the
    last two None where there are none. The first datasets and their summaries, its `pilot`, are
    always kept: an embedding is chosen on them, and `embedding_state` is its `Embedding.state()`.

    Example:
        >>> from mindist import SimulationBank
        >>> bank: type[StoredSimulations] = SimulationBank
    """

    @property
    def complete(self) -> bool: ...
    @property
    def theta(self) -> Any: ...
    @property
    def s(self) -> Any: ...
    @property
    def z_bar(self) -> Any | None: ...
    @property
    def x(self) -> Any | None: ...
    @property
    def pilot(self) -> tuple[Tensor, Tensor]: ...
    @property
    def embedding_state(self) -> State | None: ...

    def __len__(self) -> int:
        """M, the number of datasets."""

    def chunks(self) -> Iterator[Any]:
        """Read all in order, a part with `theta`, `s`, `z_bar` and `x` as arrays at a time."""


__all__ = ["Array", "Decoder", "DensityDecoder", "LeaveOneOut", "State"]
__all__ += ["StoredSimulations", "Summary"]
