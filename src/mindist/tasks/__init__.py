"""The paper's simulators, summaries and contaminations, one file each.

May import: torch, `mindist.checks`, `mindist.protocols`.
"""

from mindist.tasks.gaussian import GaussianTask

__all__ = ["GaussianTask"]
