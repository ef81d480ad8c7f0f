r"""Minimum-distance summaries: the estimator that puts the parts together.

Offline, from the simulations that trained the posterior (Algorithm 1 of the paper):

.. math:: \bar z_i = \tfrac1N \textstyle\sum_n z(x_n^{(i)}), \qquad
    \mu = \arg\min \textstyle\sum_i \| \mu(s_i) - \bar z_i \|^2 ,

and how an observation looks to the model at a summary, as a residual. Each observed dataset then
goes through `mindist.adaptation.procedure`: its observations are sorted, and the summary function
speaks of those that are left; where simulations have no summary like the observed one, the
minimum-distance one :math:`s^\star = \arg\min_s \|\mu(s) - \bar z\|^2` of the paper speaks.
"""

import copy
import os
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import asdict, fields
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mindist import checks, storage
from mindist.adaptation import Adaptation, Detection, Search, SummaryNoise, choose_representation
from mindist.adaptation.block import adapt_block
from mindist.decoders import DECODERS, RidgeDecoder
from mindist.features import FourierFeatures, choose_bandwidth
from mindist.features.embedding import Embedding
from mindist.features.kernel import parse_bandwidth
from mindist.features.representation import REPRESENTATIONS, make_representation
from mindist.features.stream import CHOICE_DATASETS, EmbeddedStream, read_simulations
from mindist.fitted import Fitted, blind, blindness, learn, visible
from mindist.protocols import Array, Decoder, DensityDecoder, StoredSimulations, Summary
from mindist.schema import Record, moved, pack, plain
from mindist.selftest import UNSORTED, Choice, SelfTest, choose_rules, run_selftest
from mindist.stream import AdaptationStream
from mindist.summarise import Summariser
from mindist.threads import each_in_a_thread, one_thread

PAPER_VARIANTS = {
    "rf": ("mlp", Search("lbfgs", ("observed",), stay=0)),
    "dec": ("flow", Search("adam", ("observed",), stay=0)),
    "kl": ("flow", Search("adam", ("observed",), divergence="kl", stay=0)),
}
# Features of single observations held at once by a thread.
BLOCK_BYTES = 50 * 2**20
WORTH_A_THREAD = 8  # datasets
FIRST_EDITION = ("reweight", "feedback", "distinct")  # options of a search that are no more


