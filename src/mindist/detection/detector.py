r"""The default detector: two kernels and the summary itself, as one test of exact size.

Of each kernel the scaled and the Mahalanobis distance, then how far the summary lies from simulated
ones, and the Mahalanobis distance of the summary from what the embedding says of it
(`mindist.detection.statistics`). The last counts only for datasets of as many observations as the
simulations have: how much an embedding says of a summary depends on that number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import torch
from torch import Tensor

from mindist.detection.null import CombinedTest
from mindist.detection.statistics import (
    Mahalanobis,
    ResidualStatistics,
    SummaryOutlyingness,
    SummaryRegression,
)

KERNELS = ("wide", "local")
REGRESSED = "regressed summary"
MAX_NULL = 5_000  # the level reached then has a standard deviation of .003 at .05
# A regression on a thousand features wants more: with 2,500, 5,000 and 9,500 simulations its power
# on SIR at epsilon .05 is .57, .64 and .69.
MAX_LEARNED = 10_000


@dataclass(frozen=True)
class Detector:
    """Statistics of every kernel and of the summary, and their joint null.

    Arguments:
        kernels: One for each kernel, wide first.
        outlyingness: How far a summary lies from simulated ones.
        regression: What the embedding says of the summary.
        regressed: The covariance of its residuals.
        test: The joint null.
        num_obs: Observations in each simulated dataset.

    Example:
        >>> from mindist import MinimumDistance
        >>> x = torch.randn(500, 20, 2, generator=torch.Generator().manual_seed(0))
        >>> mds = MinimumDistance(lambda x: x.mean(1), num_features=16).fit(x)
        >>> len(mds.fitted_.detector.kernels), mds.fitted_.detector.num_obs
        (2, 20)
    """

    kernels: Annotated[tuple[ResidualStatistics, ...], {"K": ("wide", "local")}]
    outlyingness: SummaryOutlyingness
    regression: Annotated[SummaryRegression, {"K": "total"}]
    regressed: Annotated[Mahalanobis, {"K": "d"}]
    test: CombinedTest
    num_obs: Annotated[int, range(1, 2**31)]

    @classmethod
    def of(
        cls,
        residuals: Sequence[Tensor],
        s: Tensor,
        z_bar: Tensor,
        num_obs: int,
        generator: torch.Generator,
    ) -> Detector:
        """From residuals of simulations that were left out of the decoders' fit.

        Arguments:
            residuals: For each kernel `(n, K)`, n at most `MAX_NULL`.
            s: The simulations' summaries `(m, d_s)`, followed by those of others, from which the
                regression of the summary on the embedding learns as well.
            z_bar: Their mean embeddings in all kernels `(m, K)`, m at most `MAX_LEARNED`.
            num_obs: Observations in each of them.
            generator: Draws features of the regression of distances on summaries.
        """
        num, kernels, null, names = len(residuals[0]), [], [], []
        regression, left_out = SummaryRegression.of(z_bar, s, num)
        s = s[:num]
        for name, residual in zip(KERNELS, residuals, strict=False):
            statistics = ResidualStatistics.of(residual, s, generator)
            kernels.append(statistics)
            null.append(statistics.leave_one_out(residual, s))
            names += [f"{what} {name}" for what in ResidualStatistics.NAMES]
        outlyingness = SummaryOutlyingness.of(s, generator)
        null.append(outlyingness.leave_one_out()[:, None])
        regressed = Mahalanobis.of(left_out)
        null.append(regressed.leave_one_out(left_out)[:, None])
        names += [SummaryOutlyingness.NAME, REGRESSED]
        test = CombinedTest(torch.cat(null, dim=1), tuple(names))
        return cls(tuple(kernels), outlyingness, regression, regressed, test, num_obs)

    @cached_property
    def other_test(self) -> CombinedTest:
        """The joint null of all but the last, for other numbers of observations."""
        return CombinedTest(self.test.null[:, :-1], self.test.names[:-1])

    def statistics(
        self, residuals: Sequence[Tensor], s: Tensor, z_bar: Tensor, num_obs: int
    ) -> Tensor:
        """All statistics `(B, T)` of observed datasets with `num_obs` observations.

        Arguments:
            residuals: For each kernel `(B, K)`.
            s: Summaries `(B, d_s)`.
            z_bar: Mean embeddings in all kernels `(B, K)`.
            num_obs: N; one statistic less where it is not that of the simulations.
        """
        ratio = num_obs / self.num_obs
        columns = [k(r, s, ratio) for k, r in zip(self.kernels, residuals, strict=True)]
        columns.append(self.outlyingness(s)[:, None])
        if num_obs == self.num_obs:
            columns.append(self.regressed(self.regression(z_bar, s))[:, None])
        return torch.cat(columns, dim=1)

    def p_value(
        self, residuals: Sequence[Tensor], s: Tensor, z_bar: Tensor, num_obs: int
    ) -> Tensor:
        """p-values `(B,)`; arguments as in `statistics`."""
        test = self.test if num_obs == self.num_obs else self.other_test
        return test.p_value(self.statistics(residuals, s, z_bar, num_obs))

    def p_values(
        self, residuals: Sequence[Tensor], s: Tensor, z_bar: Tensor, num_obs: int
    ) -> dict[str, Tensor]:
        """p-values `(B,)` of each statistic alone; arguments as in `statistics`."""
        test = self.test if num_obs == self.num_obs else self.other_test
        alone = test.p_values(self.statistics(residuals, s, z_bar, num_obs))
        return dict(zip(test.names, alone.T, strict=True))
