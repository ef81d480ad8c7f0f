"""Results for each observed dataset: detection, adaptation, status, and how notebooks show them."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

_SHARED = ("threshold", "alpha")  # fields that all datasets of a batch have in common
MOST_ROWS, MOST_NUMBERS = 10, 6  # datasets of a batch, numbers of a summary that a notebook shows
STRANGE, FINE = "#d9730d", "#2f8f6b"  # 3 to 1 or better on white and on #1e1e1e
INFINITE = "; infinite entries count as wrong"
CELL = "text-align: left; padding: 0.15em 0.8em 0.15em 0"
T = TypeVar("T", bound="_Result")


class _Outcome(str, Enum):
    """A word, and a sentence for people."""

    message: str

    def __new__(cls, value: str, message: str) -> "_Outcome":
        made = str.__new__(cls, value)
        made._value_, made.message = value, message
        return made

    def __str__(self) -> str:
        return str(self.value)


class Status(_Outcome):
    """The outcome for one observed dataset.

    Example:
        >>> str(Status.KEPT_OBSERVED), Status("stalled").message
        ('kept_observed', '...')
    """

    WELL_SPECIFIED = "well_specified", "not detected as misspecified: the observed summary is used"
    SORTED = (
        "sorted",
        "adapted: the summary of the observations that the model explains, calibrated, is used",
    )
    UNMOVED = (
        "unmoved",
        "misspecified, but the observations that the model explains say nothing clearly different: "
        "the weights are not used, the observed summary is, as uncertain as other explanations of "
        "the data are far from it",
    )
    UNEXPLAINED = (
        "unexplained",
        "misspecified in a way that leaving observations out does not mend, and that the summary "
        "does not show: the weights are not used, the observed summary is; do not trust the "
        "posterior without a look at the data",
    )
    CONVERGED = (
        "converged",
        "adapted: the summary was moved to the nearest decoded embedding, that of all observations",
    )
    MAX_ITERATIONS = (
        "max_iterations",
        "adapted: the search ran out of iterations, still improving; its best summary is used",
    )
    STALLED = "stalled", "adapted: no further step lowered the distance; the best summary is used"
    KEPT_OBSERVED = (
        "kept_observed",
        "no summary that fits the data better was found: the observed one is used",
    )


# What results of one dataset and of a batch have in common.
class _Result:
    p_value: Tensor
    misspecified: Tensor
    alpha: float
    status: Any
    _what = "datasets"

    @property
    def batched(self) -> bool:
        """Return whether this is about a batch of datasets rather than about one."""
        return self.p_value.dim() > 0

    def _said(self) -> str:
        if self.batched:
            return f"{len(self)} {self._what}, {int(self.misspecified.sum())} misspecified"
        verdict = "misspecified" if self.misspecified else "not misspecified"
        return f"{verdict}, p_value={float(self.p_value):.4g}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._said()})"

    def _repr_html_(self) -> str:
        """Show one dataset as a list of facts, a batch as a table, in the notebook's own style."""
        strange = int(self.misspecified.sum())
        colour = STRANGE if strange else FINE
        if self.batched:
            rows = [_facts(self[i], short=True) for i in range(min(len(self), MOST_ROWS))]
            lines = [_cells("th", [self._what[:-1].capitalize(), *rows[0]])]
            lines += [_cells("td", [f"{i}", *row.values()]) for i, row in enumerate(rows)]
            said = f"{strange:,} of {len(self):,} {self._what} misspecified"
            left = f"<p>and {len(self) - len(rows):,} more</p>" * (len(self) > len(rows))
        else:
            facts = _facts(self, short=False)
            lines = [_cells("th", [name]) + _cells("td", [fact]) for name, fact in facts.items()]
            said, left = self._said().partition(",")[0], ""
        verdict = f'<p style="border-left: 4px solid {colour}; padding-left: 0.6em">'
        table = "".join(f"<tr>{line}</tr>" for line in lines)
        body = f"{verdict}<strong>{said}</strong></p><table>{table}</table>{left}"
        return f'<div style="overflow-x: auto">{body}</div>'

    def __len__(self) -> int:
        if not self.batched:
            raise TypeError(f"{type(self).__name__} of one dataset has no length.")
        return len(self.p_value)

    def __getitem__(self: T, index: int | slice | Tensor) -> T:
        """Select one dataset of a batch, or some (by a slice, indices or a mask)."""
        names = [name for name in vars(self) if name not in _SHARED]
        chosen: Any = {name: getattr(self, name)[index] for name in names if name != "status"}
        if "status" in names:
            which: Any = torch.arange(len(self))[index].tolist()
            status, one = tuple(self.status), isinstance(which, int)
            chosen["status"] = status[which] if one else tuple(status[i] for i in which)
        return replace(self, **chosen)  # type: ignore[type-var]

    @classmethod
    def join(cls: type[T], parts: Sequence[T]) -> T:
        """Join several batches of one estimator to one."""
        if len(parts) == 1:
            return parts[0]
        names = [name for name in vars(parts[0]) if name not in (*_SHARED, "status")]
        joined: Any = {name: torch.cat([getattr(p, name) for p in parts]) for name in names}
        status = tuple(one for p in parts for one in p.status)
        return replace(parts[0], **joined, status=status)  # type: ignore[type-var]


