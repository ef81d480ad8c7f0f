r"""Minimum-distance summaries: the estimator that puts the parts together.

Offline, from the simulations that trained the posterior (Algorithm 1 of the paper):

.. math:: \bar z_i = \tfrac1N \textstyle\sum_n z(x_n^{(i)}), \qquad
    \mu = \arg\min \textstyle\sum_i \| \mu(s_i) - \bar z_i \|^2 .

For each observed dataset with summary :math:`s_0` and embedding :math:`\bar z`: detect, by the
p-value of :math:`\|\mu(s_0) - \bar z\|^2` among held-out simulations; where it is at most alpha,
move the summary to :math:`s^\star = \arg\min_s \|\mu(s) - \bar z\|^2`. The posterior is then
queried at :math:`s^\star` instead of :math:`s_0`.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from mindist import checks, storage
from mindist.adaptation import (
    Adaptation,
    Bank,
    Detection,
    Search,
    Status,
    search,
)
from mindist.decoders import DECODERS, RidgeDecoder
from mindist.detection import NullDistances
from mindist.features import FourierFeatures, choose_bandwidth
from mindist.features.bandwidth import parse_bandwidth
from mindist.features.stream import EmbeddedSimulations, embed_simulations
from mindist.fitted import BLOCK_ROWS, Fitted
from mindist.protocols import Array, Decoder, DensityDecoder, LeaveOneOut, Summary
from mindist.summarise import Summariser

CALIBRATION_FRACTION = 0.05  # appendix "Further Experimental Details"
PAPER_VARIANTS = {
    "rf": ("mlp", Search(solver="lbfgs", starts=("observed",))),
    "dec": ("flow", Search(solver="adam", starts=("observed",))),
    "kl": ("flow", Search(solver="adam", starts=("observed",), divergence="kl")),
}


class MinimumDistance:
    r"""Robust summaries for a pretrained amortised posterior, by minimum MMD.

    Arguments:
        summary: The summary function that the posterior was trained with, datasets
            `(B, N, *event)` to summaries `(B, d_s)`; tensors or NumPy arrays.
        bandwidth: Of the Gaussian kernel: `"median"`, a multiple such as `"0.5 median"`, or a
            number in the units of the data.
        num_features: K, the number of random Fourier features (512: the paper).
        frequencies: Of the features: `"random"`, independent, or `"sobol"`, evenly spread, with
            which a result depends less on the seed.
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
        num_features: int = 512,
        frequencies: str = "random",
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

        def make_features(sample: Tensor) -> FourierFeatures:
            bandwidth = choose_bandwidth(self.bandwidth, sample, sampling)
            shape, size = tuple(sample.shape[2:]), self.num_features
            drawn = FourierFeatures.draw(
                shape,
                size,
                bandwidth=bandwidth,
                generator=drawing,
                frequencies=self.frequencies,
            )
            return drawn.to(self.device)

        simulations = embed_simulations(
            x,
            s,
            summarise=summarise,
            make_features=make_features,
            generator=sampling,
            num_points=decoder.num_points,
            device=self.device,
            progress=progress,
        )
        if hasattr(decoder, "progress"):
            decoder.progress = progress
        self.fitted_ = self._learn(simulations, decoder, summarise, learning)
        return self

    def _learn(
        self,
        simulations: EmbeddedSimulations,
        decoder: Decoder,
        summarise: Summariser,
        generator: torch.Generator,
    ) -> Fitted:
        """Fit the decoder, then calibrate on the simulations that were held out of its fit."""
        s, z_bar, points = simulations.s, simulations.z_bar, simulations.points
        size = checks.calibration_size(len(s), CALIBRATION_FRACTION, self.alpha)
        held_out, rest = (
            torch.randperm(len(s), generator=generator).to(s.device).tensor_split([size])
        )
        features, num_obs = simulations.features, simulations.num_obs
        s_rest, z_rest = s[rest], z_bar[rest]
        decoder.fit(
            s_rest,
            z_rest,
            generator=generator,
            x=None if points is None else points[rest],
            features=features,
        )
        null = _calibrate(decoder, (s_rest, z_rest), (s[held_out], z_bar[held_out]), num_obs)
        bank = Bank.of(s, z_bar, generator)
        return Fitted(features, decoder, null, bank, summarise, num_obs, simulations.probe)

    @property
    def event_shape(self) -> torch.Size:
        """The shape of one observation, as simulated."""
        return self._fitted().features.event_shape

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
            For each dataset the summary with which to query the posterior. Its distance is never
            larger than that of the observed summary (with `divergence="kl"`: its divergence).
        """
        fitted = self._fitted()
        batch, single = checks.observed(x, self.event_shape)
        batch = batch.to(self.device)
        detection, z_bar = self._detect(batch)
        chosen = torch.ones_like(detection.misspecified) if force else detection.misspecified
        found, ends = self._search(batch[chosen], detection.s_obs[chosen], z_bar[chosen])
        s_star, distance = detection.s_obs.clone(), detection.distance_obs.clone()
        s_star[chosen] = found.to(s_star.dtype)
        distance[chosen] = fitted.distance(s_star[chosen], z_bar[chosen])
        if self.search.divergence == "mmd":
            # Rounding s_star to the precision of the summaries may undo a tiny gain.
            worse = ~(distance <= detection.distance_obs)
            s_star[worse], distance[worse] = detection.s_obs[worse], detection.distance_obs[worse]
        adapted = (s_star != detection.s_obs).any(1)
        status = [Status.WELL_SPECIFIED] * len(batch)
        for index, end in zip(chosen.nonzero()[:, 0].tolist(), ends, strict=True):
            status[index] = end if adapted[index] else Status.KEPT_OBSERVED
        result = Adaptation(
            **vars(detection),
            s_star=s_star,
            distance_star=distance,
            adapted=adapted,
            status=tuple(status),
        )
        return result[0] if single else result

    def _search(self, x: Tensor, s_obs: Tensor, z_bar: Tensor) -> tuple[Tensor, tuple[Status, ...]]:
        """Search for every dataset, a bounded number of them at a time."""
        fitted = self._fitted()
        found: list[Tensor] = [s_obs[:0].double()]
        ends: tuple[Status, ...] = ()
        for block in torch.arange(len(x), device=x.device).split(BLOCK_ROWS):
            s_star, status = search(
                fitted.decoder,
                self.search,
                fitted.bank,
                x=x[block],
                s_obs=s_obs[block],
                z_bar=z_bar[block],
                generator=torch.Generator().manual_seed(self.seed),
                head=fitted.head,
            )
            found, ends = [*found, s_star], (*ends, *status)
        return torch.cat(found), ends

    def _detect(self, batch: Tensor) -> tuple[Detection, Tensor]:
        """Detection of a checked batch, and its mean embeddings `(B, K)` in float64."""
        fitted, num_obs = self._fitted(), batch.shape[1]
        s_obs = checks.finite_summaries(fitted.summarise(batch))
        z_bar = fitted.features.mean(batch).double()
        distance = fitted.distance(s_obs, z_bar)
        p_value = fitted.null.p_value(distance, num_obs)
        threshold = fitted.null.threshold(self.alpha, num_obs)
        return Detection(s_obs, distance, p_value, p_value <= self.alpha, threshold), z_bar

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted estimator to a folder (safetensors plus JSON), all but the summary."""
        config, tensors = self._fitted().state()
        config |= {
            "bandwidth": self.bandwidth,
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
        device: str | torch.device = "cpu",
    ) -> MinimumDistance:
        """Read an estimator that `save` wrote.

        Arguments:
            path: The folder that was passed to `save`.
            summary: The same summary function as at the fit; functions are not stored. It is
                checked on a stored dataset.
            device: Where to compute.
        """
        config, tensors = storage.read_artefact(path, "MinimumDistance")
        fitted = Fitted.from_state(config, tensors, summary)
        options = config["search"]
        starts = tuple(s if isinstance(s, str) else tuple(s) for s in options["starts"])
        mds = cls(
            summary,
            bandwidth=config["bandwidth"],
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
