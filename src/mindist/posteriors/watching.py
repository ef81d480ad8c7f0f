"""A posterior that says when it is asked about data it was not trained for (sbi's issue 1426).

Nothing is adapted: the draws are those of the posterior itself. A posterior given summaries has to
be handed the data instead, whose summary is computed here: a summary alone cannot be tested.
"""

import contextlib
import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from mindist import checks
from mindist.entrywise import Entrywise
from mindist.minimum_distance import MinimumDistance
from mindist.posteriors.backend import BRIDGES, bridge_of, find_backend
from mindist.posteriors.robust import RobustPosterior, example_summary

GIVEN = ("data", "summary")
TESTED = {"x", "conditions", "data"}  # arguments that hold data

OF_DATASETS = (
    "mds.adapt(x) says which observations stand out (outliers, weights), and "
    "RobustPosterior(posterior, mds) asks at a summary that the simulations can explain."
)
OF_VECTORS = (
    "entrywise.adapt(x) says which entries stand out (outliers), and "
    "RobustPosterior(posterior, entrywise) asks without them."
)


class MisspecificationWarning(UserWarning):
    """A posterior was asked about data that do not look like the simulations it was trained on.

    `warnings.simplefilter("error", MisspecificationWarning)` makes it an error.

    Example:
        >>> issubclass(MisspecificationWarning, UserWarning)
        True
    """


def watch(posterior: Any, mds: MinimumDistance | Entrywise, *, given: str | None = None) -> Any:
    """Return the same posterior, with a warning where it is asked about misspecified data.

    It has all attributes and methods of the posterior. Each method or function with an argument `x`
    (for BayesFlow `conditions` or `data`) first tests the data: `sample`, `sample_batched`,
    `log_prob`, `map`, `set_default_x`, and so on. Where the test rejects, a
    `MisspecificationWarning` gives the p-value and what to do, and the call goes on.

    Of data that do come from the simulator, a share `mds.alpha` (5%) is rejected too.

    Arguments:
        posterior: A posterior of sbi, of any kind; a BayesFlow workflow or approximator; or another
            object with `sample(shape, x)`, be it a method, a function or a partial.
        mds: A fitted `MinimumDistance`, or a fitted `Entrywise` for a posterior that was trained on
            single vectors.
        given: What the posterior was trained on: `"data"`, datasets `(N, *event)`, or `"summary"`,
            the summaries of `mds`. Then too the data are handed over, for BayesFlow as
            `conditions={"x": x}`. Found out by default.

    Example:
        >>> from types import SimpleNamespace
        >>> from mindist import MinimumDistance
        >>> x = torch.randn(500, 1, 1) + 0.1 * torch.randn(500, 30, 1)
        >>> mds = MinimumDistance(lambda x: x.mean(1), num_features=16).fit(x)
        >>> exact = SimpleNamespace(sample=lambda shape, x: x + 0.02 * torch.randn(*shape, 1))
        >>> posterior = watch(exact, mds, given="summary")
        >>> import warnings
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     samples = posterior.sample((3,), x=5 * torch.randn(30, 1))
        >>> samples.shape, caught[0].category.__name__
        (torch.Size([3, 1]), 'MisspecificationWarning')
    """
    if isinstance(mds, type) or not hasattr(mds, "fitted_"):
        then = "Make one with MinimumDistance(summary).fit(x_train)."
        said = "a fitted MinimumDistance or Entrywise"
        raise checks.wrong("mds", said, repr(mds), then, TypeError)
    if not callable(getattr(posterior, "sample", None)):
        said = "a posterior with a method sample, of sbi, BayesFlow or your own"
        raise checks.wrong("posterior", said, type(posterior).__name__, kind=TypeError)
    if bridge_of(posterior) == BRIDGES["bayesflow"]:
        how = importlib.import_module(BRIDGES["bayesflow"]).raw_conditions(posterior)
        return Watched(posterior, functools.partial(_test_by_name, mds, *how))
    given = _found_out(posterior, mds) if given is None else checks.choice(given, GIVEN, "given")
    return Watched(posterior, functools.partial(_test_argument, mds, given == "summary"))


