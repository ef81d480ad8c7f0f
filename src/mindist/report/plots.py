"""A figure without a screen, and its file."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from mindist.storage import write_whole


def new_figure(panels: int, size: tuple[float, float] = (5, 5)) -> tuple[Figure, list[Any]]:
    """A row of panels, drawn without a screen and without global state.

    Arguments:
        panels: How many axes, side by side.
        size: Width and height of a panel, in inches.

    Example:
        >>> figure, axes = new_figure(3)
        >>> figure.get_size_inches().tolist(), len(axes)
        ([15.0, 5.0], 3)
    """
    figure, grid = new_grid(1, panels, size)
    return figure, list(grid[0])


def new_grid(lines: int, columns: int, size: tuple[float, float]) -> tuple[Figure, Any]:
    """Lines and columns of panels, as `new_figure` makes one line of them.

    Returns:
        The figure, and an array of axes `(lines, columns)`.

    Example:
        >>> figure, grid = new_grid(2, 3, (4, 3))
        >>> grid.shape, figure.get_size_inches().tolist()
        ((2, 3), [12.0, 6.0])
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
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=150, format=path.suffix.removeprefix(".") or "png")
    write_whole(path, buffer.getvalue())
    return path


__all__ = ["new_figure", "new_grid", "save_figure"]
