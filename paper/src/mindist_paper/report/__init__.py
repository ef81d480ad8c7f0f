"""Figures, tables and the page of the experiments: from tidy rows, one for each test dataset.

May import: matplotlib, pandas, `mindist.report`.
"""

from mindist_paper.report.curves import plot_coverage, plot_curves
from mindist_paper.report.figures import Material, describe_figure, draw_figure, save_png_and_svg
from mindist_paper.report.kept import Images, Posteriors, Trajectories
from mindist_paper.report.page import Page, Section, write_page
from mindist_paper.report.statistics import Anchors, Panel
from mindist_paper.report.table import (
    Table,
    experiment_tables,
    find_losses,
    metric_table,
    panel_losses,
    tables_in_markdown,
)

__all__ = [
    "Anchors",
    "Images",
    "Material",
    "Page",
    "Panel",
    "Posteriors",
    "Section",
    "Table",
    "Trajectories",
    "describe_figure",
    "draw_figure",
    "experiment_tables",
    "find_losses",
    "metric_table",
    "panel_losses",
    "plot_coverage",
    "plot_curves",
    "save_png_and_svg",
    "tables_in_markdown",
    "write_page",
]
