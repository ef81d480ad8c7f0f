"""One self-contained HTML page with every experiment.

The page loads nothing: figures are inlined as SVG, the style is inside, and its content security
policy forbids the rest. It follows the reader's light or dark preference, fits a phone, prints, and
is walked through by keyboard.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from mindist.atomic import write_whole
from mindist.report.table import Table

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
    """

    sections: Sequence[Section]
    title: str = "mindist: the paper, reproduced"
    command: str = "mindist reproduce all"
    versions: Mapping[str, str] = field(default_factory=dict)
    seconds: float | None = None
    facts: Mapping[str, str] = field(default_factory=dict)


def write_page(page: Page, path: str | os.PathLike[str]) -> Path:
    """Write the page, making its folder; the old one stays until the new one is complete."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, render_page(page).encode())
    return path


def render_page(page: Page) -> str:
    """The text of the page; every text that comes from outside is escaped."""
    sections = "\n".join(render_section(section) for section in page.sections)
    contents = "\n".join(
        f'<li><a href="#{anchor(section)}">{escape(section.title)}</a></li>'
        for section in page.sections
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{escape(page.title)}</title>
<link rel="icon" href="data:,">
<style>{STYLE}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the results</a>
<header id="top">
<h1>{escape(page.title)}</h1>
{render_facts(preamble(page))}
</header>
<nav aria-labelledby="contents">
<h2 id="contents">Contents</h2>
<ol>
{contents}
</ol>
</nav>
<main id="main">
{sections}
</main>
<footer>{render_versions(page.versions)}</footer>
</body>
</html>
"""


def preamble(page: Page) -> dict[str, str]:
    """What stands above the contents."""
    facts = {"Command": code(page.command)} if page.command else {}
    if page.seconds is not None:
        facts["Time taken"] = escape(duration(page.seconds))
    return facts | {key: escape(value) for key, value in page.facts.items()}


def render_section(section: Section) -> str:
    """One experiment."""
    facts = {}
    if section.source:
        facts["In the paper"] = escape(section.source)
    if section.command:
        facts["Command"] = code(section.command)
    if section.seconds is not None:
        facts["Time taken"] = escape(duration(section.seconds))
    parts = [
        f'<section id="{anchor(section)}" aria-labelledby="{anchor(section)}-title">',
        f'<h2 id="{anchor(section)}-title">{escape(section.title)}</h2>',
        f"<p>{escape(section.shows)}</p>" if section.shows else "",
        f'<p class="verdict">{escape(section.verdict)}</p>' if section.verdict else "",
        render_figure(section),
        render_losses(section.losses),
        render_tables(section.tables),
        render_facts(facts),
        render_configuration(section.configuration),
        '<p class="back"><a href="#top">Back to the top</a></p>',
        "</section>",
    ]
    return "\n".join(part for part in parts if part)


def render_figure(section: Section) -> str:
    """The figure, inlined; on a narrow screen it scrolls rather than shrinks."""
    if section.figure is None:
        return ""
    media = MEDIA_TYPES[section.figure.suffix.lower()]
    content = base64.b64encode(section.figure.read_bytes()).decode("ascii")
    label = escape(f"Figure: {section.title}")
    return (
        f'<figure><div class="scroll" tabindex="0" role="region" aria-label="{label}">'
        f'<img alt="{escape(section.alt or section.title)}" src="data:{media};base64,{content}">'
        "</div></figure>"
    )


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


def render_facts(facts: Mapping[str, str]) -> str:
    """A list of names and values; the values are HTML already."""
    items = "\n".join(f"<dt>{escape(key)}</dt><dd>{value}</dd>" for key, value in facts.items())
    return f"<dl>\n{items}\n</dl>" if items else ""


def render_configuration(configuration: Any) -> str:
    """The configuration as JSON, closed at first."""
    if configuration is None:
        return ""
    text = escape(json.dumps(configuration, indent=2, ensure_ascii=False, default=str))
    return f'<details><summary>Configuration</summary>\n<pre tabindex="0">{text}</pre>\n</details>'


def render_versions(versions: Mapping[str, str]) -> str:
    """Names and versions, in the order given."""
    if not versions:
        return ""
    return "<h2>Versions</h2>" + render_facts({k: escape(v) for k, v in versions.items()})


def anchor(section: Section) -> str:
    """The address of a section inside the page."""
    return "x-" + "".join(c if c.isalnum() and c.isascii() else "-" for c in section.name)


