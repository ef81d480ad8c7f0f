"""Colours, fonts and names of all figures, a figure without a screen, and its file."""

import io
import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, cast

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from mindist.storage import write_whole

BLACK, GREY, BLUE, VERMILION = "#000000", "#8A8A8A", "#0072B2", "#D55E00"
# Colours of the observed and the adapted summary, the truth, and simulations.
OBSERVED, ADAPTED, REFERENCE, CLOUD = VERMILION, BLUE, BLACK, "#BBBBBB"
LONGEST_NAME = 28  # letters of a user's name for something that fit on an axis


def new_figure(panels: int, size: tuple[float, float] = (5, 5)) -> tuple[Figure, list[Any]]:
    """Make a row of panels of a size in inches, without a screen and without global state.

    Example:
        >>> figure, axes = new_figure(3)
        >>> figure.get_size_inches().tolist(), len(axes)
        ([15.0, 5.0], 3)
    """
    figure, grid = new_grid(1, panels, size)
    return figure, list(grid[0])


def new_grid(lines: int, columns: int, size: tuple[float, float]) -> tuple[Figure, Any]:
    """Make lines and columns of panels; return the figure and its axes `(lines, columns)`.

    Example:
        >>> new_grid(2, 3, (4, 4))[1].shape
        (2, 3)
    """
    figure = Figure(figsize=(size[0] * columns, size[1] * lines), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(lines, columns, squeeze=False)


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Write a figure, making its folder, and return the path.

    Example:
        >>> import tempfile
        >>> figure, (axes,) = new_figure(1)
        >>> save_figure(figure, Path(tempfile.mkdtemp()) / "panel.svg").name
        'panel.svg'
    """
    path = Path(path)
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=150, format=path.suffix.removeprefix(".") or "png")
    write_whole(path, buffer.getvalue())
    return path


def figure_style() -> AbstractContextManager[None]:
    """Set legible type and quiet axes, for as long as the context lasts."""
    # The font comes with matplotlib: the same figure on every machine.
    settings: dict[str, Any] = {"font.family": "DejaVu Sans", "font.size": 11, "axes.titlesize": 12}
    settings |= {"xtick.labelsize": 10, "ytick.labelsize": 10, "lines.linewidth": 1.7}
    settings |= {"axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True}
    settings |= {"axes.grid": True, "grid.color": "#E4E4E4", "grid.linewidth": 0.8}
    settings |= {"figure.facecolor": "white", "savefig.facecolor": "white"}
    # The same ids, so the same bytes, every time.
    settings |= {"svg.hashsalt": "mindist", "svg.fonttype": "path"}
    return cast(AbstractContextManager[None], matplotlib.rc_context(cast(Any, settings)))


def plain(name: str) -> str:
    """Return a user's name as text on an axis: no formula, one line, not too long."""
    line = " ".join("".join(c if c.isprintable() else " " for c in str(name)).split())
    line = line if len(line) <= LONGEST_NAME else f"{line[: LONGEST_NAME - 1]}…"
    return line.replace("\\", "\N{REVERSE SOLIDUS OPERATOR}").replace("$", r"\$")


def numbered(letter: str, num: int) -> list[str]:
    below = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
    return [f"{letter}{str(j + 1).translate(below)}" for j in range(num)]
