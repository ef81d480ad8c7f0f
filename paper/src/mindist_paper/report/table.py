"""Tables: a row for each setting, a column for each method; and the page that has all of them."""

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mindist.report.page import plus_minus, render
from mindist_paper.report import statistics, style
from mindist_paper.report.curves import Horizontal
from mindist_paper.report.statistics import Anchors, Panel, Point, Rows, select, summarise
from mindist_paper.report.style import capital, method_style, metric_label, setting, text

TITLE = "mindist: the paper, reproduced"
BEYOND = 2.0  # Standard errors beyond which a paired difference counts: about 5% when there is none


@dataclass(frozen=True)
class Entry:
    """One cell."""

    text: str  # Its text
    best: bool = False  # Whether it is the best of its row
    aside: str = ""  # What stands beside it, in parentheses

    def markdown(self) -> str:
        """Return the cell in Markdown."""
        text = f"**{self.text}**" if self.best else self.text
        return f"{text} ({self.aside})" if self.aside else text


@dataclass(frozen=True)
class Table:
    """A table that can be written as Markdown and as a part of a page."""

    caption: str  # What the numbers are
    header: Sequence[str]  # Names of the columns
    body: Sequence[Sequence[Entry]]  # Rows of as many entries
    notes: Sequence[str] = ()  # What a reader has to know, below the table

    def markdown(self) -> str:
        """Return the table for a Markdown file."""

        def line(cells: Sequence[str]) -> str:
            return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

        rule = "|" + "---|" + "---:|" * (len(self.header) - 1)
        body = [line([cell.markdown() for cell in row]) for row in self.body]
        table = "\n".join([line(self.header), rule, *body])
        return "\n\n".join([f"**{self.caption}**", table, *self.notes]) + "\n"


def experiment_tables(
    panels: Sequence[Panel], rows: Rows, anchors: Anchors | None = None
) -> tuple[Table, ...]:
    """Return the tables of all panels; none for a panel that draws samples or images."""
    return tuple(table for panel in panels for table in panel_tables(panel, rows, anchors or {}))


def panel_tables(panel: Panel, rows: Rows, anchors: Anchors) -> Iterator[Table]:
    """Yield the table of a panel; for coverage that is open in `by`, one for each setting."""
    if panel.metric in statistics.MATERIAL:
        return
    own, words = select(rows, panel.where), metric_label(panel.metric)
    title = panel.title or capital(words)
    if panel.metric != "coverage":
        caption = title if words.lower() in title.lower() else f"{title}: {words}"
        published = panel.published(anchors)
        yield metric_table(own, panel.metric, panel.by, caption, panel.series, published)
        return
    long = statistics.by_level(own)
    if panel.series == panel.by or own[panel.by].nunique() < 2:
        yield metric_table(long, "coverage", "level", title, panel.series)
        return
    for at in sorted(own[panel.by].dropna().unique()):
        caption = f"{title}, {setting(panel.by, at)}"
        yield metric_table(long[long[panel.by] == at], "coverage", "level", caption, panel.series)


def metric_table(
    rows: Rows,
    metric: str,
    by: str = "epsilon",
    caption: str = "",
    series: str = "method",
    anchors: statistics.Published | None = None,
) -> Table:
    """Return means and standard errors of a metric."""
    points = summarise(rows, metric, by, series)
    grid = {name: {p.at: p for p in own} for name, own in points.items()}
    compared = metric in style.SMALLER_IS_BETTER and series == "method"
    body = []
    for at in Horizontal(by, [at for own in grid.values() for at in own]).places:
        robust = {
            name: own[at].mean
            for name, own in grid.items()
            if at in own and name not in style.NOT_ROBUST and math.isfinite(own[at].mean)
        }
        best = min(robust, key=lambda m: robust[m]) if compared and len(robust) > 1 else None
        cells = [Entry(text(at))]
        for name, own in grid.items():
            published = {text(a): f"{v:g}" for a, v in (anchors or {}).get(name, {}).items()}
            value = plus_minus(own[at].mean, own[at].error) if at in own else "–"
            cells.append(Entry(value, name == best, published.get(text(at), "")))
        body.append(cells)
    styles = style.series_styles(series, list(grid))
    header = [style.quantity_label(by), *(own.label for own in styles.values())]
    first = notes(points, metric in statistics.RATES)
    if any((anchors or {}).get(name) for name in grid):
        first += " In parentheses: the published value."
    if compared:
        first += " Bold: the lowest mean among robust methods."
    below = [first]
    for name, series_points in points.items():
        gaps = ", ".join(f"{p.missing} at {text(p.at)}" for p in series_points if p.missing)
        if gaps:
            below.append(f"Rows without a value, left out: {styles[name].label}, {gaps}.")
    return Table(caption or capital(metric_label(metric)), header, body, tuple(below))


def notes(points: Mapping[Any, Sequence[Point]], rate: bool) -> str:
    """Say how the numbers were made."""
    counts = sorted({p.count for own in points.values() for p in own}) or [0]
    number = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    if counts == [0]:
        return "No results."
    if counts == [1]:
        return "One value for each setting: no standard errors."
    if rate:
        return f"Rate ± half of the 68% Wilson interval, {number} trials."
    return f"Mean ± standard error over {number} test datasets."


@dataclass(frozen=True)
class Loss:
    """A baseline that beats one of our methods at a setting, by a mean paired difference."""

    method: str
    baseline: str
    at: Any
    difference: float
    error: float

    def __str__(self) -> str:
        return f"+{plus_minus(self.difference, self.error)}"


