"""Plots, and the HTML report on one dataset: the only folder that imports a plotting library.

Functions that draw take Matplotlib axes and return them. May import: every layer below.
"""

try:
    import matplotlib  # noqa: F401
except ModuleNotFoundError:
    raise ImportError(
        "Plots and reports need matplotlib. Install it with: pip install 'mindist[report]'"
    ) from None

from mindist.report.before_after import plot_posteriors, plot_predictive
from mindist.report.entries import plot_entries
from mindist.report.evidence import (
    plot_data_space,
    plot_density_contours,
    plot_images,
    plot_null_distance,
    plot_outlier_scores,
    plot_selftest,
    plot_summary_pairs,
    plot_summary_space,
)
from mindist.report.style import new_figure, new_grid, save_figure
from mindist.report.write import write_report

__all__ = ["new_figure", "new_grid", "plot_data_space", "plot_density_contours", "plot_entries"]
__all__ += ["plot_images", "plot_null_distance", "plot_outlier_scores", "plot_posteriors"]
__all__ += ["plot_predictive", "plot_selftest", "plot_summary_pairs", "plot_summary_space"]
__all__ += ["save_figure", "write_report"]