class _Reported:
    def report(self, path: str | os.PathLike[str], **options: Any) -> Path:
        """Write one self-contained HTML page about the dataset, or about the vector.

        Arguments:
            path: Of the file.
            options: Of `mindist.report.write_report`: of a dataset `x` and `mds`, or a
                `RobustPosterior` as `posterior`; `theta_names`, `summary_names` and so on.

        Example:
            >>> import tempfile, mindist
            >>> x = torch.randn(500, 20, 2)
            >>> mds = mindist.MinimumDistance(lambda x: x.mean(1), num_features=16).fit(x)
            >>> mds.adapt(x[0]).report(tempfile.mkdtemp() + "/a.html", x=x[0], mds=mds).name
            'a.html'
        """
        # By name: the report stands above this layer, and brings matplotlib.
        written: Path = import_module("mindist.report").write_report(path, result=self, **options)
        return written


@dataclass(frozen=True, repr=False)
class Detection(_Result):
    """The test of observed datasets: a leading axis B for a batch, none for one dataset.

    Arguments:
        s_obs: Observed summaries `(B, d_s)`.
        distance_obs: Squared distance of the embedding from the decoder's at `s_obs`, `(B,)`.
        p_value: Share of simulated datasets that look at least as unlike simulations, by the
            combined test or by the distance alone, `(B,)`; never 0.
        misspecified: Whether `p_value` is at most alpha, `(B,)`.
        threshold: The squared distance that a share alpha of simulated datasets exceed. It decides
            where the distance alone is the test.
        alpha: The level.

    Example:
        >>> from mindist import MinimumDistance
        >>> x = torch.randn(500, 20, 2)
        >>> mds = MinimumDistance(lambda x: x.mean(1), num_features=16).fit(x)
        >>> detection = mds.detect(torch.stack([x[0], x[0] + 9]))
        >>> len(detection), detection.misspecified, detection[1].p_value < 0.01
        (2, tensor([False,  True]), tensor(True))
    """

    s_obs: Tensor
    distance_obs: Tensor
    p_value: Tensor
    misspecified: Tensor
    threshold: float
    alpha: float = field(default=0.05, kw_only=True)

    def _said(self) -> str:
        said = super()._said()
        return said if self.batched else f"{said}, s_obs={_vector(self.s_obs)}"


