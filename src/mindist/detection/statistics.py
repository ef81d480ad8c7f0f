r"""Statistics that are large when a dataset does not look simulated, each sharp where others miss.

The residual :math:`r = \bar z - \mu(s)` of one kernel gives, with null residuals
:math:`r_1, \ldots, r_M` of simulations that were held out of the decoder's fit:

.. math::
    T_1 = \log \|r\|^2 - g(s), \quad g(s) \approx \mathbb{E}[\log \|r\|^2 \mid s], \qquad
    T_2 = \log r^\top (S + 0.01\, t\, I)^{-1} r, \quad S = \tfrac1M \textstyle\sum_i r_i r_i^\top ,

with t the top eigenvalue of S. :math:`T_1` sees what is small by the standard of all simulations
and large by that of simulations with the same summary: in SIR it raises the power at epsilon .05
from .12 to .83. :math:`T_2` sees small residuals in directions in which simulations have none: in
Cryo-EM it raises the power at epsilon .3 from .34 to .70. Both are functions of what is not
explained by s; how unusual s itself is, is the third statistic, the distance to the fifth nearest
simulated summary in whitened coordinates.

**Other sample sizes.** Residuals of datasets with N observations are multiplied by
:math:`\sqrt{N / N_0}` to stand for datasets with the simulations' :math:`N_0`, because sampling
noise shrinks as :math:`1/\sqrt N`. The decoder's own error does not shrink: far above :math:`N_0`
it is blown up with the rest, and clean data are rejected too often (docs/method.md, "Detection",
has the table). The spread of s around its mean given theta changes with N as well, and
`SummaryOutlyingness` does not correct for it.

**Mahalanobis.** The length of a residual in units of what simulations show in its direction:

.. math:: q(r) = r^\top (S + 0.01\, t\, I)^{-1} r, \qquad
    S = \tfrac1M \textstyle\sum_i r_i r_i^\top ,

with t the top eigenvalue of S, by a Cholesky factor: a tenth of the time of all eigenvectors, and
the same lengths. With more than 1,024 features, S has its own eigenvalues in as many leading
directions and one for all others: time and memory stay linear in the features. Without simulation
i, up to the change of t,

.. math:: r_i^\top (A - \tfrac1M r_i r_i^\top)^{-1} r_i = \frac{q_i}{1 - q_i / M} .

The damping bounds the condition number by a hundred, so that products may be taken in the precision
of the residuals. A residual that may be nothing but rounding has length 0: where a summary tells
everything (the mean of zeros and ones), all of them are, and which is larger says nothing.

**Neighbours.** The distance to the k-th nearest of some points, :math:`d_{(k)}(s) = \min\{r : \#\{i
: \|s - s_i\| \le r\} \ge k\}`.

In few dimensions a tree looks at a handful of the points, in many at most of them. All 10,000
points among themselves took .01 s in a tree and .79 s by brute force in 2 dimensions, .23 and .56 s
in 8, .92 and .92 s in 12, 1.6 and .9 s in 16 (one core).

**Regressed summary.** Where a summary is more sensitive than the embedding, contamination moves it
first: in SIR a tenth of the trajectories hardly changes their distribution, but the means of peak
heights a great deal. The residual of a linear ridge regression of the summary on the mean
embeddings of all kernels,

.. math:: r = s - \hat s(\bar z), \qquad
    \hat s(\bar z) = \bar s + B^\top (\bar z - \bar z_0), \qquad
    B = (G + \lambda I)^{-1} \tfrac1M Z^\top S ,

with G the covariance of the embeddings, is then large by the standard of simulations. The strength
:math:`\lambda` has the smallest exact leave-one-out error,

.. math:: r_i^{(-i)} = \frac{r_i}{1 - h_i}, \qquad
    h_i = \tfrac1M + \tfrac1M\, z_i^\top (G + \lambda I)^{-1} z_i .

In the eigenbasis of G all strengths have the same coordinates, so that they cost hardly more than
one. G itself is summed in float64: strengths down to 1e-10 are chosen (Gaussian, OUP).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

import torch
from torch import Tensor

from mindist.decoders import RidgeDecoder
from mindist.decoders.ridge import Gram, Standardiser
from mindist.schema import INLINE

DAMPING = 0.01  # of the top eigenvalue; the powers in `statistics` were measured with it
MAX_DIRECTIONS = 1_024  # up to so many columns all are computed: half a second on one core
SPARE = 32  # directions beyond those that are wanted, which take what is not separated yet
TINY = torch.finfo(torch.float64).tiny
# The squared length of a residual that float32 may have made: 3e-13 for embeddings that are a
# function of the summary. Residuals of N observations are about 1/N.
ROUNDED = 1e-11
BLOCK_ROWS = 1_024  # 4 MB of residuals at K = 512, float64


def leading_directions(rows: Tensor, num: int, *, rounds: int = 2) -> Tensor:
    r"""Return the eigenvectors `(K, q)` of :math:`R^\top R` with the largest eigenvalues, in order.

    With more than 1,024 columns of rows R, `(M, K)`, a random subspace that is multiplied by
    :math:`R^\top R` and made orthonormal again, so many `rounds`, turns towards them at a cost
    linear in K (Halko, Martinsson and Tropp, 2011); q is then at most M, and always at most `num`.
    """
    if rows.shape[1] <= MAX_DIRECTIONS:
        _, vectors = torch.linalg.eigh((rows.T @ rows).double())
        leading: Tensor = vectors.flip(1)[:, :num].to(rows.dtype)
        return leading
    generator = torch.Generator().manual_seed(0)
    width = min(num + SPARE, *rows.shape)
    basis = torch.randn(rows.shape[1], width, generator=generator).to(rows)
    for _ in range(rounds):
        basis = torch.linalg.qr(rows.T @ (rows @ basis)).Q
    seen = rows @ basis
    _, turn = torch.linalg.eigh((seen.T @ seen).double())
    directions: Tensor = basis @ turn.flip(1)[:, :num].to(rows.dtype)
    return directions


@dataclass(frozen=True)
class Mahalanobis:
    """Squared Mahalanobis lengths, as logarithms.

    Arguments:
        whitener: W, `(K, K)`, float64; q is the squared length of `r W`. Or `(K, q)`, with
            orthogonal columns.
        num_simulations: M.
        rest: The weight of what is orthogonal to the columns of W, where they are fewer than K.
    """

    whitener: Annotated[Tensor, "K r"]
    num_simulations: Annotated[int, range(1, 2**31)]
    rest: float = 0.0

    def __post_init__(self) -> None:
        K, directions = self.whitener.shape
        if directions > K:
            raise ValueError(
                f"whitener: expected at most as many columns as its {K} rows, got {directions}."
            )

    @classmethod
    def of(cls, residual: Tensor) -> Mahalanobis:
        """From residuals of simulations `(M, K)`."""
        if residual.shape[1] > MAX_DIRECTIONS:
            return cls._leading(residual)
        width = residual.shape[1]
        total = torch.zeros(width, width, dtype=torch.float64, device=residual.device)
        for rows in residual.split(BLOCK_ROWS):
            total += rows.T @ rows
        covariance = total / len(residual)
        damping = DAMPING * torch.linalg.eigvalsh(covariance)[-1]
        unit = torch.eye(width, dtype=torch.float64, device=residual.device)
        factor = torch.linalg.cholesky(covariance + damping.clamp(min=TINY) * unit)
        whitener = torch.linalg.solve_triangular(factor, unit, upper=False).T
        # As it is stored: products round alike after loading.
        return cls(whitener.contiguous(), len(residual))

    @classmethod
    def _leading(cls, residual: Tensor) -> Mahalanobis:
        """Return the same in the leading directions, with one variance for all others."""
        directions = leading_directions(residual, MAX_DIRECTIONS, rounds=1)
        parts = [(rows @ directions).square().sum(0) for rows in residual.split(BLOCK_ROWS)]
        variance = torch.stack(parts).double().sum(0) / len(residual)
        damping = (DAMPING * variance.max()).clamp(min=TINY)
        left = residual.square().sum(dtype=torch.float64) / len(residual) - variance.sum()
        others = residual.shape[1] - len(variance)
        whitener = directions.double() / (variance + damping).sqrt()
        rest = 1 / (left.clamp(min=0) / others + damping)
        return cls(whitener.contiguous(), len(residual), float(rest))

    def squared(self, residual: Tensor) -> Tensor:
        """q of residuals `(B, K)`, `(B,)`, float64, computed in their precision."""
        whitener, unit = self._rounded(residual.dtype)
        parts = [self._length(r, whitener, unit) for r in residual.split(BLOCK_ROWS)]
        return torch.cat(parts) * (squared_length(residual) > ROUNDED)

    def _rounded(self, dtype: torch.dtype) -> tuple[Tensor, float]:
        """The whitener for a precision, column by column in memory, over a unit, and that unit."""
        return (
            (self._columns, 1.0)
            if dtype == torch.float64
            else (self._single_columns, self._largest)
        )

    def _length(self, residual: Tensor, whitener: Tensor, unit: float) -> Tensor:
        """q by a whitener in the precision of the residuals, which is W over a unit."""
        white = (residual @ whitener).square()
        if not self.rest:
            return white.sum(1).double() * unit**2
        inside = (white.double() * self._share).sum(1) * unit**2
        return inside + self.rest * residual.double().square().sum(1)

    @cached_property
    def _share(self) -> Tensor:
        """Weights that keep the columns of W from being counted twice in the rest of the length."""
        return 1 - self.rest / self.whitener.square().sum(0)

    @cached_property
    def _largest(self) -> float:
        """The largest entry of the whitener, whose rounded version would overflow without it."""
        return float(self.whitener.abs().amax())

    @cached_property
    def _columns(self) -> Tensor:
        """The whitener, column by column in memory."""
        return self.whitener.T.contiguous().T

    @cached_property
    def _single_columns(self) -> Tensor:
        """The whitener over its largest entry, float32, column by column in memory."""
        return (self.whitener / self._largest).float().T.contiguous().T

    def __call__(self, residual: Tensor) -> Tensor:
        """log q of residuals `(B, K)` that `of` did not see, `(B,)`, float64."""
        return finite_log(self.squares(residual)[1])

    def squares(self, residual: Tensor) -> Tensor:
        """Return squared lengths and q of residuals `(B, K)`, `(2, B)`, float64."""
        return torch.stack([squared_length(residual), self.squared(residual)])

    def leave_one_out(self, residual: Tensor) -> Tensor:
        """log q of the residuals that `of` saw, each left out of S, `(M,)`, float64."""
        q = self.squared(residual)
        return finite_log(q / (1 - q / self.num_simulations))


def squared_length(residual: Tensor) -> Tensor:
    """Squared lengths `(B,)`, float64, of residuals `(B, K)`."""
    return residual.square().sum(1).double()


def finite_log(squared: Tensor) -> Tensor:
    """Return the logarithm of squared lengths, finite at 0."""
    return squared.clamp(min=torch.finfo(squared.dtype).tiny).log()


MAX_DIMENSIONS = 8  # of a tree
BLOCK_ELEMENTS = 2**22  # 32 MB of distances


@dataclass(frozen=True)
class Neighbours:
    """Points among which to look for the nearest.

    Arguments:
        points: `(m, d)`, float64.
    """

    points: Tensor

    @cached_property
    def _tree(self) -> Any:
        from scipy.spatial import KDTree  # a fifth of the time of `import mindist`, if done there

        return KDTree(self.points.cpu().numpy())

    @torch.no_grad()
    def distance(self, at: Tensor, rank: int) -> Tensor:
        """Distances `(B,)` from `(B, d)`, float64, to the rank-th nearest point, at most m."""
        if not len(at):
            return at.new_empty(0)
        if self.points.shape[1] > MAX_DIMENSIONS:
            return self._brute_force(at, rank)
        distance, _ = self._tree.query(at.cpu().numpy(), k=[rank])
        return torch.from_numpy(distance[:, 0]).to(at.device)

    def _brute_force(self, at: Tensor, rank: int) -> Tensor:
        """Return the same from all distances, a bounded number at a time."""
        blocks = at.split(max(1, BLOCK_ELEMENTS // len(self.points)))
        # Without the shortcut by inner products, which makes a distance of 0 one of 1e-8.
        mode = "donot_use_mm_for_euclid_dist"
        distances = (torch.cdist(block, self.points, compute_mode=mode) for block in blocks)
        # Of 10,000, the six smallest in order take a fifth of the time of `kthvalue`.
        return torch.cat([d.topk(rank, largest=False).values[:, -1] for d in distances])


SCALE_BASIS = 100  # for one smooth number; at 128 the decoder's K numbers are flat (docs/method.md)
NEIGHBOURS = 5  # a single neighbour is noisy, many reach into the bulk
MAX_SUMMARIES = 10_000  # as many null p-values have a standard deviation of .002 at .05
# Of the largest eigenvalue of the summaries' correlations: a direction a thousand times narrower
# than the widest is rounding of redundant summaries.
REDUNDANT = 1e-6
# In standard deviations: nearer than that two summaries may be one, computed in another order. The
# fifth neighbour among 10,000 of one dimension is at 6e-4.
SAME = 1e-5


@dataclass(frozen=True)
class ResidualStatistics:
    r"""Statistics of one kernel: scaled and Mahalanobis distance, both as logarithms.

    The scale g is a ridge regression on s. Outside the simulations nothing is known of it, so it is
    evaluated at s clamped to the simulated range of each coordinate, and clamped to the range of
    its values there: an observed summary far away is neither excused nor accused by it.

    Arguments:
        log_scale: g, a decoder of one number.
        low: Smallest simulated value of each summary, `(d_s,)`, float64.
        high: Largest simulated value of each summary, `(d_s,)`, float64.
        span: Smallest and largest value of g at simulated summaries, `(2,)`, float64.
        mahalanobis: The covariance of the residuals.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> s = torch.linspace(-1, 1, 1_000)[:, None]
        >>> noise = torch.randn(1_000, 8, generator=generator, dtype=torch.float64)
        >>> statistics = ResidualStatistics.of(s.exp() * noise, s, generator)
        >>> residual = torch.ones(2, 8)  # the same where the scales are exp(-.5) and exp(.5)
        >>> statistics(residual, torch.tensor([[-0.5], [0.5]])).diff(dim=0).round()
        tensor([[-2., 0.]], dtype=torch.float64)
    """

    NAMES = ("scaled", "mahalanobis")

    log_scale: Annotated[RidgeDecoder, {"K": 1}]
    low: Annotated[Tensor, "d"]
    high: Annotated[Tensor, "d"]
    span: Annotated[Tensor, "2"]
    mahalanobis: Annotated[Mahalanobis, INLINE]

    @classmethod
    def of(cls, residual: Tensor, s: Tensor, generator: torch.Generator) -> ResidualStatistics:
        """Learn scale and covariance from null residuals.

        Arguments:
            residual: Residuals `(M, K)` of simulations held out of the decoder's fit, each in
                turn or all at once.
            s: Their summaries `(M, d_s)`.
            generator: Draws the basis of the regression.
        """
        if residual.dim() != 2 or s.dim() != 2 or len(residual) != len(s) or len(s) < 2:
            raise ValueError(
                "residual, s: expected null residuals (M, K) and summaries (M, d_s) of the same "
                f"simulations, at least 2, got shapes {tuple(residual.shape)} and "
                f"{tuple(s.shape)}."
            )
        s, target = s.double(), _log_length(residual)[:, None]
        log_scale = RidgeDecoder(SCALE_BASIS).fit(s, target, generator=generator)
        fitted = log_scale(s)
        span = torch.stack([fitted.min(), fitted.max()])
        return cls(log_scale, s.amin(0), s.amax(0), span, Mahalanobis.of(residual))

    @torch.no_grad()
    def __call__(self, residual: Tensor, s: Tensor, ratio: float = 1.0) -> Tensor:
        """Both statistics, `(B, 2)`, float64.

        Arguments:
            residual: Residuals `(B, K)` from a decoder that did not see these datasets.
            s: Their summaries `(B, d_s)`.
            ratio: N / N0, observations of these datasets over observations of the simulations.
                Exact for sampling noise only, see the module's docstring.
        """
        self._check(residual, s)
        if not 0 < ratio < math.inf:
            raise ValueError(
                f"ratio: expected a positive number of observations over that of the simulations, "
                f"got {ratio}."
            )
        squares = self.mahalanobis.squares(residual)
        torch.maximum(squares, self._least, out=squares).log_()
        length = squares[0]
        both = torch.stack([length - self._log_scale(s.double()), squares[1]], dim=1)
        if ratio == 1:
            return both
        # Both are quadratic in the residual: a factor sqrt(ratio) adds log(ratio), except to
        # rounding, which does not shrink with N.
        return both + math.log(ratio) * (length > math.log(ROUNDED))[:, None]

    def _log_scale(self, s: Tensor) -> Tensor:
        """g, `(B,)`, at summaries `(B, d_s)`, float64."""
        inside = s.clamp(self.low, self.high)
        return self.log_scale(inside).clamp(self.span[0], self.span[1])[:, 0]

    @cached_property
    def _least(self) -> Tensor:
        """Least squared length and squared Mahalanobis length, `(2, 1)`."""
        least = [[ROUNDED], [TINY]]
        return torch.tensor(least, dtype=torch.float64, device=self.span.device)

    @torch.no_grad()
    def leave_one_out(self, residual: Tensor, s: Tensor) -> Tensor:
        """Statistics `(M, 2)` of the simulations that `of` saw, each left out of scale and S.

        The null for `CombinedTest`: a simulation that pulled the scale towards itself looks more
        ordinary than fresh data do. The regression's own formula does it for g, that of
        `mindist.detection.statistics` for S.

        Available after `of`, not after loading: the regression's matrices are not stored.

        Arguments:
            residual: The residuals that `of` saw, `(M, K)`.
            s: The summaries that `of` saw, `(M, d_s)`.
        """
        self._check(residual, s)
        log_distance = _log_length(residual)
        left_out = self.log_scale.leave_one_out_residuals(s.double(), log_distance[:, None])
        scale = (log_distance - left_out[:, 0]).clamp(self.span[0], self.span[1])
        columns = [log_distance - scale, self.mahalanobis.leave_one_out(residual)]
        return torch.stack(columns, dim=1)

    def _check(self, residual: Tensor, s: Tensor) -> None:
        K, d_s = len(self.mahalanobis.whitener), len(self.low)
        if residual.shape != (len(s), K) or s.shape != (len(residual), d_s):
            raise ValueError(
                f"residual, s: expected shapes (B, {K}) and (B, {d_s}), as in the null, got "
                f"{tuple(residual.shape)} and {tuple(s.shape)}."
            )


@dataclass(frozen=True)
class SummaryOutlyingness:
    """How far summaries lie from simulated ones: the distance to the fifth nearest of them.

    Summaries are standardised and then whitened, so that units and correlations do not matter. A
    summary that never varies is ignored; of redundant ones, directions in which simulations
    have next to no spread are damped rather than divided by zero.

    Arguments:
        points: Whitened simulated summaries `(m, d_s)`, float64, m at most 10,000.
        index: Which of the simulations they are, `(m,)`, increasing.
        centre: Means of the summaries `(d_s,)`, float64.
        whitener: `(d_s, d_s)`, float64; `(s - centre) whitener` are the whitened coordinates.

    Example:
        >>> s = torch.arange(100.0)[:, None]
        >>> outlyingness = SummaryOutlyingness.of(s, torch.Generator())
        >>> spread = s.double().std(unbiased=False)
        >>> outlyingness(torch.tensor([[50.0], [109.0]])) * spread  # to 48 or 52, to 95
        tensor([ 2.0000, 14.0000], dtype=torch.float64)
        >>> outlyingness.leave_one_out()[[50, 99]] * spread  # to 47 or 53, to 94
        tensor([3.0000, 5.0000], dtype=torch.float64)
    """

    NAME = "summary"

    points: Annotated[Tensor, "m d"]
    index: Annotated[Tensor, "int m"]
    centre: Annotated[Tensor, "d"]
    whitener: Annotated[Tensor, "d d"]

    @classmethod
    def of(cls, s: Tensor, generator: torch.Generator) -> SummaryOutlyingness:
        """From simulated summaries `(M, d_s)`, of which the generator chooses at most 10,000."""
        if s.dim() != 2 or len(s) < 2:
            raise ValueError(
                f"s: expected at least 2 simulated summaries, (M, d_s), got shape {tuple(s.shape)}."
            )
        standardise, s = Standardiser.of(s), s.double()
        standardised = standardise(s)
        values, vectors = torch.linalg.eigh(standardised.T @ standardised / len(s))
        damped = values.clamp(min=0) + REDUNDANT * values[-1]
        rotation = vectors / damped.clamp(min=torch.finfo(torch.float64).tiny).sqrt()
        # As it is stored: products round alike after loading.
        whitener = (rotation / standardise.scale[:, None]).contiguous()
        chosen = torch.randperm(len(s), generator=generator)[:MAX_SUMMARIES].sort().values
        index = chosen.to(s.device)
        points = (s[index] - standardise.centre) @ whitener
        return cls(points, index, standardise.centre, whitener)

    def __call__(self, s: Tensor) -> Tensor:
        """Distances `(B,)`, float64, of summaries `(B, d_s)` that are not among the simulated."""
        if s.dim() != 2 or s.shape[1] != len(self.centre):
            raise ValueError(
                f"s: expected summaries of shape (B, {len(self.centre)}), as simulated, got "
                f"{tuple(s.shape)}."
            )
        whitened = (s.double() - self.centre) @ self.whitener
        return self._distance(whitened, self._rank)

    def leave_one_out(self) -> Tensor:
        """Distances `(m,)` of the simulated summaries themselves, in the order of `index`."""
        return self._distance(self.points, 1 + self._rank)  # itself is the first

    def _distance(self, whitened: Tensor, rank: int) -> Tensor:
        distance = self._neighbours.distance(whitened, rank)
        return torch.where(distance > SAME, distance, 0.0)

    @property
    def _rank(self) -> int:
        return min(NEIGHBOURS, len(self.points) - 1)

    @cached_property
    def _neighbours(self) -> Neighbours:
        return Neighbours(self.points)


def _log_length(residual: Tensor) -> Tensor:
    """Logarithms `(B,)`, float64, of the squared lengths of residuals `(B, K)`, or of rounding."""
    return squared_length(residual).clamp(min=ROUNDED).log()


# Of the largest eigenvalue of G; below 1e-10 float32 embeddings are rounding.
STRENGTHS = tuple(10.0**-k for k in range(2, 11))
LEAST = 1e-30


@dataclass(frozen=True)
class SummaryRegression:
    """A linear regression of standardised summaries on mean embeddings.

    Arguments:
        z_centre: Mean of the simulated embeddings `(K,)`, float64.
        s_centre: Mean of the simulated summaries `(d_s,)`, float64.
        s_scale: Their standard deviations `(d_s,)`, float64; 1 where that is 0.
        weight: B, `(K, d_s)`, float64.
    """

    z_centre: Annotated[Tensor, "K"]
    s_centre: Annotated[Tensor, "d"]
    s_scale: Annotated[Tensor, "d"]
    weight: Annotated[Tensor, "K d"]

    @classmethod
    def of(
        cls, z_bar: Tensor, s: Tensor, num: int | None = None
    ) -> tuple[SummaryRegression, Tensor]:
        """Learn from simulations, and leave out each of some of them.

        Returns:
            The regression, and the left-out residuals `(n, d_s)`.
        """
        s = s.double()
        z_centre, s_centre = z_bar.mean(0, dtype=torch.float64), s.mean(0)
        s_scale = s.std(0, unbiased=False)
        s_scale = torch.where(s_scale > 0, s_scale, 1.0)
        target = (s - s_centre) / s_scale
        some, path = slice(num), _Path.of(z_bar, z_centre, target)
        leverage, error = path.left_out(z_bar[some], z_centre, target[some], len(s))
        best = int(error.argmin())
        regression = cls(z_centre, s_centre, s_scale, path.basis @ path.coefficients[best])
        return regression, regression(z_bar[some], s[some]) / (1 - leverage[:, best, None])

    def __call__(self, z_bar: Tensor, s: Tensor) -> Tensor:
        """Residuals `(B, d_s)` of summaries `(B, d_s)` given embeddings `(B, K)`, float64."""
        target = (s.double() - self.s_centre) / self.s_scale
        blocks = zip(target.split(BLOCK_ROWS), z_bar.split(BLOCK_ROWS), strict=True)
        return torch.cat([t - (z.double() - self.z_centre) @ self.weight for t, z in blocks])


@dataclass(frozen=True)
class _Path:
    """The regressions of all L strengths, in the coordinates of the eigenvectors of G."""

    basis: Tensor
    damped: Tensor
    coefficients: Tensor

    @classmethod
    def of(cls, z_bar: Tensor, centre: Tensor, target: Tensor) -> _Path:
        """From embeddings `(M, K)`, their mean, and standardised summaries `(M, d_s)`.

        With more than 1,024 features, in as many of their leading directions.
        """
        turn = None
        if z_bar.shape[1] > MAX_DIRECTIONS:
            turn = leading_directions(z_bar - centre.to(z_bar.dtype), MAX_DIRECTIONS, rounds=1)
        width = z_bar.shape[1] if turn is None else turn.shape[1]
        gram, moment = Gram.empty(width, centre.device), centre.new_zeros(width, target.shape[1])
        for rows, values in zip(z_bar.split(BLOCK_ROWS), target.split(BLOCK_ROWS), strict=True):
            centred = rows.double() - centre
            if turn is not None:
                centred = (centred.to(turn.dtype) @ turn).double()
            gram.add(centred)
            moment.addmm_(centred.T, values)
        path = cls._solve(gram.full() / len(target), moment / len(target))
        return path if turn is None else replace(path, basis=turn.double() @ path.basis)

    @classmethod
    def _solve(cls, covariance: Tensor, moment: Tensor) -> _Path:
        """From G, `(q, q)`, and the mean products of embeddings and summaries `(q, d_s)`."""
        values, vectors = torch.linalg.eigh(covariance)
        top = values[-1].clamp(min=LEAST)
        basis = vectors / top.sqrt()
        strengths = torch.tensor(STRENGTHS, dtype=values.dtype, device=values.device)
        damped = values.clamp(min=0) / top + strengths[:, None]
        return cls(basis, damped, (basis.T @ moment) / damped[:, :, None])

    def left_out(
        self, z_bar: Tensor, centre: Tensor, target: Tensor, num: int
    ) -> tuple[Tensor, Tensor]:
        """Leverages `(n, L)`, and the mean log of the mean squared left-out residuals `(L,)`.

        In the precision of the embeddings: one product with the basis serves all strengths.
        """
        dtype, (L, q, d_s) = z_bar.dtype, self.coefficients.shape
        basis, inverse = self.basis.to(dtype), (1 / self.damped).T.to(dtype)
        stacked = self.coefficients.permute(1, 0, 2).reshape(q, L * d_s).to(dtype)
        leverage, squared = [], target.new_zeros(L, d_s)
        for rows, values in zip(z_bar.split(BLOCK_ROWS), target.split(BLOCK_ROWS), strict=True):
            u = (rows - centre.to(dtype)) @ basis
            leverage.append((1 + (u.square() @ inverse).double()) / num)
            fitted = (u @ stacked).double().view(-1, L, d_s)
            residual = (values[:, None] - fitted) / (1 - leverage[-1][:, :, None])
            squared += residual.square().sum(0)
        error = (squared / len(z_bar)).clamp(min=LEAST).log().mean(1)
        return torch.cat(leverage), error
