"""How to search for the adapted summary: the options and their defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mindist import checks
from mindist.adaptation.starts import NAMES, Start

SOLVERS = ("levenberg-marquardt", "lbfgs", "gradient-descent", "adam")
DIVERGENCES = ("mmd", "kl")
STAY, REWEIGHT = 0.03, 6  # docs/robustness.md has the errors with other values
# Contaminated Gaussian data have a feedback of .5 (95%: .66), those with half as much noise again
# as the model .78, OUP .02 and SIR .13 (docs/robustness.md).
FEEDBACK = 0.7
MOST = 10_000  # starts, restarts, rounds of weights: more would not come to an end


@dataclass(frozen=True)
class Search:
    """How to search for the adapted summary.

    Arguments:
        solver: `"levenberg-marquardt"` (all datasets and starts at once), `"lbfgs"` (the paper's),
            `"gradient-descent"` (Algorithm 1) or `"adam"` (the paper's for density decoders, with
            fresh draws at every step).
        starts: Any of `"cloud"`, `"observed"`, `"nearest"`, `"mean"`, `"perturbed"`, or vectors of
            length d_s.
        restarts: How many perturbed copies of the first start to search from as well.
        divergence: `"mmd"`, or `"kl"` for the maximum-likelihood variant, which needs a density
            decoder and is not robust.
        stay: Weight of the term that keeps the summary near those of simulations with similar
            embeddings, in units of the decoder's held-out error; 0 leaves it out (the paper). By
            default 0.03; 0 with Adam and with the KL divergence.
        reweight: Rounds of weighing observations by the ratio of the model's density to the data's
            own and searching again; 0 for none (the paper). By default 6; 0 with Adam and with the
            KL divergence.
        feedback: The largest feedback of weights on the summary with which they are used
            (`mindist.adaptation.influence`).
        distinct: Whether copies of one observation count as one in a search with weights, where
            simulations have none and they are few (`mindist.adaptation.weights.copies`).

    Example:
        >>> Search(solver="newton")
        Traceback (most recent call last):
        ...
        ValueError: solver: expected one of 'levenberg-marquardt', 'lbfgs', ..., got 'newton'.
    """

    solver: str = "levenberg-marquardt"
    starts: tuple[Start, ...] = ("cloud",)
    restarts: int = 0
    divergence: str = "mmd"
    stay: float = -1.0
    reweight: int = -1
    feedback: float = FEEDBACK
    distinct: bool = True

    def __post_init__(self) -> None:
        checks.choice(self.solver, SOLVERS, "solver")
        checks.choice(self.divergence, DIVERGENCES, "divergence")
        values = {
            "stay": checks.number(self.stay, "stay", "a number of at least 0"),
            "feedback": checks.number(self.feedback, "feedback", "a number of at least 0"),
            "reweight": checks.integer(self.reweight, "reweight"),
            "restarts": checks.integer(self.restarts, "restarts"),
            "distinct": checks.flag(self.distinct, "distinct"),
            "starts": _frozen(self.starts),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        if not 0 < len(self.starts) <= MOST or not 0 <= self.restarts <= MOST:
            raise ValueError(
                f"starts, restarts: expected 1 to {MOST:,} starts and 0 to {MOST:,} restarts, got "
                f"{len(self.starts):,} starts and restarts={self.restarts}."
            )
        plain = self.divergence == "kl" or self.solver == "adam"
        if self.stay == -1:
            object.__setattr__(self, "stay", 0.0 if plain else STAY)
        if self.reweight == -1:
            object.__setattr__(self, "reweight", 0 if plain else REWEIGHT)
        if not (
            0 <= self.stay < float("inf") and 0 <= self.reweight <= MOST and self.feedback >= 0
        ):
            raise ValueError(
                f"stay, reweight, feedback: expected numbers of at least 0, a finite stay, and at "
                f"most {MOST:,} rounds of reweighting, got stay={self.stay!r}, "
                f"reweight={self.reweight!r}, feedback={self.feedback!r}."
            )
        if self.divergence == "kl" and self.solver == "levenberg-marquardt":
            raise ValueError(
                "solver: the KL divergence is not a sum of squares; expected 'adam', "
                "'lbfgs' or 'gradient-descent', got 'levenberg-marquardt'."
            )

    @property
    def least_squares(self) -> bool:
        """Return whether a sum of squares is minimised as such."""
        return self.solver == "levenberg-marquardt"


def _frozen(starts: Any) -> tuple[Start, ...]:
    """Names and vectors, as tuples."""
    try:
        given = [starts] if isinstance(starts, str) else list(starts)
        found = [start if isinstance(start, str) else tuple(start) for start in given]
    except TypeError:
        raise TypeError(
            f"starts: expected names out of {', '.join(NAMES)}, or vectors of length d_s, got "
            f"{starts!r}."
        ) from None
    numbers = "names or vectors of numbers, one for each summary"
    return tuple(
        checks.choice(start, NAMES, "starts")
        if isinstance(start, str)
        else tuple(checks.number(value, "starts", numbers) for value in start)
        for start in found
    )


__all__ = ["Search"]