@dataclass(frozen=True, repr=False)
class Adaptation(Detection, _Reported):
    """A detection, the summaries with which to query the posterior, and each observation's part.

    Arguments:
        s_star: Adapted summaries `(B, d_s)`; bitwise `s_obs` where not adapted.
        distance_star: Squared distance at `s_star`, `(B,)`, of the data without weights.
        objective_obs: The squared distance of the weighted data at `s_obs`, `(B,)`; with
            `sorting=False` what is minimised: that and the term that keeps near simulations.
        objective_star: The same at `s_star`, `(B,)`; with `sorting=False` never above
            `objective_obs`.
        adapted: Whether `s_star` differs from `s_obs`, `(B,)`.
        status: A `Status` for each dataset; a plain `Status` for one dataset.
        weights: Of each observation, as sorted, `(B, N)`; 1 where nothing is sorted. They make
            `s_star` where `status` is "sorted"; elsewhere its `message` says why they do not.
        epsilon: Estimated contaminated fraction `(B,)`: 1 minus the mean weight.
        epsilon_error: Its standard error `(B,)`.
        outlier_score: For each observation between 0 and 1, `(B, N)`: 1 minus its weight.
        outliers: Where the score is above 1/2, `(B, N)`.
        influence: How much mass at an observation moves `s_star`, `(B, N, d_s)`: observed once more
            among N, it moves it by a N-th of this. From the jackknife of the observations that are
            left, or, where `s_star` was searched for, to first order in the embedding.
        covariance: Sampling covariance of `s_star`, `(B, d_s, d_s)`, from the influences.
        excess: How uncertain `s_star` is beyond a summary of simulated data, whose sampling error a
            posterior knows, `(B, d_s, d_s)`; 0 where data are not detected, and where it is not
            known. Also of an observed summary that is kept although the data are detected.

    Example:
        >>> from mindist import MinimumDistance
        >>> x = torch.randn(600, 1, 2) + torch.randn(600, 50, 2)
        >>> mds = MinimumDistance(lambda x: x.mean(1)).fit(x)
        >>> result = mds.adapt(torch.cat([x[0, 5:], 4 + torch.rand(5, 2)]))
        >>> bool(result.adapted), bool(result.outliers[45:].all())
        (True, True)
        >>> result.message
        'adapted: the summary of the observations that the model explains, calibrated, is used'
    """

    s_star: Tensor
    distance_star: Tensor
    objective_obs: Tensor
    objective_star: Tensor
    adapted: Tensor
    status: tuple[Status, ...] | Status
    weights: Tensor
    epsilon: Tensor
    epsilon_error: Tensor
    outlier_score: Tensor
    outliers: Tensor
    influence: Tensor
    covariance: Tensor
    excess: Tensor

    @property
    def message(self) -> str | tuple[str, ...]:
        """Return a sentence for each dataset."""
        if isinstance(self.status, Status):
            return self.status.message
        return tuple(status.message for status in self.status)

    def _said(self) -> str:
        if self.batched:
            return f"{super()._said()}, {int(self.adapted.sum())} adapted"
        return f"{super()._said()}, s_star={_vector(self.s_star)}, status={self.status}"


class EntryStatus(_Outcome):
    """The outcome for one observed vector.

    Example:
        >>> str(EntryStatus.SET_ASIDE), EntryStatus("as_observed").message
        ('set_aside', 'not detected as misspecified: every entry is used as observed')
    """

    AS_OBSERVED = "as_observed", "not detected as misspecified: every entry is used as observed"
    FILLED_IN = (
        "filled_in",
        "not detected as misspecified: entries missing or with errors are drawn given the others",
    )
    SET_ASIDE = (
        "set_aside",
        "adapted: entries that simulations do not explain are set aside and drawn given the others",
    )
    DOUBTED = (
        "doubted",
        "misspecified, but no entry is probably wrong: completed vectors average over which it is",
    )
    UNEXPLAINED = (
        "unexplained",
        "misspecified in a way that setting half of the entries aside does not mend: do not trust "
        "the posterior without a look at the data",
    )
    NOTHING_OBSERVED = (
        "nothing_observed",
        "every entry is missing: completed vectors are simulations, the posterior is the prior",
    )


@dataclass(frozen=True, repr=False)
class EntryDetection(_Result):
    """The test of observed vectors: a leading axis B for a batch, none for one vector.

    Arguments:
        x_obs: The vectors as observed `(B, *event)`.
        p_value: Share of held-out simulations with an entry at least as strange, `(B,)`; never 0.
        misspecified: Whether `p_value` is at most alpha, `(B,)`.
        missing: Entries that are NaN, `(B, *event)`.
        predicted: Each entry as the other believed entries predict it, `(B, *event)`.
        spread: Standard deviation of that prediction, `(B, *event)`.
        alpha: The level.

    Example:
        >>> from mindist import Entrywise
        >>> x = torch.randn(1_000, 1) + 0.1 * torch.randn(1_000, 5)
        >>> Entrywise().fit(x).detect(torch.tensor([0.1, 0.0, 5.0, 0.1, 0.0]))
        EntryDetection(misspecified, p_value=0.004975)
    """

    x_obs: Tensor
    p_value: Tensor
    misspecified: Tensor
    missing: Tensor
    predicted: Tensor
    spread: Tensor
    alpha: float = field(default=0.05, kw_only=True)

    _what = "vectors"


