"""One colour, one marker and one name for each method, metric and setting of the paper."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, starmap
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import to_hex

from mindist.report.style import BLACK, BLUE, GREY, VERMILION

ORANGE, SKY, GREEN = "#E69F00", "#56B4E9", "#009E73"


@dataclass(frozen=True)
class Style:
    """How one line looks and what it is called."""

    label: str
    colour: str
    marker: str
    line: Any = "-"

    @property
    def size(self) -> float:
        """Size of the marker in points; a star needs more to look as large as a disc."""
        return 11.0 if self.marker == "*" else 7.5


# In the order of legends and of the columns of tables
METHOD_STYLES = {
    "npe": Style("NPE", VERMILION, "X"),
    "nnpe": Style("NNPE", ORANGE, "s", "--"),
    "npe-or": Style("NPE-OR", GREEN, "^", "--"),
    "npe-rs": Style("NPE-RS", "#882255", "v", ":"),
    "mds-kl": Style("MDS (KL)", "#6F6A00", "<", "-."),
    "mds-dec": Style("MDS (Dec)", "#332288", ">", "--"),
    "mds-rf": Style("MDS (RF)", SKY, "D"),
    "mds": Style("MDS (default)", BLUE, "o"),
    "mds-exact": Style("MDS (exact minimum)", "#004488", "H", "--"),
    "npe-pfn": Style("NPE-PFN", "#6B4A00", "p", "--"),
    "npe-pfn-mds": Style("NPE-PFN + MDS", "#00524A", "h"),
    "sample-mean": Style("sample mean", "#994F00", "8", "-."),
    "oracle": Style("oracle summary", BLACK, "*", ":"),
    "exact": Style("exact posterior", GREY, "d", ":"),
}
# Colours of what is not a method, such as one line for each epsilon: from dark to light, so that
# they are not taken for methods; the lightest yellows are too light for a line
SERIES_MAP, SERIES_RANGE = "viridis", (0.0, 0.88)
SERIES_MARKERS = "osD^vP<>X"
SERIES_LINES = ("-", "--", "-.", ":")
# The methods of the paper and of the package
OURS = ("mds-kl", "mds-dec", "mds-rf", "mds", "mds-exact", "npe-pfn-mds")
REFERENCES = ("oracle", "exact")  # Not methods: they know what is clean, or the posterior itself
# What the best robust method of a table is not looked for among
NOT_ROBUST = ("npe", "npe-pfn", "sample-mean", *REFERENCES)
METRIC_LABELS = {
    "rmse": "RMSE of the posterior mean",
    "reference_mmd": "MMD² to the reference posterior",
    "predictive_mmd": "posterior-predictive MMD²",
    "summary_distance": "distance of the summary",
    "summary_distance_standardised": "distance of the summary (sd)",
    "coverage": "empirical coverage",
    **{f"coverage_{p}": f"coverage of {p}% intervals" for p in (50, 80, 90, 95)},
    "detected": "rejection rate",
    "p_value": "p-value",
    "adapted": "share of datasets adapted",
    "posterior_sd": "standard deviation of the posterior",
    "distance_obs": "distance at the observed summary",
    "distance_star": "distance at the adapted summary",
    "seconds": "seconds for a dataset",
    "spread": "standard deviation over starts",
    "kl_slope": "KL / ε",
    "condition": "condition number of the Hessian",
    "fit_seconds": "seconds to fit",
}
SMALLER_IS_BETTER = (
    *("rmse", "reference_mmd", "predictive_mmd"),
    *("summary_distance", "summary_distance_standardised"),
)
# What stands on horizontal axes: words and a letter
QUANTITIES = {
    "epsilon": ("contaminated fraction", "ε"),
    "delta": ("shift of the outliers", "δ"),
    "num_obs": ("observations in a dataset", "N"),
    "dim": ("dimension", "D"),
    "bandwidth": ("bandwidth", ""),
    "level": ("nominal level", ""),
    "alpha": ("level of the test", "α"),
    "outlier": ("position of the outlier", ""),
    "small_epsilon": ("contaminated fraction", "ε"),
}


def metric_label(metric: str) -> str:
    """Return a metric in words."""
    return METRIC_LABELS.get(metric, metric.replace("_", " "))


def quantity_label(by: str) -> str:
    """Return the words and the letter of a horizontal axis."""
    words, letter = QUANTITIES.get(by, (by.replace("_", " "), ""))
    return f"{words} {letter}".strip()


def setting(by: str, value: Any) -> str:
    """Return a setting as a sentence names it: "ε = 0.2"."""
    words, letter = QUANTITIES.get(by, (by.replace("_", " "), ""))
    return f"{letter} = {text(value)}" if letter else f"{words} {text(value)}".strip()


def text(value: Any) -> str:
    """Return a value, a number without trailing zeros."""
    return f"{value:.6g}" if isinstance(value, int | float) else str(value)


def capital(words: str) -> str:
    """Return the words with a capital letter in front."""
    return words[:1].upper() + words[1:]


def method_style(method: str) -> Style:
    """Return the style of a method; grey under its own name if it is unknown."""
    return METHOD_STYLES.get(method, Style(method, GREY, "."))


def series_styles(series: str, values: Sequence[Any]) -> dict[Any, Style]:
    """Return a style for each line: that of the method, or the next of a scale of colours."""
    if series == "method":
        return {value: method_style(value) for value in values}
    colours = matplotlib.colormaps[SERIES_MAP](np.linspace(*SERIES_RANGE, max(len(values), 2)))
    names = [setting(series, value) for value in values]
    looks = zip(
        names, map(to_hex, colours), cycle(SERIES_MARKERS), cycle(SERIES_LINES), strict=False
    )
    return dict(zip(values, starmap(Style, looks), strict=True))


def sort_series(series: str, values: Sequence[Any]) -> list[Any]:
    """Sort methods in their one order, numbers by size; leave other values as they come."""
    if series == "method":
        order = {method: i for i, method in enumerate(METHOD_STYLES)}
        return sorted(values, key=lambda method: (order.get(method, len(order)), str(method)))
    if all(isinstance(value, int | float) for value in values):
        return sorted(values)
    return list(values)
