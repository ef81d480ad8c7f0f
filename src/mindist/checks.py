"""Validation of everything that users hand over, and every error text.

Each message names the argument, what was expected, what came, and what to do next.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from mindist.protocols import Array


def as_tensor(value: Any, name: str) -> Tensor:
    """A floating-point tensor from a tensor or a NumPy array.

    Example:
        >>> as_tensor(np.array([1, 2]), "x")
        tensor([1., 2.])
    """
    if isinstance(value, np.ndarray):
        if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
            raise ValueError(
                f"{name}: expected an array without masked elements, got {int(value.mask.sum())} "
                "masked. Drop the observations that have any, or fill them as the simulator would."
            )
        if value.dtype.kind == "f" and value.dtype.itemsize > 8:
            value = value.astype(np.float64)
        value = np.asarray(value).astype(value.dtype.newbyteorder("="), copy=False)
        if value.dtype.kind not in "fiub":
            raise TypeError(
                f"{name}: expected numbers, got a NumPy array of dtype {value.dtype}. "
                f"Convert it first, for example with {name}.astype('float32')."
            )
        value = torch.from_numpy(np.require(value, requirements=["C", "W"]))
    if not isinstance(value, Tensor):
        raise TypeError(
            f"{name}: expected a torch tensor or a NumPy array, got {type(value).__name__}. "
            f"Wrap it, for example with torch.as_tensor({name})."
        )
    if value.is_complex():
        raise TypeError(
            f"{name}: expected real numbers, got {value.dtype}. Pass real and imaginary"
            " parts as two coordinates."
        )
    if value.layout != torch.strided or value.is_quantized or value.is_nested:
        raise TypeError(
            f"{name}: expected an ordinary, dense tensor, got one with layout {value.layout} and "
            f"dtype {value.dtype}. Convert it first, for example with {name}.to_dense() or "
            f"{name}.dequantize()."
        )
    return value if value.dtype in (torch.float32, torch.float64) else value.float()


def num_observations(x: Tensor, name: str) -> int:
    """N of datasets `(B, N, *event)`, at least 2."""
    num = x.shape[1]
    if num == 0:
        raise ValueError(
            f"{name}: expected datasets with at least 2 observations, got an empty "
            f"dataset (shape {tuple(x.shape)}). Check how the data were read."
        )
    if num == 1:
        raise ValueError(
            f"{name}: expected datasets with at least 2 observations, got a single observation "
            f"(shape {tuple(x.shape)}). A distance between distributions needs several "
            "exchangeable observations in each dataset."
        )
    return num


def simulations(x: Tensor, name: str = "x") -> Tensor:
    """Simulated datasets `(M, N, *event)` with finite values; the others dropped with a warning."""
    if x.dim() < 2:
        raise ValueError(
            f"{name}: expected simulated datasets of shape (M, N, *event), got shape "
            f"{tuple(x.shape)}. Stack the simulated datasets along a first axis."
        )
    if x.shape[0] and not x[0].numel():
        num_observations(x, name)
        raise ValueError(
            f"{name}: expected observations with at least one element, got shape {tuple(x.shape)}."
        )
    num_observations(x, name)
    return x


def warn_dropped(dropped: int, total: int) -> None:
    """Warn once about simulations with NaN or infinite values."""
    if dropped:
        warnings.warn(
            f"x: dropped {dropped} of {total} simulations because they or their summaries hold "
            "NaN or infinite values. If the simulator fails for some parameters, the posterior "
            "was trained without them too; check that it was.",
            UserWarning,
            stacklevel=4,
        )


def observed(x: Array, event_shape: Sequence[int], name: str = "x") -> tuple[Tensor, bool]:
    """Observed datasets as a finite batch `(B, N, *event)`, and whether one dataset was given."""
    x = as_tensor(x, name)
    event = tuple(event_shape)
    single = x.dim() == len(event) + 1
    if tuple(x.shape) == event and not (single and not event):
        raise ValueError(
            f"{name}: expected one dataset of shape (N, {_shape(event)}) or a batch of shape "
            f"(B, N, {_shape(event)}), got shape {tuple(x.shape)}, which is a single observation. "
            "A distance between distributions needs at least 2 exchangeable observations."
        )
    if (
        x.dim() not in (len(event) + 1, len(event) + 2)
        or tuple(x.shape[x.dim() - len(event) :]) != event
    ):
        raise ValueError(
            f"{name}: expected one dataset of shape ({_shape(('N', *event))}) or a batch of shape "
            f"({_shape(('B', 'N', *event))}), as in the simulations, got shape {tuple(x.shape)}. "
            "Reshape the observations to the event shape that was simulated."
        )
    batch = x[None] if single else x
    num_observations(batch, name)
    if not finite_rows(batch.flatten(1)).all():
        bad = (~torch.isfinite(batch.flatten(2) if batch.dim() > 2 else batch[..., None])).any(-1)
        dataset, observation = (int(i) for i in bad.nonzero()[0])
        raise ValueError(
            f"{name}: expected finite observations, got {int(bad.sum())} observations with NaN or "
            f"infinite values (the first is observation {observation} of dataset {dataset}). "
            "Remove these observations, or impute them as the simulator would produce them."
        )
    return batch, single


def within_range(x: Tensor, dtype: torch.dtype, name: str = "x") -> Tensor:
    """Finite observations that are finite in another precision, too."""
    largest = torch.finfo(dtype).max
    if torch.finfo(x.dtype).max > largest and x.numel() and x.abs().amax() > largest:
        raise ValueError(
            f"{name}: expected observations of at most {largest:.3g}, the largest number of "
            f"{dtype}, in which the simulations came, got {float(x.abs().amax()):.3g}. Clip such "
            "observations, or fit to simulations in float64."
        )
    return x


def summaries(
    value: Any, num_datasets: int, dim: int | None = None, name: str = "summary"
) -> Tensor:
    """What a summary function returned, as `(B, d_s)`."""
    if isinstance(value, float | int | np.generic):  # such as x.mean(), of an array
        value = np.asarray(value)
    s = as_tensor(value, f"{name} (its result)").detach()
    expected = f"({num_datasets}, {'d_s' if dim is None else dim})"
    if (
        s.dim() != 2
        or s.shape[0] != num_datasets
        or s.shape[1] == 0
        or dim not in (None, s.shape[1])
    ):
        raise ValueError(
            f"{name}: expected summaries of shape {expected} for {num_datasets} datasets, got "
            f"shape {tuple(s.shape)}. A summary maps a batch of datasets (B, N, *event) to "
            "(B, d_s): for the sample mean that is lambda x: x.mean(1), not x.mean(0); a single "
            "number for each dataset needs [:, None]."
        )
    return s


def finite_rows(x: Tensor) -> Tensor:
    """Whether all numbers of each row of `(n, D)` are finite, `(n,)`.

    A row whose sum is finite has no other: the sum is one pass over the data, where a look at each
    number takes forty times as long. Only rows that overflow or are not finite are looked at.

    Example:
        >>> finite_rows(torch.tensor([[1.0, 2.0], [3e38, 3e38], [torch.inf, -torch.inf]]))
        tensor([ True,  True, False])
    """
    if not x.is_floating_point():
        return torch.isfinite(x).all(1)
    finite = torch.isfinite(x.sum(1))
    suspect = (~finite).nonzero()[:, 0]
    if len(suspect):
        finite[suspect] = torch.isfinite(x[suspect]).all(1)
    return finite


def finite_summaries(s: Tensor, name: str = "summary") -> Tensor:
    """Summaries of observed data, which must be finite."""
    finite = torch.isfinite(s).all(1)
    if not finite.all():
        raise ValueError(
            f"{name}: expected finite summaries of the observed data, got NaN or infinite values "
            f"for {int((~finite).sum())} of {len(s)} datasets (the first is dataset "
            f"{int((~finite).nonzero()[0])}). Check the summary function on that dataset."
        )
    return s


def positive_bandwidth(bandwidth: float) -> float:
    """A kernel bandwidth above zero."""
    if not bandwidth > 0:
        raise ValueError(
            "x: the median distance between simulated observations is 0, so the kernel would have "
            "zero bandwidth: at least half of the simulated observations are identical. Check the "
            "simulator, or give a positive number as bandwidth."
        )
    if not LEAST_BANDWIDTH < bandwidth < 1 / LEAST_BANDWIDTH:
        raise ValueError(
            f"bandwidth: expected between {LEAST_BANDWIDTH} and {1 / LEAST_BANDWIDTH}, got "
            f"{bandwidth:.3g}. Measure the data in other units, such as x / x.std(), and a "
            "bandwidth that is a number with them."
        )
    return bandwidth


LEAST_BANDWIDTH = 1e-100  # whose square and inverse square are numbers
BANDWIDTHS = (
    "a positive number, 'median', a multiple such as '0.5 median', or an efficiency above 0% and "
    "below 100% such as '95% efficient'"
)


def bad_bandwidth_rule(rule: object) -> ValueError:
    """The error for a bandwidth that is neither a positive number nor a rule we know."""
    return ValueError(f"bandwidth: expected {BANDWIDTHS}, got {rule!r}.")


def warn_inefficient(share: float, reached: float, multiple: float) -> None:
    """Warn that no bandwidth keeps the share of a summary's efficiency that was asked for."""
    warnings.warn(
        f"bandwidth: expected a bandwidth that keeps {share:.3g} of the efficiency of the summary, "
        f"got at most {reached:.3g}, at {multiple:.3g} times the median distance. The median "
        "distance is used. Ask for less, simulate more datasets, or give the kernel a "
        "representation that shows what the summary measures.",
        UserWarning,
        stacklevel=3,
    )