def find_losses(rows: Rows, metric: str, by: str = "epsilon") -> tuple[dict[str, int], list[Loss]]:
    """Return how many comparisons each method of ours made, and the ones it loses."""
    points = summarise(rows, metric, by)
    settings = {name: [p.at for p in own] for name, own in points.items()}
    compared = {method: 0 for method in points if method in style.OURS}
    lost = []
    for method in compared:
        for baseline in points:
            if baseline in (*style.OURS, *style.REFERENCES):
                continue
            for at in (at for at in settings[method] if at in settings[baseline]):
                pair = (at, method, baseline)
                difference, error = statistics.paired_difference(rows, metric, by, *pair)
                compared[method] += math.isfinite(error)  # one dataset says nothing
                if difference > BEYOND * error:
                    lost.append(Loss(method, baseline, at, difference, error))
    return compared, lost


def panel_losses(panels: Sequence[Panel], rows: Rows) -> tuple[list[str], list[Table]]:
    """Return where MDS loses in panels of methods: sentences, each once, and tables."""
    sentences: dict[str, None] = {}
    tables = []
    for panel in panels:
        if panel.metric not in style.SMALLER_IS_BETTER or panel.series != "method":
            continue
        compared, lost = find_losses(select(rows, panel.where), panel.metric, panel.by)
        before = f"{panel.title}: " if panel.title else ""
        for method, count in compared.items():
            if count:
                own = [loss for loss in lost if loss.method == method]
                sentences[before + loss_sentence(method, panel, own, count)] = None
        if lost:
            tables.append(loss_table(panel, lost))
    return list(sentences), tables


def loss_sentence(method: str, panel: Panel, lost: Sequence[Loss], compared: int) -> str:
    """Say to whom a method loses, where, and by how much at worst."""
    label, words = method_style(method).label, metric_label(panel.metric)
    if not lost:
        return (
            f"{label} loses to no baseline in {words} ({compared} paired comparisons, none lost "
            f"by more than {BEYOND:g} standard errors)."
        )
    parts, name = [], setting(panel.by, "").rstrip()
    for baseline in dict.fromkeys(loss.baseline for loss in lost):
        own = [loss for loss in lost if loss.baseline == baseline]
        worst = max(own, key=lambda loss: loss.difference)
        where = ", ".join(text(loss.at) for loss in own)
        most = f"{worst}" if len(own) == 1 else f"most at {text(worst.at)}: {worst}"
        parts.append(f"to {method_style(baseline).label} at {name} {where} ({most})")
    return f"{label} loses in {words} {'; '.join(parts)}."


def loss_table(panel: Panel, lost: Sequence[Loss]) -> Table:
    """Return all losses of a panel, a column for each setting."""
    settings = list(Horizontal(panel.by, [loss.at for loss in lost]).places)
    found = {(loss.method, loss.baseline, loss.at): str(loss) for loss in lost}
    body = []
    for first, second in dict.fromkeys((loss.method, loss.baseline) for loss in lost):
        name = f"{method_style(first).label} to {method_style(second).label}"
        differences = [found.get((first, second, at), "") for at in settings]
        body.append([Entry(name), *map(Entry, differences)])
    of = f"where it is above {BEYOND:g} of them"
    note = f"Mean difference on the same datasets ± its standard error, {of}."
    title = f" ({panel.title})" if panel.title else ""
    header = ["loses", *(setting(panel.by, at) for at in settings)]
    return Table(f"Lost in {metric_label(panel.metric)}{title}", header, body, (note,))


def tables_in_markdown(tables: Sequence[Table], lost: Sequence[str] = ()) -> str:
    """Return sentences on where MDS loses, and tables below them."""
    sentences = "\n".join(f"- {sentence}" for sentence in lost)
    heading = [f"**Where MDS loses to a baseline**\n\n{sentences}\n"] if lost else []
    return "\n".join([*heading, *(table.markdown() for table in tables)])


@dataclass(frozen=True)
class Section:
    """The part of the page about one experiment."""

    name: str  # As in `mindist reproduce NAME`
    title: str  # Its heading
    shows: str = ""  # One line on what it shows
    source: str = ""  # Where it stands in the paper
    command: str = ""  # The command line that gives these results
    figure: Path | None = None  # The SVG file, or None where there is none
    alt: str = ""  # What the figure shows, in words
    tables: Sequence[Table] = ()  # The numbers
    verdict: str = ""  # A line on agreement or disagreement with the paper, and why
    losses: Sequence[str] = ()  # Where MDS loses to a baseline
    configuration: Any = None  # JSON values, shown when opened
    seconds: float | None = None  # Seconds taken to compute, or None where nothing ran

    @property
    def image(self) -> str:
        """The figure as an address that holds it; "" where there is none."""
        if self.figure is None:
            return ""
        content = base64.b64encode(self.figure.read_bytes()).decode("ascii")
        return f"data:image/svg+xml;base64,{content}"


@dataclass(frozen=True)
class Page:
    """The whole page."""

    sections: Sequence[Section]  # In reading order
    versions: Mapping[str, str] = field(default_factory=dict)  # of all packages
    seconds: float = 0.0  # Seconds taken in all
    facts: Mapping[str, str] = field(default_factory=dict)  # other lines of the preamble


def as_html(page: Page) -> str:
    """Return one self-contained page with every experiment, figures inlined as SVG."""
    sections = {section.name: section.title for section in page.sections}
    more: dict[str, Any] = {"title": TITLE, "sections": sections, "versions": page.versions}
    return render("experiments.html", "mindist_paper.report", page=page, **more)
