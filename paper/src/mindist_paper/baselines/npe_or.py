"""NPE with outlier removal: a one-class SVM drops observations before they are summarised.

Outliers are below the value that 5% of held-out simulated observations are below; inliers, drawn
with replacement, take their places (appendix "Further Experimental Details"; docs/baselines.md).
"""

import math
from typing import Any

import torch
from sklearn.svm import OneClassSVM
from torch import Tensor

from mindist import checks
from mindist.features.kernel import median_distance
from mindist.tasks import Task
from mindist_paper.baselines.method import Options, Simulations, SummaryQueries
from mindist_paper.baselines.npe import NeuralPosterior, train_neural_posterior

FALSE_POSITIVES = 0.05  # the paper
# The fit grows with the square of its size: 4,000 observations take about half a second.
NUM_FIT, NUM_CALIBRATE = 4_000, 4_000
NU = 0.05  # scikit-learn: an upper bound of the share of outliers in training, here the same 5%


class OutlierRemoval(SummaryQueries):
    """A neural posterior, queried at the summary of the observations that look simulated."""

    def __init__(self, npe: NeuralPosterior, detector: Any, threshold: float, seed: int) -> None:
        super().__init__(npe.posterior, npe.summary, npe.event_shape)
        self.detector, self.threshold, self.seed = detector, threshold, seed

    def inliers(self, x: Tensor) -> Tensor:
        """Return which observations of datasets `(B, N, *event)` are kept, `(B, N)`."""
        flat = x.reshape(x.shape[0] * x.shape[1], -1)
        return (scores(self.detector, flat) >= self.threshold).reshape(x.shape[:2]).to(x.device)

    def cleaned(self, x: Tensor) -> Tensor:
        """Return datasets `(B, N, *event)` with inliers in place of outliers, if there are any."""
        inlier = self.inliers(x)
        empty = ~inlier.any(1)
        if empty.any():
            where = f"{int(empty.sum())} of {len(x)} datasets looks like an outlier"
            first = f"(the first is dataset {int(empty.nonzero()[0])}); all were kept there"
            checks.warn_user(f"x: every observation of {where} {first}.")
        return torch.stack([self._refilled(*row) for row in zip(x, inlier, strict=True)])

    def _refilled(self, x: Tensor, inlier: Tensor) -> Tensor:
        kept = x[inlier]
        if not len(kept):
            return x
        # A fresh generator for each dataset: its result does not depend on its batch.
        generator = torch.Generator().manual_seed(self.seed)
        drawn = torch.randint(len(kept), (len(x) - len(kept),), generator=generator)
        return torch.cat([kept, kept[drawn.to(x.device)]])

    def _summaries(self, x: Tensor) -> Tensor:
        return super()._summaries(self.cleaned(x))


def train_outlier_removal(task: Task, data: Simulations, options: Options) -> OutlierRemoval:
    """Fit the SVM to simulated observations, calibrate its threshold on others."""
    npe = train_neural_posterior(task, data, options)
    generator = torch.Generator().manual_seed(options.seed)
    pooled = data.pooled_observations(NUM_FIT + NUM_CALIBRATE, generator)
    fit, held_out = pooled.tensor_split([len(pooled) * NUM_FIT // (NUM_FIT + NUM_CALIBRATE)])
    bandwidth = median_distance(fit[None], generator)
    detector = OneClassSVM(kernel="rbf", gamma=1 / (2 * bandwidth**2), nu=NU)
    detector.fit(fit.double().cpu().numpy())
    # The k-th smallest of n held-out values: at most k / (n + 1) of new ones fall below it.
    k = max(1, math.floor(FALSE_POSITIVES * (len(held_out) + 1)))
    threshold = float(scores(detector, held_out).kthvalue(k).values)
    return OutlierRemoval(npe, detector, threshold, options.seed)


def scores(detector: Any, x: Tensor) -> Tensor:
    """Return decision values `(n,)`, float64, of observations `(n, D)`: small for outliers."""
    return torch.from_numpy(detector.decision_function(x.double().cpu().numpy()))