# A posterior whose queries are tested first; `test` takes the arguments of a call by name.
class Watched:
    def __init__(self, posterior: Any, test: Callable[[dict[str, Any]], None]) -> None:
        self.__dict__.update(watched_posterior=posterior, _test=test)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "watched_posterior" not in self.__dict__:  # while unpickled
            raise AttributeError(name)
        value = getattr(self.watched_posterior, name)
        asked = inspect.isroutine(value) or isinstance(value, functools.partial)
        return self._tested(value) if asked or (name == "sample" and callable(value)) else value

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "default_x" and value is not None:
            self.set_default_x(value)
        else:
            setattr(self.watched_posterior, name, value)

    def __repr__(self) -> str:
        return f"watch({self.watched_posterior!r})"

    def _tested(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that tests its data first; itself if it takes none."""
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):  # written in C
            return function
        kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
        rest = [name for name, kind in kinds.items() if kind is inspect.Parameter.VAR_KEYWORD]
        if not (rest or TESTED & set(kinds)):
            return function

        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            bound = signature.bind(*arguments, **options)
            for named in (bound.arguments, *(bound.arguments.get(name, {}) for name in rest)):
                self._test(named)
            value = function(*bound.args, **bound.kwargs)
            return self if value is self.watched_posterior else value

        return call


def _test_argument(mds: Any, summarise: bool, arguments: dict[str, Any]) -> None:
    """Test the argument `x`, and put its summary in its place where that is what is asked for."""
    if (x := arguments.get("x")) is not None:
        s = _tested_summaries(mds, checks.as_tensor(x, "x"), summarise)
        arguments["x"] = s if summarise else x


def _test_by_name(mds: Any, summarised: str | None, widths: Any, arguments: dict[str, Any]) -> None:
    """Test the data in BayesFlow's `conditions` or `data`; put summaries there if it has no net."""
    for argument in {"conditions", "data"} & set(arguments):
        if not isinstance(arguments[argument], Mapping):
            continue
        name, rest = summarised or "x", dict(arguments[argument])
        if name not in rest:
            said = f"the data under the name {name!r}, so that they can be tested"
            then = "" if summarised else "Their summaries are computed; do not pass these."
            raise checks.wrong("conditions", said, ", ".join(rest) or "nothing", then)
        s = _tested_summaries(mds, checks.as_tensor(rest[name], name), summarised is None)
        if summarised is None:
            del rest[name]
            parts = s.reshape(-1, s.shape[-1]).cpu().split(list(widths.values()), dim=-1)
            rest |= {key: part.numpy() for key, part in zip(widths, parts, strict=True)}
        arguments[argument] = rest


def _tested_summaries(mds: Any, x: Tensor, over_summaries: bool) -> Tensor:
    """Return the summaries of data, after a warning where these do not look like simulations."""
    vectors = isinstance(mds, Entrywise)
    size = 0 if vectors else mds.fitted_.summarise.dim
    if over_summaries and not vectors and tuple(x.shape) in ((size,), (1, size)):
        said = f"a dataset (N, *event) with event shape {tuple(mds.event_shape)}"
        got = f"shape {tuple(x.shape)}, which is that of a summary"
        then = "A summary alone cannot be tested: pass the data, whose summary is computed."
        raise checks.wrong("x", said, got, then)
    found = mds.detect(x)
    if found.misspecified.any():
        which, smallest = "x does not look", ""
        if found.batched:
            bad = found.misspecified.nonzero().flatten().tolist()
            shown = ", ".join(map(str, bad[:10])) + (", ..." if len(bad) > 10 else "")
            which = f"{len(bad)} of {len(found)} datasets (number {shown}) do not look"
            smallest = " at the smallest"
        checks.warn_user(
            f"{which} like the simulations that the posterior was trained on: p-value "
            f"{float(found.p_value.min()):.2g}{smallest}. The posterior may be far off there. "
            + (OF_VECTORS if vectors else OF_DATASETS),
            MisspecificationWarning,
        )
    return x.float() if vectors else found.s_obs.float()


def _found_out(posterior: Any, mds: Any) -> str:
    """Return whether a posterior is given data or summaries."""
    if isinstance(posterior, RobustPosterior) or isinstance(mds, Entrywise):
        return "data"
    fitted, shape = mds.fitted_, torch.Size()
    with contextlib.suppress(TypeError, ValueError):
        shape = find_backend(posterior, example_summary(mds)).condition_shape
    if tuple(shape) == (fitted.num_obs, *mds.event_shape):
        return "data"
    if tuple(shape) == (fitted.summarise.dim,):
        return "summary"
    raise ValueError(
        "given: could not find out what the posterior was trained on. Pass given='data' for "
        f"datasets of {fitted.num_obs} observations of shape {tuple(mds.event_shape)}, or "
        f"given='summary' for summaries of length {fitted.summarise.dim}."
    )
