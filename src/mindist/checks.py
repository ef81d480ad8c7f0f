"""Validation of what users hand over. Messages say: argument, expected, got, what to do next."""

import importlib
import operator
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from mindist.protocols import Array

Condition = Callable[[Any], bool]


def wrong(
    name: str, expected: str, got: object, then: str = "", kind: type[Exception] = ValueError
) -> Exception:
    """Return the error for an argument that is not what was expected, and what to do `then`."""
    return kind(f"{name}: expected {expected}, got {got}. {then}".rstrip())


def _shape(x: Tensor) -> str:
    return f"shape {tuple(x.shape)}"


def shown(value: Any) -> str:
    """Return a value as an error shows it: short, and its type where that says more."""
    if isinstance(value, Tensor | np.ndarray):
        return f"{type(value).__name__} of shape {tuple(value.shape)}"
    text = repr(value)
    return text if len(text) <= 80 else f"{type(value).__name__} {text[:60]}..."


def integer(value: Any, name: str) -> int:
    """Return a whole number of any integer type."""
    try:
        return operator.index(value)
    except TypeError:
        raise wrong(name, "a whole number", shown(value), kind=TypeError) from None


def number(
    value: Any, name: str, expected: str, fits: Condition = lambda _: True, then: str = ""
) -> float:
    """Return a real number of any type: not text, not None, not True, not an array of several."""
    try:
        if isinstance(value, str | bytes | bool | np.bool_):
            raise TypeError
        real = float(value)
    except (TypeError, ValueError, RuntimeError):
        raise wrong(name, expected, shown(value), kind=TypeError) from None
    if not fits(real):
        raise wrong(name, expected, value, then)
    return real


def positive(value: Any, name: str) -> int:
    """Return a whole number of at least 1, perhaps written as 3.0."""
    said = "a whole number of at least 1"
    return int(number(value, name, said, lambda n: n >= 1 and n.is_integer()))


def size(num_observations: int | None, default: int) -> int:
    """Return how many observations of each dataset to simulate."""
    return positive(default if num_observations is None else num_observations, "num_observations")


def seed(value: Any) -> int:
    """Return a whole number that torch's generators take."""
    if not -(2**63) <= (whole := integer(value, "seed")) < 2**64:
        raise wrong("seed", "a whole number of at most 64 bits", value, "Take it modulo 2**64.")
    return whole


def fraction(epsilon: Any, name: str = "epsilon") -> float:
    """Return a contaminated fraction, from 0 to 1."""
    return number(epsilon, name, "a fraction from 0 to 1", lambda e: 0 <= e <= 1, "10% is 0.1.")


def flag(value: Any, name: str) -> bool:
    """Return True or False; a text such as "no", which would count as true, is refused."""
    if not isinstance(value, bool | np.bool_):
        raise wrong(name, "True or False", shown(value), kind=TypeError)
    return bool(value)


def choice(value: Any, allowed: Sequence[str], name: str) -> str:
    """Return one of a few words."""
    if not isinstance(value, str) or value not in allowed:
        raise wrong(name, f"one of {', '.join(map(repr, allowed))}", shown(value))
    return value


def choice_or(
    value: Any, allowed: Sequence[str], name: str, other: str, fits: Condition, then: str = ""
) -> Any:
    """Return one of a few words, or something else that fits, which `other` says in words."""
    if isinstance(value, str):
        return choice(value, allowed, name)
    if not fits(value):
        said = f"one of {', '.join(map(repr, allowed))}, or {other}"
        raise wrong(name, said, shown(value), then, TypeError)
    return value


def device(value: Any) -> torch.device:
    """Return a device of torch that this machine has."""
    try:
        made = torch.device(value)
    except (RuntimeError, TypeError):
        said = "a device of torch such as 'cpu', 'cuda' or 'cuda:1'"
        raise wrong("device", said, shown(value)) from None
    # torch reads the index of a device as a number of 8 bits: "cuda:999" has index -25.
    if made.type == "cuda" and not 0 <= (made.index or 0) < torch.cuda.device_count():
        got = f"{shown(value)}; torch sees {torch.cuda.device_count()} CUDA devices"
        then = "Pass 'cpu', or install a build of torch and a driver for this GPU."
        raise wrong("device", "a device that torch can use here", got, then)
    return made