def no_sampling_noise() -> ValueError:
    """The error for an efficiency of a summary that is the same for all data of a parameter."""
    return ValueError(
        "bandwidth: expected a summary with sampling noise, of which an efficiency is a share, got "
        "one that does not change when observations are drawn again. Choose 'median'."
    )


def level(alpha: float) -> float:
    """A test's level, between 0 and 1."""
    value = number(alpha, "alpha", "a level between 0 and 1 such as 0.05")
    if not 0 < value < 1:
        raise ValueError(
            f"alpha: expected a level between 0 and 1, got {alpha}. The usual is 0.05."
        )
    return value


def search_options(value: Any, kind: type) -> Any:
    """Options of a search, in their own class."""
    if not isinstance(value, kind):
        raise TypeError(
            f"search: expected a {kind.__name__}, got {_shown(value)}. Pass its options to it, for "
            f"example search=mindist.{kind.__name__}(reweight=0)."
        )
    return value


def decoder(value: Any, names: Sequence[str]) -> Any:
    """The name of a decoder, or an unfitted decoder."""
    if isinstance(value, str):
        return choice(value, names, "decoder")
    methods = ("fit", "basis", "basis_and_jacobian", "__call__")
    if isinstance(value, type) or not all(callable(getattr(value, m, None)) for m in methods):
        words = ", ".join(map(repr, names))
        raise TypeError(
            f"decoder: expected one of {words}, or an unfitted decoder with the methods of "
            f"mindist.protocols.Decoder, got {_shown(value)}. Of a class of decoders pass an "
            "instance, such as RidgeDecoder()."
        )
    return value


