r"""From rows to what figures and tables show: means over test datasets, with their uncertainty.

.. math:: \mathrm{SE} = \mathrm{sd}_j(\bar v_j) / \sqrt{B}

for the means :math:`\bar v_j` over seeds of B datasets; rates have the score interval of Wilson.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mindist_paper.report.style import METRIC_LABELS, sort_series

Points = dict[Any, tuple["Point", ...]]
Rows = Any  # A pandas `DataFrame` with one row for each test dataset, method, setting and seed
# Published values by epsilon: metric -> method -> epsilon -> number
Anchors = Mapping[str, Mapping[str, Mapping[float, float]]]
Published = Mapping[Any, Mapping[float, float]]  # series -> setting -> number
RATES = ("detected", "adapted")  # Columns of yes and no
# Panels that draw samples or data in place of rows
MATERIAL = ("posterior", "images", "trajectories")
LEVEL_COLUMNS = {"coverage_50": 0.5, "coverage_80": 0.8, "coverage_90": 0.9, "coverage_95": 0.95}


@dataclass(frozen=True)
class Panel:
    """One pair of axes: a column of the rows against another, a line for each method."""

    metric: str  # The column on the vertical axis, or one of the names above
    by: str = "epsilon"  # the column on the horizontal axis, of numbers
    title: str = ""  # Title above the axes
    where: Mapping[str, Any] = field(default_factory=dict)  # only rows with these values
    log: bool = False  # Whether the vertical axis is logarithmic
    series: str = "method"  # The column that has a line for each of its values

    def published(self, anchors: Anchors) -> Published:
        """Return the published values that belong here; values by epsilon stay off other axes."""
        fits = self.series == "method" and self.by == "epsilon"
        return anchors.get(self.metric, {}) if fits else {}


@dataclass(frozen=True)
class Point:
    """A mean over test datasets."""

    at: Any  # The value of `by`
    mean: float  # Over datasets; NaN where no dataset has a value
    low: float  # The lower end of the error bar
    high: float  # The upper end of the error bar
    count: int  # How many datasets (for rates: trials) have a value
    missing: int  # How many rows have none

    @property
    def error(self) -> float:
        """Half of the error bar: the standard error."""
        return (self.high - self.low) / 2


def select(rows: Rows, where: Mapping[str, Any]) -> Rows:
    """Return the rows with the given values, numbers up to rounding."""
    for column, value in where.items():
        require(rows, column)
        values = list(value) if isinstance(value, list | tuple) else [value]
        if isinstance(values[0], float):
            keep = np.isclose(rows[column].to_numpy(dtype=float)[:, None], values).any(1)
        else:
            keep = rows[column].isin(values)
        rows = rows[keep]
    return rows


def require(rows: Rows, *columns: str) -> None:
    """Raise where a column is missing."""
    absent = [column for column in columns if column not in rows.columns]
    if absent:
        raise ValueError(f"rows: expected the columns {absent}, got {sorted(rows.columns)}.")


def by_level(rows: Rows) -> Rows:
    """Repeat each row for each nominal level: columns "level" and "coverage" in place of four."""
    present = [name for name in LEVEL_COLUMNS if name in rows.columns]
    require(rows, *([] if present else LEVEL_COLUMNS))
    kept = [column for column in rows.columns if column not in LEVEL_COLUMNS]
    long = rows.melt(kept, present, var_name="level", value_name="coverage")
    return long.assign(level=long["level"].map(LEVEL_COLUMNS))


def dataset_values(rows: Rows, metric: str, by: str, series: str = "method") -> Rows:
    """Return the metric as a column "value", a row for each series, `by`, seed and dataset."""
    keys = list(dict.fromkeys([series, by, "seed", "dataset"]))
    require(rows, metric, *keys)
    values = rows[metric].to_numpy(dtype=float, na_value=math.nan)
    values = rows[keys].assign(value=np.where(np.isfinite(values), values, math.nan))
    values = values.dropna(subset=[by, series])
    again = values.duplicated(keys, keep=False)
    if again.any():
        group = rows.loc[values.index[again]]
        first = group.merge(group.head(1)[keys])
        differ = [c for c in first.columns if first[c].astype(str).nunique() > 1]
        settings = [c for c in differ if c not in (*keys, *METRIC_LABELS)]
        raise ValueError(
            f"rows: expected one row for each {', '.join(keys)}, got {len(first)} that differ in "
            f"{settings}: fix the setting among them in the panel's `where`."
        )
    return values


def summarise(rows: Rows, metric: str, by: str, series: str = "method") -> Points:
    """Return means for each series, in the order of legends, and each value of `by`."""
    values = dataset_values(rows, metric, by, series)
    groups = dict(list(values.groupby([series, by], sort=False)))
    settings = sort_series(by, list(values[by].unique()))
    points: Points = {}
    for name in sort_series(series, list(values[series].unique())):
        own = [(at, groups[name, at]) for at in settings if (name, at) in groups]
        if any(group["value"].notna().any() for _, group in own):
            points[name] = tuple(_point(at, group, metric in RATES) for at, group in own)
    return points


def _point(at: Any, rows: Rows, rate: bool) -> Point:
    missing = int(rows["value"].isna().sum())
    values = rows["value"] if rate else rows.groupby("dataset")["value"].mean()
    values = values.dropna().to_numpy()
    mean = float(values.mean()) if len(values) else math.nan
    error = standard_error(values)
    ends = wilson(mean, len(values)) if rate else (mean - error, mean + error)
    return Point(at, mean, *ends, len(values), missing)


def standard_error(values: Sequence[float] | np.ndarray[Any, Any]) -> float:
    """Return the standard error of a mean; NaN for fewer than two values."""
    values = np.asarray(values)
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


def wilson(rate: float, trials: int) -> tuple[float, float]:
    """Return the score interval of a binomial rate at one standard deviation."""
    if not trials:
        return math.nan, math.nan
    centre = rate + 0.5 / trials
    half = math.sqrt(rate * (1 - rate) / trials + 0.25 / trials**2)
    scale = 1 + 1 / trials
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def paired_difference(
    rows: Rows, metric: str, by: str, at: Any, first: str, second: str
) -> tuple[float, float]:
    """Return the mean of `first` minus `second` on the same datasets, and its standard error."""
    values = dataset_values(rows[rows[by] == at], metric, by)
    wide = values.pivot(index=["seed", "dataset"], columns="method", values="value")
    means = (wide[first] - wide[second]).dropna().groupby("dataset").mean().to_numpy()
    return (float(means.mean()) if len(means) else math.nan), standard_error(means)
