"""Tables: a row for each setting, a column for each method, a mean and its standard error in each.

The best robust method of a row, the one with the smallest mean, is bold. A published value stands
in parentheses beside ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mindist_paper.report.horizontal import Horizontal
from mindist_paper.report.panel import Anchors, Panel, panel_anchors
from mindist_paper.report.statistics import (
    RATES,
    Point,
    Rows,
    by_level,
    select,
    summarise,
)
from mindist_paper.report.style import (
    NOT_ROBUST,
    SMALLER_IS_BETTER,
    capital,
    metric_label,
    quantity_label,
    series_styles,
    setting,
    text,
)


@dataclass(frozen=True)
class Entry:
    """One cell.

    Arguments:
        text: Its text.
        best: Whether it is the best of its row.
        aside: What stands beside it, in parentheses.
    """

    text: str
    best: bool = False
    aside: str = ""

    def markdown(self) -> str:
        """The cell in Markdown."""
        text = f"**{self.text}**" if self.best else self.text
        return f"{text} ({self.aside})" if self.aside else text


@dataclass(frozen=True)
class Table:
    """A table that can be written as Markdown and as a part of a page.

    Arguments:
        caption: What the numbers are.
        header: Of the columns.
        body: Rows of as many entries.
        notes: What a reader has to know, below the table.

    Example:
        >>> Table("Errors", ["method", "RMSE"], [], notes=["No rows."]).markdown().splitlines()[2]
        '| method | RMSE |'
    """

    caption: str
    header: Sequence[str]
    body: Sequence[Sequence[Entry]]
    notes: Sequence[str] = ()

    def markdown(self) -> str:
        """The table for a Markdown file."""

        def line(cells: Sequence[str]) -> str:
            return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

        rule = "|" + "---|" + "---:|" * (len(self.header) - 1)
        body = [line([cell.markdown() for cell in row]) for row in self.body]
        table = "\n".join([line(self.header), rule, *body])
        return "\n\n".join([f"**{self.caption}**", table, *self.notes]) + "\n"


def mean_and_error(mean: float, error: float) -> str:
    """A mean to the digits that its standard error supports: two of the error's.

    Example:
        >>> mean_and_error(12.3456, 0.789), mean_and_error(1234.5, 67.8)
        ('12.35 ± 0.79', '1234 ± 68')
        >>> mean_and_error(1 / 3, math.nan)  # one dataset
        '0.333'
    """
    if not math.isfinite(mean):
        return "–"
    if not math.isfinite(error) or error <= 0:
        return f"{mean:.3g}"
    decimals = max(0, 1 - math.floor(math.log10(error)))
    if decimals > 6:
        return f"{mean:.3g} ± {error:.1e}"
    return f"{mean:.{decimals}f} ± {error:.{decimals}f}"


def panel_tables(panel: Panel, rows: Rows, anchors: Anchors | None = None) -> tuple[Table, ...]:
    """The numbers of a panel; none for a panel that draws samples or images.

    Coverage that is open in `by` has a table for each setting.

    Example:
        >>> import pandas as pd
        >>> rows = pd.DataFrame(
        ...     {"method": ["npe", "npe", "mds", "mds"], "epsilon": [0.0, 0.2] * 2,
        ...      "dataset": 0, "seed": 0, "rmse": [0.1, 0.4, 0.1, 0.2]}
        ... )
        >>> from mindist_paper.report import Panel
        >>> [table.caption for table in panel_tables(Panel("rmse"), rows)]
        ['RMSE of the posterior mean']
    """
    own = select(rows, panel.where)
    if panel.metric in ("posterior", "images", "trajectories"):
        return ()
    title = panel.title or capital(metric_label(panel.metric))
    if panel.metric != "coverage":
        published = panel_anchors(panel, anchors or {})
        words = metric_label(panel.metric)
        caption = title if words.lower() in title.lower() else f"{title}: {words}"
        table = metric_table(
            own, panel.metric, panel.by, caption=caption, series=panel.series, anchors=published
        )
        return (table,)
    long = by_level(own)
    if panel.series == panel.by or own[panel.by].nunique() < 2:
        return (metric_table(long, "coverage", "level", caption=title, series=panel.series),)
    return tuple(
        metric_table(
            long[long[panel.by] == at],
            "coverage",
            "level",
            caption=f"{title}, {setting(panel.by, at)}",
            series=panel.series,
        )
        for at in sorted(own[panel.by].dropna().unique())
    )


def metric_table(
    rows: Rows,
    metric: str,
    by: str = "epsilon",
    *,
    caption: str = "",
    series: str = "method",
    anchors: Mapping[Any, Mapping[float, float]] | None = None,
) -> Table:
    """Means and standard errors of a metric.

    Arguments:
        rows: One row for each test dataset, method, setting and seed.
        metric: Which column.
        by: The column with a row of the table for each value.
        caption: What the numbers are; by default the metric in words.
        series: The column with a column of the table for each value.
        anchors: Published values, method -> value of `by` -> number.

    Example:
        >>> import pandas as pd
        >>> rows = pd.DataFrame(
        ...     {"method": ["npe", "npe", "mds", "mds"], "epsilon": [0.0, 0.2] * 2,
        ...      "dataset": 0, "seed": 0, "rmse": [0.1, 0.4, 0.1, 0.2]}
        ... )
        >>> print(metric_table(rows, "rmse", caption="Errors").markdown())
        **Errors**
        <BLANKLINE>
        | contaminated fraction ε | NPE | MDS (default) |
        ...
    """
    points = summarise(rows, metric, by, series)
    grid = {name: {p.at: p for p in own} for name, own in points.items()}
    settings = list(Horizontal.of(by, [at for own in grid.values() for at in own]).places)
    published = {
        name: {text(at): value for at, value in (anchors or {}).get(name, {}).items()}
        for name in grid
    }
    body = []
    for at in settings:
        best = best_robust(grid, at) if metric in SMALLER_IS_BETTER and series == "method" else None
        cells = [
            entry(grid[name].get(at), published[name].get(text(at)), best=name == best)
            for name in grid
        ]
        body.append([Entry(text(at)), *cells])
    labels = [style.label for style in series_styles(series, list(grid)).values()]
    return Table(
        caption or capital(metric_label(metric)),
        [quantity_label(by), *labels],
        body,
        tuple(notes(points, metric, series, any(published.values()))),
    )


def best_robust(grid: Mapping[Any, Mapping[Any, Point]], at: Any) -> Any:
    """The robust method with the smallest mean, or None where there are not two to compare."""
    means = {
        name: own[at].mean
        for name, own in grid.items()
        if at in own and name not in NOT_ROBUST and math.isfinite(own[at].mean)
    }
    return min(means, key=lambda name: means[name]) if len(means) > 1 else None


def entry(point: Point | None, published: float | None = None, *, best: bool = False) -> Entry:
    """A mean, its standard error, and what was published.

    Example:
        >>> entry(Point(0.1, 0.1093, 0.1051, 0.1135, 100, 0), 0.109, best=True).markdown()
        '**0.1093 ± 0.0042** (0.109)'
    """
    value = "–" if point is None else mean_and_error(point.mean, point.error)
    return Entry(value, best, "" if published is None else f"{published:g}")


def notes(
    points: Mapping[Any, Sequence[Point]], metric: str, series: str, published: bool
) -> Iterator[str]:
    """How the numbers were made, and what is missing from them."""
    counts = sorted({p.count for own in points.values() for p in own}) or [0]
    number = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    if counts == [0]:
        note = "No results."
    elif counts == [1]:
        note = "One value for each setting: no standard errors."
    elif metric in RATES:
        note = f"Rate ± half of the 68% Wilson interval, {number} trials."
    else:
        note = f"Mean ± standard error over {number} test datasets."
    if published:
        note += " In parentheses: the published value."
    if metric in SMALLER_IS_BETTER and series == "method":
        note += " Bold: the lowest mean among robust methods."
    yield note
    styles = series_styles(series, list(points))
    for name, own in points.items():
        gaps = [f"{p.missing} at {text(p.at)}" for p in own if p.missing]
        if gaps:
            yield f"Rows without a value, left out: {styles[name].label}, {', '.join(gaps)}."


def experiment_tables(
    panels: Sequence[Panel], rows: Rows, anchors: Anchors | None = None
) -> tuple[Table, ...]:
    """The tables of all panels of an experiment.

    Example:
        >>> import pandas as pd
        >>> rows = pd.DataFrame(
        ...     {"method": ["npe", "npe", "mds", "mds"], "epsilon": [0.0, 0.2] * 2,
        ...      "dataset": 0, "seed": 0, "rmse": [0.1, 0.4, 0.1, 0.2]}
        ... )
        >>> from mindist_paper.report import Panel
        >>> len(experiment_tables([Panel("rmse"), Panel("images")], rows))
        1
    """
    return tuple(table for panel in panels for table in panel_tables(panel, rows, anchors))


def tables_in_markdown(tables: Sequence[Table], lost: Sequence[str] = ()) -> str:
    """Sentences on where MDS loses, and tables below them.

    Example:
        >>> import pandas as pd
        >>> rows = pd.DataFrame(
        ...     {"method": ["npe", "npe", "mds", "mds"], "epsilon": [0.0, 0.2] * 2,
        ...      "dataset": 0, "seed": 0, "rmse": [0.1, 0.4, 0.1, 0.2]}
        ... )
        >>> text = tables_in_markdown([metric_table(rows, "rmse")])
        >>> "| NPE |" in text
        True
    """
    sentences = "\n".join(f"- {sentence}" for sentence in lost)
    heading = [f"**Where MDS loses to a baseline**\n\n{sentences}\n"] if lost else []
    return "\n".join([*heading, *(table.markdown() for table in tables)])


__all__ = [
    "Entry",
    "Table",
    "experiment_tables",
    "mean_and_error",
    "metric_table",
    "panel_tables",
    "tables_in_markdown",
]
