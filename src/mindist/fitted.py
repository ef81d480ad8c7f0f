r"""What a fit learns from simulations, and how it learns it.

.. math:: \mu = \arg\min \textstyle\sum_i \| \mu(s_i) - \bar z_i \|^2

is summed over all simulations while they are read. Everything else (null distances and detector,
bank, least mass, outlier threshold, sampling noise) comes from a uniform sample of them. 5% of the
leading ones are held out of the decoder's fit; a decoder in closed form leaves out each of the
others in turn as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mindist import checks
from mindist.adaptation import MAX_DATASETS, Bank, Observations, SummaryNoise, View, multiplicity
from mindist.decoders import DECODERS, FlowDecoder, RidgeDecoder
from mindist.decoders.ridge import begin_together
from mindist.detection import MAX_LEARNED, MAX_NULL, Detector, NullDistances
from mindist.features import FourierFeatures
from mindist.features.embedding import Embedding
from mindist.features.representation import Encoded
from mindist.features.stream import EmbeddedSimulations, EmbeddedStream
from mindist.protocols import Decoder, LeaveOneOut, State, Summary
from mindist.schema import Record, pack, prefixed
from mindist.summarise import Summariser

BLOCK_ROWS = 4_096  # datasets that are decoded or searched for at once
CALIBRATION_FRACTION = 0.05  # appendix "Further Experimental Details"
MASS_LEVEL, SCORE_LEVEL = 0.05, 0.99
MASS_DATASETS = 2_000  # of which 100 lie below the level: its standard error is a tenth of it
CALIBRATION_DATASETS = 100  # whose observations calibrate the outlier score
CALIBRATION_OBSERVATIONS = 1_000  # of each of them
BLOCK_BYTES = 2**25  # of features of observations at once


class Judged(NamedTuple):
    """Detection of datasets, float64."""

    distance: Tensor  # squared distances `(B,)` from the decoder's embeddings
    p_value: Tensor  # `(B,)`
    mu: Tensor  # these embeddings, wide, `(B, K)`


@dataclass(frozen=True)
class Fitted:
    """Embedding, decoders, null distances and bank of simulations, and what they were fitted to.

    It can be moved, stored and read back.
    """

    embedding: Embedding  # representation and kernels of an observation
    wide: View  # decoder and bank in the wide kernel
    local: View | None  # the same in the local kernel, where there is one
    null: NullDistances  # distances of held-out simulations in the wide kernel
    detector: Detector | None  # the combined test; None where the distance alone decides
    summarise: Summariser  # the summary function, checked
    num_obs: int  # observations in each simulated dataset
    probe: Tensor  # one simulated dataset, with which a summary function is recognised
    least_mass: float  # of the model, which 95% of the simulated datasets exceed
    score_threshold: float  # the outlier score that 99% of the simulated observations stay below
    noise: SummaryNoise | None  # the sampling noise of the summary, where it is known
    continuous: bool  # whether no simulated dataset holds two equal observations

    @property
    def features(self) -> FourierFeatures:
        """The wide kernel's features, of represented observations."""
        return self.embedding.features

    @property
    def decoder(self) -> Decoder:
        """The wide kernel's decoder."""
        return self.wide.decoder

    @property
    def bank(self) -> Bank:
        """The wide kernel's bank of simulations."""
        return self.wide.bank

    @property
    def density(self) -> View:
        """The view that estimates densities."""
        return self.wide if self.local is None else self.local

    def mass_threshold(self, num_obs: int) -> float:
        """Return the mass that 95% of simulated datasets of `num_obs` observations exceed."""
        return 1 - (1 - self.least_mass) * math.sqrt(self.num_obs / num_obs)

    @torch.no_grad()
    def judge(self, s: Tensor, z_bar: Tensor, num_obs: int) -> Judged:
        """Test datasets with summaries `(B, d_s)` and mean embeddings in all kernels `(B, K)`.

        The detector's products are taken in the precision of `z_bar`.
        """
        if s.shape[0] > BLOCK_ROWS:
            blocks = zip(s.split(BLOCK_ROWS), z_bar.split(BLOCK_ROWS), strict=True)
            parts = [self.judge(*block, num_obs) for block in blocks]
            return Judged(*map(torch.cat, zip(*parts, strict=True)))
        s, mu = s.double(), self.wide.decode(s)
        distance, residuals = self._residuals(s, z_bar, mu)
        if self.detector is None:
            return Judged(distance, self.null.p_value(distance, num_obs), mu)
        return Judged(distance, self.detector.p_value(residuals, s, z_bar, num_obs), mu)

    @torch.no_grad()
    def p_values(self, x: Tensor) -> dict[str, Tensor]:
        """Return p-values `(B,)` of each statistic alone, of datasets `(B, N, *event)`."""
        s, z_bar, num_obs = self.summarise(x).double(), self.embedding.mean(x), x.shape[1]
        distance, residuals = self._residuals(s, z_bar, self.wide.decode(s))
        if self.detector is None:
            return {"distance": self.null.p_value(distance, num_obs)}
        return self.detector.p_values(residuals, s, z_bar, num_obs)

    def _residuals(self, s: Tensor, z_bar: Tensor, mu: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return squared distances `(B,)`, and the residuals of the wide and the local decoder."""
        wide, local = self.embedding.split(z_bar)
        difference = wide - mu
        distance = torch.linalg.vecdot(difference, difference)
        if self.detector is None:
            return distance, []
        residuals = [difference.to(wide.dtype)]
        if self.local is not None and local is not None:
            residuals.append(local - self.local.decode(s, local.dtype))
        return distance, residuals

    def excess(self, s_star: Tensor, covariance: Tensor, adapted: Tensor) -> Tensor:
        """Return the part of covariances `(B, d_s, d_s)` beyond that of simulated summaries."""
        value = torch.zeros_like(covariance)
        if self.noise is not None and adapted.any():
            value[adapted] = self.noise.excess(s_star[adapted], covariance[adapted])
        return value

    def state(self) -> State:
        """Return settings and tensors that rebuild it, all but the user's functions."""
        names: dict[type, str] = {kind: name for name, kind in DECODERS.items()}
        if type(self.decoder) not in names:
            raise TypeError(
                f"decoder: expected one of {', '.join(DECODERS)} to save, got "
                f"{type(self.decoder).__name__}, which mindist could not rebuild."
            )
        config, tensors = self.embedding.state()
        config |= {
            "numpy_summary": self.summarise.numpy,
            "decoder": names[type(self.decoder)],
            "error": self.wide.error,
            "least_mass": self.least_mass,
            "score_threshold": self.score_threshold,
            "continuous": self.continuous,
        }
        tensors |= {"probe.x": self.probe, "probe.s": self.summarise(self.probe)}
        if isinstance(self.embedding.representation, Encoded):
            tensors["probe.seen"] = self.embedding.represent(self.probe)
        parts = [
            ("decoder_config", "decoder", self.decoder),
            ("", "bank", self.bank),
            ("", "null", self.null),
            ("detector", "detector", self.detector),
            ("", "noise", self.noise),
        ]
        if self.local is not None:
            config["local_error"] = self.local.error
            parts.append(("local_decoder", "local", self.local.decoder))
            parts.append(("", "local_bank", self.local.bank))
        for name, prefix, part in parts:
            if part is not None:
                own, values = pack(part)
                config |= {name: own} if name else own
                tensors |= prefixed(prefix, values)
        return config, tensors

    @classmethod
    def read(
        cls, record: Record, summary: Summary, function: Callable[[Any], Any] | None = None
    ) -> Fitted:
        """Rebuild from a record of `state`; check the user's functions on a stored dataset.

        Arguments:
            record: Settings and tensors, which are checked.
            summary: The summary function.
            function: The function that was the representation, if any.
        """
        embedding = Embedding.read(record, function)
        kernels = [z.num_features for z in (embedding.features, embedding.local) if z is not None]
        record.axes |= dict(zip(("wide", "local"), kernels, strict=False))
        record.axes |= {"total": sum(kernels), "D": embedding.features.event_shape.numel()}
        probe_s = record.tensor("probe.s", "1 d")
        probe_x = record.tensor("probe.x", " ".join(["1", "N", *map(str, embedding.event_shape)]))
        # A file of 0.1.0 has one kernel, no weights and no detector but the distance.
        null, local, detector, noise = record.part("", "null").read(NullDistances), None, None, None
        wide = View(
            _read_decoder(record, embedding.features),
            record.part("", "bank", K=kernels[0]).read(Bank),
            record.number("error") if "error" in record else null.mean(null.num_obs),
        )
        if embedding.local is not None:
            local = View(
                record.part("local_decoder", "local", K=kernels[1]).read(RidgeDecoder),
                record.part("", "local_bank", K=kernels[1]).read(Bank),
                record.number("local_error"),
            )
        if record.under("noise."):
            noise = record.part("", "noise").read(SummaryNoise)
        if "detector" in record:
            detector = record.part("detector").read(Detector)
            if len(detector.kernels) != len(kernels):
                raise record.refuse("detector", f"statistics of {len(kernels)} kernels")
        if "probe.seen" in record.tensors:
            seen = record.tensor("probe.seen", "1 N D")
            _check_function("representation", embedding.represent(probe_x), seen)
        summarise = Summariser(summary, record.flag("numpy_summary"), probe_s.shape[1])
        _check_function("summary", summarise(probe_x), probe_s)
        return cls(
            embedding,
            wide,
            local,
            null,
            detector,
            summarise,
            null.num_obs,
            probe_x,
            record.number("least_mass") if "least_mass" in record else 1.0,
            record.number("score_threshold") if "score_threshold" in record else 0.0,
            noise,
            record.flag("continuous") if "continuous" in record else False,
        )


def _check_function(name: str, got: Tensor, stored: Tensor) -> None:
    """Raise a ValueError unless a function given to `load` gives what that of the fit gave."""
    if not checks.agree(got.cpu(), stored):
        first = [value.flatten(0, -2)[0].tolist() for value in (stored, got)]
        said = f"the function of the fit, which gives {first[0]} on a stored dataset"
        then = "Pass the same function (and, for a network, the same weights)."
        raise checks.wrong(name, said, f"one that gives {first[1]}", then)


def _read_decoder(record: Record, features: FourierFeatures) -> Decoder:
    kind = DECODERS[record.word("decoder", tuple(DECODERS))]
    own = record.part("decoder_config", "decoder", K=features.num_features)
    if issubclass(kind, FlowDecoder):
        return kind.restore(own, features)
    return own.read(kind)


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
        size, needed = int(CALIBRATION_FRACTION * len(s)), math.ceil(1 / self._alpha - 1 - 1e-9)
        if size < needed:
            then = (
                f"{CALIBRATION_FRACTION:.0%} of them are held out to calibrate detection, and at "
                f"alpha = {self._alpha} a p-value needs {needed} of these. Simulate more, or raise "
                "alpha."
            )
            said = f"at least {math.ceil(needed / CALIBRATION_FRACTION)} simulated datasets"
            raise checks.wrong("x", said, len(s), then)
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

        The seed is that of the bootstrap.
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
