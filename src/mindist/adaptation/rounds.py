r"""The rounds of `mindist.adaptation.reweight` by compiled loops.

A round is four products of matrices, with compiled loops between them: the model's embeddings at
the summaries, the weights that follow and the weighted embeddings, the clouds about these, and the
summaries that they give. Datasets that are settled are left out of each; nothing is copied but
their rows of the products. A few datasets go through all rounds in one call, one after the other
(`mindist.adaptation.few_loops`): of one the products are no faster in a library.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mindist.adaptation.cloud import Cloud
from mindist.adaptation.options import Search
from mindist.adaptation.search import Problem
from mindist.adaptation.view import View
from mindist.adaptation.weights import LEAST_MASS, LEAST_WEIGHT, SETTLED, Observations

# Datasets. Milliseconds of `adapt` on the OUP, together and one after the other: 6.4 and 5.7 for 1,
# 11.2 and 10.0 for 4, 17.7 and 17.1 for 8, 24.9 and 25.5 for 16.
FEW = 4
CLEARLY = 1.5  # 1.2 to 2 gave the same errors on the Gaussian task and the OUP

Array = NDArray[Any]


class Side:
    """What one view does in the rounds of a block: decode, and look for summaries.

    Arguments:
        view: The decoder, with cosines, and the simulations.
        options: The search.
        s: Summaries `(B, d_s)`, float64, which change.
        z_bar: Embeddings `(B, K)`, float64, which may be changed from outside.
        cloud: The clouds of these, which change.
    """

    def __init__(self, view: View, options: Search, s: Tensor, z_bar: Tensor, cloud: Cloud) -> None:
        assert view.cosines is not None
        self.view, self.cosines, self.cloud = view, view.cosines, cloud
        self.root = _root(view, options)
        self.s, self.z_bar = s.numpy(), z_bar.numpy()
        self.waves = torch.empty(len(s), len(self.cosines.phase))
        self.rounded, self.target = torch.empty(2, *z_bar.shape)

    def decode(self, s: Array, rows: Array) -> Array:
        """The model's embeddings `(n, K)`, float32, at some of the summaries `(B, d_s)`."""
        from mindist.adaptation.rounds_loops import cosines_at

        cosines_at(self.cosines.loops_basis, s, rows, self.waves.numpy())
        made: Array = torch.addmm(
            self.view.single[1], self.waves[: len(rows)], self.cosines.single.T
        ).numpy()
        return made

    def follow(self, rows: Array, *, clouds: bool, near: bool) -> None:
        """Look for the summaries of some datasets, where clouds are new, or from where they are."""
        from mindist.adaptation.rounds_loops import aim, follow

        bank, arrays = self.view.bank, (self.rounded.numpy(), self.target.numpy())
        square = aim(self.z_bar, rows, self.view.decoder.bias.numpy(), *arrays)
        if clouds:
            some = self.rounded[: len(rows)]
            self.cloud.gather(rows, some, bank.likeness, bank.s, bank.unit)
        pull = (self.target[: len(rows)] @ self.cosines.single).numpy()
        cloud = self.cloud.centre.numpy(), self.cloud.whitener.numpy(), self.root
        limits = self.cosines.loose_limits
        follow(self.cosines.loops_basis, (pull, square, *cloud), rows, near, limits, self.s)


def served(wide: View, local: View | None, options: Search, observations: Observations) -> bool:
    """Whether the compiled rounds are for these: the usual search, in memory."""
    views = [wide] if local is None else [wide, local]
    return options.simple and observations.plain and all(view.cosines is not None for view in views)


