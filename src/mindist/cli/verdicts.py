"""What is said of datasets: in words, and as JSON values."""

from __future__ import annotations

from typing import Any

from mindist.cli.output import number, print_table, vector

MAX_LISTED = 20  # datasets, or outliers, that are listed in words


def detection_values(name: Any, n_obs: int, detection: Any) -> dict[str, Any]:
    """A detection of one dataset as JSON values."""
    return {
        "dataset": name,
        "n_obs": n_obs,
        "misspecified": bool(detection.misspecified),
        "p_value": float(detection.p_value),
        "distance_obs": float(detection.distance_obs),
        "threshold": detection.threshold,
        "s_obs": detection.s_obs.tolist(),
    }


def adaptation_values(name: Any, n_obs: int, result: Any) -> dict[str, Any]:
    """An adaptation of one dataset as JSON values."""
    return detection_values(name, n_obs, result) | {
        "adapted": bool(result.adapted),
        "status": result.status.name.lower(),
        "message": result.message,
        "s_star": result.s_star.tolist(),
        "distance_star": float(result.distance_star),
        "epsilon": float(result.epsilon),
        "epsilon_error": float(result.epsilon_error),
        "outliers": result.outliers.nonzero().flatten().tolist(),
    }


def verdict(values: dict[str, Any], alpha: float) -> str:
    """Whether one dataset could have come from the simulator, in words."""
    p = f"p-value {number(values['p_value'])}, level {number(alpha)}"
    share = f"{100 * values['p_value']:.2g}%"
    if values["misspecified"]:
        return f"Misspecified: only {share} of simulated datasets look as odd as this one ({p})."
    return f"Not misspecified: {share} of simulated datasets look as odd as this one ({p})."


def print_verdicts(rows: list[dict[str, Any]], alpha: float) -> None:
    """Whether datasets could have come from the simulator; of many, which could not."""
    if len(rows) == 1:
        print(verdict(rows[0], alpha))
        return
    found = [row for row in rows if row["misspecified"]]
    expected = alpha * len(rows)
    print(
        f"{len(found)} of {len(rows)} datasets are misspecified; were none, about "
        f"{number(expected)} would be called so by chance (level {number(alpha)})."
    )
    if found:
        shown = sorted(found, key=lambda row: row["p_value"])[:MAX_LISTED]
        cells = [(str(r["dataset"]), str(r["n_obs"]), number(r["p_value"])) for r in shown]
        more = f"The {len(shown)} of the lowest p-values:" if shown != found else None
        print_table(("dataset", "observations", "p-value"), cells, title=more)


def print_adaptation(values: dict[str, Any]) -> None:
    """What was done about one dataset."""
    print(f"{values['message'][:1].upper()}{values['message'][1:]}.")
    pairs = zip(values["s_obs"], values["s_star"], strict=True)
    rows = [(f"s_{i}", number(a), number(b)) for i, (a, b) in enumerate(pairs)]
    rows.append(("distance", number(values["distance_obs"]), number(values["distance_star"])))
    print_table(("", "observed", "used"), rows)
    if values["adapted"]:
        print(
            f"Contaminated share: {number(values['epsilon'])} "
            f"(standard error {number(values['epsilon_error'])})."
        )
    print(outlier_sentence(values["outliers"], values["n_obs"]))


def outlier_sentence(outliers: list[int], n_obs: int) -> str:
    """Which observations are suspicious, counted from 0 as in JSON and in Python."""
    if not outliers:
        return f"None of the {n_obs} observations is an outlier."
    listed = ", ".join(map(str, outliers[:MAX_LISTED])) + (", ..." if outliers[MAX_LISTED:] else "")
    return f"Outliers: {len(outliers)} of {n_obs} observations, counted from 0: {listed}."


def print_adaptations(rows: list[dict[str, Any]]) -> None:
    """What was done about many datasets."""
    moved = [row for row in rows if row["adapted"]][:MAX_LISTED]
    if not moved:
        return
    cells = [
        (
            str(row["dataset"]),
            number(row["epsilon"]),
            str(len(row["outliers"])),
            vector(row["s_obs"]),
            vector(row["s_star"]),
        )
        for row in moved
    ]
    title = f"Adapted{', the first ' + str(MAX_LISTED) if len(moved) == MAX_LISTED else ''}:"
    columns = ("dataset", "contaminated share", "outliers", "observed summary", "used summary")
    print_table(columns, cells, title=title)


__all__ = [
    "MAX_LISTED",
    "adaptation_values",
    "detection_values",
    "print_adaptation",
    "print_adaptations",
    "print_verdicts",
    "verdict",
]
