"""Plots: the only folder that imports a plotting library.

May import: matplotlib, torch, and every layer below `experiments`.
"""

from mindist.report.plots import (
    new_figure,
    plot_data_space,
    plot_posteriors,
    plot_summary_space,
    save_figure,
)

__all__ = ["new_figure", "plot_data_space", "plot_posteriors", "plot_summary_space", "save_figure"]
