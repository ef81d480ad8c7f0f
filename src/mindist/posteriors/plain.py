r"""A posterior of one conditional density, whatever library it comes from.

.. math:: p(\theta \mid s) = q(\theta \mid s)\, 1[\theta \in \mathrm{supp}\, p(\theta)] / Z(s) ,

with all of parameter space as the support where no prior is known. A bridge gives the density; the
rest of what `RobustPosterior` asks for is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import torch
from torch import Tensor

from mindist import checks
from mindist.posteriors.backend import Backend, is_bounded
from mindist.posteriors.seeding import seeded

ASCENT_ITERATIONS = 1_000  # of Nelder and Mead's search, which takes some 100 for each parameter


class Density(Protocol):
    r"""A conditional density :math:`q(\theta \mid s)`, as a bridge sees it."""

    @property
    def tensors(self) -> Iterable[Tensor] | None:
        """What it computes with, or None where that is not known."""

    def draw(self, num_samples: int, s: Tensor, **options: Any) -> Tensor:
        """Draws `(num_samples, B, d_theta)` given summaries `(B, d_s)`."""

    def log_density(self, theta: Tensor, s: Tensor, **options: Any) -> Tensor:
        """log q, `(S, B)`, of parameters `(S, B, d_theta)` given summaries `(B, d_s)`."""


@dataclass(frozen=True)
class PlainComponent:
    """A density, cut to the support of a prior where there is one.

    Arguments:
        density: q.
        prior: What has a `support`, or None.
        corrects_leakage: Whether `log_prob` divides by the mass inside that support.
    """

    density: Density
    prior: Any = None
    corrects_leakage: bool = True
    weight: float = 1.0

    @property
    def bounded(self) -> bool:
        """Whether there is a prior with a bounded support."""
        return self.prior is not None and is_bounded(self.prior)

    def draw(
        self, num_samples: int, s: Tensor, *, show_progress_bars: bool, **options: Any
    ) -> Tensor:
        """Draws `(num_samples, B, d_theta)`, inside the prior or not."""
        return self.density.draw(num_samples, s, **options)

    def in_support(self, theta: Tensor, /) -> Tensor:
        """Whether parameters `(..., d_theta)` lie in the support of the prior, `(...)`."""
        if not self.bounded:
            return torch.ones(theta.shape[:-1], dtype=torch.bool, device=theta.device)
        inside: Tensor = self.prior.support.check(theta)
        return inside.all(-1) if inside.dim() == theta.dim() else inside

    def log_density(self, theta: Tensor, s: Tensor, **options: Any) -> Tensor:
        """log q, `(S, B)`."""
        return self.density.log_density(theta, s, **options)


@dataclass(frozen=True)
class PlainBackend:
    """A posterior of one component.

    Arguments:
        component: The density and its support.
        condition_shape: `(d_s,)`.
        num_parameters: d_theta.
        parameter_names: A name for each parameter, where the library has them.
    """

    component: PlainComponent
    condition_shape: torch.Size
    num_parameters: int
    parameter_names: tuple[str, ...] | None = None

    @property
    def components(self) -> Sequence[PlainComponent]:
        """The one component."""
        return [self.component]

    @property
    def device(self) -> torch.device:
        """Where the first of the density's tensors is."""
        tensors = self.component.density.tensors
        return next((t.device for t in tensors or ()), torch.device("cpu"))

    @property
    def version(self) -> Hashable:
        """How often each tensor was changed in place; never the same where that is not known."""
        tensors = self.component.density.tensors
        return object() if tensors is None else tuple(t._version for t in tensors)

    def sample_prior(self, num_samples: int) -> Tensor:
        """Draws `(num_samples, d_theta)`, where there is a prior."""
        if not hasattr(self.component.prior, "sample"):
            raise ValueError(
                "init_method: expected 'posterior' or parameters (n, d_theta), got 'prior', and "
                "this posterior comes without a prior to draw from."
            )
        theta: Tensor = self.component.prior.sample((num_samples,))
        return theta

    def maximise(self, s: Tensor, start: Tensor, **options: Any) -> Tensor:
        """The mode `(1, d_theta)`, by a search without gradients from the best of the starts.

        The one option is `num_iter`. Nelder and Mead's method, because a density may pass through
        NumPy, as BayesFlow's adapters do.
        """
        from scipy.optimize import minimize  # a tenth of a second that `import mindist` saves

        iterations = options.pop("num_iter", ASCENT_ITERATIONS)
        no_options(options)
        checks.positive(iterations, "num_iter")

        def log_q(theta: Tensor) -> Tensor:
            inside = self.component.in_support(theta)
            value = self.component.log_density(theta[:, None], s)[:, 0]
            return value.detach().masked_fill(~inside, -torch.inf)

        def loss(point: Any) -> float:
            return -float(log_q(torch.as_tensor(point, dtype=start.dtype)[None].to(start.device)))

        first = start[log_q(start).argmax()]
        found = minimize(
            loss, first.cpu().numpy(), method="Nelder-Mead", options={"maxiter": iterations}
        )
        return torch.as_tensor(found.x, dtype=start.dtype, device=start.device)[None]

    def to(self, device: torch.device) -> None:
        """Stay: what a foreign posterior computes on is for its owner to decide."""
        if device != self.device:
            raise ValueError(
                f"device: this posterior computes on {self.device}, got {device}. Move it yourself "
                "and wrap it again."
            )


def over_summaries(
    density: Density, example: Tensor | None, prior: Any = None, *, corrects_leakage: bool = True
) -> Backend:
    """The backend of a density that says nothing of its sizes, from one trial draw.

    Arguments:
        density: q.
        example: A simulated summary `(1, d_s)`.
        prior: What has a `support`, or None.
        corrects_leakage: Whether `log_prob` divides by the mass inside that support.
    """
    if example is None:
        raise ValueError(
            "mds: expected a fitted MinimumDistance, whose summaries show the sizes of this kind "
            "of posterior, got one that is not fitted. Call fit(x_train) first."
        )
    with seeded(0), torch.no_grad():
        try:
            theta = density.draw(1, example)
        except Exception as error:
            raise ValueError(
                "posterior: expected one that can be asked at a summary of length "
                f"{example.shape[1]}, as MinimumDistance has it, got an error: {error}"
            ) from error
    component = PlainComponent(density, prior, corrects_leakage)
    return PlainBackend(component, example.shape[1:], theta.shape[-1])


def no_options(options: dict[str, Any]) -> None:
    """Refuse keywords that nobody asked for.

    Example:
        >>> no_options({"steps": 3})
        Traceback (most recent call last):
            ...
        TypeError: The wrapped posterior does not take the option steps.
    """
    if options:
        raise TypeError(f"The wrapped posterior does not take the option {', '.join(options)}.")


def tensors_of(*nets: Any) -> Iterable[Tensor]:
    """Parameters and buffers of some networks."""
    return chain(*([*net.parameters(), *net.buffers()] for net in nets))


__all__ = ["Density", "PlainBackend", "PlainComponent", "no_options", "over_summaries"]
