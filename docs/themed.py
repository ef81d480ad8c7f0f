"""Figures of the docs in two versions, for light and for dark pages, of which the site shows one.

Each is drawn once, in the package's own colours; in the dark version they are those of the report
in the dark (mindist/report/inline.py).
"""

import io
import re
from pathlib import Path

FOLDER = Path(__file__).parent / "_static"
DARK = {
    "#000000": "#e6e6e6",
    "#555555": "#a8b0b7",
    "#8a8a8a": "#98a1a9",
    "#bbbbbb": "#6d767e",
    "#cccccc": "#4a545c",
    "#e4e4e4": "#333b42",
    "#ffffff": "#131416",
    "#0072b2": "#5db8f0",
    "#d55e00": "#ff8a3c",
}
COLOUR = re.compile("#[0-9a-f]{6}")


def save(figure, name: str) -> list[Path]:
    """Write `name`-light.svg and `name`-dark.svg, on no background, and return both paths."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", facecolor="none", dpi=150, metadata={"Date": None})
    # Black is what SVG draws with where no colour is named.
    light = buffer.getvalue().replace("<svg ", '<svg fill="#000000" ', 1)
    dark = COLOUR.sub(lambda found: DARK.get(found[0], found[0]), light)
    paths = [FOLDER / f"{name}-{theme}.svg" for theme in ("light", "dark")]
    for path, text in zip(paths, (light, dark), strict=True):
        path.write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n", "utf-8")
    return paths
