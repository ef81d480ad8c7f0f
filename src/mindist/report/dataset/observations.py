"""The table of observations, ranked by outlier score; the page's script sorts and filters it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from mindist.report.dataset.material import Material
from mindist.report.dataset.words import number
from mindist.report.html import join, paragraph, scrolling

MOST_ROWS = 1_000
"""Of the table; a larger page is slow on a phone."""

FEW_ROWS = 15
"""Shown at first."""

MOST_VALUES = 3
"""Numbers of an observation that have a place in the table."""


def observation_table(material: Material) -> str:
    """Rows from the highest outlier score to the lowest."""
    result = material.result
    order = result.outlier_score.argsort(descending=True, stable=True)[:MOST_ROWS].tolist()
    pull = (result.influence.double() / material.scale).norm(dim=1) / len(material.x)
    small = material.x[0].numel() <= MOST_VALUES
    header = ["Index", "Score", "Weight", "Pull", "Suspicious"]
    rows = []
    for i in order:
        strange = bool(result.outliers[i])
        cells = [
            (f"{i}", float(i)),
            (f"{float(result.outlier_score[i]):.3f}", float(result.outlier_score[i])),
            (f"{float(result.weights[i]):.2f}", float(result.weights[i])),
            (f"{float(pull[i]):.2g}", float(pull[i])),
            ("yes" if strange else "no", float(strange)),
        ]
        if small:
            values = ", ".join(number(v) for v in material.x[i].flatten().tolist())
            cells.insert(1, (values, float(material.x[i].flatten()[0])))
        rows.append(_row(cells, strange))
    if small:
        header.insert(1, "Value")
    table = _table(header, rows)
    left_out = len(material.x) - len(rows)
    notes = [
        "Index: counted from 0, as in Python. Score: the outlier score. Weight: how much it counts "
        "in the adapted summary, from 0 to 1. Pull: how far one more observation like it would "
        "move that summary, in standard deviations of simulated summaries."
    ]
    if left_out:
        notes.append(f"The {left_out:,} observations with the lowest scores are left out.")
    return join(
        _controls(int(result.outliers.sum())), table, *(paragraph(n, "note") for n in notes)
    )


def _row(cells: Sequence[tuple[str, float]], strange: bool) -> str:
    first, *others = cells
    head = f'<th scope="row" data-v="{first[1]:g}">{escape(first[0])}</th>'
    body = "".join(f'<td data-v="{value!r}">{escape(text)}</td>' for text, value in others)
    row = '<tr class="strange">' if strange else "<tr>"
    return f"{row}{head}{body}</tr>"


def _table(header: Sequence[str], rows: Sequence[str]) -> str:
    head = "".join(
        f'<th scope="col"{_SORTED if name == "Score" else ""}>{escape(name)}</th>'
        for name in header
    )
    body = "\n".join(rows)
    table = (
        '<table id="observations"><caption>Observations by outlier score</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"
    )
    return scrolling("Table: observations by outlier score", table)


_SORTED = ' aria-sort="descending"'


def _controls(found: int) -> str:
    """What the script needs; hidden where scripts do not run."""
    return (
        f'<p id="controls" hidden data-few="{FEW_ROWS}">'
        f'<label><input type="checkbox" id="only"{"" if found else " disabled"}> '
        f"Only suspicious observations ({found:,})</label> "
        '<button type="button" id="more" aria-controls="observations">Show all rows</button></p>\n'
        '<p id="said" class="note" role="status" aria-live="polite"></p>'
    )


__all__ = ["observation_table"]
