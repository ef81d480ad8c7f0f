r"""From rows to what figures and tables show: means over test datasets, with their uncertainty.

.. math::
    \bar v_j = \tfrac1K \textstyle\sum_k v_{jk}, \qquad
    \bar v = \tfrac1B \textstyle\sum_j \bar v_j, \qquad
    \mathrm{SE} = \mathrm{sd}_j(\bar v_j) / \sqrt{B}

for :math:`B` test datasets and :math:`K` seeds. Rates are binomial instead: all :math:`BK` trials
count, and the bar is the score interval of Wilson at one standard deviation, which does not shrink
to nothing at 0 and 1.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mindist_paper.report.style import METRIC_LABELS, sort_series

Rows = Any
"""A pandas `DataFrame` with one row for each test dataset, method, setting and seed. Its methods
are all that is used here: the library itself is not imported."""

RATES = ("detected", "adapted")
"""Columns of yes and no."""

LEVEL_COLUMNS = {0.5: "coverage_50", 0.8: "coverage_80", 0.9: "coverage_90", 0.95: "coverage_95"}


@dataclass(frozen=True)
class Point:
    """A mean over test datasets.

    Arguments:
        at: The value of `by`.
        mean: Over datasets; NaN where no dataset has a value.
        low: The lower end of the error bar.
        high: The upper end of the error bar.
        count: How many datasets (for rates: trials) have a value.
        missing: How many rows have none.
    """

    at: Any
    mean: float
    low: float
    high: float
    count: int
    missing: int

    @property
    def error(self) -> float:
        """Half of the error bar: the standard error."""
        return (self.high - self.low) / 2


def select(rows: Rows, where: Mapping[str, Any]) -> Rows:
    """The rows with the given values; a list or tuple of values lets through each of them."""
    for column, value in where.items():
        require(rows, column)
        values = list(value) if isinstance(value, list | tuple) else [value]
        keep = np.zeros(len(rows), dtype=bool)
        for one in values:
            keep |= matches(rows[column], one)
        rows = rows[keep]
    return rows


def matches(column: Any, value: Any) -> np.ndarray[Any, Any]:
    """Where a column has a value: numbers up to rounding, None where empty, mappings as JSON."""
    if value is None:
        return np.asarray(column.isna())
    if isinstance(value, Mapping):
        return np.array([json.loads(entry) == value for entry in column], dtype=bool)
    if isinstance(value, float):
        return np.array(
            [isinstance(v, int | float) and math.isclose(v, value, abs_tol=1e-12) for v in column],
            dtype=bool,
        )
    return np.asarray(column == value)


def require(rows: Rows, *columns: str) -> None:
    """Raise where a column is missing."""
    absent = [column for column in columns if column not in rows.columns]
    if absent:
        raise ValueError(f"rows: expected the columns {absent}, got {sorted(rows.columns)}.")


def by_level(rows: Rows) -> Rows:
    """Each row once for each nominal level: columns "level" and "coverage" in place of four."""
    present = {level: name for level, name in LEVEL_COLUMNS.items() if name in rows.columns}
    require(rows, *([] if present else LEVEL_COLUMNS.values()))
    kept = [column for column in rows.columns if column not in LEVEL_COLUMNS.values()]
    long = rows.melt(kept, list(present.values()), var_name="level", value_name="coverage")
    return long.assign(level=long["level"].map({name: level for level, name in present.items()}))


def numbers(column: Any) -> np.ndarray[Any, Any]:
    """A column as floats, with NaN where it is empty or not finite."""
    values = np.asarray(column.to_numpy(dtype=float, na_value=math.nan))
    return np.where(np.isfinite(values), values, math.nan)


def dataset_values(rows: Rows, metric: str, by: str, series: str = "method") -> Rows:
    """The metric as numbers, one row for each series, value of `by`, seed and dataset.

    Raises:
        ValueError: Where several rows remain for one of them: they would be averaged silently.
    """
    keys = [series, by, "seed", "dataset"]
    require(rows, metric, *keys)
    values = rows[[*dict.fromkeys(keys)]].assign(value=numbers(rows[metric]))
    values = values[values[by].notna() & values[series].notna()]
    again = values.duplicated([*dict.fromkeys(keys)], keep=False)
    if again.any():
        group = rows.loc[values.index[again]]
        first = group.merge(group.head(1)[[*dict.fromkeys(keys)]])
        differ = [c for c in first.columns if first[c].astype(str).nunique() > 1]
        settings = [c for c in differ if c not in (*keys, *METRIC_LABELS)]
        raise ValueError(
            f"rows: expected one row for each {', '.join(keys)}, got {len(first)} that differ in "
            f"{settings}: fix the setting among them in the panel's `where`."
        )
    return values


def summarise(
    rows: Rows, metric: str, by: str, series: str = "method"
) -> dict[Any, tuple[Point, ...]]:
    """Means over test datasets for each series, in the order of legends, and each value of `by`.

    A series without any value is left out.
    """
    values = dataset_values(rows, metric, by, series)
    names = sort_series(series, list(values[series].unique()))
    settings = sort_series(by, list(values[by].unique()))
    points: dict[Any, tuple[Point, ...]] = {}
    for name in names:
        own = values[values[series] == name]
        if own["value"].notna().any():
            present = [at for at in settings if (own[by] == at).any()]
            points[name] = tuple(point(own[own[by] == at], at, metric) for at in present)
    return points


def point(values: Rows, at: Any, metric: str) -> Point:
    """The mean of the values at one setting."""
    missing = int(values["value"].isna().sum())
    if metric in RATES:
        trials = values["value"].dropna().to_numpy()
        mean = float(trials.mean()) if len(trials) else math.nan
        return Point(at, mean, *wilson(mean, len(trials)), len(trials), missing)
    means = values.groupby("dataset")["value"].mean().dropna().to_numpy()
    mean = float(means.mean()) if len(means) else math.nan
    error = standard_error(means)
    return Point(at, mean, mean - error, mean + error, len(means), missing)


def standard_error(values: Sequence[float] | np.ndarray[Any, Any]) -> float:
    """Of a mean; NaN for fewer than two values.

    Example:
        >>> standard_error([1.0, 3.0])
        1.0
    """
    values = np.asarray(values)
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


def wilson(rate: float, trials: int) -> tuple[float, float]:
    """The score interval of a binomial rate at one standard deviation.

    Example:
        >>> low, high = wilson(0.0, 99)
        >>> round(low, 6), round(high, 6)
        (0.0, 0.01)
    """
    if not trials:
        return math.nan, math.nan
    centre = rate + 0.5 / trials
    half = math.sqrt(rate * (1 - rate) / trials + 0.25 / trials**2)
    scale = 1 + 1 / trials
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def paired_difference(
    rows: Rows, metric: str, by: str, at: Any, first: str, second: str
) -> tuple[float, float]:
    """Mean of `first` minus `second` on the same datasets and seeds, and its standard error."""
    values = dataset_values(rows, metric, by)
    values = values[values[by] == at]
    wide = values.pivot(index=["seed", "dataset"], columns="method", values="value")
    difference = (wide[first] - wide[second]).dropna()
    means = difference.groupby("dataset").mean().to_numpy()
    return (float(means.mean()) if len(means) else math.nan), standard_error(means)


__all__ = [
    "LEVEL_COLUMNS",
    "RATES",
    "Point",
    "Rows",
    "by_level",
    "dataset_values",
    "paired_difference",
    "select",
    "standard_error",
    "summarise",
    "wilson",
]
