"""sbi's test of misspecification by the maximum mean discrepancy; this file imports sbi."""

from __future__ import annotations

from sbi.diagnostics.misspecification import calc_misspecification_mmd
from torch import Tensor

NUM_SHUFFLES = 1_000  # sbi's default
MAX_SAMPLES = 1_000  # sbi's default: of the simulated observations it uses no more in a shuffle


def sbi_p_value(x_obs: Tensor, x: Tensor, *, num_shuffles: int = NUM_SHUFFLES) -> float:
    """The p-value of one observed dataset in the space of the observations.

    Arguments:
        x_obs: The N observations of one dataset `(N, D)`.
        x: Simulated observations `(n, D)` of all datasets, as many as sbi uses.
        num_shuffles: Splits of the simulated observations that give the null distribution.
    """
    p_value, _ = calc_misspecification_mmd(x_obs, x, n_shuffle=num_shuffles)
    return float(p_value)


__all__ = ["MAX_SAMPLES", "NUM_SHUFFLES", "sbi_p_value"]
