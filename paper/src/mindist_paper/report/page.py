"""One self-contained HTML page with every experiment.

Figures are inlined as SVG; `mindist.report.html` has what it shares with other pages.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from mindist.report.html import (
    Document,
    Part,
    code,
    duration,
    join,
    paragraph,
    render_configuration,
    render_facts,
    render_versions,
    scrolling,
)
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
    return document(page).write(path)


def render_page(page: Page) -> str:
    """The text of the page; every text that comes from outside is escaped.

    Example:
        >>> html = render_page(Page([Section("gaussian", "The Gaussian task")]))
        >>> html.startswith("<!DOCTYPE html>"), "The Gaussian task" in html
        (True, True)
    """
    return document(page).render()


def document(page: Page) -> Document:
    """The page with the parts that every page has."""
    parts = [Part(s.name, s.title, render_section(s)) for s in page.sections]
    facts = render_facts(preamble(page))
    return Document(page.title, facts, parts, render_versions(page.versions))


def preamble(page: Page) -> dict[str, str]:
    """What stands above the contents."""
    facts = {"Command": code(page.command)} if page.command else {}
    if page.seconds is not None:
        facts["Time taken"] = escape(duration(page.seconds))
    return facts | {key: escape(value) for key, value in page.facts.items()}


def render_section(section: Section) -> str:
    """What the page says of one experiment."""
    facts = {}
    if section.source:
        facts["In the paper"] = escape(section.source)
    if section.command:
        facts["Command"] = code(section.command)
    if section.seconds is not None:
        facts["Time taken"] = escape(duration(section.seconds))
    return join(
        paragraph(section.shows),
        paragraph(section.verdict, "verdict"),
        render_figure(section),
        render_losses(section.losses),
        render_tables(section.tables),
        render_facts(facts),
        render_configuration(section.configuration),
    )


def render_figure(section: Section) -> str:
    """The figure, inlined; on a narrow screen it scrolls rather than shrinks."""
    if section.figure is None:
        return ""
    media = MEDIA_TYPES[section.figure.suffix.lower()]
    content = base64.b64encode(section.figure.read_bytes()).decode("ascii")
    alt = escape(section.alt or section.title)
    image = f'<img alt="{alt}" src="data:{media};base64,{content}">'
    return f"<figure>{scrolling(f'Figure: {section.title}', image)}</figure>"


def render_tables(tables: Sequence[Table]) -> str:
    """The first table open, the others behind one click."""
    if not tables:
        return ""
    first, *others = (table.html() for table in tables)
    if not others:
        return first
    count = "One more table" if len(others) == 1 else f"{len(others)} more tables"
    more = "\n".join(others)
    return f"{first}\n<details><summary>{count}</summary>\n{more}\n</details>"


def render_losses(losses: Sequence[str]) -> str:
    """Where MDS loses, as a list."""
    items = "\n".join(f"<li>{escape(sentence)}</li>" for sentence in losses)
    heading = "<h3>Where MDS loses to a baseline</h3>"
    return f"{heading}\n<ul>\n{items}\n</ul>" if items else ""


__all__ = ["Page", "Section", "render_page", "write_page"]
