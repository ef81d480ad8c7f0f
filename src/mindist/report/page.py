"""HTML pages from templates, and figures as a part of them.

A page loads nothing: its content security policy forbids all but what it holds itself, and scripts
but the one whose hash it names. A figure is inline SVG, drawn once: its colours are then given
names of the page's style, so that it serves light, dark and print.
"""

import base64
import hashlib
import io
import json
import math
import platform
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import metadata
from typing import Any, cast

import matplotlib
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mindist.report.style import figure_style, new_grid

INK, LINE, PAPER = "#1b1b1b", "#e4e4e4", "#ffffff"
# Colours of figures, and the names that they have in the style of a page.
THEME = {INK: "--text", "#000000": "--text", "#555555": "--quiet", LINE: "--grid", PAPER: "--back"}
THEME |= {"#d55e00": "--observed", "#0072b2": "--adapted"}
THEME |= {"#bbbbbb": "--cloud", "#8a8a8a": "--cloud-strong"}
# Figures are drawn in these colours, without a background.
INKS = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
COLOURS: dict[str, Any] = dict.fromkeys(INKS, INK)
COLOURS |= dict.fromkeys(("axes.facecolor", "figure.facecolor", "savefig.facecolor"), "none")
COLOURS |= {"legend.facecolor": PAPER, "legend.edgecolor": LINE, "grid.color": LINE}
COLOURS |= {"axes.titlelocation": "left", "axes.titleweight": "bold", "axes.titlesize": 11}


def render(template: str, *packages: str, script: str = "", **values: Any) -> str:
    """Return a page from a template, with escaped values; `script` is the file that it may run."""
    loader = ChoiceLoader([PackageLoader(package) for package in (*packages, "mindist.report")])
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    filters: dict[str, Any] = {"duration": duration, "number": number, "share": share}
    filters |= {"count": "{:,}".format, "percent": lambda value: f"{float(value):.0%}"}
    filters["anchor"] = lambda name: "x-" + re.sub("[^A-Za-z0-9]", "-", name)
    filters["json"] = partial(json.dumps, indent=2, ensure_ascii=False, default=str)
    environment.filters |= filters
    code = loader.get_source(environment, script)[0] if script else ""
    policy = "default-src 'none'; base-uri 'none'; img-src data:; style-src 'unsafe-inline'"
    if code:
        digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode("ascii")
        policy += f"; script-src 'sha256-{digest}'"
    return environment.get_template(template).render(policy=policy, script=Markup(code), **values)


def inline_figure(
    name: str,
    alt: str,
    draw: Callable[..., Any],
    *given: Any,
    size: tuple[float, float] = (4.9, 3.5),
    grid: int = 0,
    title: str | None = None,
    caption: str = "",
    **options: Any,
) -> Markup:
    """Return a figure as HTML: `draw` gets axes of a size in inches, or a square grid of them."""
    with figure_style(), matplotlib.rc_context(cast(Any, COLOURS)), warnings.catch_warnings():
        # A letter of a name that the font lacks is drawn as a box; the page has it in words.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure, axes = new_grid(max(grid, 1), max(grid, 1), size)
        draw(axes if grid else axes[0, 0], *given, **options)
        if title is not None:
            axes[0, 0].set_title(title)
        handles, labels = axes[0, 0].get_legend_handles_labels()
        if not grid and axes[0, 0].get_legend() is not None:
            axes[0, 0].get_legend().remove()
        if not grid and handles:  # below the axes, where it hides nothing
            place: dict[str, Any] = {"loc": "outside lower center", "ncols": min(2, len(handles))}
            figure.legend(handles, labels, fontsize=10, frameon=False, **place)
        buffer = io.BytesIO()
        left_out = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", dpi=150, metadata=left_out)
    text = buffer.getvalue().decode()
    view = re.search(r'viewBox="([-\d. ]+)"', text)
    body = text[text.index(">", text.index("<svg")) + 1 :]
    for pattern in (r"<!--.*?-->", r"<metadata>.*?</metadata>", r"<style.*?</style>"):
        body = re.sub(pattern, "", body, flags=re.DOTALL)
    # Markers are drawn in the style of where they are used, which the page may change.
    body = re.sub(r'(<defs>\s*<path [^<>]*?) style="[^"]*"', r"\1", body)
    body = body.replace("xlink:href", "href")
    body = re.sub(r'(?<=\bid=")|(?<=href="#)|(?<=url\(#)', f"{name}-", body)
    named = {colour: f"var({variable})" for colour, variable in THEME.items()}
    body = re.sub(r"#[0-9a-f]{6}\b", lambda found: named.get(found[0], found[0]), body)
    head = Markup('<svg role="img" aria-label="{}" viewBox="{}">')
    svg = head.format(alt, view[1] if view else "0 0 100 100") + Markup(body.strip())
    if grid > 2:
        # On a phone each panel keeps a width of 9 rem: the figure scrolls in a box of its own.
        svg = Markup(str(svg).replace("<svg ", f'<svg style="--least: {9 * grid}rem" ', 1))
        box = '<div class="scroll" tabindex="0" role="region" aria-label="Figure: {}">{}</div>'
        svg = Markup(box).format(alt, svg)
    below = Markup("<figcaption>{}</figcaption>").format(caption) if caption else ""
    return Markup('<figure class="inline">{}{}</figure>').format(svg, below)


def cells(values: Iterable[Any], say: Callable[[Any], str] | None = None) -> list[Any]:
    """Return a column of a table: what a cell says, and what it is sorted by."""
    say = say or number
    return [("–", -math.inf) if value != value else (say(value), value) for value in values]


def ranked(columns: Mapping[str, Any], odd: Any, order: Iterable[int]) -> dict[str, Any]:
    """Return the header and the rows of a table that can be sorted: whether odd, and the cells."""
    rows = [(bool(odd[i]), [column[i] for column in columns.values()]) for i in order]
    return {"header": list(columns), "rows": rows}


def number(value: Any) -> str:
    return _with_minus(f"{float(value):.3g}")


def plus_minus(mean: float, spread: float) -> str:
    """Return a mean and a standard deviation, to two digits of the latter."""
    if not math.isfinite(mean):
        return "–"
    if not math.isfinite(spread) or spread <= 0:
        return number(mean)
    decimals = max(0, 1 - math.floor(math.log10(spread)))
    if decimals > 6:
        return f"{number(mean)} ± {spread:.1e}"
    return f"{_with_minus(f'{mean:.{decimals}f}')} ± {spread:.{decimals}f}"


def _with_minus(text: str) -> str:
    """Write a minus sign for the hyphen, and none before a zero."""
    return text.removeprefix("-") if not text.strip("-0.") else re.sub("^-", "−", text)


def share(p: float) -> str:
    """Return a p-value as so many of a round number of datasets."""
    total = max(100, 10 ** math.ceil(-math.log10(p)))
    return f"about {round(p * total):,} of {total:,}"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def versions(packages: Sequence[str]) -> dict[str, str]:
    found = {"Python": platform.python_version()}
    for name in packages:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
