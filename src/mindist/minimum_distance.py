r"""Minimum-distance summaries: the estimator that puts the parts together.

Offline, from the simulations that trained the posterior (Algorithm 1 of the paper):

.. math:: \bar z_i = \tfrac1N \textstyle\sum_n z(x_n^{(i)}), \qquad
    \mu = \arg\min \textstyle\sum_i \| \mu(s_i) - \bar z_i \|^2 .

where z sees a representation of each observation that is chosen by evidence, in a wide and a local
kernel. For each observed dataset with summary :math:`s_0` and embedding :math:`\bar z`: detect, by
the p-value of :math:`\|\mu(s_0) - \bar z\|^2` and of sharper statistics among simulations; where it
is at most alpha, move the summary to :math:`s^\star = \arg\min_s \|\mu(s) - \bar z_w\|^2`, near
simulated summaries and with the observations weighed by how well the model explains them. The
posterior is then queried at :math:`s^\star` instead of :math:`s_0`.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from mindist import checks, storage
from mindist.adaptation import (
    MAX_DATASETS,
    Adaptation,
    Bank,
    Detection,
    Observations,
    Search,
    SummaryNoise,
    View,
    choose_representation,
    efficient_bandwidth,
    multiplicity,
)
from mindist.adapting import adapt_block
from mindist.decoders import DECODERS, RidgeDecoder
from mindist.detection import MAX_NULL, Detector, NullDistances
from mindist.features import FourierFeatures, choose_bandwidth
from mindist.features.bandwidth import efficiency_share, parse_bandwidth
from mindist.features.embedding import Embedding, local_multiple
from mindist.features.representation import REPRESENTATIONS, Representation, make_representation
from mindist.features.stream import EmbeddedSimulations, embed_simulations
from mindist.fitted import BLOCK_ROWS, Fitted
from mindist.protocols import Array, Decoder, DensityDecoder, LeaveOneOut, Summary
from mindist.summarise import Summariser

CALIBRATION_FRACTION = 0.05  # appendix "Further Experimental Details"
PAPER_VARIANTS = {
    "rf": ("mlp", Search("lbfgs", ("observed",), stay=0, reweight=0)),
    "dec": ("flow", Search("adam", ("observed",), stay=0, reweight=0)),
    "kl": ("flow", Search("adam", ("observed",), divergence="kl", stay=0, reweight=0)),
}
MASS_LEVEL, SCORE_LEVEL = 0.05, 0.99
CALIBRATION_DATASETS = 100  # whose observations calibrate the outlier score
MAX_QUANTILE = 2**23
BLOCK_BYTES = 2**27  # of features of single observations held at once


class MinimumDistance:
    r"""Robust summaries for a pretrained amortised posterior, by minimum MMD.

    Arguments:
        summary: The summary function that the posterior was trained with, datasets
            `(B, N, *event)` to summaries `(B, d_s)`; tensors or NumPy arrays.
        bandwidth: Of the wide Gaussian kernel, in which the summary is sought: `"median"`, the
            median distance of simulated observations; a multiple such as `"0.5 median"`;
            `"95% efficient"`, or any percentage, the narrowest with which the summaries of clean
            simulations are found again at that share of their efficiency (the median, with a
            warning, where none is); or a number in the units of the data.
        representation: What the kernels see of an observation: `"auto"`, the one of those that suit
            its shape with which simulated summaries are found again best; `"raw"`, itself (the
            paper); `"identity"`, itself within the simulated range; `"standardised"`, each
            coordinate in units of its standard deviation; `"signed-log"`, `"power-spectrum"`,
            `"principal-components"`; or any function `(n, *event)` to `(n, D)`, such as a frozen
            encoder, which is given again at `load`.
        local: Whether to use a second, narrower kernel as well: .35, .5 or .7 times the bandwidth.
            It weighs the observations, adds two statistics to the detection, and gives the search
            a second summary to start its weights from.
        detector: `"combined"`, several statistics of both kernels and of the summary, as one test,
            or `"distance"`, the distance alone (the paper; also where the decoder has no closed
            form).
        num_features: K, the number of random Fourier features (512: the paper).
        frequencies: Of the features: `"sobol"`, evenly spread, with which densities of few
            dimensions have less noise and a result depends less on the seed, or `"random"`,
            independent (the paper).
        decoder: `"ridge"`, `"mlp"`, `"flow"`, or an unfitted decoder.
        search: Solver and starts, see `Search`.
        alpha: Level of the detection; only datasets with a p-value of at most alpha are adapted.
        seed: Of everything random here: features, held-out simulations, decoder, perturbations.
        device: Where to compute, such as `"cpu"` or `"cuda"`.

    Example:
        >>> from mindist.tasks import GaussianTask
        >>> task, generator = GaussianTask(), torch.Generator().manual_seed(0)
        >>> x = task.simulate(task.sample_prior(2_000, generator), generator=generator)
        >>> mds = MinimumDistance(task.summary).fit(x)
        >>> x_clean = task.simulate(torch.zeros(1, 2), generator=generator)[0]
        >>> x_obs = torch.where(torch.arange(100)[:, None] < 20, 3.0, x_clean)
        >>> result = mds.adapt(x_obs)
        >>> bool(result.misspecified), result.s_obs.norm() > 2 * result.s_star.norm()
        (True, tensor(True))
    """

    def __init__(
        self,
        summary: Summary,
        *,
        bandwidth: float | str = "median",
        representation: str | Callable[[Any], Any] = "auto",
        local: bool = True,
        detector: str = "combined",
        num_features: int = 512,
        frequencies: str = "sobol",
        decoder: str | Decoder = "ridge",
        search: Search | None = None,
        alpha: float = 0.05,
        seed: int = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        Summariser(summary)
        number = parse_bandwidth(bandwidth)
        checks.even(num_features, "num_features")
        checks.choice(frequencies, ("sobol", "random"), "frequencies")
        if isinstance(decoder, str):
            checks.choice(decoder, tuple(DECODERS), "decoder")
            decoder = DECODERS[decoder]()
        self.summary = summary
        self.bandwidth = bandwidth if isinstance(bandwidth, str) else number
        if isinstance(representation, str):
            checks.choice(representation, ("auto", "raw", *REPRESENTATIONS), "representation")
        self.representation = representation
        self.local = bool(local)
        self.detector = checks.choice(detector, ("combined", "distance"), "detector")
        self.num_features = num_features
        self.frequencies = frequencies
        self.decoder = decoder
        self.search = Search() if search is None else search
        self.alpha = checks.level(alpha)
        self.seed = checks.integer(seed, "seed")
        self.device = torch.device(device)
        if self.search.divergence == "kl" and not isinstance(decoder, DensityDecoder):
            raise ValueError(
                "search: the KL divergence needs a density q(x given s); expected decoder='flow', "
                f"got {type(decoder).__name__}."
            )

    @classmethod
    def paper(
        cls,
        summary: Summary,
        *,
        variant: str = "rf",
        bandwidth: float | str = "median",
        alpha: float = 0.05,
        seed: int = 0,
        device: str | torch.device = "cpu",
    ) -> MinimumDistance:
        """The paper to the letter.

        512 random Fourier features at the median bandwidth; an MLP decoder (2 x 256, Adam);
        L-BFGS with line search from the observed summary; threshold from 5% of the simulations.

        Arguments:
            summary: As for `MinimumDistance`.
            variant: `"rf"`, the method; `"dec"`, MDS-Dec with a neural spline flow and Adam;
                `"kl"`, the same flow with the KL divergence, which is not robust.
            bandwidth: As for `MinimumDistance`, for the paper's bandwidth ablation.
            alpha: As for `MinimumDistance`.
            seed: As for `MinimumDistance`.
            device: As for `MinimumDistance`.
        """
        decoder, options = PAPER_VARIANTS[checks.choice(variant, tuple(PAPER_VARIANTS), "variant")]
        return cls(
            summary,
            bandwidth=bandwidth,
            representation="raw",
            local=False,
            detector="distance",
            frequencies="random",
            decoder=decoder,
            search=options,
            alpha=alpha,
            seed=seed,
            device=device,
        )

    def fit(
        self, x: Array | Iterable[Any], s: Array | None = None, *, progress: bool = False
    ) -> MinimumDistance:
        """Learn the decoder and the null distances from simulated datasets.

        Arguments:
            x: Simulated datasets `(M, N, *event)`, or an iterable of chunks of them (or of pairs
                of a chunk and its summaries), of which only summaries and embeddings are kept.
            s: Their summaries `(M, d_s)`, if they are known already.
            progress: Whether to show progress bars.

        Returns:
            The estimator itself.
        """
        # One stream for each purpose: the features do not depend on the simulations, nor the split
        # and the decoder on how the simulations were handed over.
        sampling, drawing, learning = (torch.Generator().manual_seed(self.seed) for _ in range(3))
        decoder = copy.deepcopy(self.decoder)
        summarise = Summariser(self.summary)

        kept: list[tuple[Tensor, Tensor]] = []

        def make_embedding(sample: Tensor, s_sample: Tensor) -> Embedding:
            kept.append((sample[:MAX_DATASETS], s_sample[:MAX_DATASETS]))
            made = self._embedding(sample, s_sample, decoder, summarise, sampling, drawing)
            return made.to(self.device)

        simulations = embed_simulations(
            x,
            s,
            summarise=summarise,
            make_embedding=make_embedding,
            generator=sampling,
            num_points=decoder.num_points,
            device=self.device,
            progress=progress,
        )
        if hasattr(decoder, "progress"):
            decoder.progress = progress
        self.fitted_ = self._learn(simulations, decoder, summarise, learning, kept[0])
        return self

    def _embedding(
        self,
        sample: Tensor,
        s_sample: Tensor,
        decoder: Decoder,
        summarise: Summariser,
        sampling: torch.Generator,
        drawing: torch.Generator,
    ) -> Embedding:
        """Choose representation and bandwidths on a sample of simulations, and draw features."""
        representation: Representation | None = None
        rule = self.representation
        if rule == "auto":
            # A density decoder models the observations themselves.
            dense = isinstance(decoder, DensityDecoder)
            rule = "raw" if dense else choose_representation(sample, s_sample, self.bandwidth)
        if rule != "raw":
            representation = make_representation(rule, sample)
        seen = sample if representation is None else representation(sample)
        share = efficiency_share(self.bandwidth)
        bandwidth = (
            choose_bandwidth(self.bandwidth, seen, sampling)
            if share is None
            else efficient_bandwidth(share, sample, seen, s_sample, summarise, sampling)
        )

        def draw(width: float) -> FourierFeatures:
            return FourierFeatures.draw(
                tuple(seen.shape[2:]),
                self.num_features,
                bandwidth=width,
                generator=drawing,
                frequencies=self.frequencies,
            )

        wide = draw(bandwidth)
        multiple = (
            local_multiple(seen.reshape(*seen.shape[:2], -1), bandwidth) if self.local else None
        )
        local = None if multiple is None else draw(multiple * bandwidth)
        return Embedding(wide, local, representation)

    def _learn(
        self,
        simulations: EmbeddedSimulations,
        decoder: Decoder,
        summarise: Summariser,
        generator: torch.Generator,
        sample: tuple[Tensor, Tensor],
    ) -> Fitted:
        """Fit the decoder, then calibrate on the simulations that were held out of its fit."""
        s, points = simulations.s, simulations.points
        embedding, num_obs = simulations.embedding, simulations.num_obs
        z_bar, z_local = embedding.split(simulations.z_bar)
        size = checks.calibration_size(len(s), CALIBRATION_FRACTION, self.alpha)
        held_out, rest = (
            torch.randperm(len(s), generator=generator).to(s.device).tensor_split([size])
        )
        s_rest, z_rest = s[rest], z_bar[rest]
        decoder.fit(
            s_rest,
            z_rest,
            generator=generator,
            x=None if points is None else points[rest],
            features=embedding.features,
        )
        null = _calibrate(decoder, (s_rest, z_rest), (s[held_out], z_bar[held_out]), num_obs)
        error = float(null.distances(num_obs).mean())
        wide, local = View(decoder, Bank.of(s, z_bar, generator), error), None
        ridge = RidgeDecoder()
        if z_local is not None:
            ridge.fit(s_rest, z_local[rest], generator=generator)
            local = View(ridge, Bank.of(s, z_local, generator), ridge.held_out_error)
        detector = None
        if self.detector == "combined" and isinstance(decoder, RidgeDecoder):
            few = rest[:MAX_NULL]
            residuals = [decoder.leave_one_out_residuals(s[few], z_bar[few])]
            if z_local is not None:
                residuals.append(ridge.leave_one_out_residuals(s[few], z_local[few]))
            detector = Detector.of(residuals, s[few], simulations.z_bar[few], num_obs, generator)
        density = (wide if local is None else local).decoder
        least_mass = _least_mass(density, s, z_bar if z_local is None else z_local)
        x, s_x = sample
        some = slice(CALIBRATION_DATASETS)
        threshold = _score_threshold(embedding, density, x[some], s_x[some], least_mass)
        noise = None
        if self.search.reweight and self.search.divergence == "mmd":
            # The paper's search does not count the observations that s* is made of.
            bootstrap = torch.Generator().manual_seed(self.seed)
            noise = SummaryNoise.of(summarise, x, s_x, s, bootstrap)
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
            threshold,
            noise,
            bool((multiplicity(sample[0]) == 1).all()),
        )

    @property
    def event_shape(self) -> torch.Size:
        """The shape of one observation, as simulated."""
        return self._fitted().embedding.event_shape

    def detect(self, x: Array) -> Detection:
        """Test whether observed datasets could have come from the simulator.

        Arguments:
            x: One dataset `(N, *event)` or a batch `(B, N, *event)`; N may differ from the
                simulations'.
        """
        batch, single = checks.observed(x, self.event_shape)
        detection, _ = self._detect(batch.to(self.device))
        return detection[0] if single else detection

    def adapt(self, x: Array, *, force: bool = False) -> Adaptation:
        """Detect, and where the data are misspecified search for the minimum-distance summary.

        Arguments:
            x: One dataset `(N, *event)` or a batch `(B, N, *event)`.
            force: Search for every dataset, detected or not.

        Returns:
            For each dataset the summary with which to query the posterior. What was minimised,
            `objective_star`, is never larger there than at the observed summary; `distance_star`,
            the plain distance, is reported beside it.
        """
        batch, single = checks.observed(x, self.event_shape)
        batch = batch.to(self.device)
        detection, z_bar = self._detect(batch)
        chosen = torch.ones_like(detection.misspecified) if force else detection.misspecified
        fitted = self._fitted()
        size = BLOCK_BYTES // (4 * batch.shape[1] * fitted.embedding.total)
        blocks = torch.arange(len(batch), device=batch.device).split(max(1, size))
        parts = [
            adapt_block(
                fitted,
                self.search,
                batch[b],
                detection[b],
                z_bar[b],
                chosen[b],
                seed=self.seed,
            )
            for b in blocks
        ]
        result = Adaptation.join(parts)
        return result[0] if single else result

    def _detect(self, batch: Tensor) -> tuple[Detection, Tensor]:
        """Detection of a checked batch, and its mean embeddings `(B, K)` in float64."""
        fitted, num_obs = self._fitted(), batch.shape[1]
        s_obs = checks.finite_summaries(fitted.summarise(batch))
        z_bar, z_local = fitted.embedding.split(fitted.embedding.mean(batch).double())
        distance = fitted.distance(s_obs, z_bar)
        p_value = fitted.p_value(distance, s_obs, z_bar, z_local, num_obs)
        threshold = fitted.null.threshold(self.alpha, num_obs)
        return Detection(s_obs, distance, p_value, p_value <= self.alpha, threshold), z_bar

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted estimator to a folder (safetensors plus JSON), all but the summary."""
        config, tensors = self._fitted().state()
        config |= {
            "bandwidth": self.bandwidth,
            "local": self.local,
            "detection": self.detector,
            "frequencies": self.frequencies,
            "search": asdict(self.search),
            "alpha": self.alpha,
            "seed": self.seed,
        }
        storage.write_artefact(path, "MinimumDistance", config, tensors)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        summary: Summary,
        *,
        representation: Callable[[Any], Any] | None = None,
        device: str | torch.device = "cpu",
    ) -> MinimumDistance:
        """Read an estimator that `save` wrote.

        Arguments:
            path: The folder that was passed to `save`.
            summary: The same summary function as at the fit; functions are not stored. It is
                checked on a stored dataset.
            representation: The same function as at the fit, where one was given; checked likewise.
            device: Where to compute.
        """
        config, tensors = storage.read_artefact(path, "MinimumDistance")
        fitted = Fitted.from_state(config, tensors, summary, representation)
        options = {"stay": 0.0, "reweight": 0} | config["search"]
        starts = tuple(s if isinstance(s, str) else tuple(s) for s in options["starts"])
        mds = cls(
            summary,
            bandwidth=config["bandwidth"],
            representation=representation or config.get("representation", {}).get("name", "raw"),
            local=config.get("local", False),
            detector=config.get("detection", "distance"),
            num_features=fitted.features.num_features,
            frequencies=config["frequencies"],
            decoder=fitted.decoder,
            search=Search(**{**options, "starts": starts}),
            alpha=config["alpha"],
            seed=config["seed"],
        )
        mds.fitted_ = fitted
        return mds.to(device)

    def to(self, device: str | torch.device) -> MinimumDistance:
        """Move the fitted estimator to a device and return it."""
        self.device = torch.device(device)
        if hasattr(self, "fitted_"):
            self.fitted_ = self.fitted_.to(self.device)
        return self

    def _fitted(self) -> Fitted:
        if not hasattr(self, "fitted_"):
            raise RuntimeError(
                "This MinimumDistance is not fitted. Call fit(x) with simulated "
                "datasets of shape (M, N, *event) first."
            )
        return self.fitted_

    def __repr__(self) -> str:
        decoder = type(self.decoder).__name__
        head = (
            f"MinimumDistance(decoder={decoder}, solver={self.search.solver!r}, alpha={self.alpha}"
        )
        if not hasattr(self, "fitted_"):
            return f"{head}, not fitted)"
        shape = tuple(self.event_shape)
        return (
            f"{head}, fitted to datasets of {self.fitted_.num_obs} observations of shape {shape})"
        )


