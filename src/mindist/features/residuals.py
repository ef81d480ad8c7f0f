r"""See an observation as the model at a summary sees it: as a residual.

.. math:: \rho(x, s) = 3 \operatorname{asinh}\!\big( D(s)^{-1/2}\, T(s)\, (x - m(s)) / 3 \big)

with the mean m, the unit lower-triangular T and the diagonal D of the modified Cholesky
decomposition :math:`T \Sigma T^\top = D` of an observation's covariance given s; its numbers are
transformed first where that makes them more like normal ones. Each simulated dataset has its own
mean and covariance; they are regressed on its summary. For a regression with a
random design the entries of T are linear in the coefficients, for a stationary series they are its
partial regressions. The inverse hyperbolic sine leaves residuals of up to three standard deviations
much as they are and brings far ones near enough for a kernel of one width.

Numbers that take a few values only are labels (a choice between two): they stay as they are, since
a residual of them would be another value at every summary.

It is a normaliser only. What it gets wrong is part of the law of the residuals, which
`mindist.adaptation.sorting` takes from simulations with near summaries.

References:
    Pourahmadi, Joint mean-covariance models with applications to longitudinal data, Biometrika 86
    (1999), for the modified Cholesky decomposition.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from mindist.features.representation import asinh
from mindist.threads import one_thread

# Length scales of the random features and strengths of the ridge that are tried, in standard
# deviations of the summaries; the linear part is hardly penalised.
LENGTH_SCALES, RIDGES = (0.5, 1.0, 2.0, 4.0), tuple(10.0**k for k in range(-7, 2))
LINEAR = 1e-3
WIDER = 0.5  # of the range of simulated summaries, on both sides, in which a regression is trusted
PLAIN = 0.2  # by which numbers have to be less odd to be transformed
FOLLOWED = 50  # random features of the regressions with which transforms are compared
TRIED = 1_000  # simulated datasets on which that is tried
LABELS = 8  # different values up to which a number is a label, such as a choice
NEAR = 3.0  # standard deviations up to which residuals stay much as they are
FARTHEST = 1e30  # of which float32 holds three times as much
RIDGE = 1e-3  # of the variances, where coordinates may be collinear


def scale_of(s: Tensor) -> Tensor:
    """Return the standard deviations `(d_s,)` of summaries `(M, d_s)`, 1 where that is 0."""
    scale = s.std(0, unbiased=False)
    return torch.where(scale > 0, scale, 1.0)


@dataclass(frozen=True)
class Regression:
    r"""A linear function of s plus random Fourier features of it, by ridge regression.

    .. math:: g(s) = a + u^\top B + [\cos(u^\top \Omega), \sin(u^\top \Omega)]\, C, \qquad
        u = (s - \bar s) / \mathrm{sd}(s)

    The linear part extrapolates, up to half of the simulated range beyond it; the features bend.
    Length scale and strength have the smallest exact leave-one-out error. Where extrapolation would
    hide what is odd, predictions stay within those of simulations (`wider=0`).

    Example:
        >>> s = torch.linspace(-1, 1, 200).double()[:, None]
        >>> curve, left_out = Regression.of(s, torch.cat([2 * s, s.sin()], 1), num=20)
        >>> curve(torch.tensor([[0.5], [2.0]])).round(decimals=2)
        tensor([[1.0000, 0.4800],
                [4.0000, ...]], dtype=torch.float64)
    """

    centre: Annotated[Tensor, "d"]  # mean of the simulated summaries `(d_s,)`
    scale: Annotated[Tensor, "d"]  # their standard deviation, 1 where that is 0
    low: Annotated[Tensor, "d"]  # the least summary that is told apart, `(d_s,)`
    high: Annotated[Tensor, "d"]  # the largest, `(d_s,)`
    least: Annotated[Tensor, "P"]  # the least prediction, `(P,)`
    most: Annotated[Tensor, "P"]  # the largest, `(P,)`
    frequency: Annotated[Tensor, "d F"]  # `(d_s, F)`
    coefficients: Annotated[Tensor, "H P"]  # `(1 + d_s + 2 F, P)`

    def __post_init__(self) -> None:
        rows = 1 + len(self.centre) + 2 * self.frequency.shape[1]
        if len(self.coefficients) != rows:
            raise ValueError(f"coefficients: expected {rows} rows, got {len(self.coefficients)}")

    @classmethod
    def of(
        cls, s: Tensor, y: Tensor, num: int, wider: float = WIDER
    ) -> "tuple[Regression, Tensor]":
        """Regress targets `(M, P)` on summaries `(M, d_s)`; return also left-out predictions.

        `num` is an even number of random features, of which fewer than M / 4 are used; `wider` how
        far to trust it beyond simulations, in ranges of summaries and predictions.
        """
        s, y = s.double(), y.double()
        num_simulations, d = s.shape
        half = max(1, min(num, num_simulations // 4) // 2)
        scale, middle = scale_of(s), y.mean(0)
        box = _widened(s, wider)
        spread = (y - middle).square().mean(0).sqrt().clamp(min=torch.finfo(y.dtype).tiny)
        target = (y - middle) / spread
        generator = torch.Generator().manual_seed(0)
        unit = torch.randn(d, half, dtype=torch.float64, generator=generator).to(s.device)
        tried = []
        for length in LENGTH_SCALES:
            # Distances grow with the root of the dimension.
            frequency = unit / (length * math.sqrt(max(1.0, d / 2)))
            none = y.new_zeros(1 + d + 2 * half, 1)
            made = cls(s.mean(0), scale, *box, none[0], none[0], frequency, none)
            with one_thread():  # an eigendecomposition of a few hundred rows
                tried.append((*_ridge(made.basis(s), d, target), frequency))
        _, coefficients, left_out, frequency = min(tried, key=lambda found: found[0])
        coefficients = coefficients * spread
        coefficients[0] += middle
        left_out = left_out * spread + middle
        bounds = _widened(left_out, wider)
        return cls(s.mean(0), scale, *box, *bounds, frequency, coefficients), left_out

    def basis(self, s: Tensor) -> Tensor:
        """Return the constant, the standardised summaries and their features, `(n, H)`."""
        u = (s.double().maximum(self.low).minimum(self.high) - self.centre) / self.scale
        angle = u @ self.frequency
        return torch.cat([torch.ones_like(u[:, :1]), u, angle.cos(), angle.sin()], 1)

    def __call__(self, s: Tensor) -> Tensor:
        """Return predictions `(n, P)` at summaries `(n, d_s)`."""
        return (self.basis(s) @ self.coefficients).maximum(self.least).minimum(self.most)


def _widened(values: Tensor, by: float) -> tuple[Tensor, Tensor]:
    """Return the least and the largest of values `(M, P)`, so many ranges farther out."""
    low, high = values.amin(0), values.amax(0)
    return low - by * (high - low), high + by * (high - low)


def _ridge(basis: Tensor, dim: int, target: Tensor) -> tuple[float, Tensor, Tensor]:
    """Return the least leave-one-out error over the strengths, its coefficients and predictions."""
    penalty = torch.ones(basis.shape[1], dtype=basis.dtype, device=basis.device)
    penalty[0], penalty[1 : 1 + dim] = 1e-9, LINEAR
    scaled = basis / penalty.sqrt()
    values, vectors = torch.linalg.eigh(scaled.T @ scaled / len(basis))
    values = values.clamp(min=0)
    turned = scaled @ vectors
    moment, squares = turned.T @ target / len(basis), turned.square() / len(basis)
    best: tuple[float, Tensor, Tensor] | None = None
    for ridge in RIDGES:
        damped = 1 / (values + ridge)
        leverage = (squares @ damped).clamp(max=0.99)
        turned_back = damped[:, None] * moment
        left_out = target - (target - turned @ turned_back) / (1 - leverage)[:, None]
        error = float((target - left_out).square().mean(0).clamp(min=1e-12).log().mean())
        if best is None or error < best[0]:
            best = error, vectors @ turned_back / penalty.sqrt()[:, None], left_out
    assert best is not None
    return best


@dataclass(frozen=True)
class Residuals:
    """Location, scale and dependence of the coordinates of an observation, given the summary.

    Residuals of datasets x at summaries s are `residuals(residuals.straight(x), s)`.
    """

    # how each coordinate `(q,)` is transformed first, so that moments say more of it
    kind: Annotated[Tensor, "q"]
    unit: Annotated[Tensor, "q"]  # the unit of that, `(q,)`
    mean: Regression  # m(s)
    log_scale: Regression  # log D(s)
    lower: Regression | None = None  # T(s) below its diagonal, row by row; None for one coordinate

    @classmethod
    def of(cls, seen: Tensor, s: Tensor, num_features: int = 200, raw: bool = False) -> "Residuals":
        """Learn from simulated datasets `(M, N, q)` with summaries `(M, d_s)`; `raw`: as labels."""
        (_, N, q), seen = seen.shape, seen.double()
        kind, unit = _choose_transform(seen[:TRIED], s[:TRIED])
        kind = 0 * kind if raw else kind
        seen = _transformed(seen, kind, unit)
        mean = seen.mean(1)
        centred = seen - mean[:, None]
        S = centred.mT @ centred / N
        variance = S.diagonal(dim1=1, dim2=2)
        floor = RIDGE * variance.mean(0) * 1e-3 + torch.finfo(seen.dtype).tiny
        few = seen.flatten(0, 1)[:TRIED].T  # numbers that take a few values only are labels
        labels = torch.tensor([len(one.unique()) <= LABELS for one in few], device=seen.device)
        T, labels = _unit_lower(S, N, floor), labels | raw
        T[:, labels] = torch.eye(q, dtype=T.dtype, device=T.device)[labels]
        D = (T @ S @ T.mT).diagonal(dim1=1, dim2=2)
        mean, log_D = (torch.where(labels, p.mean(0), p) for p in (mean, (D + floor).log()))
        rows, columns = torch.tril_indices(q, q, -1)
        m, _ = Regression.of(s, mean, num_features)
        log_scale, _ = Regression.of(s, log_D, num_features)
        lower = Regression.of(s, T[:, rows, columns], num_features)[0] if q > 1 else None
        return cls(kind, unit, m, log_scale, lower)

    @property
    def size(self) -> int:
        """q, the number of coordinates."""
        return len(self.unit)

    def straight(self, seen: Tensor) -> Tensor:
        """Return the numbers of observations `(B, N, q)`, transformed, float64."""
        return _transformed(seen.double(), self.kind, self.unit)

    def __call__(self, seen: Tensor, s: Tensor) -> Tensor:
        """Return residuals `(B, N, q)`, float32, of `straight` numbers at summaries `(B, d_s)`."""
        r = seen - self.mean(s)[:, None]
        if self.lower is not None:
            q = self.size
            T = torch.eye(q, dtype=r.dtype, device=r.device).repeat(len(s), 1, 1)
            rows, columns = torch.tril_indices(q, q, -1)
            T[:, rows, columns] = self.lower(s)
            r = r @ T.mT
        r = r * ((-self.log_scale(s) / 2).exp() / NEAR)[:, None]
        return NEAR * asinh(r.clamp(-FARTHEST, FARTHEST).float())


def numbers(rho: Tensor) -> Tensor:
    """Return the numbers of residuals `(..., q)` and, of several, their size `(..., q + 1)`."""
    q = rho.shape[-1]
    if q == 1:
        return rho
    size = (rho.square().sum(-1, keepdim=True) - q) / math.sqrt(2 * q)  # of a chi-square variable
    return torch.cat([rho, NEAR * asinh(size / NEAR)], -1)


def _transformed(seen: Tensor, kind: Tensor, unit: Tensor) -> Tensor:
    """Return numbers `(..., q)` as they are (0), as asinh (1), cube root (2) or logarithm (3)."""
    ratio = seen / unit
    # The unit of a logarithm is half of the least simulated number.
    for number in kind.unique().tolist():
        if number:
            value = ratio.clamp(min=0).pow(1 / 3) if number == 2 else ratio.clamp(min=1).log()
            seen = torch.where(kind == number, asinh(ratio) if number == 1 else value, seen)
    return seen


def _choose_transform(seen: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Return the kind and the unit `(q,)` that make numbers `(M, N, q)` most like normal ones.

    Normal in each dataset, with a mean and a variance that regressions on the summaries `(M, d_s)`
    follow. Roots are for numbers of at least 0, logarithms for positive ones.
    """
    least = seen.flatten(0, 1).amin(0)
    size = seen.abs().flatten(0, 1).median(0).values
    size = torch.where(size > 0, size, 1.0)
    units = torch.stack([size, size, size, torch.where(least > 0, least / 2, size)])
    possible = torch.stack([least == least, least == least, least >= 0, least > 0])
    every = torch.arange(4, device=seen.device)[:, None].expand_as(units)
    odd = []
    for kind, unit, usable in zip(every, units, possible, strict=True):
        numbers = _transformed(seen, kind, unit)
        odd.append(_oddness(numbers) + _unfollowed(numbers, s) if usable.any() else least)
    price = torch.where(possible, torch.stack(odd) + PLAIN * (every > 0), torch.inf)
    kind = price.argmin(0)
    return kind.double(), units.gather(0, kind[None])[0]


