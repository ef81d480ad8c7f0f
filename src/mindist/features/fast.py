r"""Waves of observations by the compiled kernels of `waves.py`, on all cores.

In few dimensions a kernel makes the phases :math:`x W` too, one observation after the other, and
each thread has its share of the datasets. In many the phases are a matrix product, which its
library spreads over the cores, in blocks; threads share the waves of each block.

Nothing of size datasets x N x H exists. The number of threads changes no sum: a share is a range of
datasets or, of fewer datasets than threads, of frequencies, and each number is summed in the same
order. A matrix product is its library's, which may round otherwise with other threads or blocks.
"""

from __future__ import annotations

import functools
import math
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from mindist.features.spans import rows_of, spans
from mindist.threads import Team, ranges, team

# Of phases made by the kernel itself. Nanoseconds for a cosine and its sine, with the phase, at
# K = 512, float32, one busy core, medians: D = 2 .87 (1.14 by products), 4 .97 (1.23), 8 1.29
# (1.31), 12 1.68 (1.39), 64 6.4 (3.6).
FUSED_DIMENSIONS = 8

# Cosines and sines. On two busy cores, the best of 60: alone .89 ms, shared 1.07 ms for 2^22 of
# them; alone 2.1 ms, shared 1.5 ms for 2^23.3.
WORTH_SHARING = 2**23
LANES = 16  # float32 numbers in the longest vector instruction: frequencies are cut at multiples
MOST_BLOCKS = 8  # multiplied at once, for as many threads: 16 MB of phases


@functools.cache
def kernels() -> ModuleType | None:
    """The compiled kernels; None where numba is missing or does not fit the installed NumPy."""
    return None  # the tensor code is the only path from here on; the loops leave next


def serves(*tensors: Tensor) -> bool:
    """Whether the kernels take these data and weights: in memory, with no derivative to follow.

    Example:
        >>> serves(torch.zeros(2, dtype=torch.long)), serves(torch.zeros(2, device="meta"))
        (False, False)
        >>> serves(torch.zeros(2, requires_grad=True))
        False
    """
    return all(map(_is_plain, tensors)) and kernels() is not None


def _is_plain(x: Tensor) -> bool:
    usual = x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)
    return usual and _is_memory(x) and not _is_differentiated(x)


def _is_memory(x: Tensor) -> bool:
    """Whether there are numbers to read: the tensors inside `torch.vmap`, for one, have none."""
    try:
        x.data_ptr()
    except RuntimeError:
        return False
    return True


def _is_differentiated(x: Tensor) -> bool:
    """Backwards or forwards."""
    backwards = torch.is_grad_enabled() and x.requires_grad
    return backwards or forward_ad.unpack_dual(x).tangent is not None


