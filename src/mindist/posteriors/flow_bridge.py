r"""The bridge to posteriors of no library, to zuko's and lampe's flows, and weights on disk.

.. math:: p(\theta \mid s) = q(\theta \mid s)\, 1[\theta \in \mathrm{supp}\, p(\theta)] / Z(s) ,

with all of parameter space as the support where no prior is known. There are three kinds: functions
(`CallablePosterior`); objects with `sample(shape, x)` and perhaps `log_prob(theta, x)`, x being the
summary, such as ltu-ili's; and networks that give a distribution for each summary, which know no
prior: where it has bounds wrap `CallablePosterior(sample, log_prob, prior)`.
"""

import inspect
import os
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from mindist import checks, storage
from mindist.posteriors.backend import FUNCTION, Backend, Component, is_bounded, packages
from mindist.posteriors.guards import no_options, seed_for_others, seeded

ASCENT_ITERATIONS = 1_000  # of Nelder and Mead's search, which takes some 100 for each parameter
KIND = "NetworkWeights"
Net = TypeVar("Net", bound=nn.Module)


class Density(Component):
    r"""One density :math:`q(\theta \mid s)`, cut to the support of a prior, and its own backend."""

    weight = 1.0
    condition_shape, num_parameters = torch.Size(), 0  # for a bridge to say
    parameter_names: tuple[str, ...] | None = None  # where the library has them

    def __init__(
        self, prior: Any = None, net: nn.Module | None = None, *, corrects_leakage: bool = True
    ) -> None:
        self.prior, self.net, self.corrects_leakage = prior, net, corrects_leakage
        self.bounded = prior is not None and is_bounded(prior)
        self.components = [self]

    @property
    def tensors(self) -> Iterable[Tensor] | None:
        """The tensors that it computes with, or None where these are not known."""
        return None if self.net is None else chain(self.net.parameters(), self.net.buffers())

    def in_support(self, theta: Tensor, /) -> Tensor:
        if not self.bounded:
            return torch.ones(theta.shape[:-1], dtype=torch.bool, device=theta.device)
        inside: Tensor = self.prior.support.check(theta)
        return inside.all(-1) if inside.dim() == theta.dim() else inside

    @property
    def device(self) -> torch.device:
        return next((t.device for t in self.tensors or ()), torch.device("cpu"))

    @property
    def version(self) -> Hashable:
        """How often each tensor was changed in place; never the same where that is not known."""
        tensors = self.tensors
        return object() if tensors is None else tuple(t._version for t in tensors)

    def sample_prior(self, num_samples: int) -> Tensor:
        if not hasattr(self.prior, "sample"):
            got = "'prior', and this posterior comes without a prior to draw from"
            raise checks.wrong("init_method", "'posterior' or parameters (n, d_theta)", got)
        return self.prior.sample((num_samples,))

    def maximise(self, s: Tensor, start: Tensor, **options: Any) -> Tensor:
        """Return the mode `(1, d_theta)`, by a search that needs no gradients."""
        from scipy.optimize import minimize  # a tenth of a second that `import mindist` saves

        iterations = checks.positive(options.pop("num_iter", ASCENT_ITERATIONS), "num_iter")
        no_options(options)

        def log_q(theta: Tensor) -> Tensor:
            value = self.log_density(theta[:, None], s)[:, 0]
            return value.detach().masked_fill(~self.in_support(theta), -torch.inf)

        def loss(point: Any) -> float:
            return -float(log_q(torch.as_tensor(point, dtype=start.dtype)[None].to(start.device)))

        first = start[log_q(start).argmax()].cpu().numpy()
        found = minimize(loss, first, method="Nelder-Mead", options={"maxiter": iterations})
        return torch.as_tensor(found.x, dtype=start.dtype, device=start.device)[None]

    def to(self, device: torch.device) -> None:
        """Raise unless the posterior is there: what it computes on is for its owner to decide."""
        if device != self.device:
            said = f"device: this posterior computes on {self.device}, got {device}."
            raise ValueError(f"{said} Move it yourself and wrap it again.")


