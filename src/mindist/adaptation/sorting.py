r"""Sort: which observations does the model at a summary explain?

In residual space (`mindist.features.residuals`), against the residuals of simulated datasets whose
summaries are near s:

.. math:: p_s(x) = \tfrac1J \textstyle\sum_j k_h(\rho(x, s), \rho_j) , \qquad
    \hat p(x_n) = \tfrac{1}{N-1} \textstyle\sum_{m \ne n} k_h(\rho(x_n, s), \rho(x_m, s)) .

(a) An observation is out where the model's density is lower than at all but a thousandth of
simulated observations. Below the lowest twentieth the share of simulated observations with a lower
log density is taken to fall exponentially, as it does for a Gaussian: a thousandth then needs no
thousand observations.

(b) Where the data's own density exceeds the model's, the observation itself left out, by a factor
and by more than its sampling error, observations count by the ratio :math:`p_s / \hat p`: a clump
inside the support loses its excess. This is done at two widths, because a clump may be narrow.

Both are done with all numbers of a residual together, and with each of them, and their size, alone:
in many dimensions kernels see little, and what is wrong is often one number. Together by exact
kernels, because random features are noise at a thousandth of the mode; alone on a grid.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from mindist.detection.statistics import WIDTH, narrow_width
from mindist.features.kernel import median_distance
from mindist.features.residuals import Residuals, numbers, scale_of

# docs/robustness.md has the errors with other cuts and widths. The other numbers were not varied.
NARROWER = 4  # the second kernel of (b) is the narrow one to the power of 2^4: a quarter as wide
CUT, STRICT = 1e-3, 0.1  # shares of simulated observations below which one is out
TAIL = 0.05  # share of simulated observations from which the tail of the density is extrapolated
FACTOR, ERRORS = 1.3, 3.5  # by which the data's own density has to exceed the model's
FEWEST = 2.5  # observations that make a clump
CLUMPS = 0.95  # share of clean simulations that have no clump at a width
NEAR, POINTS = 16, 32  # simulated datasets near s, and residuals of each, that stand for the model
ROUGH = 4  # one in so many of them, where only what is far out matters
TAIL_POINTS = 1_500  # residuals from which the tail of the density is learned
REACH, STEP = 12.0, 0.25  # of the grid on which single numbers are counted
FAR = -80.0  # the least log of a kernel value: below -87 an exponential takes ten times as long
MOST_ALONE = 24  # numbers of a residual that are looked at one by one


@dataclass(frozen=True)
class Rules:
    """What may be chosen for a simulator (`mindist.selftest.choose_rules`)."""

    residuals: bool = True  # whether to see residuals of the model at s, or raw observations
    width: float = 1.0  # of the kernel that sorts, in widths of the default
    cut: float = CUT  # share of simulated observations below which one is out
    project: bool = True  # whether to project summaries that are unlike simulated ones
    always: bool = False  # whether to project data that nothing explains, too


DEFAULT = Rules()


class Sorted(NamedTuple):
    """What the model at a summary says of the observations of B datasets."""

    weights: Tensor  # `(B, N)`, between 0 and 1
    log_density: Tensor  # of the model, `(B, N)`
    rho: Tensor  # residuals `(B, N, q)`


@dataclass(frozen=True)
class Sorter:
    """The residuals of simulated datasets, by summary."""

    residuals: Residuals  # the map of an observation to its residual
    s: Annotated[Tensor, "M d"]  # summaries of simulated datasets `(M, d_s)`
    scale: Annotated[Tensor, "d"]  # standard deviations of simulated summaries `(d_s,)`
    # residuals of each dataset that are not in the model's lowest thousandth `(M, J, q)`
    points: Annotated[Tensor, "M J q"]
    # log density that a twentieth of the simulated observations near s are below `(M,)`
    level: Annotated[Tensor, "M"]
    decay: Annotated[Tensor, "M"]  # mean excess of those below it `(M,)`
    # densities of single numbers that a thousandth of the simulated observations have one below, V
    # of them
    cut: tuple[float, ...]
    bandwidth: float  # h
    # sampling errors by which the data's own density has to exceed the model's, at both widths and
    # alone: as many as it takes for clean simulations to have next to no clumps
    errors: tuple[float, ...]
    rules: Rules = DEFAULT  # by which it was learned

    @classmethod
    def of(cls, residuals: Residuals, seen: Tensor, s: Tensor, rules: Rules = DEFAULT) -> "Sorter":
        """From simulated datasets, as residuals see them `(M, N, q)`, and their summaries."""
        generator, s = torch.Generator().manual_seed(0), s.double()
        rho, (M, N, q) = residuals(seen, s), seen.shape
        scale = scale_of(s)
        near = torch.cdist(s / scale, s / scale).fill_diagonal_(math.inf)
        order = near.topk(min(M - 1, max(NEAR, -(-TAIL_POINTS // N))), largest=False).indices
        first = rho[:, :POINTS]
        bandwidth = rules.width * narrow_width(median_distance(rho, generator) or 1.0, q)
        density = [
            _kernel(rows, first[idx[:, :NEAR]].flatten(1, 2), bandwidth).mean(-1)
            for rows, idx in zip(rho.split(16), order.split(16), strict=True)
        ]
        log_density = torch.cat(density).log()
        pool = log_density[order].flatten(1).sort(1).values
        lowest = max(2, int(TAIL * pool.shape[1]))
        level = pool[:, lowest]
        decay = (level[:, None] - pool[:, :lowest]).mean(1).clamp(min=1e-3)
        kept = _share(log_density, level[:, None], decay[:, None]) > rules.cut
        shuffled = torch.rand(kept.shape, generator=generator).to(s.device) + (~kept).float()
        chosen = shuffled.argsort(1)[:, :POINTS]
        points = rho.gather(1, chosen[..., None].expand(-1, -1, q))
        excesses: list[tuple[Tensor, ...]] = []
        densities = []
        for b in torch.arange(M, device=s.device).split(16):
            model, weights = points[order[b, :NEAR]].flatten(1, 2), kept[b].float()
            alone = _Alone.of(rho[b], model)
            own = _kernel(rho[b], rho[b], bandwidth)
            clumps = (
                *_clumps(_kernel(rho[b], model, bandwidth), own, weights),
                *alone.clumps(weights),
            )
            excesses.append(tuple(excess.amax(1) for _, excess in clumps))
            densities.append(alone.model.transpose(0, 1).flatten(1))
        most = (torch.cat(part).double().quantile(CLUMPS) for part in zip(*excesses, strict=True))
        errors = tuple(max(ERRORS, float(value)) for value in most)
        each = torch.cat(densities, 1)  # (V, M N)
        rank = int(rules.cut * M * N / max(1, len(each)))
        cut = tuple(each.sort(1).values[:, rank].tolist()) or (0.0,)
        level, decay = level.double(), decay.double()
        return cls(residuals, s, scale, points, level, decay, cut, bandwidth, errors, rules)

    @cached_property
    def _unit(self) -> Tensor:
        return (self.s / self.scale).float()

    def near(self, s: Tensor) -> Tensor:
        """Return indices `(B, k)` of the simulated datasets nearest to summaries `(B, d_s)`."""
        distance = torch.cdist((s / self.scale).float(), self._unit)
        return distance.topk(min(NEAR, len(self.s)), largest=False).indices

    def __call__(self, seen: Tensor, s: Tensor, *, clumps: bool = True, cut: float = 0) -> Sorted:
        """Sort observations `(B, N, q)` by the model at summaries `(B, d_s)`.

        With `clumps` these are weighed down too; `cut` takes the place of the rule's.
        """
        rho, near = self.residuals(seen, s), self.near(s)
        points = self.points[near, :: 1 if clumps else ROUGH].flatten(1, 2)
        kernel = _kernel(rho, points, self.bandwidth)
        log_density = kernel.mean(-1).log()
        level, decay = (part[near].mean(1)[:, None].float() for part in (self.level, self.decay))
        share = _share(log_density, level, decay)
        alone = _Alone.of(rho, points)
        usual = (alone.model >= alone.model.new_tensor(self.cut)[:, None]).all(1)
        weights = ((share > (cut or self.rules.cut)) & usual).float()
        if clumps:
            kept, own = weights, _kernel(rho, rho, self.bandwidth)
            for (ratio, excess), errors in zip(
                _clumps(kernel, own, kept), self.errors[:2], strict=True
            ):
                weights = weights.minimum(torch.where(excess > errors, kept * ratio, kept))
            # What all numbers together show is no longer there to be blamed on a single one.
            for ratio, excess in alone.clumps(weights):
                weights = torch.where(excess > self.errors[2], weights * ratio, weights)
        return Sorted(weights, log_density, rho)


def _kernel(x: Tensor, y: Tensor, bandwidth: float) -> Tensor:
    """Return the Gaussian kernel of `(B, n, q)` and `(B, m, q)`, float32, as one new tensor."""
    scaled = x / bandwidth
    other = y / bandwidth
    product = torch.baddbmm(
        other.square().sum(-1)[:, None, :], scaled, other.mT, beta=-0.5, alpha=1.0
    )
    return product.sub_(scaled.square().sum(-1)[..., None] / 2).clamp_(FAR, 0).exp_()


def _share(log_density: Tensor, level: Tensor, decay: Tensor) -> Tensor:
    """Return the share of simulated observations with a lower density; 1 above the tail."""
    tail = TAIL * ((log_density - level) / decay).exp()
    return torch.where(log_density < level, tail, 1.0)


def _clumps(kernel: Tensor, own: Tensor, kept: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield, for both widths, the model's density over the data's own, and the latter's excess.

    The excess is in sampling errors, 0 where it is no clump. The kernels of observations and the
    model's residuals `(B, N, J)`, and of observations among themselves `(B, N, N)`, are changed.
    """
    others = (kept.sum(1, keepdim=True) - kept).clamp(min=1)
    for width in range(2):
        if width:
            for _ in range(NARROWER):
                kernel.square_(), own.square_()
        model = kernel.mean(-1)
        data = ((own @ kept[..., None])[..., 0] - kept) / others
        yield _excess(model, data, kept, others, kernel.shape[2])


