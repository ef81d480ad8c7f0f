r"""The bridge to estimators that give a distribution: :math:`s \mapsto q(\cdot \mid s)`.

zuko's flows and mixtures are such functions, and lampe's NPE and FMPE have one as `flow`. Neither
library is imported: what is asked for are a distribution's `sample` and `log_prob`.

No prior: neither library knows of one, so no draw is rejected. Wrap
`CallablePosterior(sample, log_prob, prior)` where a prior has bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from mindist.posteriors.backend import Backend
from mindist.posteriors.plain import no_options, over_summaries, tensors_of


class FlowDensity:
    """The density that a network gives for each summary.

    Arguments:
        net: What has the weights.
        conditional: Summaries `(B, d_s)` to a distribution over `(B, d_theta)`.

    Example:
        >>> import zuko
        >>> flow = zuko.flows.MAF(1, 2)
        >>> FlowDensity(flow, flow).draw(5, torch.zeros(3, 2)).shape
        torch.Size([5, 3, 1])
    """

    def __init__(self, net: nn.Module, conditional: Callable[[Tensor], Any]) -> None:
        self.net, self.conditional = net, conditional

    @property
    def tensors(self) -> Iterable[Tensor]:
        """The network's parameters and buffers."""
        return tensors_of(self.net)

    def draw(self, num_samples: int, s: Tensor, **options: Any) -> Tensor:
        """Draws `(num_samples, B, d_theta)`."""
        no_options(options)
        theta: Tensor = self.conditional(s).sample(torch.Size((num_samples,)))
        return theta

    def log_density(self, theta: Tensor, s: Tensor, **options: Any) -> Tensor:
        """log q, `(S, B)`, differentiable in theta."""
        no_options(options)
        log_q: Tensor = self.conditional(s).log_prob(theta)
        return log_q


def bridge(posterior: Any, example: Tensor | None) -> Backend:
    """The backend of a network that gives distributions, as zuko's and lampe's do.

    Example:
        >>> import zuko
        >>> flow = zuko.flows.MAF(features=3, context=2, hidden_features=(8,))
        >>> bridge(flow, torch.zeros(1, 2)).num_parameters
        3
    """
    of_zuko = any(base.__module__.startswith("zuko.") for base in type(posterior).__mro__)
    conditional = posterior if of_zuko else getattr(posterior, "flow", None)
    if not isinstance(posterior, nn.Module) or not callable(conditional):
        raise TypeError(
            "posterior: expected a conditional distribution of zuko, or an NPE or FMPE of lampe, "
            f"got {type(posterior).__name__}. A ratio estimator has to be sampled by other means: "
            "wrap a function f(s, n) that does it."
        )
    return over_summaries(FlowDensity(posterior, conditional), example)


__all__ = ["FlowDensity", "bridge"]