def _unfollowed(seen: Tensor, s: Tensor) -> Tensor:
    """Return how far a normal law, regressed on s, is from that of each dataset, `(q,)`.

    The mean of log(1 + KL), over datasets that are left out in turn.
    """
    mean, variance = seen.mean(1), seen.var(1, correction=0).clamp(min=1e-300)
    found, log_found = (Regression.of(s, part, FOLLOWED)[1] for part in (mean, variance.log()))
    off = variance.log() - log_found
    both = off.exp() - 1 - off + (mean - found).square() / log_found.exp()
    return (both / 2).log1p().nan_to_num(posinf=1e3).mean(0)


def _oddness(seen: Tensor) -> Tensor:
    """Return how far numbers `(M, N, q)` of a dataset are from normal, at the median, `(q,)`.

    By the statistic of Jarque and Bera for one observation: skewness and kurtosis.
    """
    centred = seen - seen.mean(1, keepdim=True)
    unit = centred / centred.square().mean(1, keepdim=True).sqrt().clamp(min=1e-150)
    third, fourth = (unit.pow(power).mean(1) for power in (3, 4))
    size = third.square() / 6 + (fourth - 3).square() / 24
    return size.nan_to_num(0.0).median(0).values


def _unit_lower(S: Tensor, num_obs: int, floor: Tensor) -> Tensor:
    """Return T with T S T' diagonal, `(M, q, q)`, of covariances of few observations.

    A covariance of N observations in q dimensions is pulled to the mean of all by q - 1 of them,
    and a thousandth of each variance is added, so that collinear coordinates have one too.
    """
    q = S.shape[1]
    S = (num_obs * S + (q - 1) * S.mean(0)) / (num_obs + q - 1)
    added = RIDGE * S.diagonal(dim1=1, dim2=2) + floor
    L = torch.linalg.cholesky(S + torch.diag_embed(added))
    unit = L / L.diagonal(dim1=1, dim2=2)[:, None, :]
    eye = torch.eye(q, dtype=S.dtype, device=S.device).expand_as(S)
    inverse: Tensor = torch.linalg.solve_triangular(unit, eye, upper=False, unitriangular=True)
    return inverse
