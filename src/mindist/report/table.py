"""A table that is written as Markdown and as HTML, and numbers in it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from mindist.report.html import scrolling


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

    def html(self) -> str:
        """The cell in HTML."""
        text = f"<strong>{escape(self.text)}</strong>" if self.best else escape(self.text)
        return f"{text}<br><small>({escape(self.aside)})</small>" if self.aside else text


@dataclass(frozen=True)
class Table:
    """A table that can be written as Markdown and as HTML.

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

    def html(self) -> str:
        """The table for a page; wide ones scroll, by keyboard too."""
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in self.header)
        body = "\n".join(f"<tr>{''.join(html_cells(row))}</tr>" for row in self.body)
        notes = "".join(f'<p class="note">{escape(note)}</p>' for note in self.notes)
        table = (
            f"\n<table><caption>{escape(self.caption)}</caption>\n"
            f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"
        )
        return f"{scrolling(f'Table: {self.caption}', table)}\n{notes}"


def html_cells(row: Sequence[Entry]) -> Iterator[str]:
    """A heading, then the cells."""
    yield f'<th scope="row">{row[0].html()}</th>'
    for cell in row[1:]:
        yield f"<td>{cell.html()}</td>"


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


__all__ = ["Entry", "Table", "mean_and_error"]