class MinimumDistance:
    r"""Robust summaries for a pretrained amortised posterior, by minimum MMD.

    Arguments:
        summary: The summary function that the posterior was trained with, datasets
            `(B, N, *event)` to summaries `(B, d_s)`; tensors or NumPy arrays.
        sorting: Whether to sort observations and let the summary function speak of those that are
            left (the default), or only to search for the minimum distance (the paper).
        bandwidth: Width of the Gaussian kernel in which the summary is sought: `"median"`, the
            median distance of simulated observations; a multiple such as `"0.5 median"`; or a
            number in the units of the data.
        representation: The map of an observation that the kernel sees: `"auto"`, the one of those
            that suit its shape with which simulated summaries are found again best; `"raw"`, none
            (the paper); `"identity"`, clamped to the simulated range; `"standardised"`;
            `"signed-log"`; `"power-spectrum"`; or any function
            `(n, *event)` to `(n, D)`, such as a frozen encoder, which is given again at `load`.
        num_features: K, the number of random Fourier features (512: the paper).
        frequencies: How the features' frequencies are drawn: `"sobol"`, evenly spread, for less
            noise (in more than 64 dimensions orthogonal); `"orthogonal"` in any; or `"random"`,
            independent (the paper).
        decoder: `"ridge"`, `"mlp"`, `"flow"`, or an unfitted decoder.
        search: Solver and starts, see `Search`.
        alpha: Level of the detection; only datasets with a p-value of at most alpha are adapted.
        seed: Seed of everything random: features, held-out simulations, decoder, perturbations.
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
        sorting: bool = True,
        bandwidth: float | str = "median",
        representation: str | Callable[[Any], Any] = "auto",
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
        num_features = checks.integer(num_features, "num_features")
        if num_features < 2 or num_features % 2:
            said = "a positive even number (a cosine and a sine for each frequency)"
            raise checks.wrong("num_features", said, num_features)
        self.summary = summary
        self.bandwidth = bandwidth if isinstance(bandwidth, str) else number
        said, names = "a function of observations (n, *event) to vectors (n, D)", REPRESENTATIONS
        self.representation = checks.choice_or(
            representation, ("auto", "raw", *names), "representation", said, callable
        )
        self.sorting = checks.flag(sorting, "sorting")
        self.num_features = num_features
        allowed = ("sobol", "orthogonal", "random")
        self.frequencies = checks.choice(frequencies, allowed, "frequencies")
        said = "an unfitted decoder with the methods of mindist.protocols.Decoder"
        then = "Of a class of decoders pass an instance, such as RidgeDecoder()."
        known = tuple(DECODERS)
        decoder = checks.choice_or(decoder, known, "decoder", said, _is_decoder, then)
        self.decoder: Decoder = DECODERS[decoder]() if isinstance(decoder, str) else decoder
        self.search = Search() if search is None else search
        self.alpha = alpha
        self.seed = checks.seed(seed)
        self.device = checks.device(device)
        self.selftest_: SelfTest | None = None
        self.rules_: Choice | None = None  # by which rules to sort and project, if it was chosen

    @property
    def alpha(self) -> float:
        """The level of the detection, which may be set at any time: nothing has to be fitted again.

        Below 1 / (n + 1), with n null distances, no dataset is misspecified.
        """
        return self._alpha

    @alpha.setter
    def alpha(self, value: float) -> None:
        said = "a level between 0 and 1"
        self._alpha = checks.number(value, "alpha", said, lambda a: 0 < a < 1, "The usual is 0.05.")

    @property
    def search(self) -> Search:
        """The search, which may be set at any time: nothing has to be fitted again.

        Where observations are sorted, projections stay calibrated with the search of the fit.
        """
        return self._search

    @search.setter
    def search(self, value: Any) -> None:
        if not isinstance(value, Search):
            then = "Pass its options to it, for example search=mindist.Search(restarts=3)."
            raise checks.wrong("search", "a Search", checks.shown(value), then, TypeError)
        if value.divergence == "kl" and not isinstance(self.decoder, DensityDecoder):
            raise ValueError(
                "search: the KL divergence needs a density q(x given s); expected decoder='flow', "
                f"got {type(self.decoder).__name__}."
            )
        self._search = value

    @property
    def choice_(self) -> dict[str, str]:
        """What the fit has chosen on the simulations, and why, in words.

        Example:
            >>> x = torch.randn(600, 1, 2) + torch.randn(600, 20, 2)
            >>> MinimumDistance(lambda x: x.mean(1)).fit(x).choice_["representation"]
            'identity'
        """
        fitted = self._fitted()
        kernel = fitted.embedding.representation
        chosen = {
            "representation": "raw" if kernel is None else kernel.name,
            "bandwidth": f"{float(fitted.embedding.features.bandwidth):.3g}",
        }
        if fitted.procedure is None:
            return chosen
        part = fitted.procedure.coordinates
        num = fitted.procedure.sorter.residuals.size
        seen = f"{num} number{'s' * (num > 1)} of an observation"
        if part.components.shape[0] > 1:
            seen += ", principal components of it and the size of what they leave out"
        chosen |= {} if self.rules_ is None else {"rules": str(self.rules_)}
        return chosen | {
            "residuals": f"{seen}, its own summary among them" if part.alone else seen,
            "summary of parts": "by the summary function"
            + ", filled up to N: it fails on fewer" * fitted.procedure.refill,
        }

    @property
    def noise(self) -> SummaryNoise | None:
        """The sampling noise of the summary, if observations are sorted and it is known."""
        return self._fitted().noise if self._fitted().procedure is not None else None

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
    ) -> "MinimumDistance":
        """Return the paper to the letter, up to the choices it does not state (docs/method.md).

        512 random Fourier features at the median bandwidth; an MLP decoder (2 x 256, Adam);
        L-BFGS with line search from the observed summary; threshold from 5% of the simulations.

        Arguments are as for `MinimumDistance`, and `variant`: `"rf"`, the method; `"dec"`, MDS-Dec
        with a neural spline flow and Adam; `"kl"`, the same flow with the KL divergence, which is
        not robust.
        """
        decoder, options = PAPER_VARIANTS[checks.choice(variant, tuple(PAPER_VARIANTS), "variant")]
        return cls(
            summary,
            sorting=False,
            bandwidth=bandwidth,
            representation="raw",
            frequencies="random",
            decoder=decoder,
            search=options,
            alpha=alpha,
            seed=seed,
            device=device,
        )

    def fit(
        self,
        x: Array | Iterable[Any] | StoredSimulations,
        s: Array | None = None,
        *,
        progress: bool = False,
        choose: bool = False,
    ) -> "MinimumDistance":
        """Learn the decoder and the null distances from simulated datasets; return the estimator.

        Arguments:
            x: Simulated datasets `(M, N, *event)`; an iterable of chunks of them, or of pairs of a
                chunk and its summaries, in random order and read once; or a bank of simulations on
                disk, read chunk by chunk. With the closed-form decoder memory does not grow with
                their number: a uniform sample of 20,000 summaries and embeddings is kept. The MLP
                decoder keeps those of all (4 GB for a million datasets and 1,024 features). The
                embeddings of a bank are used if they were made with what this estimator chooses on
                its pilot; otherwise its data, if they were kept, are embedded anew. The flow
                decoder needs the data.
            s: Their summaries `(M, d_s)`, if they are known already.
            progress: Whether to show progress bars.
            choose: Whether to try other rules of sorting and projecting on contaminated
                simulations, and to take them where they are better beyond noise. Several fits long.
        """
        # One stream for each purpose: the features do not depend on the simulations, nor the split
        # and the decoder on how the simulations were handed over.
        sampling, learning = (torch.Generator().manual_seed(self.seed) for _ in range(2))
        decoder, summarise = copy.deepcopy(self.decoder), Summariser(self.summary)
        if hasattr(decoder, "progress"):
            decoder.progress = progress
        source = read_simulations(x, s, summarise, sampling, self.device)
        x_some, s_some = (part[:CHOICE_DATASETS] for part in source.sample)
        chosen = self._choose(x_some, s_some, sampling)
        stream = EmbeddedStream(
            source,
            source.embedding(chosen),
            num_points=decoder.num_points,
            keep_all=not isinstance(decoder, RidgeDecoder),  # which is fitted in one pass
            seed=self.seed,
            progress=progress,
        )
        options = self.search if self.sorting else None
        self.fitted_, relearn = learn(
            decoder, stream, summarise, learning, alpha=self.alpha, seed=self.seed, options=options
        )
        self.selftest_ = self.rules_ = None
        if checks.flag(choose, "choose"):
            self.fitted_, self.rules_ = choose_rules(self, relearn)
        if self.fitted_.procedure is not None and self.fitted_.spare is not None:
            for name in blind(visible(self.fitted_, self.fitted_.spare)):
                checks.warn_user(blindness(name))
        return self

    def choose_embedding(self, x: Array, s: Array | None = None) -> Embedding:
        """Return the embedding that a fit to an iterator that leads with this sample would choose.

        Arguments:
            x: Simulated datasets `(M, N, *event)`, in random order; 1,000 of them are enough.
            s: Their summaries `(M, d_s)`, if they are known already.
        """
        summarise, numpy = Summariser(self.summary), isinstance(x, np.ndarray)
        data = checks.simulations(checks.as_tensor(x, "x")).to(self.device)
        given = summarise(data, prefer_numpy=numpy) if s is None else s
        summaries = checks.summaries(given, len(data), name="s").to(self.device)
        return self._choose(data, summaries, torch.Generator().manual_seed(self.seed))

    @property
    def embedding_settings(self) -> dict[str, Any]:
        """The settings that decide how observations are embedded, by name."""
        names = ("bandwidth", "representation", "num_features", "frequencies", "seed")
        settings = {name: getattr(self, name) for name in names}
        if settings["representation"] == "auto" and isinstance(self.decoder, DensityDecoder):
            settings["representation"] = "raw"  # it models the observations themselves
        return settings

    def _choose(self, x: Tensor, s: Tensor, sampling: torch.Generator) -> Embedding:
        """Choose representation, bandwidth and features on a sample `(M, N, *event)`.

        The frequencies are drawn from the seed alone; `sampling` chooses the observations whose
        distances set the bandwidth.
        """
        rule = self.embedding_settings["representation"]
        if rule == "auto":
            rule = choose_representation(x, s, self.bandwidth)
        representation = None if rule == "raw" else make_representation(rule, x)
        seen = x if representation is None else representation(x)
        features = FourierFeatures.draw(
            tuple(seen.shape[2:]),
            self.num_features,
            bandwidth=choose_bandwidth(self.bandwidth, seen, sampling),
            generator=torch.Generator().manual_seed(self.seed),
            frequencies=self.frequencies,
        )
        chosen = Embedding(features, representation)
        return chosen if self.device.type == "cpu" else moved(chosen, self.device)

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
        batch, single = self._observed(x)
        detection = self._detect(batch)[0]
        return detection[0] if single else detection

    def adapt(self, x: Array, *, force: bool = False) -> Adaptation:
        """Detect, and where the data are misspecified find the summary to query the posterior at.

        Arguments:
            x: One dataset `(N, *event)` or a batch `(B, N, *event)`.
            force: Adapt every dataset, detected or not.

        Returns:
            For each dataset the summary with which to query the posterior, which way it was found
            (`status`, `message`), and what every observation has to do with it.
        """
        force = checks.flag(force, "force")
        batch, single = self._observed(x)
        fitted = self._fitted()
        detection, z_bar, statistics = self._detect(batch)
        chosen = torch.ones_like(detection.misspecified) if force else detection.misspecified
        found = None
        if statistics is not None and chosen.any():
            odd = chosen.nonzero()[:, 0]
            given = (batch[odd], detection.s_obs[odd], z_bar[odd], statistics[odd])
            with one_thread() if len(odd) < WORTH_A_THREAD else nullcontext():
                found = fitted.examine(*given, self.search)
        before = torch.nn.functional.pad(chosen.long().cumsum(0), (1, 0)).tolist()
        numbers = batch.shape[1] * fitted.embedding.num_features
        blocks = _blocks(batch.shape[0], max(1, BLOCK_BYTES // (4 * numbers)))

        def work(share: tuple[int, int]) -> Adaptation:
            b = slice(*share)
            own = slice(before[b.start], before[b.stop])
            examined = None if found is None else found.select(own)
            rows = (batch[b], detection[b], z_bar[b], examined, chosen[b])
            return adapt_block(fitted, self.search, *rows, force=force, seed=self.seed)

        # Of few datasets every operation is too short for a second thread, which on a busy machine
        # makes a search ten times as long.
        with one_thread() if len(blocks) == 1 else nullcontext():
            result = Adaptation.join(each_in_a_thread(work, blocks))
        return result[0] if single else result

    def selftest(self, posterior: Any = None, *, x: Array | None = None) -> SelfTest:
        """Contaminate held-out simulations in several ways, adapt them, and say what was mended.

        Arguments:
            posterior: A `RobustPosterior` over this estimator, or a posterior that it wraps, whose
                parameters are to be tested as well.
            x: Simulated datasets `(M, N, *event)` that the estimator was not fitted to; by default
                some that `fit` has held out. They are not saved: after `load` they are needed.

        Returns:
            A frozen `SelfTest`, also kept as `selftest_`: print it, or see its `verdict`,
            `warnings`, `table()`, `plot(path)`, `to_dict()`.
        """
        fitted = self._fitted()
        if fitted.procedure is None:
            raise ValueError(f"selftest: {UNSORTED}")
        data = fitted.spare if x is None else self._observed(x)[0]
        if data is None or len(data) < 2:
            then = "Simulations are not saved with an estimator: simulate some, and pass x=."
            raise checks.wrong("x", "simulated datasets (M, N, *event)", "none", then)
        if posterior is not None:
            robust = import_module("mindist.posteriors").RobustPosterior  # a layer above this one
            posterior = posterior if isinstance(posterior, robust) else robust(posterior, self)
        self.selftest_ = run_selftest(self, data, posterior, seed=self.seed)
        return self.selftest_

    def adapt_stream(self, datasets: Iterable[Any], *, force: bool = False) -> AdaptationStream:
        """Adapt any number of datasets, of any lengths, as they are read, in bounded memory.

        Arguments:
            datasets: Datasets `(N, *event)`, read once, a thousand (or 32 MB) at a time; those of
                one length are adapted together.
            force: As for `adapt`.

        Returns:
            An iterator over pairs of the index of a dataset and its `Adaptation`, in order. What
            fails (data of another shape or with NaN, a summary that raises) does not end it: such
            datasets are left out, and listed with their index in its `report`.

        Example:
            >>> x = torch.randn(600, 20, 2)
            >>> mds = MinimumDistance(lambda x: x.mean(1), num_features=16, bandwidth=1.0).fit(x)
            >>> stream = mds.adapt_stream([x[0], x[1, :9], x[2] + torch.nan, x[3]])
            >>> [index for index, _ in stream], stream.report.failed
            ([0, 1, 3], 1)
        """
        return AdaptationStream(partial(self.adapt, force=force), datasets, self.event_shape)

    def _observed(self, x: Array) -> tuple[Tensor, bool]:
        """Return a checked batch, and whether one dataset was given.

        It has the precision of the simulations: in another one the mean of three counts would be
        unlike every simulated one.
        """
        batch, single = checks.observed(x, self.event_shape)
        dtype = self._fitted().probe.dtype
        largest = torch.finfo(dtype).max
        if torch.finfo(batch.dtype).max > largest and (batch.abs() > largest).any():
            said = f"observations of at most {largest:.3g}, the largest {dtype}, as simulated"
            then = "Clip such observations, or fit to simulations in float64."
            raise checks.wrong("x", said, f"{float(batch.abs().amax()):.3g}", then)
        return batch.to(self.device, dtype), single

    def _detect(self, batch: Tensor) -> tuple[Detection, Tensor, Tensor | None]:
        """Test a checked batch; return also embeddings `(B, K)` and statistics `(B, 3)`, if any."""
        fitted, num_obs = self._fitted(), batch.shape[1]
        s_obs = checks.finite_summaries(fitted.summarise(batch))
        z_bar = fitted.embedding.mean(batch).double()
        distance = (z_bar - fitted.wide.decode(s_obs)).square().sum(1)
        statistics = None
        if fitted.procedure is not None and fitted.sorts(batch) and len(batch):
            with one_thread() if len(batch) < WORTH_A_THREAD else nullcontext():
                statistics = fitted.statistics(batch, s_obs)
            p_value = fitted.procedure.test.p_value(statistics)
        else:
            p_value = fitted.null.p_value(distance, num_obs)
        threshold = fitted.null.threshold(self.alpha, num_obs)
        strange = p_value <= self.alpha
        detection = Detection(s_obs, distance, p_value, strange, threshold, alpha=self.alpha)
        return detection, z_bar, statistics

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted estimator to a folder (safetensors plus JSON), all but the summary."""
        config, tensors = self._fitted().state()
        config |= {
            "bandwidth": self.bandwidth,
            "sorting": self.sorting,
            "frequencies": self.frequencies,
            "search": plain(asdict(self.search)),
            "alpha": self.alpha,
            "seed": self.seed,
        }
        config |= {} if self.rules_ is None else {"choice": pack(self.rules_)[0]}
        storage.write_artefact(path, "MinimumDistance", config, tensors)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        summary: Summary,
        *,
        representation: Callable[[Any], Any] | None = None,
        device: str | torch.device = "cpu",
    ) -> "MinimumDistance":
        """Read an estimator that `save` wrote.

        Arguments:
            path: The folder that was passed to `save`.
            summary: The same summary function as at the fit; functions are not stored. It is
                checked on a stored dataset.
            representation: The same function as at the fit, where one was given; checked likewise.
            device: Where to compute.
        """
        config, tensors = storage.read_artefact(path, "MinimumDistance")
        record = Record.open(Path(path), config, tensors)
        fitted, own = Fitted.read(record, summary, representation), record.part("search")
        known = [field.name for field in fields(Search)]
        own.only([*known, *FIRST_EDITION])
        with own.naming():
            search = Search(**{"stay": 0.0} | {k: v for k, v in own.values.items() if k in known})
        name = config.get("representation", {}).get("name", "raw")
        with record.naming():
            mds = cls(
                summary,
                representation=representation or name,
                sorting=config.get("sorting", False),
                num_features=fitted.embedding.num_features,
                decoder=fitted.wide.decoder,
                search=search,
                **{key: record.get(key) for key in ("bandwidth", "frequencies", "alpha", "seed")},
            )
        mds.fitted_ = fitted
        mds.rules_ = record.part("choice").read(Choice) if "choice" in record else None
        return mds.to(device)

    def to(self, device: str | torch.device) -> "MinimumDistance":
        """Move the fitted estimator to a device and return it."""
        self.device = checks.device(device)
        if hasattr(self, "fitted_"):
            self.fitted_ = moved(self.fitted_, self.device)
        return self

    def _fitted(self) -> Fitted:
        if not hasattr(self, "fitted_"):
            raise RuntimeError(
                "This MinimumDistance is not fitted. Call fit(x) with simulated datasets of shape "
                "(M, N, *event) first."
            )
        return self.fitted_

    def __repr__(self) -> str:
        state = "not fitted"
        if hasattr(self, "fitted_"):
            num, shape = self.fitted_.num_obs, tuple(self.event_shape)
            state = f"fitted to datasets of {num} observations of shape {shape}"
            state += "" if self.rules_ is None else f", rules: {self.rules_.chosen}"
        decoder, solver = type(self.decoder).__name__, self.search.solver
        return f"MinimumDistance({decoder=!s}, {solver=}, alpha={self.alpha}, {state})"


def _is_decoder(value: Any) -> bool:
    methods = ("fit", "basis", "basis_and_jacobian", "__call__")
    return not isinstance(value, type) and all(callable(getattr(value, m, None)) for m in methods)


def _blocks(num: int, size: int) -> list[tuple[int, int]]:
    """Split datasets into ranges of at most `size`, balanced over threads where that pays."""
    threads = min(torch.get_num_threads(), max(1, num // WORTH_A_THREAD))
    parts = -(-num // size)
    length = -(-num // max(1, -(-parts // threads) * threads))
    return [(first, min(first + length, num)) for first in range(0, num, length or 1)] or [(0, 0)]