def code(text: str) -> str:
    """A command."""
    return f"<code>{escape(text)}</code>"


def duration(seconds: float) -> str:
    """Seconds, minutes or hours, as a person would say it.

    Example:
        >>> duration(4.2), duration(200), duration(5000)
        ('4.2 s', '3 min 20 s', '1 h 23 min')
    """
    if seconds < 60:
        return f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


STYLE = """
:root { --text: #1b1b1b; --back: #ffffff; --soft: #f2f4f6; --line: #c9ced4; --link: #005a9c;
  --quiet: #555c63; --mark: #0072b2; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e8e8e8; --back: #14171a; --soft: #1f2428; --line: #414a52; --link: #7cc4ff;
    --quiet: #aab3bb; --mark: #56b4e9; }
}
* { box-sizing: border-box; }
html { scroll-behavior: smooth; }
@media (prefers-reduced-motion: reduce) { html { scroll-behavior: auto; } }
body { margin: 0 auto; max-width: 76rem; padding: 1rem clamp(.8rem, 3vw, 2.5rem) 3rem;
  color: var(--text); background: var(--back);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: clamp(1.5rem, 4vw, 2.1rem); line-height: 1.2; }
h2 { font-size: 1.35rem; line-height: 1.25; margin: 0 0 .5rem; }
h3 { font-size: 1.05rem; margin: 1.2rem 0 .3rem; }
a { color: var(--link); }
a:focus-visible, summary:focus-visible, [tabindex]:focus-visible {
  outline: 3px solid var(--mark); outline-offset: 2px; }
.skip { position: absolute; left: -999rem; }
.skip:focus { position: static; }
p, li, dd { max-width: 75ch; overflow-wrap: anywhere; }
section li { padding: .15rem 0; }
nav { background: var(--soft); border-radius: .5rem; padding: 1rem 1.2rem; margin: 1.5rem 0; }
nav ol { margin: 0; padding-left: 1.6rem; columns: 22rem; }
nav li { break-inside: avoid; padding: .15rem 0; }
section { border-top: 1px solid var(--line); padding-top: 1.5rem; margin-top: 2.2rem; }
.verdict { border-left: .3rem solid var(--mark); background: var(--soft);
  padding: .6rem .9rem; margin: .8rem 0; }
figure { margin: 1rem 0; }
figure .scroll { background: #ffffff; border: 1px solid var(--line); border-radius: .5rem;
  padding: .5rem; }
figure img { display: block; width: 100%; min-width: 46rem; height: auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .8125rem; line-height: 1.4;
  font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .4rem 0; white-space: nowrap; }
th, td { padding: .3rem .5rem; text-align: right; white-space: nowrap; vertical-align: top;
  border-bottom: 1px solid var(--line); }
th:first-child { text-align: left; position: sticky; left: 0; background: var(--back); }
td small { color: var(--quiet); }
thead th:first-child { white-space: normal; min-width: 6.5rem; }
thead th { border-bottom: 2px solid var(--quiet); vertical-align: bottom; }
.note, .back, footer { color: var(--quiet); font-size: .875rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; }
dt { color: var(--quiet); }
dd { margin: 0; }
details { margin: .8rem 0; }
summary { cursor: pointer; padding: .25rem 0; color: var(--link); }
code, pre { font: .875rem/1.45 ui-monospace, "DejaVu Sans Mono", Consolas, monospace;
  background: var(--soft); border-radius: .3rem; }
code { padding: .1rem .3rem; overflow-wrap: anywhere; }
pre { padding: .8rem; overflow: auto; max-height: 30rem; }
footer { border-top: 1px solid var(--line); margin-top: 3rem; padding-top: 1rem; }
footer h2 { font-size: 1rem; }
@media (max-width: 40rem) {
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: .5rem; }
}
@media print {
  :root { --text: #000; --back: #fff; --soft: #fff; --line: #999; --quiet: #333; --link: #000; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  nav, .back, .skip { display: none; }
  .scroll { overflow: visible; }
  figure, tr { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  details::details-content { content-visibility: visible; }
  pre { max-height: none; white-space: pre-wrap; }
  figure img { min-width: 0; max-height: 23cm; object-fit: contain; }
  table { font-size: 7pt; }
  th, td { padding: .1rem .25rem; }
}
"""

__all__ = ["Page", "Section", "render_page", "write_page"]
