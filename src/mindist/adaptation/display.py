"""Results as notebooks show them: a few lines of HTML in the colours of the notebook.

No style sheet, no script, no fixed colour but two that are legible on light and on dark; whatever
comes from outside is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from mindist.adaptation.result import Detection

MOST_ROWS = 10
"""Datasets of a batch that are shown."""

MOST_NUMBERS = 6
"""Of a summary that are shown."""

STRANGE, FINE = "#d9730d", "#2f8f6b"  # 3 to 1 or better on white and on #1e1e1e
CELL = "text-align: left; padding: 0.15em 0.8em 0.15em 0"


def detection_html(result: Detection) -> str:
    """A detection or an adaptation: one dataset as a list of facts, a batch as a table.

    Example:
        >>> import torch
        >>> from mindist.adaptation import Detection
        >>> s, p = torch.zeros(2), torch.tensor(0.01)
        >>> html = detection_html(Detection(s, torch.tensor(1.0), p, p <= 0.05, 0.5))
        >>> "misspecified" in html, "[0, 0]" in html
        (True, True)
    """
    body = _batch(result) if result.batched else _facts(result)
    return f'<div style="overflow-x: auto">{body}</div>'


def _facts(result: Detection) -> str:
    facts = {"p-value": f"{float(result.p_value):.4g}", "Observed summary": _vector(result.s_obs)}
    facts["Squared distance"] = (
        f"{float(result.distance_obs):.4g} (threshold {result.threshold:.4g})"
    )
    if hasattr(result, "s_star"):
        facts |= _adapted(result)
    rows = "".join(
        f'<tr><th scope="row" style="{CELL}">{escape(name)}</th>'
        f'<td style="{CELL}">{escape(value)}</td></tr>'
        for name, value in facts.items()
    )
    return f"{_verdict(bool(result.misspecified))}<table>{rows}</table>"


def _adapted(result: Detection) -> Mapping[str, str]:
    """What an adaptation adds."""
    given = vars(result)
    found, total = int(given["outliers"].sum()), given["outliers"].numel()
    return {
        "Adapted summary": _vector(given["s_star"]) if given["adapted"] else "as observed",
        "Suspicious": f"{found:,} of {total:,} observations",
        "Status": str(getattr(given["status"], "message", given["status"])),
    }


def _batch(result: Detection) -> str:
    found, given = int(result.misspecified.sum()), vars(result)
    header = ["Dataset", "p-value", "Misspecified"]
    columns: list[Sequence[str]] = [
        [f"{i}" for i in range(len(result))][:MOST_ROWS],
        [f"{p:.4g}" for p in result.p_value[:MOST_ROWS].tolist()],
        ["yes" if m else "no" for m in result.misspecified[:MOST_ROWS].tolist()],
    ]
    if "outliers" in given:
        header += ["Suspicious", "Status"]
        columns.append([f"{n:,}" for n in given["outliers"][:MOST_ROWS].sum(1).tolist()])
        columns.append([str(status) for status in given["status"][:MOST_ROWS]])
    head = "".join(f'<th scope="col" style="{CELL}">{escape(name)}</th>' for name in header)
    rows = "".join(
        "<tr>" + "".join(f'<td style="{CELL}">{escape(cell)}</td>' for cell in row) + "</tr>"
        for row in zip(*columns, strict=True)
    )
    left = len(result) - MOST_ROWS
    more = f"<p>and {left:,} more</p>" if left > 0 else ""
    caption = f"<p><strong>{found:,} of {len(result):,} datasets misspecified</strong></p>"
    return f"{caption}<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{more}"


def _verdict(misspecified: bool) -> str:
    colour, words = (STRANGE, "misspecified") if misspecified else (FINE, "not misspecified")
    style = f"border-left: 4px solid {colour}; padding-left: 0.6em"
    return f'<p style="{style}"><strong>{words}</strong></p>'


def _vector(s: Tensor) -> str:
    """Its first numbers."""
    shown = [f"{value:.4g}" for value in s[:MOST_NUMBERS].tolist()]
    return f"[{', '.join(shown + ['…'] * (len(s) > MOST_NUMBERS))}]"


__all__ = ["detection_html"]
