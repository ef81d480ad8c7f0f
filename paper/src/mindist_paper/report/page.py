"""One self-contained HTML page with every experiment, figures inlined as SVG."""

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


def write_page(page: Page, path: str | os.PathLike[str]) -> Path:
    """Write the page, making its folder; the old one stays until the new one is complete."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    sections = {section.name: section.title for section in page.sections}
    more: dict[str, Any] = {"title": TITLE, "sections": sections, "versions": page.versions}
    text = render("experiments.html", "mindist_paper.report", page=page, **more)
    write_whole(path, text.encode())
    return path