def representation(value: Any, names: Sequence[str]) -> Any:
    """The name of a representation, or a function."""
    if isinstance(value, str):
        return choice(value, names, "representation")
    if not callable(value):
        words = ", ".join(map(repr, names))
        raise TypeError(
            f"representation: expected one of {words}, or a function of observations (n, *event) "
            f"to vectors (n, D), got {_shown(value)}."
        )
    return value


def enough_to_fit(num_simulations: int) -> int:
    """How many simulations a decoder is fitted to: some to learn from, some to judge by."""
    if num_simulations < 2:
        raise ValueError(
            "x: expected some hundreds of simulated datasets, 380 to detect at alpha = 0.05, got "
            f"so few that {num_simulations} are left to fit a decoder to. Simulate more."
        )
    return num_simulations


def calibration_size(num_simulations: int, fraction: float, alpha: float) -> int:
    """How many simulations to hold out, enough for a p-value of alpha to be possible."""
    held_out = int(fraction * num_simulations)
    needed = math.ceil(1 / alpha - 1 - 1e-9)
    if held_out < needed:
        raise ValueError(
            f"x: expected at least {math.ceil(needed / fraction)} simulated datasets, got "
            f"{num_simulations}. {fraction:.0%} of them are held out to calibrate detection, and "
            f"at alpha = {alpha} a p-value needs {needed} of these. Simulate more, or raise alpha."
        )
    return held_out