def _excess(
    model: Tensor, data: Tensor, kept: Tensor, others: Tensor, num: int
) -> tuple[Tensor, Tensor]:
    """Return the ratio of two densities, and what the data's exceeds the model's by, in errors."""
    # The variance of a mean of kernel values is at most that of their second moment, which for
    # a Gaussian kernel in one dimension is .7 of the first.
    error = (0.7 * model.clamp(min=1e-9) * (1 / others + 1 / num)).sqrt()
    clump = (data > FACTOR * model) & (data * others > FEWEST) & (kept > 0)
    return model / data.clamp(min=1e-30), torch.where(clump, (data - model) / error, 0.0)


@dataclass(frozen=True)
class _Alone:
    """The numbers of residuals one by one, and their size, on a grid."""

    place: Tensor  # where each of V numbers of an observation lies on the grid `(B, V, N)`
    model: Tensor  # the model's density there, in mean kernel values `(B, V, N)`
    num: int  # residuals that stand for the model

    @classmethod
    def of(cls, rho: Tensor, points: Tensor) -> "_Alone":
        """From residuals `(B, N, q)` of datasets and `(B, J, q)` of the model."""
        place, num = _place(rho), points.shape[1]
        return cls(place, _at(_smoothed(_place(points), 1.0) / num, place), num)

    def clumps(self, kept: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield what `_clumps` does, of the number with the largest excess, if there are any."""
        if not self.place.shape[1]:
            return
        kept = kept[:, None]
        others = (kept.sum(2, keepdim=True) - kept).clamp(min=1)
        data = (_at(_smoothed(self.place, kept), self.place) - kept).clamp(min=0) / others
        ratio, excess = _excess(self.model, data, kept, others, self.num)
        most = excess.max(1)
        yield ratio.gather(1, most.indices[:, None])[:, 0], most.values


def _place(rho: Tensor) -> Tensor:
    """Return places on the grid `(B, V, n)` of the numbers of residuals `(B, n, q)`, and of size.

    A single number is looked at already: V is 0. Of many, only the size is looked at.
    """
    q = rho.shape[-1]
    if q == 1:
        return rho.new_zeros(len(rho), 0, rho.shape[1])
    every = numbers(rho)
    chosen = every if q <= MOST_ALONE else every[..., -1:]
    return ((chosen.clamp(-REACH, REACH - STEP) + REACH) / STEP).mT.contiguous()


def _smoothed(place: Tensor, weights: Tensor | float) -> Tensor:
    """Return sums of kernel values at the grid `(B, V, G)` of weighted places `(B, V, n)`."""
    grid = STEP * torch.arange(round(2 * REACH / STEP) + 1).to(place)
    low = place.floor()
    index, upper = low.long(), place - low
    count = place.new_zeros(*place.shape[:2], len(grid))
    count.scatter_add_(2, index, (1 - upper) * weights).scatter_add_(2, index + 1, upper * weights)
    return count @ (-0.5 * ((grid - grid[:, None]) / WIDTH).square()).exp()


def _at(values: Tensor, place: Tensor) -> Tensor:
    """Interpolate values on the grid `(B, V, G)` at places `(B, V, n)`."""
    low = place.floor()
    index = low.long()
    return values.gather(2, index).lerp(values.gather(2, index + 1), place - low)
