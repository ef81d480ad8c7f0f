"""A figure as part of a page: inline SVG whose colours follow the page, with words for it.

The figure is drawn once. Its text, axes and palette are then given names of the page's style, so
that the same figure serves light, dark and print. It holds no text of its own (letters are paths),
no comments, no addresses, and ids that no other figure has.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any, cast

import matplotlib

from mindist.report.html import scrolling
from mindist.report.plots import new_grid
from mindist.report.style import figure_style

INK, LINE, PAPER = "#1b1b1b", "#e4e4e4", "#ffffff"
THEME = {
    INK: "--text",
    "#000000": "--text",
    "#555555": "--quiet",
    LINE: "--grid",
    PAPER: "--back",
    "#d55e00": "--observed",
    "#0072b2": "--adapted",
    "#bbbbbb": "--cloud",
    "#8a8a8a": "--cloud-strong",
}
"""Colours of figures, and the names that they have in the style of a page."""

INLINE_STYLE = """
:root { --grid: #e4e4e4; --observed: #d55e00; --adapted: #0072b2; --cloud: #b4b8bc;
  --cloud-strong: #858a8f; }
@media (prefers-color-scheme: dark) {
  :root { --grid: #333b42; --observed: #ff8a3c; --adapted: #5db8f0; --cloud: #6d767e;
    --cloud-strong: #98a1a9; }
}
@media print {
  :root { --grid: #dddddd; --observed: #d55e00; --adapted: #0072b2; --cloud: #b4b8bc;
    --cloud-strong: #858a8f; }
}
.panels { display: grid; gap: 1rem 2rem; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
figure.inline { margin: .6rem 0; min-width: 0; }
figure.inline svg { display: block; width: 100%; max-width: 36rem; height: auto;
  fill: var(--text); }
figure.inline svg * { stroke-linejoin: round; stroke-linecap: butt; }
figure.inline svg image { image-rendering: auto; }
figure.inline .scroll { background: none; border: 0; padding: 0; }
figure.inline .scroll svg { min-width: var(--least); max-width: 52rem; }
figcaption { color: var(--quiet); font-size: .875rem; max-width: 75ch; margin-top: .3rem; }
@media print {
  figure.inline .scroll svg { min-width: 0; }
  .panels { gap: .5rem; grid-template-columns: repeat(auto-fit, minmax(7cm, 1fr)); }
}
"""


@contextmanager
def inline_style() -> Iterator[None]:
    """Figures in the colours that `THEME` names, without a background."""
    inks = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    settings: dict[str, Any] = dict.fromkeys(inks, INK)
    settings |= {"axes.facecolor": "none", "figure.facecolor": "none", "savefig.facecolor": "none"}
    settings |= {"legend.facecolor": PAPER, "legend.edgecolor": LINE, "grid.color": LINE}
    settings |= {"axes.titlelocation": "left", "axes.titleweight": "bold", "axes.titlesize": 11}
    with figure_style(), matplotlib.rc_context(cast(Any, settings)), warnings.catch_warnings():
        # A letter of a name that the font lacks is drawn as a box; the page has it in words.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def inline_figure(
    name: str,
    alt: str,
    draw: Callable[[Any], Any],
    *,
    size: tuple[float, float] = (4.9, 3.5),
    grid: int = 0,
    caption: str = "",
) -> str:
    """Draw a figure and give it as HTML.

    Arguments:
        name: Stands before every id in it.
        alt: What the figure shows, in words.
        draw: Is given axes, or an array `(grid, grid)` of them.
        size: Of one pair of axes, in inches.
        grid: Lines and columns; 0 for one pair of axes.
        caption: Below the figure.

    Example:
        >>> html = inline_figure("f", "A <line>.", lambda axes: axes.plot([0, 1]))
        >>> html[:75], "http" in html
        ('<figure class="inline"><svg role="img" aria-label="A &lt;line&gt;." viewBox', False)
    """
    with inline_style():
        figure, axes = new_grid(max(grid, 1), max(grid, 1), size)
        draw(axes if grid else axes[0, 0])
        if not grid:
            legend_below(figure, axes[0, 0])
        buffer = io.BytesIO()
        left_out = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", dpi=150, metadata=left_out)
    svg = themed(buffer.getvalue().decode(), name, alt)
    if grid > 2:
        # On a phone each panel keeps a width of 9 rem: the figure scrolls in a box of its own.
        svg = svg.replace("<svg ", f'<svg style="--least: {9 * grid}rem" ', 1)
        svg = scrolling(f"Figure: {alt}", svg)
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f'<figure class="inline">{svg}{below}</figure>'


def legend_below(figure: Any, axes: Any) -> None:
    """The legend of one pair of axes below it, where it hides nothing."""
    handles, labels = axes.get_legend_handles_labels()
    if axes.get_legend() is not None:
        axes.get_legend().remove()
    if handles:
        columns = 2 if len(handles) > 1 else 1
        figure.legend(
            handles, labels, loc="outside lower center", ncols=columns, fontsize=10, frameon=False
        )


def themed(svg: str, name: str, alt: str) -> str:
    """An SVG file of matplotlib as an element of a page.

    Example:
        >>> svg = '<?xml?><svg viewBox="0 0 1 1"><!-- a --><g id="a" style="fill: #000000"/></svg>'
        >>> themed(svg, "f", "words")[:53], themed(svg, "f", "words")[53:]
        ('<svg role="img" aria-label="words" viewBox="0 0 1 1">',
         '<g id="f-a" style="fill: var(--text)"/></svg>')
    """
    box = re.search(r'viewBox="([-\d. ]+)"', svg)
    body = svg[svg.index(">", svg.index("<svg")) + 1 :]
    for pattern in (r"<!--.*?-->", r"<metadata>.*?</metadata>", r"<style.*?</style>"):
        body = re.sub(pattern, "", body, flags=re.DOTALL)
    # Markers are drawn in the style of where they are used, which the page may change.
    body = re.sub(r'(<defs>\s*<path [^<>]*?) style="[^"]*"', r"\1", body)
    body = body.replace("xlink:href", "href")
    body = re.sub(r'(?<=\bid=")|(?<=href="#)|(?<=url\(#)', f"{name}-", body)
    body = re.sub(
        r"#[0-9a-f]{6}\b",
        lambda found: f"var({THEME[found[0]]})" if found[0] in THEME else found[0],
        body,
    )
    view = box[1] if box else "0 0 100 100"
    return f'<svg role="img" aria-label="{escape(alt)}" viewBox="{view}">{body.strip()}'


__all__ = ["INLINE_STYLE", "inline_figure"]
