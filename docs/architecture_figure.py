"""Draws docs/_static/architecture-*.svg: the way of a dataset, and the module of each step.

python docs/architecture_figure.py
"""

from pathlib import Path

from matplotlib.patches import FancyBboxPatch
from themed import save

from mindist.report import new_figure
from mindist.report.style import ADAPTED, BLACK, GREY, OBSERVED, figure_style

OFFLINE = (
    ("simulate", "θ, x", "simulation"),
    ("summarise", "s = f(x)", "summarise"),
    ("see", "residuals, z̄", "features"),
    ("fit decoder", "μ(s)", "decoders"),
    ("calibrate", "bias, spread, nulls", "adaptation"),
)
ONLINE = (
    ("read", "observed x", "observed"),
    ("see", "s, residuals, z̄", "features"),
    ("sort, speak", "weights, s*", "adaptation"),
    ("detect", "p-value", "detection"),
    ("ask posterior", "samples of θ", "posteriors"),
    ("show", "plots, report", "report"),
)
"""Step, what comes out of it, and the layer that does it."""


def draw() -> list[Path]:
    """Two rows of boxes: once offline, and for each observed dataset."""
    with figure_style():
        figure, (axes,) = new_figure(1, (11, 4.3))
        axes.set(xlim=(-0.1, 6.1), ylim=(-0.35, 3.0))
        axes.set_axis_off()
        row(axes, OFFLINE, 1.75, GREY, "offline, once, from simulations")
        row(axes, ONLINE, 0.05, ADAPTED, "for each observed dataset")
        kept = "fitted: μ(s), residuals of simulations, nulls"
        box(axes, (2.06, 1.16), (2.86, 0.3), OBSERVED)
        axes.text(3.49, 1.31, kept, ha="center", va="center", fontsize=11)
        for column in (3.49, 4.49):
            axes.annotate("", (column, 1.46), (column, 1.75), arrowprops=arrow(OBSERVED))
        for column in (2.49, 3.49):
            axes.annotate("", (column, 0.9), (column, 1.16), arrowprops=arrow(OBSERVED))
        return save(figure, "architecture")


def row(axes, steps, height: float, colour: str, title: str) -> None:
    """One row of boxes with arrows between them."""
    axes.text(0.02, height + 1.0, title, fontsize=12, color=BLACK, style="italic")
    for column, (step, result, layer) in enumerate(steps):
        box(axes, (column + 0.06, height), (0.86, 0.85), colour)
        middle = column + 0.49
        for shift, text, style in (
            (0.62, step, {"fontsize": 11.5, "weight": "bold"}),
            (0.38, result, {"fontsize": 11}),
            (0.13, layer, {"fontsize": 9.5, "family": "DejaVu Sans Mono", "color": "#555555"}),
        ):
            axes.text(middle, height + shift, text, ha="center", va="center", **style)
        if column:
            ends = (column + 0.06, height + 0.43), (column - 0.08, height + 0.43)
            axes.annotate("", *ends, arrowprops=arrow(colour))


def box(axes, corner: tuple[float, float], size: tuple[float, float], colour: str) -> None:
    """A box with round corners."""
    shape = "round,pad=0,rounding_size=0.07"
    look = {"facecolor": "white", "edgecolor": colour, "linewidth": 1.8}
    axes.add_patch(FancyBboxPatch(corner, *size, boxstyle=shape, **look))


def arrow(colour: str) -> dict[str, object]:
    """An arrow of a colour."""
    return {"arrowstyle": "-|>", "color": colour, "linewidth": 1.8, "shrinkA": 0, "shrinkB": 0}


if __name__ == "__main__":
    print(*draw(), sep="\n")
