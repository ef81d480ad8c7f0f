"""The record as tables of ratios, for a terminal and for a Markdown file."""

from __future__ import annotations

from collections.abc import Sequence

from mindist_paper.benchmark.record import Record
from mindist_paper.benchmark.row import Row
from mindist_paper.report.table import Entry, Table

TITLES = {
    "embedding": "Mean embeddings",
    "memory": "Memory of mean embeddings",
    "decoder": "Fitting a decoder",
    "adaptation": "Adapting",
    "detection": "Detecting",
    "overhead": "Overhead",
    "queries": "Asking the posterior for many datasets",
    "growth": "Growth",
}
HEADER = ("what", "measure", "threads", "value", "spread", "claim", "reached")
SMALL = "These sizes show directions only: the claims are made for the profile full."
VERDICTS = {True: "yes", False: "**no**", None: ""}


def cells(row: Row) -> tuple[str, ...]:
    """A row as text, in the order of `HEADER`.

    Example:
        >>> cells(Row("x", "a / b", 3.14159, 3.0, 3.2))
        ('x', 'a / b', '1', '3.14', '3 to 3.2', '', '')
    """
    spread = f"{number(row.low)} to {number(row.high)}" if row.low < row.high else ""
    claim = "" if row.claim is None else str(row.claim)
    return (
        row.what,
        row.measure,
        str(row.threads),
        f"{number(row.value)} {row.unit}".strip(),
        spread,
        claim,
        VERDICTS[row.reached],
    )


def number(value: float) -> str:
    """Three digits, without an exponent where it can be read without.

    Example:
        >>> number(12345.6), number(3.14159), number(0.00012345)
        ('12,300', '3.14', '0.000123')
    """
    if abs(value) < 1_000:
        return f"{value:.3g}"
    return f"{float(f'{value:.3g}'):,.0f}"


def markdown(record: Record, figures: Sequence[str] = ()) -> str:
    """All groups as a Markdown page, with the figures of the growth at the end.

    Arguments:
        record: What was found.
        figures: Their file names.
    """
    parts = [f"# Benchmark, profile {record.profile}\n", f"{origin(record)}\n"]
    parts += [_table(group, rows).markdown() for group, rows in record.groups.items()]
    parts += [f"![{name.removesuffix('.png')}]({name})\n" for name in figures]
    return "\n".join(parts)


def origin(record: Record) -> str:
    """Machine, versions and dates in two sentences, and what the sizes are good for."""
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    about = record.machine
    dates = sorted(set(record.dates.values()))
    measured = f" Measured {dates[0]} to {dates[-1]}." if dates else ""
    return (
        f"{about['processor']}, {about['cores']} cores, {about['memory_gb']:g} GB, "
        f"{about['system']}; {versions}.{measured}{'' if record.profile == 'full' else f' {SMALL}'}"
    )


def _table(group: str, rows: Sequence[Row]) -> Table:
    body = [[Entry(cell) for cell in cells(row)] for row in rows]
    notes = dict.fromkeys(f"{row.what}: {row.note}." for row in rows if row.note)
    listed = "\n".join(f"- {note}" for note in notes)
    return Table(TITLES.get(group, group), HEADER, body, [listed] if listed else [])


__all__ = ["HEADER", "TITLES", "cells", "markdown", "number", "origin"]
