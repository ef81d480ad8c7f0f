r"""Any function as a posterior: :math:`f(s, n)` draws n parameters from :math:`p(\theta \mid s)`.

For posteriors that no bridge knows: a sampler of one's own, another library, an exact posterior.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mindist.posteriors.backend import Backend
from mindist.posteriors.plain import over_summaries
from mindist.posteriors.seeding import seed_for_others


@dataclass(frozen=True)
class CallablePosterior:
    r"""A posterior over summaries made of functions.

    `RobustPosterior(f, mds)` is short for `RobustPosterior(CallablePosterior(f), mds)`. Functions
    get and give tensors or NumPy arrays; one that fails on a tensor is tried with an array.

    Repeatable where the function draws from torch's or NumPy's global generator, or has an argument
    `seed`, which it then gets: the `seed` of `RobustPosterior.sample` itself, where one batch of
    draws of one dataset will do.

    Arguments:
        sample: `f(s, n)`, draws `(n, d_theta)` given one summary `(d_s,)`; where `batched`, draws
            `(n, B, d_theta)` given summaries `(B, d_s)`.
        log_prob: `g(theta, s)`, log-densities `(S,)` of parameters `(S, d_theta)` given one summary
            `(d_s,)`; where `batched`, `(S, B)` of `(S, B, d_theta)` given `(B, d_s)`.
        prior: A distribution whose support cuts the draws; None keeps them all.
        batched: Whether the functions take many summaries at once, which is faster.

    Example:
        >>> from mindist import MinimumDistance, RobustPosterior
        >>> x = torch.randn(500, 1, 1) + 0.1 * torch.randn(500, 30, 1)
        >>> mds = MinimumDistance(lambda x: x.mean(1), num_features=16).fit(x)
        >>> robust = RobustPosterior(lambda s, n: s + 0.02 * torch.randn(n, 1), mds)
        >>> robust.sample((5,), x[0], seed=0).shape
        torch.Size([5, 1])
    """

    sample: Callable[..., Any]
    log_prob: Callable[..., Any] | None = None
    prior: Any = None
    batched: bool = False


class CallableDensity:
    """The density behind functions.

    Arguments:
        posterior: The functions.
    """

    tensors: Iterable[Tensor] | None = None

    def __init__(self, posterior: CallablePosterior) -> None:
        self.posterior = posterior
        self._seed = _takes_seed(posterior.sample)

    def draw(self, num_samples: int, s: Tensor, **options: Any) -> Tensor:
        """Draws `(num_samples, B, d_theta)`."""
        if self.posterior.batched:
            return self._draw(num_samples, s, (num_samples, len(s)), options)
        parts = [self._draw(num_samples, one, (num_samples,), options) for one in s]
        return torch.stack(parts, dim=1)

    def log_density(self, theta: Tensor, s: Tensor, **options: Any) -> Tensor:
        """log q, `(S, B)`."""
        log_prob = self.posterior.log_prob
        if log_prob is None:
            raise NotImplementedError(
                "log_prob: this posterior was given as a function that draws samples. Wrap "
                "CallablePosterior(sample, log_prob=...) to have log-probabilities as well."
            )
        if self.posterior.batched:
            return _tensor(_call(log_prob, theta, s, **options), s, theta.shape[:-1], "log_prob")
        pairs = zip(theta.unbind(1), s, strict=True)
        shape = theta.shape[:1]
        parts = [_tensor(_call(log_prob, t, one, **options), s, shape, "log_prob")
                 for t, one in pairs]  # fmt: skip
        return torch.stack(parts, dim=1)

    def _draw(self, num: int, s: Tensor, shape: tuple[int, ...], options: dict[str, Any]) -> Tensor:
        with seed_for_others() as seed:
            own = {"seed": seed} if self._seed else {}
            theta = _call(self.posterior.sample, s, num, **own, **options)
        return _tensor(theta, s, (*shape, None), "sample")


def bridge(posterior: Any, example: Tensor | None) -> Backend:
    """The backend of a function, or of functions.

    Example:
        >>> bridge(lambda s, n: s + torch.randn(n, 1), torch.zeros(1, 1)).num_parameters
        1
    """
    if not isinstance(posterior, CallablePosterior):
        posterior = CallablePosterior(posterior)
    _takes_summary_and_number(posterior.sample)
    return over_summaries(CallableDensity(posterior), example, posterior.prior)


def _takes_summary_and_number(function: Callable[..., Any]) -> None:
    try:
        arguments = inspect.signature(function)
    except (TypeError, ValueError):  # written in C
        return
    try:
        arguments.bind("s", "n", **({"seed": 0} if _takes_seed(function) else {}))
    except TypeError:
        raise TypeError(
            "posterior: expected a posterior over summaries from a library that has a bridge "
            "(docs/bridges.md), or a function f(s, n) that draws n parameters given a summary, got "
            f"a function of {arguments}."
        ) from None


def _takes_seed(function: Callable[..., Any]) -> bool:
    try:
        return "seed" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # written in C
        return False


def _call(function: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """A function of tensors; of NumPy arrays where it cannot be asked with tensors."""
    try:
        return function(*given, **options)
    except (AttributeError, TypeError, RuntimeError) as error:
        arrays = [g.detach().cpu().numpy() if isinstance(g, Tensor) else g for g in given]
        try:
            return function(*arrays, **options)
        except Exception:
            raise error from None


def _tensor(value: Any, like: Tensor, shape: tuple[int | None, ...], name: str) -> Tensor:
    """What a function gave, of the dtype and on the device of the summaries."""
    result = torch.as_tensor(value).to(like.device, like.dtype)
    sizes = zip(result.shape, shape, strict=False)
    if result.dim() != len(shape) or any(b is not None and a != b for a, b in sizes):
        expected = ", ".join("d_theta" if size is None else str(size) for size in shape)
        raise ValueError(
            f"posterior: expected its function {name} to return shape ({expected}), got "
            f"{tuple(result.shape)}."
        )
    return result


__all__ = ["CallablePosterior", "bridge"]
