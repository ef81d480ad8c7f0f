r"""The influence of observations by compiled loops, where the decoders have a basis of cosines.

The same as `mindist.adaptation.influence` with `mindist.adaptation.response`, in three products of
matrices and one pass over the features of each kernel: those of an observation are multiplied by
the model's embedding and all its derivatives at once. Nothing is copied of the datasets that are
left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mindist.adaptation.influence import Influence
from mindist.adaptation.inner import plain_array
from mindist.adaptation.objective import EmbeddingDistance
from mindist.adaptation.own_kernel import OwnKernel
from mindist.adaptation.view import View
from mindist.adaptation.weights import LEAST_MASS, Observations

if TYPE_CHECKING:
    from mindist.adaptation.influence_loops import Model

# Datasets: with fewer one pass over the decoder's matrix for each is faster than two products
# (P = 500, K = 512, d_s = 3: .10 and .17 ms for one; products take .07 ms for each of 16).
FEW = 8

Array = NDArray[Any]


@dataclass(frozen=True)
class Ends:
    """Where the searches of some datasets ended.

    Arguments:
        rows: Which datasets these are, increasing, `(B,)`.
        objective: What was minimised, with the weighted embeddings as its target.
        s: Adapted summaries `(B, d_s)`, float64.
        mu: The decoder's embeddings there, `(B, K)`.
        weight: Of the observations `(B, N)`.
    """

    rows: Tensor
    objective: EmbeddingDistance
    s: Tensor
    mu: Tensor
    weight: Tensor


def served(wide: View, density: View, observations: Observations) -> bool:
    """Whether the loops are for these: bases of cosines, in memory."""
    return observations.plain and wide.cosines is not None and density.cosines is not None


@torch.no_grad()
def compiled_influence(
    wide: View, density: View | None, observations: Observations, ends: Ends, threshold: float
) -> tuple[Influence, Tensor]:
    """The influence of every observation of some datasets.

    Arguments:
        wide: The view that was searched in.
        density: That in which weights answer; None for weights that are fixed.
        observations: Of all datasets.
        ends: Of the searches.
        threshold: Above it a mass of the model counts as 1.

    Returns:
        The influence, and of which datasets it is known, `(B,)`: not where a matrix is singular.
    """
    from mindist.adaptation import influence_loops as loops

    rows, weight = ends.rows.numpy(), plain_array(ends.weight)
    features, model, penalty = plain_array(observations.wide), _model(wide, ends), _penalty(ends)
    fixed, sure = loops.pull(model, penalty, features, rows)
    if density is None:
        value, covariance = loops.weigh_fixed(fixed, weight)
        feedback = np.zeros(len(rows))
    else:
        local = plain_array(observations.local)
        data = loops.Data(local, plain_array(observations.own), plain_array(observations.share))
        decoded, masses = _decoded(density, ends.s, local), (LEAST_MASS, threshold)
        out = loops.answer(decoded, data, rows, masses, fixed, sure)
        lost = _through(observations.kernel, ends.rows, out.given)
        value, covariance = loops.settle(fixed, out, lost, data, rows, weight, sure)
        feedback = out.radius
    made = map(torch.from_numpy, (value, covariance, feedback))
    return Influence(*made), torch.from_numpy(sure)


def _penalty(ends: Ends) -> tuple[Array, float, Array]:
    """Embeddings `(B, K)`, and the weight and R `(B, d_s, d_s)` of the term of the clouds."""
    objective, dim = ends.objective, ends.s.shape[1]
    cloud = objective.cloud
    whitener = ends.s.new_zeros(len(ends.s), dim, dim) if cloud is None else cloud.whitener
    return plain_array(objective.z_bar), objective.stay, plain_array(whitener)


def _model(wide: View, ends: Ends) -> Model:
    """The decoder at the ends."""
    from mindist.adaptation.influence_loops import Model, slopes_and_force, waves_with_slopes

    assert wide.cosines is not None
    mixing, basis = wide.cosines.mixing, wide.cosines.loops_basis
    waves, residual = (
        waves_with_slopes(basis, plain_array(ends.s), 0.0),
        ends.mu - ends.objective.z_bar,
    )
    if len(residual) < FEW:
        J, force = slopes_and_force(waves, residual.numpy(), mixing.numpy())
        return Model(waves, J, force, basis.frequency)
    slopes = torch.from_numpy(waves[1:])
    J, force = slopes.view(-1, len(mixing)) @ mixing, residual @ mixing.T
    return Model(waves, J.view(-1, *residual.shape).numpy(), force.numpy(), basis.frequency)


def _decoded(view: View, s: Tensor, features: Array) -> tuple[Array, Array]:
    """Embeddings without the bias and their derivatives, `(1 + d_s, B, L)`, and the bias."""
    from mindist.adaptation.influence_loops import times, waves_with_slopes

    assert view.cosines is not None
    cosines, single = view.cosines, features.dtype == np.float32
    waves = waves_with_slopes(cosines.loops_basis, plain_array(s), features.dtype.type(0))
    bias = view.single[1] if single else view.decoder.bias
    if single and len(s) < FEW:
        return times(waves, cosines.single.numpy()), bias.numpy()
    mixing = cosines.single.T if single else cosines.mixing
    made = torch.from_numpy(waves).view(-1, len(mixing)) @ mixing
    return made.view(*waves.shape[:2], mixing.shape[1]).numpy(), bias.numpy()


def _through(kernel: OwnKernel, rows: Tensor, given: Array) -> Array:
    """What each observation gives to all others through their densities, `(B, d_s, N)`."""
    from mindist.adaptation.influence_loops import through

    if kernel.matrix is not None:
        lost: Array = through(plain_array(kernel.matrix), rows.numpy(), given)
        return lost
    part = kernel if len(rows) == len(kernel.seen) else kernel[rows]
    return plain_array(part.through(torch.from_numpy(given).mT).mT)


__all__ = ["Ends", "compiled_influence", "served"]