def need(what: str, extra: str, name: str) -> Any:
    """Import a library that only `what` needs, or say which extra has it."""
    try:
        with warnings.catch_warnings():  # ArviZ has a notice once a day
            warnings.simplefilter("ignore", FutureWarning)
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        old = error.name == "zarr" and sys.version_info < (3, 11)
        raise ImportError(
            f"{what} need {error.name}. Install it with: pip install 'mindist[{extra}]'"
            + " (Python 3.11 or newer)" * old
        ) from error


def as_tensor(value: Any, name: str) -> Tensor:
    """Return a floating-point tensor from a tensor or a NumPy array."""
    if isinstance(value, np.ndarray):
        if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
            got = f"{int(value.mask.sum())} masked"
            then = "Drop the observations that have any, or fill them as the simulator would."
            raise wrong(name, "an array without masked elements", got, then)
        if value.dtype.kind == "f" and value.dtype.itemsize > 8:
            value = value.astype(np.float64)
        value = np.asarray(value).astype(value.dtype.newbyteorder("="), copy=False)
        if value.dtype.kind not in "fiub":
            then = f"Convert it first, for example with {name}.astype('float32')."
            raise wrong(name, "numbers", f"a NumPy array of dtype {value.dtype}", then, TypeError)
        value = torch.from_numpy(np.require(value, requirements=["C", "W"]))
    if not isinstance(value, Tensor):
        then = f"Wrap it, for example with torch.as_tensor({name})."
        raise wrong(name, "a torch tensor or a NumPy array", type(value).__name__, then, TypeError)
    if value.is_complex():
        then = "Pass real and imaginary parts as two coordinates."
        raise wrong(name, "real numbers", value.dtype, then, TypeError)
    if value.layout != torch.strided or value.is_quantized or value.is_nested:
        got = f"one with layout {value.layout} and dtype {value.dtype}"
        then = f"Convert it first, for example with {name}.to_dense() or {name}.dequantize()."
        raise wrong(name, "an ordinary, dense tensor", got, then, TypeError)
    return value if value.dtype in (torch.float32, torch.float64) else value.float()


def _several(x: Tensor, name: str) -> None:
    """Raise a ValueError unless datasets `(B, N, *event)` have at least 2 observations."""
    if x.shape[1] < 2:
        got = "a single observation" if x.shape[1] else "an empty dataset"
        then = "A distance between distributions needs several exchangeable observations in each."
        raise wrong(name, "datasets with at least 2 observations", f"{got} ({_shape(x)})", then)


def simulations(x: Tensor) -> Tensor:
    """Return simulated datasets `(M, N, *event)` with at least 2 observations each."""
    if x.dim() < 2:
        then = "Stack the simulated datasets along a first axis."
        raise wrong("x", "simulated datasets of shape (M, N, *event)", _shape(x), then)
    _several(x, "x")
    if x.shape[0] and not x[0].numel():
        raise wrong("x", "observations with at least one element", _shape(x))
    return x


def observed(x: Array, event_shape: Sequence[int], name: str = "x") -> tuple[Tensor, bool]:
    """Return observed datasets as a finite batch `(B, N, *event)`, and whether one was given."""
    x, event = as_tensor(x, name), tuple(event_shape)
    single = x.dim() == len(event) + 1
    one, many = (f"({', '.join(map(str, axes))})" for axes in (("N", *event), ("B", "N", *event)))
    said = f"one dataset of shape {one} or a batch of shape {many}"
    if tuple(x.shape) == event and event:
        got = f"shape {tuple(x.shape)}, which is a single observation"
        then = "A distance between distributions needs at least 2 exchangeable observations."
        raise wrong(name, said, got, then)
    if x.dim() - len(event) not in (1, 2) or tuple(x.shape[x.dim() - len(event) :]) != event:
        then = "Reshape the observations to the event shape that was simulated."
        raise wrong(name, f"{said}, as in the simulations", _shape(x), then)
    batch = x[None] if single else x
    _several(batch, name)
    if not finite_rows(batch.flatten(1)).all():
        bad = (~torch.isfinite(batch.reshape(*batch.shape[:2], -1))).any(-1)
        dataset, observation = (int(i) for i in bad.nonzero()[0])
        first = f"the first is observation {observation} of dataset {dataset}"
        got = f"{int(bad.sum())} observations with NaN or infinite values ({first})"
        then = "Remove these observations, or impute them as the simulator would produce them."
        raise wrong(name, "finite observations", got, then)
    return batch, single


