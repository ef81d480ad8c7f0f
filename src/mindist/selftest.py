r"""What the method mends on a simulator, measured on its own simulations before any data.

Held-out simulated datasets x are contaminated in several ways, each at several shares, and adapted.
Their clean summaries s = f(x) are known, so that

.. math:: r_j = \sqrt{ 1 + \mathbb{E}\, (s^\star_j - s_j)^2 / V_{jj}(s) }

says how much larger the error of summary j has become than on clean data, V being the sampling
covariance of a summary; the same with the observed summary in the place of :math:`s^\star` is what
doing nothing costs. An interval of 90% around :math:`s^\star`, of variance V + U, should hold what
infinitely many clean observations would give, s + e with e of covariance V:

.. math:: c_j = \mathbb{E}\, P\big( |s^\star_j - s_j - e_j| \le 1.64 \sqrt{V_{jj} + U_{jj}} \big) .

With a posterior the same is measured of its parameters: the mean at :math:`s^\star` against the
mean at s, in standard deviations of the posterior at s, of which a draw stands for the truth.

By the same errors rules of sorting and projecting are chosen (`Choice`).
"""

import copy
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from html import escape
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mindist.adaptation.sorting import Rules
from mindist.adaptation.speaking import Speaker
from mindist.fitted import Fitted, blind, blindness, visible
from mindist.result import Adaptation

SHARES = (0.05, 0.1, 0.2, 0.4)
DATASETS = 64  # of each kind and share: a root mean square of one summary is known to 9%
DRAWS = 200  # of a posterior, for each dataset
MENDED, HARMLESS = 1.6, 1.3  # errors relative to clean data that are called so
CHEAP = 1.02  # error of clean data that costs nothing
WORSE = 1.05  # times the error of doing nothing
ERRORS = 2.0  # standard errors beyond which two numbers differ
SERIES = 8  # numbers of an observation of which some may drop out
QUANTILE = 1.6448536269514722  # of a normal variable, for an interval of 90%
FEWEST = 100  # held-out datasets, with fewer of which the numbers are rough