def turns_of(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Frequencies `(D, H)` in turns, in the precision of the data.

    Example:
        >>> turns_of(torch.full((1, 1), 2 * math.pi), torch.float64)
        tensor([[1.]], dtype=torch.float64)
    """
    return (weight.detach() / (2 * math.pi)).to(dtype).contiguous()


def waves(x: Tensor, turns: Tensor, scale: float, room: Tensor | None = None) -> Tensor:
    """Scaled cosines, then sines, `(n, 2 H)`, of observations `(n, D)`.

    They are written into `room`, `(n, 2 H)`, if there is one: memory that is used again costs no
    page faults, which take as long as the waves.

    Example:
        >>> waves(torch.zeros(1, 2), torch.ones(2, 1), scale=3.0)
        tensor([[3., 0.]])
    """
    x, turns = _dense(x), turns.to(x.dtype)
    out = x.new_empty(len(x), turns.shape[1] * 2) if room is None else room
    with team(worth=out.numel() >= WORTH_SHARING) as threads:
        if 0 < len(turns) <= FUSED_DIMENSIONS:
            _waves_of_data(x, turns, scale, out, threads)
        else:
            _waves_by_product(x, turns, scale, out, threads)
    return out


def mean_waves(x: Tensor, turns: Tensor, scale: float, groups: int = 1) -> Tensor:
    """The mean of `waves` over the observations of each dataset, `(B, 2 H)` of `(B, N, D)`.

    Of several kernels with H / `groups` frequencies each: cosines and sines of the first, then
    those of the next.

    Example:
        >>> mean_waves(torch.zeros(1, 5, 2), torch.ones(2, 1), scale=3.0)
        tensor([[3., 0.]])
        >>> mean_waves(torch.full((1, 5, 1), 0.25), torch.eye(1, 2), scale=1.0, groups=2).abs()
        tensor([[0., 1., 1., 0.]])
    """
    x, turns = _dense(x), turns.to(x.dtype)
    out = x.new_empty(len(x), turns.shape[1] * 2)
    with team(worth=out.numel() * x.shape[1] >= WORTH_SHARING) as threads:
        if 0 < len(turns) <= FUSED_DIMENSIONS:
            _mean_of_data(x, turns, (scale / x.shape[1], groups), out, threads)
        else:
            _mean_by_product(x, turns, (scale / x.shape[1], groups), out, threads)
    return out


def _waves_of_data(x: Tensor, turns: Tensor, scale: float, out: Tensor, threads: Team) -> None:
    kernel = partial(_kernels().waves_of_data, x.numpy(), turns.numpy(), _number(scale, x))
    threads.do(partial(kernel, out.numpy()), ranges(len(x), threads.size))


def _waves_by_product(x: Tensor, turns: Tensor, scale: float, out: Tensor, threads: Team) -> None:
    kernel, rows = _kernels().waves_of_phases, _rows(turns, x, threads)
    phase = x.new_empty(min(len(x), rows), turns.shape[1])
    for block, result in zip(x.split(rows), out.split(rows), strict=True):
        made = torch.mm(block, turns, out=phase[: len(block)])
        write = partial(kernel, made.numpy(), _number(scale, x), result.numpy())
        threads.do(write, ranges(len(block), threads.size))


def _mean_of_data(
    x: Tensor, turns: Tensor, form: tuple[float, int], out: Tensor, threads: Team
) -> None:
    kernel = partial(_kernels().mean_of_data, x.numpy(), turns.numpy(), *form, out.numpy())
    threads.do(kernel, _shares(len(x), turns.shape[1], threads.size))


def _mean_by_product(
    x: Tensor, turns: Tensor, form: tuple[float, int], out: Tensor, threads: Team
) -> None:
    (num_datasets, num_obs, dim), half = x.shape, turns.shape[1]
    rows, result = x.view(-1, dim), out.numpy()
    phase = x.new_empty(min(len(rows), _rows(turns, x, threads)), half)
    for first, last, span in spans(num_datasets, num_obs, len(phase)):
        made = torch.mm(rows[first:last], turns, out=phase[: last - first]).numpy()
        if last - first >= num_obs:
            write = partial(_kernels().mean_of_phases, made, *form, result[span])
            threads.do(write, _shares(span.stop - span.start, half, threads.size))
            continue
        if first % num_obs == 0:  # not so in the middle of a dataset
            total = np.zeros(2 * half)
        threads.do(partial(_kernels().add_phases, made, total), _shares(1, half, threads.size))
        if last % num_obs == 0:
            _kernels().write_mean(total, *form, 0, half, result[span.start])


def _shares(num_datasets: int, half: int, size: int) -> list[tuple[int, int, int, int]]:
    """One share of the sums for each thread: some datasets, or some frequencies of all."""
    if num_datasets >= size:
        return [(*datasets, 0, half) for datasets in ranges(num_datasets, size)]
    return [(0, num_datasets, *few) for few in ranges(half, size, multiple=LANES)]


def _rows(turns: Tensor, x: Tensor, threads: Team) -> int:
    """Observations whose phases are computed at once: a block for each thread."""
    return min(threads.size, MOST_BLOCKS) * rows_of(turns.shape[1], x)


def _kernels() -> ModuleType:
    compiled = kernels()
    assert compiled is not None, "call `serves` first"
    return compiled


def _number(value: float, x: Tensor) -> np.floating[Any]:
    """A number in the precision of the data, without which a kernel would compute in float64."""
    return np.float32(value) if x.dtype == torch.float32 else np.float64(value)


def _dense(x: Tensor) -> Tensor:
    """The same numbers in order, as a kernel reads them."""
    return x.detach().resolve_neg().contiguous()