def datasets(value: Any, event_shape: Sequence[int]) -> Tensor:
    """Return a batch of datasets `(B, N, *event)` with at least one observation each."""
    x, event = as_tensor(value, "x"), tuple(event_shape)
    if x.dim() != len(event) + 2 or tuple(x.shape[2:]) != event or not x.shape[1]:
        said = f"datasets of shape ({', '.join(map(str, ('B', 'N', *event)))}) with N at least 1"
        raise wrong("x", said, _shape(x), "One dataset is x[None], a batch of one.")
    return x


def parameters(value: Any, prior: Distribution, support: str) -> Tensor:
    """Return parameters `(B, d_theta)` in the support of their prior, described by `support`."""
    theta, dim = as_tensor(value, "theta"), prior.event_shape.numel()
    if theta.dim() != 2 or theta.shape[1] != dim:
        then = "One parameter vector is theta[None], a batch of one."
        raise wrong("theta", f"parameters of shape (B, {dim})", _shape(theta), then)
    constraint: Any = prior.support
    inside = torch.isfinite(theta).all(1)
    if len(theta):  # torch's constraints do not take empty batches
        inside &= constraint.check(theta)
    if len(outside := (~inside).nonzero()[:, 0].tolist()):
        first = f"theta[{outside[0]}] = {theta[outside[0]].tolist()}"
        got = f"{len(outside)} of {len(theta)} outside it (the first is {first})"
        then = "Draw them with sample_prior, or drop those outside."
        raise wrong("theta", f"parameters in the support of the prior, {support}", got, then)
    return theta


def finite_rows(x: Tensor) -> Tensor:
    """Return whether all numbers of each row of `(n, D)` are finite, `(n,)`."""
    return torch.isfinite(x).all(1)


def summaries(value: Any, num: int, dim: int | None = None, name: str = "summary") -> Tensor:
    """Return what a summary function returned, as `(B, d_s)`."""
    if isinstance(value, float | int | np.generic):  # such as x.mean(), of an array
        value = np.asarray(value)
    s = as_tensor(value, f"{name} (its result)").detach()
    shape = tuple(s.shape)
    if len(shape) != 2 or shape[0] != num or not shape[1] or dim not in (None, shape[1]):
        said = f"summaries of shape ({num}, {'d_s' if dim is None else dim}) for {num} datasets"
        then = (
            "A summary maps a batch of datasets (B, N, *event) to (B, d_s): for the sample mean "
            "that is lambda x: x.mean(1), not x.mean(0); a single number for each dataset needs "
            "[:, None]."
        )
        raise wrong(name, said, f"shape {shape}", then)
    return s


def finite_summaries(s: Tensor) -> Tensor:
    """Return summaries of observed data, which must be finite."""
    if len(bad := (~torch.isfinite(s).all(1)).nonzero()[:, 0].tolist()):
        first = f"the first is dataset {bad[0]}"
        got = f"NaN or infinite values for {len(bad)} of {len(s)} datasets ({first})"
        then = "Check the summary function on that dataset."
        raise wrong("summary", "finite summaries of the observed data", got, then)
    return s


def agree(got: Tensor, expected: Tensor) -> bool:
    """Return whether two calls gave the same up to float32 rounding; NaN agrees with anything."""
    if got.shape != expected.shape:
        return False
    difference = (got - expected).abs()
    return bool((~torch.isfinite(difference) | (difference <= 1e-4 + 1e-3 * expected.abs())).all())


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line outside mindist (and mindist-paper) from which it was entered."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("mindist"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