def over_summaries(density: Density, example: Tensor | None) -> Backend:
    """Return the backend of a density that does not say its sizes, from a draw at `(1, d_s)`."""
    if example is None:
        said = "a fitted MinimumDistance, whose summaries show the sizes of this kind of posterior"
        raise checks.wrong("mds", said, "one that is not fitted", "Call fit(x_train) first.")
    with seeded(0), torch.no_grad():
        try:
            theta = density.draw(1, example)
        except Exception as error:
            said = f"one that can be asked at a summary of length {example.shape[1]}, as of mds"
            raise checks.wrong("posterior", said, f"an error: {error}") from error
    density.condition_shape, density.num_parameters = example.shape[1:], theta.shape[-1]
    return density


@dataclass(frozen=True)
class CallablePosterior:
    r"""A posterior over summaries made of functions.

    `RobustPosterior(f, mds)` is short for `RobustPosterior(CallablePosterior(f), mds)`. Functions
    get and give tensors or NumPy arrays; one that fails on a tensor is tried with an array.
    Samples repeat where the function draws from torch's or NumPy's global generator, or has an
    argument `seed`, which it then gets.

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


class CallableDensity(Density):
    def __init__(self, posterior: CallablePosterior, **options: Any) -> None:
        super().__init__(posterior.prior, **options)
        self.posterior, self._takes_seed = posterior, False
        try:
            signature = inspect.signature(posterior.sample)
        except (TypeError, ValueError):  # written in C
            return
        self._takes_seed = "seed" in signature.parameters
        try:
            signature.bind("s", "n", **({"seed": 0} if self._takes_seed else {}))
        except TypeError:
            said = f"one of a library in docs/bridges.md, or {FUNCTION}"
            got = f"a function of {signature}"
            raise checks.wrong("posterior", said, got, kind=TypeError) from None

    def draw(self, num_samples: int, s: Tensor, /, **options: Any) -> Tensor:
        if self.posterior.batched:
            return self._draw(num_samples, s, (num_samples, len(s)), options)
        parts = [self._draw(num_samples, one, (num_samples,), options) for one in s]
        return torch.stack(parts, dim=1)

    def log_density(self, theta: Tensor, s: Tensor, **options: Any) -> Tensor:
        log_prob = self.posterior.log_prob
        if log_prob is None:
            then = "Wrap CallablePosterior(sample, log_prob=...) to have log-probabilities as well."
            raise NotImplementedError(f"log_prob: this posterior can only draw samples. {then}")
        if self.posterior.batched:
            return _tensor(_call(log_prob, theta, s, **options), s, theta.shape[:-1], "log_prob")
        pairs = zip(theta.unbind(1), s, strict=True)
        values = (_call(log_prob, t, one, **options) for t, one in pairs)
        return torch.stack([_tensor(v, s, theta.shape[:1], "log_prob") for v in values], dim=1)

    def _draw(self, num: int, s: Tensor, shape: tuple[int, ...], options: dict[str, Any]) -> Tensor:
        with seed_for_others() as seed:
            own = {"seed": seed} if self._takes_seed else {}
            theta = _call(self.posterior.sample, s, num, **own, **options)
        return _tensor(theta, s, (*shape, None), "sample")


def _call(function: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """Call a function with tensors, or with NumPy arrays where it fails on tensors."""
    try:
        return function(*given, **options)
    except (AttributeError, TypeError, RuntimeError) as error:
        arrays = [g.detach().cpu().numpy() if isinstance(g, Tensor) else g for g in given]
        try:
            return function(*arrays, **options)
        except Exception:
            raise error from None


def _tensor(value: Any, like: Tensor, shape: tuple[int | None, ...], name: str) -> Tensor:
    """Return what a function gave, of the dtype and on the device of the summaries."""
    result = torch.as_tensor(value).to(like.device, like.dtype)
    sizes = zip(result.shape, shape, strict=False)
    if result.dim() != len(shape) or any(b is not None and a != b for a, b in sizes):
        expected = ", ".join("d_theta" if size is None else str(size) for size in shape)
        said = f"its function {name} to return shape ({expected})"
        raise checks.wrong("posterior", said, tuple(result.shape))
    return result


# The density of a network; `conditional` maps `(B, d_s)` to a distribution `(B, d_theta)`.
class FlowDensity(Density):
    def __init__(self, net: nn.Module, conditional: Callable[[Tensor], Any]) -> None:
        super().__init__(net=net)
        self.conditional = conditional

    def draw(self, num_samples: int, s: Tensor, /, **options: Any) -> Tensor:
        no_options(options)
        return self.conditional(s).sample(torch.Size((num_samples,)))

    def log_density(self, theta: Tensor, s: Tensor, **options: Any) -> Tensor:
        no_options(options)
        return self.conditional(s).log_prob(theta)


def _sample(posterior: Any, s: Tensor, num: int, **options: Any) -> Tensor:
    if "show_progress_bars" in inspect.signature(posterior.sample).parameters:
        options["show_progress_bars"] = False
    return torch.as_tensor(posterior.sample((num,), x=s, **options)).reshape(num, -1)


def _log_prob(posterior: Any, theta: Tensor, s: Tensor, **options: Any) -> Tensor:
    return torch.as_tensor(posterior.log_prob(theta, x=s, **options)).reshape(-1)


def bridge(posterior: Any, example: Tensor | None) -> Backend:
    net = posterior if isinstance(posterior, nn.Module) else None
    if libraries := {"zuko", "lampe"} & set(packages(posterior)):
        conditional = posterior if "zuko" in libraries else getattr(posterior, "flow", None)
        if net is None or not callable(conditional):
            said = "a conditional distribution of zuko, or an NPE or FMPE of lampe"
            then = f"A ratio estimator has to be sampled by other means: wrap {FUNCTION}."
            raise checks.wrong("posterior", said, type(posterior).__name__, then, TypeError)
        return over_summaries(FlowDensity(net, conditional), example)
    if isinstance(posterior, CallablePosterior):
        return over_summaries(CallableDensity(posterior), example)
    if not callable(getattr(posterior, "sample", None)):
        return over_summaries(CallableDensity(CallablePosterior(posterior)), example)
    prior, known = getattr(posterior, "prior", None), callable(getattr(posterior, "log_prob", None))
    log_prob = partial(_log_prob, posterior) if known else None
    prior = prior if hasattr(prior, "support") else None
    methods = CallablePosterior(partial(_sample, posterior), log_prob, prior)
    return over_summaries(CallableDensity(methods, net=net, corrects_leakage=False), example)


def save_weights(path: str | os.PathLike[str], net: nn.Module) -> None:
    """Write the parameters and buffers of a network to a folder: a new, an empty or its old one.

    Example:
        >>> import tempfile
        >>> save_weights(tempfile.mkdtemp(), nn.Linear(2, 1))
    """
    if not isinstance(net, nn.Module):
        raise TypeError(f"net: expected a torch module, got {type(net).__name__}.")
    storage.write_artefact(path, KIND, {"network": type(net).__name__}, net.state_dict())


def load_weights(path: str | os.PathLike[str], net: Net) -> Net:
    """Read what `save_weights` wrote into a network of the same architecture, and return it.

    Example:
        >>> import tempfile
        >>> folder, net = tempfile.mkdtemp(), nn.Linear(2, 1)
        >>> save_weights(folder, net)
        >>> torch.equal(load_weights(folder, nn.Linear(2, 1)).weight, net.weight)
        True
    """
    config, tensors = storage.read_artefact(path, KIND)
    fill(net, tensors, "net", f"of the {config.get('network')} in {os.fspath(path)}")
    return net


def fill(net: nn.Module, state: dict[str, Tensor], name: str, where: str) -> None:
    try:
        net.load_state_dict(state, strict=True)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"{name}: expected a network with the names and shapes of the weights {where}, got "
            f"another one, or the file is damaged: {str(error)[:300]}"
        ) from error


def with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


__all__ = ["load_weights", "save_weights"]