def integer(value: Any, name: str) -> int:
    """A whole number of any integer type.

    Example:
        >>> integer(np.int64(3), "seed"), integer(torch.tensor(3), "seed")
        (3, 3)
    """
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: expected a whole number, got {_shown(value)}.") from None


def seed(value: Any, name: str = "seed") -> int:
    """A whole number that torch's generators take."""
    if not -(2**63) <= integer(value, name) < 2**64:
        raise ValueError(
            f"{name}: expected a whole number of at most 64 bits, got {value}. Take it modulo "
            "2**64."
        )
    return integer(value, name)


def number(value: Any, name: str, expected: str = "a number") -> float:
    """A real number of any type: not text, not None, not True, not an array of several.

    Example:
        >>> number(np.float32(0.5), "alpha"), number(torch.tensor(2), "alpha")
        (0.5, 2.0)
        >>> number("5%", "alpha")
        Traceback (most recent call last):
            ...
        TypeError: alpha: expected a number, got '5%'.
    """
    try:
        if isinstance(value, str | bytes | bool | np.bool_):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{name}: expected {expected}, got {_shown(value)}.") from None


def seconds(value: Any, name: str) -> float:
    """A time of at least 0."""
    time = number(value, name, "a number of seconds, or None for no limit")
    if not time >= 0:
        raise ValueError(f"{name}: expected at least 0 seconds, got {value}.")
    return time


def flag(value: Any, name: str) -> bool:
    """True or False: a text such as "no" would count as true.

    Example:
        >>> flag("no", "local")
        Traceback (most recent call last):
            ...
        TypeError: local: expected True or False, got 'no'.
    """
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name}: expected True or False, got {_shown(value)}.")
    return bool(value)


def device(value: Any, name: str = "device") -> torch.device:
    """A device of torch that this machine has.

    Example:
        >>> device("gpu")
        Traceback (most recent call last):
            ...
        ValueError: device: expected a device of torch such as 'cpu', 'cuda' or 'cuda:1', got 'gpu'.
    """
    try:
        made = torch.device(value)
    except (RuntimeError, TypeError):
        raise ValueError(
            f"{name}: expected a device of torch such as 'cpu', 'cuda' or 'cuda:1', got "
            f"{_shown(value)}."
        ) from None
    # torch reads the index of a device as a number of 8 bits: "cuda:999" has index -25.
    if made.type == "cuda" and not 0 <= (made.index or 0) < torch.cuda.device_count():
        raise ValueError(
            f"{name}: expected a device that torch can use here, got {_shown(value)}; torch sees "
            f"{torch.cuda.device_count()} CUDA devices. Pass 'cpu', or install a build of torch "
            "and a driver for this GPU."
        )
    return made


def sizes(value: Any, name: str = "sample_shape") -> tuple[int, ...]:
    """A shape: whole numbers of at least 0 in a tuple, not one number.

    Example:
        >>> sizes(5)
        Traceback (most recent call last):
            ...
        TypeError: sample_shape: expected a shape, a tuple of whole numbers, got 5. Pass (5,).
    """
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        hint = f" Pass ({value},)." if isinstance(value, int) else " One axis of 5 is (5,)."
        raise TypeError(
            f"{name}: expected a shape, a tuple of whole numbers, got {_shown(value)}.{hint}"
        )
    shape = tuple(integer(size, name) for size in value)
    if any(size < 0 for size in shape):
        raise ValueError(f"{name}: expected numbers of at least 0, got {shape}.")
    return shape