def _calibrate(
    decoder: Decoder,
    rest: tuple[Tensor, Tensor],
    held_out: tuple[Tensor, Tensor],
    num_obs: int,
) -> NullDistances:
    """Null distances from summaries and embeddings held out of the decoder's fit.

    A closed-form decoder can hold out each of the simulations that it was fitted to as well: the
    same law, and a far smaller error of the threshold. Any other decoder is compared with one, to
    tell its own error, which does not shrink with the number of observations, from noise.
    """
    s, z_bar = held_out[0].double(), held_out[1].double()
    if isinstance(decoder, LeaveOneOut):
        distance = (decoder(s) - z_bar).square().sum(-1)
        return NullDistances.of(torch.cat([distance, decoder.leave_one_out(*rest)]), num_obs)
    reference = RidgeDecoder().fit(*rest, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        smooth = reference(s)
        return NullDistances.split(smooth - z_bar, decoder(s) - smooth, num_obs)


def _least_mass(decoder: Decoder, s: Tensor, z_bar: Tensor) -> float:
    """The mass of the model that 95% of the simulations exceed, each at its own summary."""
    masses = []
    with torch.no_grad():
        for rows, seen in zip(s.split(BLOCK_ROWS), z_bar.split(BLOCK_ROWS), strict=True):
            mu = decoder(rows.double())
            masses.append((mu * seen.double()).sum(1) / mu.square().sum(1))
    return float(torch.cat(masses).quantile(MASS_LEVEL))


def _score_threshold(
    embedding: Embedding, decoder: Decoder, x: Tensor, s: Tensor, least_mass: float
) -> float:
    """The outlier score that 99% of the observations of simulated datasets stay below."""
    with torch.no_grad():
        fit = Observations.of(embedding, x).fit(decoder(s.double()))
    return float(fit.score(least_mass).flatten()[:MAX_QUANTILE].quantile(SCORE_LEVEL))
