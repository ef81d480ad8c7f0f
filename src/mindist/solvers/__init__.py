"""Minimisers of smooth functions of a few unknowns, over many problems at once.

They know nothing of minimum-distance summaries. May import: torch, `mindist.checks`.
"""

from mindist.solvers.first_order import adam, gradient_descent, lbfgs
from mindist.solvers.newton import damped_newton, gauss_newton
from mindist.solvers.solution import Solution, SolverStatus

__all__ = [
    "Solution",
    "SolverStatus",
    "adam",
    "damped_newton",
    "gauss_newton",
    "gradient_descent",
    "lbfgs",
]