@dataclass(frozen=True, repr=False)
class Completion(EntryDetection, _Reported):
    """A detection, which entries are wrong, and the vectors with which to query the posterior.

    Arguments:
        outlier_score: Probability that an entry is wrong, `(B, *event)`; 0 where not misspecified.
        outliers: Where the score is above 1/2, `(B, *event)`; also entries that are infinite.
        completed: Vectors to average the posterior over, `(B, J, *event)`: entries that are
            believed as observed, the others drawn given them. Bitwise `x_obs` where not adapted.
        adapted: Whether completed vectors differ from the observed one, `(B,)`.
        status: An `EntryStatus` for each vector; a plain one for one vector.

    Example:
        >>> from mindist import Entrywise
        >>> x = torch.randn(2_000, 1) + 0.1 * torch.randn(2_000, 6)
        >>> result = Entrywise().fit(x).adapt(torch.tensor([0.1, 0.0, torch.nan, 0.1, 7.0, 0.0]))
        >>> result.outliers.nonzero().tolist(), result.missing.nonzero().tolist()
        ([[4]], [[2]])
        >>> result.completed.shape, bool((result.completed[:, 4] < 1).all())
        (torch.Size([32, 6]), True)
    """

    outlier_score: Tensor
    outliers: Tensor
    completed: Tensor
    adapted: Tensor
    status: tuple[EntryStatus, ...] | EntryStatus

    @property
    def message(self) -> str | tuple[str, ...]:
        """Return a sentence for each vector."""
        infinite = torch.isinf(self.x_obs).flatten(int(self.batched)).any(-1)
        if isinstance(self.status, EntryStatus):
            return self.status.message + INFINITE * bool(infinite)
        pairs = zip(self.status, infinite.tolist(), strict=True)
        return tuple(status.message + INFINITE * bad for status, bad in pairs)

    def _said(self) -> str:
        wrong, gone = int(self.outliers.sum()), int(self.missing.sum())
        return f"{super()._said()}, {wrong} entries set aside, {gone} missing"


def _vector(s: Tensor, most: int | None = None) -> str:
    shown = [f"{value:.4g}" for value in s[:most].tolist()]
    return f"[{', '.join(shown + ['…'] * (len(s) > len(shown)))}]"


def _facts(result: Any, *, short: bool) -> dict[str, str]:
    """List what is known of one dataset; the p-value against alpha decides, whatever the test."""
    level = f"({'at most' if result.misspecified else 'above'} alpha = {result.alpha:.4g})"
    facts = {"p-value": f"{float(result.p_value):.4g} {level}"}
    outliers: Any = getattr(result, "outliers", None)
    if isinstance(result, Detection):
        facts["Observed summary"] = _vector(result.s_obs, MOST_NUMBERS)
        facts["Squared distance"] = f"{float(result.distance_obs):.4g}"
    else:
        facts["Missing"] = _entries(result, result.missing, short)
    if isinstance(result, Adaptation):
        s_star = _vector(result.s_star, MOST_NUMBERS) if result.adapted else "as observed"
        facts["Adapted summary"] = s_star
        facts["Suspicious"] = f"{int(outliers.sum()):,} of {outliers.numel():,} observations"
    elif outliers is not None:
        facts["Set aside"] = _entries(result, outliers, short)
    if outliers is not None:
        status = result.status
        facts["Status"] = str(status if short else getattr(status, "message", status))
    return facts


def _entries(result: Any, which: Tensor, short: bool) -> str:
    """Count entries of a vector; of the first, say where they are, and what was expected there."""
    found, more = which.nonzero(), "; …" * (int(which.sum()) > MOST_NUMBERS)
    said = f"{len(found):,} of {which.numel():,} entries"
    each = []
    for place in map(tuple, found[:MOST_NUMBERS].tolist()):
        facts = (result.x_obs, result.predicted, result.spread)
        x, predicted, spread = (float(v[place]) for v in facts)
        seen = "" if x != x else f"{x:.4g} seen, "
        each.append(f"{', '.join(map(str, place))} ({seen}{predicted:.4g} ± {spread:.2g} expected)")
    return f"{said}: {'; '.join(each)}{more}" if each and not short else said


def _cells(tag: str, texts: Iterable[str]) -> str:
    """Return cells of a table, escaped."""
    return "".join(f'<{tag} style="{CELL}">{escape(text)}</{tag}>' for text in texts)


__all__ = ["Adaptation", "Completion", "Detection", "EntryDetection", "EntryStatus", "Status"]
