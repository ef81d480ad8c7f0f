"""One self-contained HTML page with every experiment.

Figures are inlined as SVG; the template extends the one of `mindist.report`.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mindist.report.page import render
from mindist.storage import write_whole
from mindist_paper.report.table import Table

MEDIA_TYPES = {".svg": "image/svg+xml", ".png": "image/png"}


@dataclass(frozen=True)
class Section:
    """What the page says of one experiment.

    Arguments:
        name: As in `mindist reproduce NAME`.
        title: Its heading.
        shows: One line on what it shows.
        source: Where it stands in the paper.
        command: The command line that gives these results.
        figure: The SVG or PNG file, or None where there is none.
        alt: What the figure shows, in words.
        tables: The numbers.
        verdict: A line on agreement or disagreement with the paper, and why.
        losses: Where MDS loses to a baseline.
        configuration: JSON values, shown when opened.
        seconds: Taken to compute, or None where all was already there.

    Example:
        >>> Section("gaussian", "The Gaussian task", verdict="As in the paper.").losses
        ()
    """

    name: str
    title: str
    shows: str = ""
    source: str = ""
    command: str = ""
    figure: Path | None = None
    alt: str = ""
    tables: Sequence[Table] = ()
    verdict: str = ""
    losses: Sequence[str] = ()
    configuration: Any = None
    seconds: float | None = None

    @property
    def image(self) -> str:
        """Return the figure as an address that holds it; "" where there is none."""
        if self.figure is None:
            return ""
        media = MEDIA_TYPES[self.figure.suffix.lower()]
        content = base64.b64encode(self.figure.read_bytes()).decode("ascii")
        return f"data:{media};base64,{content}"


@dataclass(frozen=True)
class Page:
    """The whole page.

    Arguments:
        sections: In reading order.
        title: Of the page.
        command: The command line that made it.
        versions: Of the package and of what it builds on.
        seconds: Taken in all.
        facts: Other lines of the preamble, such as the profile and the machine.

    Example:
        >>> Page([Section("gaussian", "The Gaussian task")], seconds=60.0).command
        'mindist reproduce all'
    """

    sections: Sequence[Section]
    title: str = "mindist: the paper, reproduced"
    command: str = "mindist reproduce all"
    versions: Mapping[str, str] = field(default_factory=dict)
    seconds: float | None = None
    facts: Mapping[str, str] = field(default_factory=dict)


def write_page(page: Page, path: str | os.PathLike[str]) -> Path:
    """Write the page, making its folder; the old one stays until the new one is complete.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "index.html"
        >>> write_page(Page([Section("gaussian", "The Gaussian task")]), path).name
        'index.html'
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, render_page(page).encode())
    return path


def render_page(page: Page) -> str:
    """Return the text of the page; every text that comes from outside is escaped.

    Example:
        >>> html = render_page(Page([Section("gaussian", "The Gaussian task")]))
        >>> html.startswith("<!DOCTYPE html>"), "The Gaussian task" in html
        (True, True)
    """
    return render(
        "experiments.html",
        "mindist_paper.report",
        page=page,
        title=page.title,
        sections={section.name: section.title for section in page.sections},
        versions=page.versions,
    )


__all__ = ["Page", "Section", "render_page", "write_page"]
