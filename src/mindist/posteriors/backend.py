r"""The protocol that `RobustPosterior` asks of a posterior over summaries, whatever its library.

A posterior is a mixture of densities, each cut to the support of the prior:

.. math::
    p(\theta \mid s) = \sum_i w_i \,
        \frac{q_i(\theta \mid s)\, 1[\theta \in \mathrm{supp}\, p(\theta)]}{Z_i(s)}, \qquad
    Z_i(s) = \int_{\mathrm{supp}\, p(\theta)} q_i(\theta \mid s)\, d\theta .

Most posteriors have one component; an ensemble has one for each member. A bridge to a library is
one file that offers `bridge(posterior, example) -> Backend`, where `example` is a simulated summary
`(1, d_s)` or None, and one line in `BRIDGES`.
"""

import importlib
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributions import constraints

from mindist import checks

# The bridge of functions, of objects with a method `sample`, of flows; then that of each library.
FLOWS = "mindist.posteriors.flow_bridge"
BRIDGES = {name: f"mindist.posteriors.{name}_bridge" for name in ("sbi", "bayesflow")}
BRIDGES |= dict.fromkeys(("zuko", "lampe", "ili"), FLOWS)
FUNCTION = "a function f(s, n) that draws n parameters given a summary"


class Component(Protocol):
    r"""One density :math:`q(\theta \mid s)` over all of parameter space.

    Example:
        >>> backend = find_backend(lambda s, n: s + torch.randn(n, 1), torch.zeros(1, 1))
        >>> component: Component = backend.components[0]
        >>> component.weight, component.bounded
        (1.0, False)
    """

    weight: float
    """w, the component's share of the mixture."""
    bounded: bool
    """True where the prior's support is less than all of parameter space, so that q can leak."""
    corrects_leakage: bool
    """True where the library's own `log_prob` divides by Z unless told otherwise."""

    def draw(self, num_samples: int, s: Tensor, /, **options: Any) -> Tensor:
        """Draw `(num_samples, B, d_theta)` given summaries `(B, d_s)`, inside the prior or not."""

    def in_support(self, theta: Tensor, /) -> Tensor:
        """Return whether parameters `(..., d_theta)` lie in the support of the prior, `(...)`."""

    def log_density(self, theta: Tensor, s: Tensor, **options: Any) -> Tensor:
        """Return log q, `(S, B)`, of parameters `(S, B, d_theta)` given summaries `(B, d_s)`."""


class Backend(Protocol):
    """A posterior over summaries, seen through its library's bridge.

    Example:
        >>> backend: Backend = find_backend(lambda s, n: s + torch.randn(n, 1), torch.zeros(1, 2))
        >>> backend.condition_shape, len(backend.components)
        (torch.Size([2]), 1)
    """

    @property
    def components(self) -> Sequence[Component]:
        """The mixture; weights sum to one."""

    @property
    def condition_shape(self) -> torch.Size:
        """Shape of what the posterior is conditioned on: `(d_s,)` if it is over summaries."""

    @property
    def num_parameters(self) -> int:
        """d_theta."""

    @property
    def device(self) -> torch.device:
        """Where the posterior computes."""

    @property
    def version(self) -> Hashable:
        """A value that changes whenever the posterior's weights do."""

    def to(self, device: torch.device) -> None:
        """Move the posterior."""

    def sample_prior(self, num_samples: int) -> Tensor:
        """Draw `(num_samples, d_theta)` from the prior."""

    def maximise(self, s: Tensor, start: Tensor, **options: Any) -> Tensor:
        """Return the mode `(1, d_theta)` given `(1, d_s)`, by ascent from `(n, d_theta)`."""


def is_bounded(prior: Any) -> bool:
    support = getattr(prior, "support", None)
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return not isinstance(support, type(constraints.real))


def find_backend(posterior: Any, example: Tensor | None = None) -> Backend:
    name = bridge_of(posterior)
    if name is None:
        said = f"a posterior over summaries from {', '.join(BRIDGES)}, or {FUNCTION}"
        then = "Train one on (theta, summary(x)), as mindist.posteriors.sbi_bridge.train_npe does."
        raise checks.wrong("posterior", said, kind(posterior), then, TypeError)
    return importlib.import_module(name).bridge(posterior, example)


def bridge_of(posterior: Any) -> str | None:
    if isinstance(posterior, type):
        return None
    for package in packages(posterior):
        if package in BRIDGES:
            return BRIDGES[package]
    return FLOWS if callable(getattr(posterior, "sample", None)) or callable(posterior) else None


def kind(thing: Any) -> str:
    return f"the class {thing.__name__}" if isinstance(thing, type) else type(thing).__name__


def packages(thing: Any) -> Iterator[str]:
    return (base.__module__.partition(".")[0] for base in type(thing).__mro__)
