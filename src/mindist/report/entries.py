"""One vector: its entries against what the others predict, as a plot and as parts of a page."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.patches import Rectangle

from mindist import checks
from mindist.report.evidence import plot_images
from mindist.report.page import cells, inline_figure, ranked
from mindist.report.style import ADAPTED, BLACK, CLOUD, OBSERVED, plain
from mindist.result import Completion

MOST_NAMES, MOST_BARS = 16, 40  # entries with a name on the axis; with a bar each, not a band
WIDE = 25.0  # spreads from which the axis of residuals is logarithmic, but for its middle
KINDS, OUTCOMES = ("values", "residuals", "image"), ("believed", "missing", "set aside")


def plot_entries(
    axes: Any, result: Completion, *, names: Sequence[str] = (), kind: str = "", mark: str = ""
) -> Any:
    """Draw one vector: its entries as observed, as the others predict them, and as filled in.

    Arguments:
        axes: Matplotlib axes.
        result: What `Entrywise.adapt` says of one vector.
        names: Names of the entries, for the axis.
        kind: `"values"`; `"residuals"`, the same in standard deviations from the prediction; or
            `"image"`, with marked pixels: by default where a vector has two axes.
        mark: If given, entries that are set aside or missing have the id `{mark}{index}` in SVG.

    Example:
        >>> import torch, mindist
        >>> from mindist.report import new_figure
        >>> x = torch.randn(1_000, 1) + 0.1 * torch.randn(1_000, 5)
        >>> result = mindist.Entrywise().fit(x).adapt(torch.tensor([0.1, 0.0, 5.0, torch.nan, 0.0]))
        >>> figure, (axes,) = new_figure(1)
        >>> plot_entries(axes, result).get_legend_handles_labels()[1]
        ['predicted from the others, ± 2 sd', 'believed', 'set aside', 'filled in, ± 2 sd']
    """
    shape = [size for size in result.x_obs.shape if size > 1]
    kind = checks.choice(kind or ("image" if len(shape) == 2 else "values"), KINDS, "kind")
    labels, full = indices(result.x_obs.shape), result.completed.double()
    facts = (result.x_obs, result.predicted, result.spread, full.mean(0), full.std(0))
    x, mean, spread, filled, sd = (v.double().numpy().reshape(-1) for v in facts)
    wrong, gone = (v.numpy().reshape(-1) for v in (result.outliers, result.missing))
    ids = [f"{mark}{label}" if mark else None for label in labels]
    if kind == "image":
        return _image(axes, np.stack([x, mean, filled]).reshape(3, *shape), wrong, gone, ids)
    if kind == "residuals":
        unit = np.where(spread > 0, spread, 1.0)
        x, filled, sd, spread = (x - mean) / unit, (filled - mean) / unit, sd / unit, spread / unit
        mean = np.zeros_like(mean)
    at, odd, many = np.arange(len(x)), wrong | gone, len(x) > MOST_BARS
    ends = (mean - 2 * spread, mean + 2 * spread)
    near = np.concatenate([x[~odd], *ends])
    largest = np.abs(x[np.isfinite(x)]).max(initial=1.0)
    room = 0.5 * np.ptp(near) if kind == "values" else 10 * largest
    x = np.clip(x, near.min() - room, near.max() + room)  # far and infinite ones are at the edge
    if kind == "residuals" and largest > WIDE:
        axes.set_yscale("symlog", linthresh=3.0)
    how: Any = {"color": CLOUD, "label": "predicted from the others, ± 2 sd"}
    if many:
        axes.fill_between(at, *ends, alpha=0.7, linewidth=0, **how)
    else:
        axes.vlines(at, *ends, linewidth=min(12.0, 160 / len(x)), **how)
    how = {"markersize": 3, "linewidth": 0.7} if many else {"markersize": 5, "linewidth": 0}
    axes.plot(at, np.where(odd, np.nan, x), marker="o", color=BLACK, label="believed", **how)
    how = {"color": OBSERVED, "markeredgecolor": "white", "markeredgewidth": 0.6, "zorder": 4}
    for n, i in enumerate(np.flatnonzero(wrong)):
        label = "" if n else "set aside"
        axes.plot(at[i], x[i], "X", markersize=8, gid=ids[i], label=label, **how)
    how = {"color": ADAPTED, "fmt": "o", "markersize": 5, "elinewidth": 1.4, "zorder": 3}
    for n, i in enumerate(np.flatnonzero(odd)):
        label = "" if n else "filled in, ± 2 sd"
        drawn = axes.errorbar(at[i], filled[i], 2 * sd[i], label=label, **how)
        drawn[0].set_gid(ids[i] if gone[i] else None)
    if len(x) <= MOST_NAMES:
        ticks = [plain(name) for name in names or labels]
        long = {"rotation": 45, "ha": "right"} if max(map(len, ticks)) > 3 else {}
        axes.set_xticks(at, ticks, **long)
    words = ("Entries", "value") if kind == "values" else ("Residuals", "sd from the prediction")
    axes.set(xlabel="entry", title=words[0], ylabel=words[1])
    axes.grid(False, axis="x")
    axes.legend(fontsize=9, loc="best")
    return axes


def _image(axes: Any, images: Any, wrong: Any, gone: Any, ids: Sequence[str | None]) -> Any:
    """Draw an image as observed, as predicted and as filled in, with marks on pixels."""
    width = images.shape[2]
    images[0] = np.clip(images[0], images[1:].min(), images[1:].max())
    plot_images(axes, {"": images})
    for which, colour, label in ((wrong, OBSERVED, "set aside"), (gone, ADAPTED, "missing")):
        for i in np.flatnonzero(which).tolist():
            place = (i % width, i // width)
            axes.add_patch(Rectangle(place, 1, 1, fill=False, edgecolor=colour, gid=ids[i]))
        if which.any():
            axes.plot([], [], "s", color=colour, fillstyle="none", label=label)
    names = ("observed", "predicted from the others", "filled in")
    axes.set_xticks(width / 2 + np.arange(3) * (width + max(1, width // 16)), names)
    axes.set(title="Entries")
    return axes


def indices(shape: Sequence[int]) -> list[str]:
    """Return the index of each entry as text: `3`, or `2,5` of an image."""
    return [",".join(map(str, index)) for index in np.ndindex(*shape)]


def vector_page(result: Completion, names: Sequence[str]) -> dict[str, Any]:
    """Return figures, and rows of the table by score: whether odd, cells by text and value."""
    facts = (result.x_obs, result.predicted, result.spread, result.outlier_score)
    x, mean, spread, score = (v.double().flatten() for v in facts)
    off = (x - mean) / spread.clamp(min=1e-300)
    outcome = (2 * result.outliers.int() + result.missing.int()).flatten()
    found, gone = int(result.outliers.sum()), int(result.missing.sum())
    by_score = sorted(range(len(x)), key=lambda i: (-score[i], -outcome[i], -off[i].abs()))
    texts = {"Entry": indices(result.x_obs.shape)} | ({"Name": list(names)} if names else {})
    columns: Any = {k: [(text, i) for i, text in enumerate(own)] for k, own in texts.items()}
    numbers = {"Observed": x, "Predicted": mean, "Spread": spread, "Off by": off}
    columns |= {head: cells(column.tolist()) for head, column in numbers.items()}
    columns["Score"] = cells(score.tolist(), "{:.2f}".format)
    columns["Outcome"] = cells(outcome.tolist(), OUTCOMES.__getitem__)
    words = f"{len(x):,} entries against what the others predict; {found:,} set aside in orange, "
    words += f"{gone:,} missing and filled in, in blue."
    image = sum(size > 1 for size in result.x_obs.shape) == 2
    how: Any = {"mark": "obs-", "size": (5.4, 2.6) if image else (4.9, 3.5), "names": names}
    how["caption"] = "" if image else "A value far outside is drawn at the edge."
    figures = {"vector": inline_figure("data", words, plot_entries, result, **how)}
    how = {"names": names, "kind": "residuals"}
    words = f"In standard deviations of the prediction: {words}"
    figures["residuals"] = inline_figure("residuals", words, plot_entries, result, **how)
    settings = {"Observed data": f"one vector of shape {tuple(result.x_obs.shape)}"}
    settings["Test"] = f"the strangest entry, level {result.alpha:g}"
    values = {"figures": figures, "settings": settings, "found": found, "gone": gone}
    return values | ranked(columns, outcome, by_score)
