"""Figures, tables and the page: the only folder that imports a plotting library.

Functions that draw take and return axes; functions that take rows take a pandas `DataFrame` with
one row for each test dataset, method, setting and seed.

May import: matplotlib, numpy, scipy, torch, and every layer below `experiments`.
"""

try:
    import matplotlib  # noqa: F401
except ModuleNotFoundError:
    raise ImportError(
        "Plots and reports need matplotlib. Install it with: pip install 'mindist[report]'"
    ) from None

from mindist.report.before_after import plot_posteriors, plot_predictive
from mindist.report.data_space import plot_data_space, plot_density_contours
from mindist.report.dataset import write_report
from mindist.report.evidence import plot_null_distance, plot_outlier_scores
from mindist.report.images import Images, Trajectories, plot_images, plot_trajectories
from mindist.report.plots import new_figure, new_grid, save_figure
from mindist.report.posteriors import Posteriors, plot_posterior_samples
from mindist.report.summary_space import plot_summary_pairs, plot_summary_space
from mindist.report.table import Table

__all__ = [
    "Images",
    "Posteriors",
    "Table",
    "Trajectories",
    "new_figure",
    "new_grid",
    "plot_data_space",
    "plot_density_contours",
    "plot_images",
    "plot_null_distance",
    "plot_outlier_scores",
    "plot_posterior_samples",
    "plot_posteriors",
    "plot_predictive",
    "plot_summary_pairs",
    "plot_summary_space",
    "plot_trajectories",
    "save_figure",
    "write_report",
]