@dataclass(frozen=True)
class _Data:
    """Datasets to contaminate, the numbers of an observation in one row."""

    x: Tensor  # `(B, N, D)`
    mean: Tensor  # of each dataset `(B, 1, D)`
    scale: Tensor  # standard deviations of the observations of each dataset `(B, 1, D)`
    others: Tensor  # as many, of other parameters
    reach: Tensor  # the range of all simulated numbers `(D,)`
    generator: torch.Generator

    def away(self, by: Tensor | float) -> Tensor:
        """Return so much in one of both directions for each dataset `(B, 1, D)`."""
        return by * self._uniform(1).sub(0.5).sign()

    def jitter(self) -> Tensor:
        """Return a tenth of a standard deviation, either way, `(B, N, D)`."""
        return 0.2 * self.scale * (self._uniform(self.x.shape[1]) - 0.5)

    def gap(self) -> Tensor:
        """Return the observations, a run of a quarter of their entries 0."""
        D = self.x.shape[2]
        start = (self._uniform(1)[..., :1] * D).floor()
        entry = torch.arange(D, device=self.x.device)
        return torch.where((entry - start) % D < D // 4, 0.0, self.x)

    def _uniform(self, num: int) -> Tensor:
        B, _, D = self.x.shape
        return torch.rand(B, num, D, generator=self.generator, dtype=torch.float64).to(self.x)


CONTAMINANTS: dict[str, Callable[[_Data], Tensor]] = {
    "observations of other parameters": lambda d: d.others,
    "shifts by 4 sd": lambda d: d.x + d.away(4 * d.scale),
    "shifts by 10 sd": lambda d: d.x + d.away(10 * d.scale),
    "gross values": lambda d: d.x + d.away(10 * d.reach),
    "5 times the spread": lambda d: d.mean + 5 * (d.x - d.mean),
    "a clump 6 sd away": lambda d: d.mean + d.away(6 * d.scale) + d.jitter(),
    "a clump inside": lambda d: d.x[:, :1] + d.jitter(),
    "copies of one observation": lambda d: d.x[:, :1].expand_as(d.x),
    "entries that drop out": _Data.gap,
}


@dataclass(frozen=True)
class Errors:
    """Errors relative to clean data, and coverage, of each kind, share and number `(K, E, d)`."""

    names: tuple[str, ...]
    observed: Tensor  # at the observed summary
    adapted: Tensor
    coverage: Tensor  # of intervals of 90%

    @property
    def overall(self) -> tuple[Tensor, Tensor]:
        """Root mean squares over the numbers, at the observed and the adapted summary, `(K, E)`."""
        return self.observed.square().mean(2).sqrt(), self.adapted.square().mean(2).sqrt()


@dataclass(frozen=True)
class SelfTest:
    """What an estimator mends on its own simulator, kind by kind and share by share.

    Example:
        >>> import mindist
        >>> generator = torch.Generator().manual_seed(0)
        >>> theta = torch.randn(1_000, 1, 1, generator=generator)
        >>> x = theta + torch.randn(1_000, 50, 1, generator=generator)
        >>> found = mindist.MinimumDistance(lambda x: x.mean(1)).fit(x).selftest()
        >>> found.breakdown["gross values"]
        0.4
    """

    kinds: tuple[str, ...]  # K ways of contamination
    shares: tuple[float, ...]  # E shares of the observations
    summaries: Errors  # errors and coverage of the summaries
    parameters: Errors | None  # those of a posterior's parameters, if one was given
    error: Tensor  # standard error of the overall error of adapted summaries `(K, E)`
    detected: Tensor  # share of datasets that are detected `(K, E)`
    clean: float  # error on clean data relative to leaving them alone; 1 costs nothing
    level: Tensor  # share of clean datasets detected, by tenths of each summary `(10, d_s)`
    efficiency: Tensor  # of each summary, as projected through the embedding: V / (V + its error)
    visible: Tensor  # share of what moves each summary that the residuals of an observation show
    num: int  # datasets of each kind and share
    failed: Tensor  # datasets left out because the summary function fails on them, `(K, E)`
    notes: tuple[str, ...] = ()  # what limits the test itself

    @cached_property
    def breakdown(self) -> dict[str, float]:
        """The largest share up to which each kind is mended, or does no harm; 0 where none is."""
        observed, adapted = self.summaries.overall
        fine = (adapted <= MENDED) & (adapted <= (WORSE * observed).clamp(min=HARMLESS))
        mended = fine.long().cumprod(1).sum(1).tolist()
        return {kind: (0.0, *self.shares)[n] for kind, n in zip(self.kinds, mended, strict=True)}

    @cached_property
    def harmful(self) -> tuple[tuple[str, float], ...]:
        """Kinds and shares at which adapting does harm, and more of it than doing nothing."""
        observed, adapted = self.summaries.overall
        worse = (adapted > HARMLESS) & (adapted - self.error > WORSE * observed)
        return tuple((self.kinds[k], self.shares[e]) for k, e in worse.nonzero().tolist())

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences on what may harm, for people; none where nothing does."""
        worse = "is worse than doing nothing."
        said = [f"Adapting {kind} at {share:.0%} {worse}" for kind, share in self.harmful]
        said += [blindness(name) for name in blind(self.visible)]
        if self.clean > CHEAP:
            times = f"{self.clean:.2f} times as large"
            said.append(f"False alarms make the error of clean data {times}.")
        return (*said, *self.notes)

    @property
    def verdict(self) -> str:
        """What it mends and what not, in words."""
        harmless = (self.summaries.overall[0] <= HARMLESS).all(1).tolist()
        left = [kind for kind, safe in zip(self.kinds, harmless, strict=True) if safe]
        lines = []
        for share in sorted(set(self.breakdown.values()), reverse=True):
            kinds = [k for k, most in self.breakdown.items() if most == share and k not in left]
            said = f"Mends up to {share:.0%} of" if share else "Does not mend"
            lines += [f"{said} {_joined(kinds)}."] if kinds else []
        if left:
            lines.append(f"Hardly harmed by {_joined(left)}.")
        share, most = float(self.level.mean()), float(self.level.max())
        cost = "Clean data cost nothing; " if self.clean <= CHEAP else ""
        level = f"{share:.1%} of clean data are detected, at most {most:.0%} in any tenth."
        return "\n".join([*lines, cost + level, *self.warnings])

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield, for each kind and share, detection, errors and coverage."""
        parts = {"detected": self.detected}
        parts |= dict(zip(("observed", "adapted"), self.summaries.overall, strict=True))
        parts |= {"error": self.error, "coverage": self.summaries.coverage.mean(2)}
        for k, kind in enumerate(self.kinds):
            for e, share in enumerate(self.shares):
                numbers = {name: float(part[k, e]) for name, part in parts.items()}
                yield {"kind": kind, "share": share, **numbers}

    def table(self) -> str:
        """Return the table of all kinds and shares, as text."""
        columns = {"detected": "9.2f", "observed": "10.3g", "adapted": "9.3g", "coverage": "10.2f"}
        lines = [f"{'errors relative to clean data':38} detected  observed  adapted  coverage"]
        for row in self.rows():
            name = f"{row['share']:>4.0%} {row['kind']}"
            lines.append(f"{name:38}" + "".join(format(row[c], f) for c, f in columns.items()))
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers and words, for JSON."""
        plain = asdict(self) | {"verdict": self.verdict, "breakdown": self.breakdown}
        found: dict[str, Any] = json.loads(json.dumps(plain, default=lambda t: t.tolist()))
        return found

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "SelfTest":
        """Rebuild from what `to_dict` gave."""
        own = {f.name: _back(values[f.name]) for f in fields(cls)}
        return cls(**own | {"shares": tuple(values["shares"])})

    def plot(self, path: str | os.PathLike[str]) -> Path:
        """Draw the errors of all kinds and shares into a file, and return its path."""
        # By name: the report stands above this layer, and brings matplotlib.
        report = import_module("mindist.report")
        figure, (axes,) = report.new_figure(1, (6.5, 0.5 * len(self.kinds) + 1.5))
        report.plot_selftest(axes, self)
        drawn: Path = report.save_figure(figure, path)
        return drawn

    def __str__(self) -> str:
        return f"{self.verdict}\n\n{self.table()}"

    def _repr_html_(self) -> str:
        lines = "".join(f"<li>{escape(line)}</li>" for line in self.verdict.splitlines())
        return f"<ul>{lines}</ul><pre>{escape(self.table())}</pre>"


def _back(value: Any) -> Any:
    """Return a table as errors, a list of words as a tuple, one of numbers as a tensor."""
    if isinstance(value, dict):
        return Errors(**{name: _back(part) for name, part in value.items()})
    if not isinstance(value, list):
        return value
    words = not value or isinstance(value[0], str)
    return tuple(value) if words else torch.tensor(value, dtype=torch.float64)


def _joined(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


@torch.no_grad()
def run_selftest(mds: Any, x: Tensor, posterior: Any = None, *, seed: int = 0) -> SelfTest:
    """Contaminate held-out simulations `(M, N, *event)`, adapt and compare.

    With a `RobustPosterior` its parameters are compared too; the seed is that of contaminations and
    draws.
    """
    generator = torch.Generator().manual_seed(seed)
    cells = [_cell(mds, *pair, posterior, seed) for pair in _panel(x, generator)]
    kinds = tuple(CONTAMINANTS)[: len(cells) // len(SHARES)]
    shape = len(kinds), len(SHARES)

    def errors(part: str, names: Sequence[str]) -> Errors:
        numbers = torch.stack([getattr(cell, part) for cell in cells], 1)
        return Errors(tuple(names), *numbers.view(3, *shape, -1))

    clean, level, efficiency = _clean(mds, x)
    each = 1 + torch.stack([cell.squared for cell in cells])
    spread = (each - each.nanmean(1, keepdim=True)).square().nanmean(1).sqrt()
    failed, notes = each.isnan().sum(1), []
    if len(x) < FEWEST:
        notes.append(f"Only {len(x)} simulations were held out: these numbers are rough.")
    if failed.any():
        notes.append(f"The summary function failed on {int(failed.sum())} contaminated datasets.")
    names = [f"summary {j + 1}" for j in range(level.shape[1])]
    own = posterior and (posterior.parameter_names or [f"theta {j + 1}" for j in range(99)])
    return SelfTest(
        kinds,
        SHARES,
        errors("summaries", names),
        errors("parameters", own) if own else None,
        (spread / (2 * each.nansum(1).sqrt())).view(shape),
        torch.tensor([cell.detected for cell in cells]).view(shape),
        clean,
        level,
        efficiency,
        visible(mds.fitted_, x),
        min(DATASETS, len(x)),
        failed.view(shape),
        tuple(notes),
    )


def _panel(x: Tensor, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield clean and contaminated datasets of each kind and share, others for each of these.

    The last kind is of series. Numbers that are whole, or never negative, or one of two, stay so.
    """
    whole, num = x.flatten(2).double(), min(DATASETS, len(x))
    low, high = whole.amin((0, 1)), whole.amax((0, 1))
    counts = (whole == whole.round()).all(0).all(0)
    kinds = tuple(CONTAMINANTS.values())[: None if whole.shape[2] >= SERIES else -1]
    for number, (kind, share) in enumerate(product(kinds, SHARES)):
        rows = (torch.arange(num) + DATASETS * number) % len(x)
        other = (rows + 1 + torch.randint(len(x) - 1, rows.shape, generator=generator)) % len(x)
        own = whole[rows]
        moments = own.mean(1, keepdim=True), own.std(1, keepdim=True)
        wrong = kind(_Data(own, *moments, whole[other], high - low, generator))
        wrong = torch.where(low >= 0, wrong.abs(), wrong)
        wrong = torch.where(counts, wrong.round(), wrong)
        wrong = torch.where(counts & (high - low <= 1), wrong.clamp(low, high), wrong)
        order = torch.rand(own.shape[:2], generator=generator).argsort(1).to(x.device)
        chosen = order < max(1, round(share * x.shape[1]))
        made = torch.where(chosen[..., None], wrong, own).to(x.dtype)
        yield x[rows], made.view(num, *x.shape[1:])


class _Cell(NamedTuple):
    """One kind at one share: errors, observed and adapted, and coverage, `(3, d)`."""

    summaries: Tensor
    parameters: Tensor
    squared: Tensor  # errors of adapted summaries `(B,)`, in sampling variances; NaN where it fails
    detected: float


def _cell(mds: Any, clean: Tensor, wrong: Tensor, posterior: Any = None, seed: int = 0) -> _Cell:
    """Adapt contaminated datasets and compare with the clean ones."""
    fitted: Fitted = mds.fitted_
    usable = torch.isfinite(Speaker(fitted.summarise, False).function(wrong)).all(1)
    squared = torch.full(usable.shape, math.nan, dtype=torch.float64, device=wrong.device)
    if not usable.any():
        dims = fitted.summarise.dim, posterior and posterior.num_parameters
        s, theta = (squared.new_full((3, d or 0), math.nan) for d in dims)
        return _Cell(s, theta, squared, math.nan)
    s, result = fitted.summarise(clean[usable]), mds.adapt(wrong[usable])
    summaries, squared[usable] = _compare(fitted, s.double(), result)
    parameters = s[:0] if posterior is None else _query(posterior, s, result, seed)
    return _Cell(summaries, parameters, squared, float(result.misspecified.double().mean()))


def _compare(fitted: Fitted, s: Tensor, result: Adaptation) -> tuple[Tensor, Tensor]:
    """Return errors and coverage of summaries `(3, d_s)`, and datasets' squared errors `(B,)`."""
    assert fitted.noise is not None
    V = fitted.noise.covariance(s).diagonal(dim1=1, dim2=2)
    V = torch.where(V > 0, V, fitted.noise.scale.square() * 1e-12)
    off = [(value.double() - s) / V.sqrt() for value in (result.s_obs, result.s_star)]
    ratio = [(1 + part.square().mean(0)).sqrt() for part in off]
    half = QUANTILE * (1 + result.excess.diagonal(dim1=1, dim2=2) / V).sqrt()
    inside = torch.special.ndtr(half - off[1]) - torch.special.ndtr(-half - off[1])
    return torch.stack([*ratio, inside.mean(0)]), off[1].square().mean(1)


def _query(posterior: Any, s: Tensor, result: Adaptation, seed: int) -> Tensor:
    """Return errors and coverage of a posterior's parameters `(3, d_theta)`."""
    certain = type(posterior.conditions_of(result)).certain
    asked = [certain(s.float()), certain(result.s_obs.float()), posterior.conditions_of(result)]
    drawn = [posterior.queries.sample((DRAWS,), c, seed=seed).double() for c in asked]
    scale, mean = drawn[0].std(0), drawn[0].mean(0)
    ratio = [(1 + ((d.mean(0) - mean) / scale).square().nanmean(0)).sqrt() for d in drawn[1:]]
    low, high = (drawn[2].quantile(q, 0) for q in (0.05, 0.95))
    inside = ((drawn[0][-1] >= low) & (drawn[0][-1] <= high)).double()
    return torch.stack([*ratio, inside.mean(0)])


def _clean(mds: Any, x: Tensor) -> tuple[float, Tensor, Tensor]:
    """Return what clean data lose, how many are detected, by tenths of each summary `(10, d_s)`.

    And the share of each summary's information that survives its projection `(d_s,)`.
    """
    fitted, found = mds.fitted_, mds.detect(x)
    s, strange = found.s_obs.double(), found.misspecified
    V, lost = fitted.noise.covariance(s).diagonal(dim1=1, dim2=2), torch.zeros_like(s[:, 0])
    if strange.any():
        off = mds.adapt(x[strange]).s_star.double() - s[strange]
        lost[strange] = (off.square() / V[strange].clamp(min=1e-300)).mean(1)
    tenth = (10 * s.argsort(0).argsort(0)).div(len(s), rounding_mode="floor")
    inside = [tenth == k for k in range(10)]
    level = [(strange[:, None] & one).sum(0) / one.sum(0).clamp(min=1) for one in inside]
    mean, missed = V.mean(0), fitted.procedure.projection.residual.square().mean(0)
    efficiency = mean / (mean + missed).clamp(min=1e-300)
    return float((1 + lost.mean()).sqrt()), torch.stack(level).double(), efficiency


# By what a simulator's own contaminations may be mended better, each one change from the default.
ALTERNATIVES = {
    "raw observations instead of residuals": Rules(residuals=False),
    "a kernel half as wide": Rules(width=0.5),
    "a kernel twice as wide": Rules(width=2.0),
    "a cut of 1% instead of 0.1%": Rules(cut=0.01),
    "projecting what nothing explains": Rules(always=True),
    "no projecting": Rules(project=False),
}
DEFAULT = "the default"
WORST, RESAMPLED = 0.25, 1_000  # share of the cells that make the loss; times, for its error
UNSORTED = (
    "expected an estimator that sorts observations, got one that searches for the minimum distance "
    "only. Fit MinimumDistance(summary) to at least 200 simulations of at least 5 observations."
)


@dataclass(frozen=True)
class Choice:
    """By which rules an estimator sorts and projects, and why.

    The loss is the geometric mean of the errors (`SelfTest`) of the worst quarter of the panel's
    cells. Half of the held-out simulations pick the alternative with the least loss whose clean
    cost is at most 1.02 or the default's; the other half judges it: it is chosen if the log of its
    loss is lower by more than two standard errors, of the same contaminated datasets, resampled.
    """

    chosen: str  # the alternative, or the default
    names: tuple[str, ...]  # what was tried, the default first
    losses: tuple[float, ...]  # on the half that picks
    clean: tuple[float, ...]  # errors of clean data, relative to leaving them alone
    picked: str  # the best alternative there
    judged: tuple[float, ...]  # on the other half, the losses of the default and of what was picked
    lower: float  # the log of their ratio, the larger the better for what was picked
    error: float  # its standard error

    def __str__(self) -> str:
        return (
            f"{self.chosen}; of {len(self.names) - 1} alternatives the best, {self.picked}, has a "
            f"loss of {self.judged[1]:.3g}, the default {self.judged[0]:.3g}: a log ratio of "
            f"{self.lower:.3f} with a standard error of {self.error:.3f}"
        )


@torch.no_grad()
def choose_rules(mds: Any, relearn: Callable[..., Any] | None) -> tuple[Fitted, Choice]:
    """Try the alternatives on contaminated held-out simulations; return what was chosen, and why.

    `relearn` learns the procedure anew, from the simulations of the fit, by other rules.
    """
    first: Fitted = mds.fitted_
    if first.procedure is None or first.spare is None or relearn is None:
        raise ValueError(f"choose: {UNSORTED}")
    fits, spare, trial = {DEFAULT: first}, first.spare, copy.copy(mds)
    for name, rules in ALTERNATIVES.items():
        own = replace(first.procedure, sorter=replace(first.procedure.sorter, rules=rules))
        same = rules == Rules(project=rules.project, always=rules.always)  # nothing to learn
        learned = own if same else relearn(rules)
        fits |= {} if learned is None else {name: replace(first, procedure=learned)}

    def squared(name: str, half: int) -> Tensor:
        trial.fitted_, generator = fits[name], torch.Generator().manual_seed(mds.seed + 1 + half)
        panel = _panel(spare[half::2], generator)
        few = slice(None, None, (4, 1)[half])  # a quarter of them is enough to pick
        cells = (_cell(trial, clean[few], wrong[few]) for clean, wrong in panel)
        return torch.stack([cell.squared.cpu() for cell in cells])

    losses, cost = dict[str, float](), dict[str, float]()
    for name in fits:
        losses[name], cost[name] = float(_loss(squared(name, 0))), _clean(trial, spare)[0]
    other = [n for n in fits if losses[n] != losses[DEFAULT]]  # in what it does
    cheap = [n for n in other if cost[n] <= max(CHEAP, cost[DEFAULT])]
    picked = min(cheap, key=losses.__getitem__, default=DEFAULT)
    both = [squared(name, 1) for name in (DEFAULT, picked)]
    judged, lower, error = _judge(both, len(spare[1::2]), mds.seed)
    chosen = picked if lower > ERRORS * error else DEFAULT
    told = tuple(fits), tuple(losses.values()), tuple(cost.values())
    return fits[chosen], Choice(chosen, *told, picked, judged, lower, error)


def _judge(both: list[Tensor], num: int, seed: int) -> tuple[tuple[float, ...], float, float]:
    """Return two losses on cells `(C, B)` of `num` datasets, their log ratio and its error."""
    C, B = both[0].shape
    rows = (torch.arange(B) + DATASETS * torch.arange(C)[:, None]) % num  # some in several cells
    drawn = torch.rand(RESAMPLED, num, generator=torch.Generator().manual_seed(seed)).clamp(1e-9)
    weights = drawn.log().neg()[:, rows]  # the Bayesian bootstrap; log 0 would be infinite
    resampled = [torch.stack([_loss(part, w) for w in weights]).log() for part in both]
    a, b = (float(_loss(part)) for part in both)
    return (a, b), math.log(a / b), float((resampled[0] - resampled[1]).std())


def _loss(squared: Tensor, weights: Tensor | float = 1.0) -> Tensor:
    """Return the geometric mean of the errors of the worst cells, of weighted datasets `(C, B)`."""
    weights = weights * torch.isfinite(squared)
    cells = (squared.nan_to_num(0.0) * weights).sum(1) / weights.sum(1).clamp(min=1e-300)
    worst = cells.topk(math.ceil(WORST * len(cells))).values
    return (worst.log1p().mean() / 2).exp()