def compiled_rounds(
    wide: View,
    local: View | None,
    options: Search,
    problem: Problem,
    observations: Observations,
    mass_threshold: float,
) -> tuple[Tensor, Tensor, Problem]:
    """What precedes the last search of `reweighted_search`; arguments as there.

    Returns:
        Summaries `(B, d_s)`, float64; weights `(B, N)`; the problem with the embeddings and clouds
        that these weights give.
    """
    from mindist.adaptation.rounds_loops import take, weigh
    from mindist.adaptation.weights_loops import weighted_means

    assert problem.cloud is not None
    if len(problem.s_obs) <= FEW:
        return _rounds_of_few(wide, local, options, problem, observations, mass_threshold)
    cloud = Cloud(problem.cloud.centre.clone(), problem.cloud.whitener.clone())
    s, z_bar = cloud.centre.clone(), problem.z_bar.clone()
    going = every = np.arange(len(s))
    side = density = Side(wide, options, s, z_bar, cloud)
    side.follow(every, clouds=False, near=False)
    if local is not None:
        empty = Cloud(torch.empty_like(s), torch.empty_like(cloud.whitener))
        density = Side(local, options, s.clone(), observations.local_mean(), empty)
        density.follow(every, clouds=True, near=False)
    weight = observations.share.clone()
    wide_features, weights = observations.wide.numpy(), weight.numpy()
    seen = observations.local.numpy(), observations.own.numpy(), observations.share.numpy()

    def weights_at(summaries: Array) -> Array:
        new = np.empty((len(going), weights.shape[1]))
        mu = density.decode(summaries, going)
        weigh(seen, going, mu, (LEAST_MASS, mass_threshold), new)
        return new

    for round_ in range(options.reweight):
        new = weights_at(side.s)
        if round_ == 0 and local is not None:
            new = heavier(new, weights_at(density.s))
        going = take(new, going, (LEAST_MASS, SETTLED), weights)
        if not len(going):
            break
        weighted_means(wide_features, going, weights, LEAST_WEIGHT, side.z_bar)
        side.follow(going, clouds=True, near=True)
    return s, weight, replace(problem, z_bar=z_bar, cloud=cloud)


def _rounds_of_few(
    wide: View,
    local: View | None,
    options: Search,
    problem: Problem,
    observations: Observations,
    mass_threshold: float,
) -> tuple[Tensor, Tensor, Problem]:
    """The same in one call of a compiled loop."""
    from mindist.adaptation.few_loops import Place, all_rounds

    assert problem.cloud is not None
    cloud = Cloud(problem.cloud.centre.clone(), problem.cloud.whitener.clone())
    s, z_bar, weight = cloud.centre.clone(), problem.z_bar.clone(), observations.share.clone()
    density = wide if local is None else local
    wide_features, seen, own, share = (
        part.numpy()
        for part in (observations.wide, observations.local, observations.own, observations.share)
    )
    place = Place(
        s.numpy(), z_bar.numpy(), cloud.centre.numpy(), cloud.whitener.numpy(), _root(wide, options)
    )
    other = Place(
        place.s.copy(),
        np.empty((len(s), seen.shape[2])),
        place.centre.copy(),
        place.whitener.copy(),
        _root(density, options),
    )
    all_rounds(
        (wide.sight, density.sight, local is not None),
        (place, other),
        wide_features,
        (seen, own, share),
        (options.reweight, LEAST_MASS, mass_threshold, SETTLED, LEAST_WEIGHT, CLEARLY),
        weight.numpy(),
    )
    return s, weight, replace(problem, z_bar=z_bar, cloud=cloud)


def _root(view: View, options: Search) -> float:
    """The square root of the weight of the term that keeps near simulations."""
    root: float = (options.stay * max(view.error, 0.0)) ** 0.5
    return root


def heavier(a: Any, b: Any) -> Any:
    """Of two weights `(B, N)` for each dataset the first, unless the second are clearly larger.

    The first weights decide where the iteration ends. A wide kernel averages contamination in; a
    local one forgets it, but has more minima, so that it has to explain clearly more of the data to
    be the one that goes on.
    """
    better = (CLEARLY * a.sum(1) < b.sum(1))[:, None]
    return torch.where(better, b, a) if isinstance(a, Tensor) else np.where(better, b, a)


__all__ = ["compiled_rounds", "heavier", "served"]
