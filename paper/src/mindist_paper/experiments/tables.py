"""From the rows of cells to those that an experiment shows."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

SETTING = ["task", "task_options", "contamination", "epsilon", "seed"]


def option(rows: pd.DataFrame, name: str, default: Any = None) -> pd.Series:
    """One of the method's options as a column."""
    return rows.method_options.map(lambda text: json.loads(text).get(name, default))


def best_penalty(rows: pd.DataFrame) -> pd.DataFrame:
    """NPE-RS with one lambda for each setting: that of the lowest mean RMSE."""
    robust = rows[rows.method == "npe-rs"]
    if robust.empty:
        return rows
    robust = robust.assign(penalty=option(robust, "penalty"))
    mean = robust.groupby([*SETTING, "penalty"], as_index=False).rmse.mean()
    best = mean.loc[mean.groupby(SETTING).rmse.idxmin(), [*SETTING, "penalty"]]
    kept = robust.merge(best, on=[*SETTING, "penalty"]).drop(columns="penalty")
    return pd.concat([rows[rows.method != "npe-rs"], kept], ignore_index=True)


def with_sizes(rows: pd.DataFrame) -> pd.DataFrame:
    """N as a whole number, for the axis."""
    return rows.assign(num_obs=rows.num_obs.astype(int))


__all__ = ["best_penalty", "option", "with_sizes"]
