r"""The summary that the embedding suggests: a regression the other way round.

Where a summary is more sensitive than the embedding, contamination moves it first: in SIR a tenth
of the trajectories hardly changes their distribution, but the means of peak heights a great deal.
The residual of a linear ridge regression of the summary on the mean embeddings of all kernels,

.. math:: r = s - \hat s(\bar z), \qquad
    \hat s(\bar z) = \bar s + B^\top (\bar z - \bar z_0), \qquad
    B = (G + \lambda I)^{-1} \tfrac1M Z^\top S ,

with G the covariance of the embeddings, is then large by the standard of simulations. The strength
:math:`\lambda` has the smallest exact leave-one-out error,

.. math:: r_i^{(-i)} = \frac{r_i}{1 - h_i}, \qquad
    h_i = \tfrac1M + \tfrac1M\, z_i^\top (G + \lambda I)^{-1} z_i .

In the eigenbasis of G all strengths have the same coordinates, so that they cost hardly more than
one. G itself is summed in float64: strengths down to 1e-10 are chosen (Gaussian, OUP).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from mindist.decoders.normal_equations import Gram
from mindist.directions import leading_directions

# Of the largest eigenvalue of G; below 1e-10 float32 embeddings are rounding.
STRENGTHS = tuple(10.0**-k for k in range(2, 11))
LEAST = 1e-30
BLOCK_ROWS = 1_024
MAX_DIRECTIONS = 1_024  # of the embeddings: the default's features in two kernels


@dataclass(frozen=True)
class SummaryRegression:
    """A linear regression of standardised summaries on mean embeddings.

    Arguments:
        z_centre: Mean of the simulated embeddings `(K,)`, float64.
        s_centre: Mean of the simulated summaries `(d_s,)`, float64.
        s_scale: Their standard deviations `(d_s,)`, float64; 1 where that is 0.
        weight: B, `(K, d_s)`, float64.

    Example:
        >>> z = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)).double()
        >>> regression, left_out = SummaryRegression.of(z, z[:, :1] + 1)
        >>> regression(z[:2], z[:2, :1] + 1).abs().max() < 0.05, left_out.abs().max() < 0.05
        (tensor(True), tensor(True))
    """

    z_centre: Annotated[Tensor, "K"]
    s_centre: Annotated[Tensor, "d"]
    s_scale: Annotated[Tensor, "d"]
    weight: Annotated[Tensor, "K d"]

    @classmethod
    def of(
        cls, z_bar: Tensor, s: Tensor, num: int | None = None
    ) -> tuple[SummaryRegression, Tensor]:
        """Learn from simulations, and leave out each of some of them.

        Arguments:
            z_bar: Mean embeddings `(M, K)`.
            s: Summaries `(M, d_s)`.
            num: n, how many of the leading simulations to leave out in turn; by default all.

        Returns:
            The regression, and the left-out residuals `(n, d_s)`.
        """
        s = s.double()
        z_centre, s_centre = z_bar.mean(0, dtype=torch.float64), s.mean(0)
        s_scale = s.std(0, unbiased=False)
        s_scale = torch.where(s_scale > 0, s_scale, 1.0)
        target = (s - s_centre) / s_scale
        some, path = slice(num), _Path.of(z_bar, z_centre, target)
        leverage, error = path.left_out(z_bar[some], z_centre, target[some], len(s))
        best = int(error.argmin())
        regression = cls(z_centre, s_centre, s_scale, path.basis @ path.coefficients[best])
        return regression, regression(z_bar[some], s[some]) / (1 - leverage[:, best, None])

    def __call__(self, z_bar: Tensor, s: Tensor) -> Tensor:
        """Residuals `(B, d_s)` of summaries `(B, d_s)` given embeddings `(B, K)`, float64."""
        target = (s.double() - self.s_centre) / self.s_scale
        blocks = zip(target.split(BLOCK_ROWS), z_bar.split(BLOCK_ROWS), strict=True)
        return torch.cat([t - (z.double() - self.z_centre) @ self.weight for t, z in blocks])


@dataclass(frozen=True)
class _Path:
    """The regressions of all L strengths, in the coordinates of the eigenvectors of G.

    Arguments:
        basis: Eigenvectors `(K, q)` over the root of the largest eigenvalue.
        damped: Eigenvalues `(L, q)` in units of the largest, with each strength added.
        coefficients: In these coordinates `(L, q, d_s)`.
    """

    basis: Tensor
    damped: Tensor
    coefficients: Tensor

    @classmethod
    def of(cls, z_bar: Tensor, centre: Tensor, target: Tensor) -> _Path:
        """From embeddings `(M, K)`, their mean, and standardised summaries `(M, d_s)`.

        With more than 1,024 features, in as many of their leading directions.
        """
        turn = None
        if z_bar.shape[1] > MAX_DIRECTIONS:
            turn = leading_directions(z_bar - centre.to(z_bar.dtype), MAX_DIRECTIONS, rounds=1)
        width = z_bar.shape[1] if turn is None else turn.shape[1]
        gram, moment = Gram.empty(width, centre.device), centre.new_zeros(width, target.shape[1])
        for rows, values in zip(z_bar.split(BLOCK_ROWS), target.split(BLOCK_ROWS), strict=True):
            centred = rows.double() - centre
            if turn is not None:
                centred = (centred.to(turn.dtype) @ turn).double()
            gram.add(centred)
            moment.addmm_(centred.T, values)
        path = cls._solve(gram.full() / len(target), moment / len(target))
        return path if turn is None else replace(path, basis=turn.double() @ path.basis)

    @classmethod
    def _solve(cls, covariance: Tensor, moment: Tensor) -> _Path:
        """From G, `(q, q)`, and the mean products of embeddings and summaries `(q, d_s)`."""
        values, vectors = torch.linalg.eigh(covariance)
        top = values[-1].clamp(min=LEAST)
        basis = vectors / top.sqrt()
        strengths = torch.tensor(STRENGTHS, dtype=values.dtype, device=values.device)
        damped = values.clamp(min=0) / top + strengths[:, None]
        return cls(basis, damped, (basis.T @ moment) / damped[:, :, None])

    def left_out(
        self, z_bar: Tensor, centre: Tensor, target: Tensor, num: int
    ) -> tuple[Tensor, Tensor]:
        """Leverages `(n, L)`, and the mean log of the mean squared left-out residuals `(L,)`.

        In the precision of the embeddings: one product with the basis serves all strengths.

        Arguments:
            z_bar: Mean embeddings `(n, K)` of some of the simulations.
            centre: The mean embedding of all `(K,)`.
            target: Standardised summaries `(n, d_s)`.
            num: M, how many simulations G and the moments are means of.
        """
        dtype, (L, q, d_s) = z_bar.dtype, self.coefficients.shape
        basis, inverse = self.basis.to(dtype), (1 / self.damped).T.to(dtype)
        stacked = self.coefficients.permute(1, 0, 2).reshape(q, L * d_s).to(dtype)
        leverage, squared = [], target.new_zeros(L, d_s)
        for rows, values in zip(z_bar.split(BLOCK_ROWS), target.split(BLOCK_ROWS), strict=True):
            u = (rows - centre.to(dtype)) @ basis
            leverage.append((1 + (u.square() @ inverse).double()) / num)
            fitted = (u @ stacked).double().view(-1, L, d_s)
            residual = (values[:, None] - fitted) / (1 - leverage[-1][:, :, None])
            squared += residual.square().sum(0)
        error = (squared / len(z_bar)).clamp(min=LEAST).log().mean(1)
        return torch.cat(leverage), error


__all__ = ["SummaryRegression"]
