r"""The distribution of the distance when the model is right, from held-out simulations.

The statistic is the squared distance :math:`D = \|\mu(s) - \bar z\|^2` of a dataset's mean
embedding from the decoder's at its own summary (appendix "Detecting Model Misspecification").
With n null distances, k of which are at least as large as the observed one, the p-value is

.. math:: p = \frac{1 + k}{n + 1} ,

which is never 0 and, for exchangeable simulations and a well-specified model, has
:math:`\Pr(p \le \alpha) \le \alpha` exactly.

**Other sample sizes.** :math:`\bar z - \mu(s)` is an average of N independent terms up to the
decoder's own error, so :math:`N D` has the same limit law for every N (a weighted sum of
:math:`\chi^2` variables). The null is kept as :math:`N D`, and an observed dataset with another
number of observations is compared on that scale. What does not shrink with N is the decoder's
error; docs/method.md measures up to which N it stays negligible.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class NullDistances:
    """Null distances on the scale N D, sorted.

    Arguments:
        scaled: Squared distances of held-out simulations times their number of observations,
            sorted, `(n,)`, float64.

    Example:
        >>> null = NullDistances.of(torch.arange(1.0, 20.0), num_obs=1)
        >>> null.p_value(torch.tensor([0.0, 10.0, 100.0]), num_obs=1)
        tensor([1.0000, 0.5500, 0.0500], dtype=torch.float64)
        >>> null.threshold(0.05, num_obs=1)
        19.0
    """

    scaled: Tensor

    @classmethod
    def of(cls, distance: Tensor, num_obs: int) -> NullDistances:
        """From squared distances `(n,)` of simulations with `num_obs` observations each."""
        return cls((distance.double() * num_obs).sort().values)

    def p_value(self, distance: Tensor, num_obs: int) -> Tensor:
        """p-values `(B,)` of squared distances `(B,)` of datasets with `num_obs` observations."""
        n = len(self.scaled)
        below = torch.searchsorted(self.scaled, distance.double() * num_obs)
        return (1 + n - below).double() / (n + 1)

    def threshold(self, alpha: float, num_obs: int) -> float:
        """The squared distance above which, and only above which, p is at most alpha."""
        n = len(self.scaled)
        allowed = math.floor(alpha * (n + 1) + 1e-9) - 1
        return math.inf if allowed < 0 else float(self.scaled[n - 1 - allowed]) / num_obs
