"""Minimisers of smooth functions of a few unknowns, over many problems at once.

They know nothing of minimum-distance summaries. May import: torch, `mindist.checks`.
"""

from mindist.solvers.first_order import adam, gradient_descent, lbfgs
from mindist.solvers.newton import Solution, SolverStatus, damped_newton, gauss_newton

__all__ = ["Solution", "SolverStatus", "adam", "damped_newton", "gauss_newton"]
__all__ += ["gradient_descent", "lbfgs"]
