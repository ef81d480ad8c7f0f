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

TITLE = "mindist: the paper, reproduced"


@dataclass(frozen=True)
class Section:
    """What the page says of one experiment.

    Arguments:
        name: As in `mindist reproduce NAME`.
        title: Its heading.
        shows: One line on what it shows.
        source: Where it stands in the paper.
        command: The command line that gives these results.
        figure: The SVG file, or None where there is none.
        alt: What the figure shows, in words.
        tables: The numbers.
        verdict: A line on agreement or disagreement with the paper, and why.
        losses: Where MDS loses to a baseline.
        configuration: JSON values, shown when opened.
        seconds: Seconds taken to compute, or None where nothing ran.
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
        """The figure as an address that holds it; "" where there is none."""
        if self.figure is None:
            return ""
        content = base64.b64encode(self.figure.read_bytes()).decode("ascii")
        return f"data:image/svg+xml;base64,{content}"


@dataclass(frozen=True)
class Page:
    """The whole page.

    Arguments:
        sections: In reading order.
        command: The command line that made it.
        versions: Versions of the package and of what it builds on.
        seconds: Seconds taken in all.
        facts: Other lines of the preamble, such as the profile and the machine.
    """

    sections: Sequence[Section]
    command: str = "mindist reproduce all"
    versions: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
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
    text = render(
        "experiments.html",
        "mindist_paper.report",
        page=page,
        title=TITLE,
        sections={section.name: section.title for section in page.sections},
        versions=page.versions,
    )
    write_whole(path, text.encode())
    return path


__all__ = ["Page", "Section", "write_page"]
