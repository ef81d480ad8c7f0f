"""Figures, tables and the page of the experiments: from tidy rows, one for each test dataset.

May import: matplotlib, pandas, `mindist.report`.
"""

from mindist_paper.report.coverage import plot_coverage
from mindist_paper.report.curves import plot_curves
from mindist_paper.report.detection import plot_rejections
from mindist_paper.report.figures import describe_figure, draw_figure, save_png_and_svg
from mindist_paper.report.kept import (
    Images,
    Posteriors,
    Trajectories,
    plot_posterior_samples,
    plot_trajectories,
)
from mindist_paper.report.losses import find_losses, loss_sentences, loss_tables, panel_losses
from mindist_paper.report.page import Page, Section, render_page, write_page
from mindist_paper.report.panel import Anchors, Panel
from mindist_paper.report.table import (
    experiment_tables,
    metric_table,
    panel_tables,
    tables_in_markdown,
)

__all__ = [
    "Anchors",
    "Images",
    "Page",
    "Panel",
    "Posteriors",
    "Section",
    "Trajectories",
    "describe_figure",
    "draw_figure",
    "experiment_tables",
    "find_losses",
    "loss_sentences",
    "loss_tables",
    "metric_table",
    "panel_losses",
    "panel_tables",
    "plot_coverage",
    "plot_curves",
    "plot_posterior_samples",
    "plot_rejections",
    "plot_trajectories",
    "render_page",
    "save_png_and_svg",
    "tables_in_markdown",
    "write_page",
]
