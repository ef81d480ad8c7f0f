r"""How a fit learns: which embedding it takes, then all that observed data need.

.. math:: \mu = \arg\min \textstyle\sum_i \| \mu(s_i) - \bar z_i \|^2

is summed over all simulations while they are read. Everything else (null distances and detector,
bank, least mass, outlier threshold, sampling noise) comes from a uniform sample of them. 5% of the
leading ones are held out of the decoder's fit; a decoder in closed form leaves out each of the
others in turn as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mindist import checks
from mindist.adaptation import (
    MAX_DATASETS,
    Bank,
    Observations,
    SummaryNoise,
    View,
    choose_representation,
    efficient_bandwidth,
    multiplicity,
)
from mindist.decoders import RidgeDecoder
from mindist.decoders.ridge import begin_together
from mindist.detection import MAX_LEARNED, MAX_NULL, Detector, NullDistances
from mindist.features import FourierFeatures, choose_bandwidth
from mindist.features.embedding import Embedding, local_multiple
from mindist.features.kernel import efficiency_share
from mindist.features.representation import make_representation
from mindist.features.stream import EmbeddedSimulations, EmbeddedStream
from mindist.fitted import Fitted
from mindist.protocols import Decoder, LeaveOneOut
from mindist.summarise import Summariser

CALIBRATION_FRACTION = 0.05  # appendix "Further Experimental Details"
MASS_LEVEL, SCORE_LEVEL = 0.05, 0.99
MASS_DATASETS = 2_000  # of which 100 lie below the level: its standard error is a tenth of it
CALIBRATION_DATASETS = 100  # whose observations calibrate the outlier score
CALIBRATION_OBSERVATIONS = 1_000  # of each of them
BLOCK_BYTES = 2**25  # of features of observations at once


@dataclass(frozen=True)
class EmbeddingRule:
    """The settings of `MinimumDistance` that decide how it embeds, under the same names.

    Example:
        >>> x = torch.randn(50, 20, 2, generator=torch.Generator().manual_seed(0))
        >>> rule = EmbeddingRule(2.0, "raw", True, 4, "sobol", seed=0)
        >>> rule.choose(x, x.mean(1), Summariser(lambda x: x.mean(1))).total
        8
    """

    bandwidth: float | str
    representation: str | Callable[[Any], Any]
    local: bool
    num_features: int
    frequencies: str
    seed: int

    def choose(
        self,
        x: Tensor,
        s: Tensor,
        summarise: Summariser,
        sampling: torch.Generator | None = None,
    ) -> Embedding:
        """Choose representation, bandwidths and features on a sample of simulations.

        The wide bandwidth follows a rule on what the representation shows of the sample; the local
        one is the narrowest multiple of it with which observations of one dataset still see each
        other; the frequencies of both are drawn from the seed alone.

        Arguments:
            x: Simulated datasets `(M, N, *event)`.
            s: Their summaries `(M, d_s)`.
            summarise: The summary function.
            sampling: Chooses the observations whose distances set the bandwidth; by default a new
                stream of the seed.
        """
        sampling = torch.Generator().manual_seed(self.seed) if sampling is None else sampling
        rule = self.representation
        if rule == "auto":
            rule = choose_representation(x, s, self.bandwidth)
        representation = None if rule == "raw" else make_representation(rule, x)
        seen = x if representation is None else representation(x)
        share = efficiency_share(self.bandwidth)
        if share is None:
            bandwidth = choose_bandwidth(self.bandwidth, seen, sampling)
        else:
            bandwidth = efficient_bandwidth(share, x, seen, s, summarise, sampling)
        draw = partial(
            FourierFeatures.draw,
            tuple(seen.shape[2:]),
            self.num_features,
            generator=torch.Generator().manual_seed(self.seed),
            frequencies=self.frequencies,
        )
        wide, local = draw(bandwidth=bandwidth), None
        if self.local:
            multiple = local_multiple(seen.reshape(*seen.shape[:2], -1), bandwidth)
            local = None if multiple is None else draw(bandwidth=multiple * bandwidth)
        return Embedding(wide, local, representation)


class Learner:
    """Decoders of both kernels, fitted while simulations are read, and then what follows from them.

    Arguments:
        decoder: The unfitted decoder of the wide kernel.
        detector: `"combined"` or `"distance"`, as for `MinimumDistance`.
        alpha: The level that has to be within reach.
        generator: Draws splits, bases and samples.
    """

    def __init__(
        self, decoder: Decoder, *, detector: str, alpha: float, generator: torch.Generator
    ) -> None:
        self.decoder, self.local = decoder, RidgeDecoder()
        if isinstance(decoder, RidgeDecoder):
            self.local = RidgeDecoder(
                decoder.num_basis, length_scales=decoder.length_scales, ridges=decoder.ridges
            )
        self.num_points = decoder.num_points
        self.one_pass = isinstance(decoder, RidgeDecoder)
        self._combined = detector == "combined" and isinstance(decoder, LeaveOneOut)
        self._alpha, self._generator = alpha, generator

    def learn(self, stream: EmbeddedStream) -> None:
        """Begin with the leading simulations of a stream, then add the others chunk by chunk."""
        chunks = iter(stream)
        self._begin(stream.embedding, *next(chunks))
        for s, z_bar, *_ in chunks:
            self._add(s, z_bar)

    def _begin(
        self, embedding: Embedding, s: Tensor, z_bar: Tensor, points: Tensor | None = None
    ) -> None:
        """Hold out 5% of the leading simulations, and begin to fit the decoders to the others."""
        size = checks.calibration_size(len(s), CALIBRATION_FRACTION, self._alpha)
        order = torch.randperm(len(s), generator=self._generator).to(s.device)
        self._held_out, self._rest = order.tensor_split([size])
        self._split = embedding.split
        rest = self._rest
        wide, local = self._split(z_bar[rest])
        decoders, targets = [self.local], [local]
        if isinstance(self.decoder, RidgeDecoder):
            decoders, targets = [self.decoder, self.local], [wide, local]
        else:
            self.decoder.fit(
                s[rest],
                wide,
                generator=self._generator,
                x=None if points is None else points[rest],
                features=embedding.features,
            )
        fits = [(d, z) for d, z in zip(decoders, targets, strict=True) if z is not None]
        self._summing = [decoder for decoder, _ in fits]
        if fits:
            begin_together(self._summing, s[rest], [z for _, z in fits], generator=self._generator)

    def _add(self, s: Tensor, z_bar: Tensor) -> None:
        """Add further simulations to the fits."""
        wide, local = self._split(z_bar)
        for decoder in self._summing:
            target = local if decoder is self.local else wide
            assert target is not None  # only decoders that have a kernel are summing
            decoder.add(s, target)

    def finish(self, simulations: EmbeddedSimulations, summarise: Summariser, seed: int) -> Fitted:
        """Solve for the decoders, and calibrate on the simulations that were kept.

        Arguments:
            simulations: A uniform sample of the simulations, embedded.
            summarise: The summary function.
            seed: Seed of the bootstrap.
        """
        for decoder in self._summing:
            decoder.finish()
        s, embedding, num_obs = simulations.s, simulations.embedding, simulations.num_obs
        z_bar, z_local = embedding.split(simulations.z_bar)
        held_out, rest = self._kept(simulations.index)
        learned = rest[:MAX_LEARNED]
        if self._combined:
            rest = rest[:MAX_NULL]
        residuals = []
        if isinstance(self.decoder, LeaveOneOut):
            residuals = [
                decoder.leave_one_out_residuals(s[rest], z[rest])
                for decoder, z in ((self.decoder, z_bar), (self.local, z_local))
                if z is not None
            ]
        null = self._null(s, z_bar, held_out, rest, residuals, num_obs)
        wide = View(self.decoder, Bank.of(s, z_bar, self._generator), null.mean(num_obs))
        local = None
        if z_local is not None:
            bank = Bank.of(s, z_local, self._generator)
            local = View(self.local, bank, self.local.held_out_error)
        detector = None
        if self._combined:
            seen = simulations.z_bar[learned]
            detector = Detector.of(residuals, s[learned], seen, num_obs, self._generator)
        density, z = (self.decoder, z_bar) if z_local is None else (self.local, z_local)
        some = rest[:MASS_DATASETS]
        least_mass = _least_mass(density, s[some], z[some])
        x, s_x = (part[:MAX_DATASETS] for part in simulations.sample)
        few = slice(CALIBRATION_DATASETS)
        bootstrap = torch.Generator().manual_seed(seed)
        return Fitted(
            embedding,
            wide,
            local,
            null,
            detector,
            summarise,
            num_obs,
            simulations.probe,
            least_mass,
            _score_threshold(embedding, density, x[few], s_x[few], least_mass),
            SummaryNoise.of(summarise, x, s_x, s, bootstrap),
            bool((multiplicity(x) == 1).all()),
        )

    def _kept(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return which of the kept simulations were held out of the fits, and which were not.

        Where a stream is long, later simulations have taken the place of some that were held out.
        """
        replaced = index[self._held_out] != self._held_out
        rest = torch.cat([self._rest, self._held_out[replaced]])
        return self._held_out[~replaced], rest

    def _null(
        self,
        s: Tensor,
        z_bar: Tensor,
        held_out: Tensor,
        rest: Tensor,
        residuals: list[Tensor],
        num_obs: int,
    ) -> NullDistances:
        """Return null distances of simulations that were held out of the decoder's fit.

        A decoder in closed form can hold out each of the simulations that it was fitted to as
        well: the same law, and a far smaller error of the threshold. Any other decoder is compared
        with one, to tell its own error, which does not shrink with the number of observations, from
        noise.
        """
        rows, seen = s[held_out].double(), z_bar[held_out].double()
        with torch.no_grad():
            decoded = self.decoder(rows)
        if residuals:
            squared = [(decoded - seen).square().sum(-1), residuals[0].square().sum(-1).double()]
            return NullDistances.of(torch.cat(squared), num_obs)
        fixed = torch.Generator().manual_seed(0)
        smooth = RidgeDecoder().fit(s[rest], z_bar[rest], generator=fixed)(rows)
        return NullDistances.split(smooth - seen, decoded - smooth, num_obs)


def _least_mass(decoder: Decoder, s: Tensor, z_bar: Tensor) -> float:
    """Return the mass of the model that 95% of the simulations exceed, each at its own summary."""
    with torch.no_grad():
        mu = decoder(s.double())
    mass = (mu * z_bar.double()).sum(1) / mu.square().sum(1)
    return float(mass.quantile(MASS_LEVEL))


def _score_threshold(
    embedding: Embedding, decoder: Decoder, x: Tensor, s: Tensor, least_mass: float
) -> float:
    """Return the outlier score that 99% of the observations of simulated datasets stay below."""
    x, scores = x[:, :CALIBRATION_OBSERVATIONS], []
    size = max(1, BLOCK_BYTES // (4 * x.shape[1] * embedding.total))
    for some, at in zip(x.split(size), s.double().split(size), strict=True):
        with torch.no_grad():
            fit = Observations.of(embedding, some).fit(decoder(at))
        scores.append(fit.score(least_mass).flatten())
    return float(torch.cat(scores).quantile(SCORE_LEVEL))


__all__ = ["EmbeddingRule", "Learner"]