def _shown(value: Any) -> str:
    """A value as an error shows it: short, and what it is where that says more."""
    if isinstance(value, Tensor | np.ndarray):
        return f"{type(value).__name__} of shape {tuple(value.shape)}"
    text = repr(value)
    return text if len(text) <= 80 else f"{type(value).__name__} {text[:60]}..."


def even(value: int, name: str) -> int:
    """A positive even number, such as one cosine and one sine for each frequency."""
    if integer(value, name) < 2 or value % 2:
        raise ValueError(
            f"{name}: expected a positive even number (a cosine and a sine for each "
            f"frequency), got {value}."
        )
    return value


def choice(value: str, allowed: Sequence[str], name: str) -> str:
    """One of a few words."""
    if not isinstance(value, str) or value not in allowed:
        words = ", ".join(map(repr, allowed))
        raise ValueError(f"{name}: expected one of {words}, got {_shown(value)}.")
    return value


def _shape(sizes: Sequence[object]) -> str:
    return ", ".join(str(size) for size in sizes)


def agree(got: Tensor, expected: Tensor) -> bool:
    """Whether two calls gave the same summaries, up to float32 rounding; NaN agrees with anything.

    Example:
        >>> agree(torch.tensor([[1.0, torch.nan]]), torch.tensor([[1.0001, torch.nan]]))
        True
    """
    if got.shape != expected.shape:
        return False
    difference = (got - expected).abs()
    return bool((~torch.isfinite(difference) | (difference <= 1e-4 + 1e-3 * expected.abs())).all())


def same_summary(got: Tensor, stored: Tensor) -> None:
    """A summary function given to `load` must agree with the one used at the fit."""
    if not agree(got.cpu(), stored):
        raise ValueError(
            f"summary: expected the function that this estimator was fitted with, which gives "
            f"{stored[0].tolist()} on a stored dataset, got one that gives {got[0].tolist()}. Pass "
            "the same function (and, for a network, the same weights)."
        )


def same_representation(got: Tensor, stored: Tensor) -> None:
    """A function given to `load` as representation must agree with the one used at the fit."""
    if not agree(got.cpu(), stored):
        raise ValueError(
            "representation: expected the function that this estimator was fitted with, which "
            f"gives {stored[0, 0].tolist()} for a stored observation, got one that gives "
            f"{got[0, 0].tolist()}. Pass the same function (and, for a network, the same weights)."
        )


def given_summaries(given: Tensor, computed: Tensor) -> None:
    """Summaries handed to `fit` must be those that the summary function gives."""
    if not agree(given, computed):
        raise ValueError(
            f"s: expected the summaries that summary(x) gives, {computed[0].tolist()} for the "
            f"first dataset, got {given[0].tolist()}. Pass summary(x) in the order of x, or leave "
            "s out."
        )


def start_vector(start: Tensor, dim: int) -> Tensor:
    """A given starting point of the search, as long as a summary."""
    if start.shape != (dim,):
        raise ValueError(
            f"starts: expected vectors of length {dim}, got length {len(start)}. A starting vector "
            "is a summary: one number for each summary statistic."
        )
    return start


def parameters(value: Any, prior: Distribution, support: str, name: str = "theta") -> Tensor:
    """Parameters `(B, d_theta)` in the support of their prior, which `support` says in words."""
    theta, dim = as_tensor(value, name), prior.event_shape.numel()
    if theta.dim() != 2 or theta.shape[1] != dim:
        raise ValueError(
            f"{name}: expected parameters of shape (B, {dim}), got shape {tuple(theta.shape)}. "
            f"One parameter vector is {name}[None], a batch of one."
        )
    constraint: Any = prior.support
    inside = torch.isfinite(theta).all(1)
    if len(theta):  # torch's constraints do not take empty batches
        inside &= constraint.check(theta)
    if not inside.all():
        first = int((~inside).nonzero()[0])
        raise ValueError(
            f"{name}: expected parameters in the support of the prior, {support}, got "
            f"{int((~inside).sum())} of {len(theta)} outside it (the first is {name}[{first}] = "
            f"{theta[first].tolist()}). Draw them with sample_prior, or drop those outside."
        )
    return theta


