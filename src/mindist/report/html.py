"""What every page has in common: the document around it, its style, and small parts.

A page loads nothing: its content security policy forbids all but what it holds itself, and scripts
but the one whose hash it names. It follows the reader's light or dark preference, fits a phone,
prints, and is walked through by keyboard. Values are escaped here unless called HTML.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from mindist.storage import write_whole


@dataclass(frozen=True)
class Part:
    """One section of a page.

    Arguments:
        name: Its address inside the page is made of it.
        title: Its heading.
        html: What stands below the heading, as HTML.
    """

    name: str
    title: str
    html: str


@dataclass(frozen=True)
class Document:
    """A whole page.

    Arguments:
        title: Of the page and of the browser's tab.
        preamble: Between the title and the contents, as HTML.
        parts: In reading order.
        footer: As HTML.
        skip: The words of the link that leads past the contents.
        style: Further rules.
        script: The only script that the page may run.
    """

    title: str
    preamble: str
    parts: Sequence[Part]
    footer: str = ""
    skip: str = "Skip to the results"
    style: str = ""
    script: str = ""

    def render(self) -> str:
        """The text of the page."""
        contents = "\n".join(
            f'<li><a href="#{address(part.name)}">{escape(part.title)}</a></li>'
            for part in self.parts
        )
        sections = "\n".join(render_part(part) for part in self.parts)
        return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{policy(self.script)}">
<title>{escape(self.title)}</title>
<link rel="icon" href="data:,">
<style>{STYLE}{self.style}</style>
</head>
<body>
<a class="skip" href="#main">{escape(self.skip)}</a>
<header id="top">
<h1>{escape(self.title)}</h1>
{self.preamble}
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
<footer>{self.footer}</footer>
{f"<script>{self.script}</script>" if self.script else ""}
</body>
</html>
"""

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the page, making its folder; the old one stays until the new one is complete."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, self.render().encode())
        return path


def policy(script: str) -> str:
    """What a page with this script may load: nothing, and run: the script.

    Example:
        >>> policy("")
        "default-src 'none'; base-uri 'none'; img-src data:; style-src 'unsafe-inline'"
        >>> policy("1")[-66:]
        "; script-src 'sha256-a4ayc/80/OGda4BO/1o/V0etpOqiLx1JwB5S3beHW0s='"
    """
    rules = "default-src 'none'; base-uri 'none'; img-src data:; style-src 'unsafe-inline'"
    if not script:
        return rules
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    return f"{rules}; script-src 'sha256-{digest}'"


def render_part(part: Part) -> str:
    """A section with its heading and a way back."""
    at = address(part.name)
    return f"""<section id="{at}" aria-labelledby="{at}-title">
<h2 id="{at}-title">{escape(part.title)}</h2>
{part.html}
<p class="back"><a href="#top">Back to the top</a></p>
</section>"""


def address(name: str) -> str:
    """The address of a section inside the page.

    Example:
        >>> address("the 'odd' one")
        'x-the--odd--one'
    """
    return "x-" + "".join(c if c.isalnum() and c.isascii() else "-" for c in name)


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph, or nothing where there is no text.

    Example:
        >>> paragraph("a < b", "note"), paragraph("")
        ('<p class="note">a &lt; b</p>', '')
    """
    if not text:
        return ""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def join(*parts: str) -> str:
    """Lines, without those that are empty."""
    return "\n".join(part for part in parts if part)


def scrolling(label: str, html: str) -> str:
    """HTML that scrolls where it is too wide, by keyboard too."""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">{html}</div>'
    )


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

__all__ = [
    "Document",
    "Part",
    "address",
    "code",
    "duration",
    "join",
    "paragraph",
    "render_configuration",
    "render_facts",
    "render_versions",
    "scrolling",
]
