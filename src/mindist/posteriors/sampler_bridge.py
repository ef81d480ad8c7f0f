r"""The bridge to posteriors with sbi's methods: `sample(shape, x)` and `log_prob(theta, x)`.

The posteriors of ltu-ili (`LampeEnsemble` and its members) have these methods, and so have many
wrappers of one's own. No library is imported. Here x is the summary, :math:`x = s`: the posterior
was trained on summaries.

ltu-ili rejects draws outside the prior itself, and where too few are inside it warns and returns
draws from the prior instead. Posteriors that it made with its sbi backend are sbi's, and go through
sbi's bridge.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from mindist.posteriors.backend import Backend
from mindist.posteriors.plain import over_summaries, tensors_of
from mindist.posteriors.seeding import seed_for_others


class SampledDensity:
    """The density that a posterior's methods stand for.

    Arguments:
        posterior: Has `sample(shape, x)`, and `log_prob(theta, x)` perhaps.

    Example:
        >>> class Exact:
        ...     def sample(self, shape, x):
        ...         return x + torch.randn(*shape, 1)
        >>> SampledDensity(Exact()).draw(5, torch.zeros(3, 1)).shape
        torch.Size([5, 3, 1])
    """

    def __init__(self, posterior: Any) -> None:
        self.posterior = posterior
        takes = inspect.signature(posterior.sample).parameters
        self._quiet = {"show_progress_bars": False} if "show_progress_bars" in takes else {}

    @property
    def tensors(self) -> Iterable[Tensor] | None:
        """The network's parameters and buffers, where it is one of torch's."""
        return tensors_of(self.posterior) if isinstance(self.posterior, nn.Module) else None

    def draw(self, num_samples: int, s: Tensor, **options: Any) -> Tensor:
        """Draws `(num_samples, B, d_theta)`, one dataset after the other."""
        parts, shape = [], (num_samples,)
        for one in s:
            with seed_for_others():
                theta = self.posterior.sample(shape, x=one, **self._quiet, **options)
            parts.append(torch.as_tensor(theta).to(s).reshape(num_samples, -1))
        return torch.stack(parts, dim=1)

    def log_density(self, theta: Tensor, s: Tensor, **options: Any) -> Tensor:
        """log q, `(S, B)`."""
        if not callable(getattr(self.posterior, "log_prob", None)):
            raise NotImplementedError(
                f"log_prob: {type(self.posterior).__name__} has no method log_prob(theta, x)."
            )
        parts = [
            torch.as_tensor(self.posterior.log_prob(t, x=one, **options)).to(s).reshape(-1)
            for t, one in zip(theta.unbind(1), s, strict=True)
        ]
        return torch.stack(parts, dim=1)


def bridge(posterior: Any, example: Tensor | None) -> Backend:
    """The backend of a posterior with sbi's methods.

    Example:
        >>> class Exact:
        ...     def sample(self, shape, x):
        ...         return x + torch.randn(*shape, 1)
        >>> bridge(Exact(), torch.zeros(1, 1)).num_parameters
        1
    """
    prior = getattr(posterior, "prior", None)
    prior = prior if hasattr(prior, "support") else None
    return over_summaries(SampledDensity(posterior), example, prior, corrects_leakage=False)


__all__ = ["SampledDensity", "bridge"]