def rows(value: Tensor, dim: int, name: str) -> Tensor:
    """Parameters `(n, d_theta)` to start from, at least one."""
    if value.dim() != 2 or value.shape[1] != dim or not len(value):
        raise ValueError(
            f"{name}: expected parameters of shape (n, {dim}) with n at least 1, got shape "
            f"{tuple(value.shape)}. One parameter vector is theta[None]."
        )
    return value


def fraction(epsilon: float, name: str = "epsilon") -> float:
    """A contaminated fraction, from 0 to 1."""
    value = number(epsilon, name, "a fraction from 0 to 1")
    if not 0 <= value <= 1:
        raise ValueError(f"{name}: expected a fraction from 0 to 1, got {epsilon}. 10% is 0.1.")
    return value


def datasets(value: Any, event_shape: Sequence[int], name: str = "x") -> Tensor:
    """A batch of datasets `(B, N, *event)` with at least one observation each."""
    x, event = as_tensor(value, name), tuple(event_shape)
    if x.dim() != len(event) + 2 or tuple(x.shape[2:]) != event or not x.shape[1]:
        raise ValueError(
            f"{name}: expected datasets of shape ({_shape(('B', 'N', *event))}) with N at least 1, "
            f"got shape {tuple(x.shape)}. One dataset is {name}[None], a batch of one."
        )
    return x


def positive(value: int, name: str) -> int:
    """A whole number of at least 1, perhaps written as 3.0."""
    real = number(value, name, "a whole number of at least 1")
    if not (real >= 1 and real.is_integer()):
        raise ValueError(f"{name}: expected a whole number of at least 1, got {value}.")
    return int(value)


def size(num_observations: int | None, default: int) -> int:
    """How many observations of each dataset to simulate."""
    return positive(default if num_observations is None else num_observations, "num_observations")


def coordinates(value: Any, name: str = "coordinates") -> Tensor:
    """Positions `(C, 3, A)` of the atoms of a molecule in its conformations."""
    if not isinstance(value, Tensor) or value.dim() != 3 or value.shape[1] != 3:
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(
            f"{name}: expected one tensor of shape (C, 3, A), C conformations of A atoms with x, "
            f"y, z in Angstrom, got {got}. Stack the conformations along a first axis, and "
            "transpose them if the atoms come before x, y, z."
        )
    if not value.numel() or not torch.isfinite(value).all():
        raise ValueError(
            f"{name}: expected at least one atom and finite coordinates, got shape "
            f"{tuple(value.shape)} with NaN, infinite or no values. Drop such atoms from all "
            "conformations."
        )
    return value


def ends(value: tuple[float, float], name: str) -> tuple[float, float]:
    """The ends of an interval of positive numbers."""
    if len(value) != 2 or not 0 < value[0] <= value[1] < math.inf:
        raise ValueError(
            f"{name}: expected the ends (low, high) of an interval with 0 < low <= high, got "
            f"{value}. A fixed value v is (v, v)."
        )
    return value


def same_shapes(chunks: Sequence[Tensor]) -> None:
    """Simulated datasets must all have the same shape."""
    for chunk in chunks[1:]:
        if chunk.shape[1:] != chunks[0].shape[1:]:
            raise ValueError(
                f"x: expected every simulated dataset to have shape {tuple(chunks[0].shape[1:])}, "
                f"got a chunk with datasets of shape {tuple(chunk.shape[1:])}. Simulate alike; "
                "each item of an iterator is a chunk (m, N, *event), not one dataset."
            )


def no_simulations() -> ValueError:
    """The error for nothing to fit to."""
    return ValueError(
        "x: expected simulated datasets, got none with finite values. Check the simulator and the "
        "summary for NaN."
    )
