"""Learn embedding, decoder, null and the calibrated procedure from simulations.

The decoder is fitted while they are read, to all but 5% of the leading ones; one in closed form
leaves out each of the others in turn as well. Null distances and the bank to search from come from
a uniform sample of summaries and embeddings; sorting, sampling noise and calibration from a sample
of whole datasets.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mindist import checks
from mindist.adaptation.calibration import MAX_DATASETS, SummaryNoise
from mindist.adaptation.procedure import FEWEST, Examined, Procedure
from mindist.adaptation.search import Problem, Search, View, search
from mindist.adaptation.speaking import Speaker
from mindist.adaptation.starts import Bank
from mindist.decoders import DECODERS, FlowDecoder, RidgeDecoder
from mindist.detection import NullDistances, SummaryOutlyingness
from mindist.features.embedding import Embedding
from mindist.features.representation import Encoded
from mindist.features.residuals import Regression, scale_of
from mindist.features.stream import EmbeddedStream
from mindist.protocols import Decoder, DensityDecoder, LeaveOneOut, State, Summary
from mindist.schema import Record, pack, prefixed
from mindist.summarise import Summariser

CALIBRATION_FRACTION = 0.05  # appendix "Further Experimental Details"
# Datasets kept to test on, the last of the sample: nothing but the null is learned from them,
# unless simulations are few.
SPARE, SPARE_BYTES = 1_000, 2**26
BLIND = 0.3  # share of what moves a summary that sorting has to see
INFLUENCED, ROWS = 20, 2_000  # datasets, and observations, on which that is measured
ENOUGH = 10  # of the former for each number that they are regressed on
FEATURES, PRODUCTS = 200, 100  # random features, and products of residuals and summaries
PROJECTED = 1e-8  # tolerance of a projection, whose calibration is noisier by far
MAX_NULL = 5_000  # null distances: the level reached has a standard deviation of .003 at .05


@dataclass(frozen=True)
class Fitted:
    """Embedding, decoder, null distances, bank and procedure, and what they were fitted to.

    It can be moved, stored and read back.
    """

    embedding: Embedding  # representation and kernel of an observation
    wide: View  # decoder and bank
    null: NullDistances  # distances of held-out simulations
    summarise: Summariser  # the summary function, checked
    num_obs: int  # observations in each simulated dataset
    probe: Tensor  # one simulated dataset, with which a summary function is recognised
    noise: SummaryNoise | None  # the sampling noise of the summary, where it is known
    procedure: Procedure | None  # see, sort, speak; None where only the distance is searched
    spare: Tensor | None = None  # simulated datasets to test on, not stored

    def sorts(self, x: Tensor) -> bool:
        """Return whether sorting was learned, and there are observations enough to sort."""
        return self.procedure is not None and self.noise is not None and x.shape[1] >= FEWEST

    def statistics(self, x: Tensor, s: Tensor) -> Tensor:
        """Return the statistics `(B, 3)` of the detection, of datasets that can be sorted."""
        assert self.procedure is not None
        return self.procedure.statistics(x, s, self.embedding, self.summarise)

    @torch.no_grad()
    def examine(
        self, x: Tensor, s: Tensor, z_bar: Tensor, statistics: Tensor, options: Search
    ) -> Examined:
        """Sort, speak and project datasets `(B, N, *event)` that can be sorted."""
        assert self.procedure is not None
        assert self.noise is not None
        near = projections(self.wide, z_bar, options)
        return self.procedure(x, s, near, statistics, self.embedding, self.summarise, self.noise)

    def p_values(self, x: Tensor) -> dict[str, Tensor]:
        """Return p-values `(B,)` of each statistic alone, of datasets `(B, N, *event)`."""
        s = self.summarise(x)
        if self.procedure is not None and self.sorts(x):
            test = self.procedure.test
            return dict(zip(test.names, test.p_values(self.statistics(x, s)).T, strict=True))
        distance = (self.embedding.mean(x).double() - self.wide.decode(s)).square().sum(1)
        return {"distance": self.null.p_value(distance, x.shape[1])}

    def state(self) -> State:
        """Return settings and tensors that rebuild it, all but the user's functions."""
        names: dict[type, str] = {kind: name for name, kind in DECODERS.items()}
        if type(self.wide.decoder) not in names:
            raise TypeError(
                f"decoder: expected one of {', '.join(DECODERS)} to save, got "
                f"{type(self.wide.decoder).__name__}, which mindist could not rebuild."
            )
        config, tensors = self.embedding.state()
        config |= {
            "numpy_summary": self.summarise.numpy,
            "decoder": names[type(self.wide.decoder)],
            "error": self.wide.error,
        }
        tensors |= {"probe.x": self.probe, "probe.s": self.summarise(self.probe)}
        if isinstance(self.embedding.representation, Encoded):
            tensors["probe.seen"] = self.embedding.represent(self.probe)
        parts = [
            ("decoder_config", "decoder", self.wide.decoder),
            ("", "bank", self.wide.bank),
            ("", "null", self.null),
            ("", "noise", self.noise),
            ("procedure", "procedure", self.procedure),
        ]
        for name, prefix, part in parts:
            if part is not None:
                own, values = pack(part)
                config |= {name: own} if name else own
                tensors |= prefixed(prefix, values)
        return config, tensors

    @classmethod
    def read(
        cls, record: Record, summary: Summary, function: Callable[[Any], Any] | None = None
    ) -> "Fitted":
        """Rebuild from a record of `state`; check the user's functions on a stored dataset.

        `function` is the one that was the representation, if any.
        """
        embedding = Embedding.read(record, function)
        K = embedding.num_features
        record.axes |= {"D": embedding.features.event_shape.numel()}
        probe_s = record.tensor("probe.s", "1 d")
        probe_x = record.tensor("probe.x", " ".join(["1", "N", *map(str, embedding.event_shape)]))
        null = record.part("", "null").read(NullDistances)
        noise = procedure = None
        kind = DECODERS[record.word("decoder", tuple(DECODERS))]
        own = record.part("decoder_config", "decoder", K=K)
        if issubclass(kind, FlowDecoder):
            decoder: Decoder = kind.restore(own, embedding.features)
        else:
            decoder = own.read(kind)
        bank = record.part("", "bank", K=K).read(Bank)
        error = record.number("error") if "error" in record else null.mean(null.num_obs)
        wide = View(decoder, bank, error)
        if record.under("noise."):
            noise = record.part("", "noise").read(SummaryNoise)
        if "procedure" in record:
            procedure = record.part("procedure").read(Procedure)
        elif "detector" in record or record.values.get("search", {}).get("reweight"):
            checks.warn_user(
                "path: this estimator was saved by the first edition of mindist, which sorted "
                "observations in another way. It is loaded as the paper's method: it tests the "
                "distance and searches for its minimum. Fit it again for the default of today."
            )
        if "probe.seen" in record.tensors:
            seen = record.tensor("probe.seen", "1 N D")
            _check_function("representation", embedding.represent(probe_x), seen)
        summarise = Summariser(summary, record.flag("numpy_summary"), probe_s.shape[1])
        _check_function("summary", summarise(probe_x), probe_s)
        return cls(embedding, wide, null, summarise, null.num_obs, probe_x, noise, procedure)


def projections(view: View, z_bar: Tensor, options: Search) -> Tensor:
    """Return minimum-distance summaries, and the centres of clouds, `(B, 2, d_s)`."""
    z_bar, cloud = z_bar.double(), view.bank.cloud(z_bar)
    if isinstance(view.decoder, DensityDecoder):  # a search through draws would take minutes
        return torch.stack([cloud.centre, cloud.centre], 1)
    if options.solver != "levenberg-marquardt":
        options = Search()
    # The squared distance does not look at the datasets; the summaries stand in their place.
    problem = Problem(cloud.centre, cloud.centre, z_bar, cloud)
    found = search(view, options, problem, torch.Generator().manual_seed(0), PROJECTED)
    return torch.stack([found.s_star, cloud.centre], 1)


def _check_function(name: str, got: Tensor, stored: Tensor) -> None:
    """Raise a ValueError unless a function given to `load` gives what that of the fit gave."""
    if not checks.agree(got.cpu(), stored):
        first = [value.flatten(0, -2)[0].tolist() for value in (stored, got)]
        said = f"the function of the fit, which gives {first[0]} on a stored dataset"
        then = "Pass the same function (and, for a network, the same weights)."
        raise checks.wrong(name, said, f"one that gives {first[1]}", then)


def learn(
    decoder: Decoder,
    stream: EmbeddedStream,
    summarise: Summariser,
    generator: torch.Generator,
    *,
    alpha: float,
    seed: int,
    options: Search | None,
) -> tuple[Fitted, Callable[..., Procedure | None] | None]:
    """Fit the decoder while simulations are read, and calibrate on those that were kept.

    Return also how to learn sorting and projection by other rules from the same simulations.

    `generator` draws splits, bases and samples, `seed` the bootstrap; `alpha` has to be within
    reach; with `options` of a search sorting and projection are learned too.
    """
    held_out, rest = _fit(decoder, stream, alpha, generator)
    (s, z_bar, index), (x, s_x), embedding = stream.kept(), stream.sample, stream.embedding
    # Where a stream is long, later simulations have taken the place of some that were held out.
    replaced, num_obs = index[held_out] != held_out, x.shape[1]
    held_out, rest = held_out[~replaced], torch.cat([rest, held_out[replaced]])
    if options is not None:
        rest = rest[:MAX_NULL]
    null = _null(decoder, s, z_bar, held_out, rest, num_obs)
    wide = View(decoder, Bank.of(s, z_bar, generator), null.mean(num_obs))
    noise = procedure = relearn = None
    if options is not None:
        bootstrap = torch.Generator().manual_seed(seed)
        noise = SummaryNoise.of(summarise, x[:MAX_DATASETS], s_x[:MAX_DATASETS], s, bootstrap)
    if options is not None and noise is not None:
        V = noise.covariance(s_x[:100].double()).mean(0)
        outlyingness = SummaryOutlyingness.of(s, generator, V)

        def project(data: Tensor) -> Tensor:
            return projections(wide, embedding.mean(data), options)

        relearn = partial(Procedure.of, embedding, summarise, noise, outlyingness, x, s_x, project)
        procedure = relearn()
    spare = x[-min(SPARE, len(x) // 5, SPARE_BYTES // max(1, x[:1].nbytes)) :].clone()
    probe = x[:1].clone()
    known = embedding, wide, null, summarise, num_obs, probe, noise, procedure, spare
    return Fitted(*known), relearn


def _fit(
    decoder: Decoder, stream: EmbeddedStream, alpha: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Fit to a stream but for 5% of its leading simulations; return their indices, and the rest."""
    chunks = iter(stream)
    s, z_bar, *points = next(chunks)
    size, needed = int(CALIBRATION_FRACTION * len(s)), math.ceil(1 / alpha - 1 - 1e-9)
    if size < needed:
        then = (
            f"{CALIBRATION_FRACTION:.0%} of them are held out to calibrate detection, and at alpha "
            f"= {alpha} a p-value needs {needed} of these. Simulate more, or raise alpha."
        )
        said = f"at least {math.ceil(needed / CALIBRATION_FRACTION)} simulated datasets"
        raise checks.wrong("x", said, len(s), then)
    order = torch.randperm(len(s), generator=generator).to(s.device)
    held_out, rest = order.tensor_split([size])
    if isinstance(decoder, RidgeDecoder):
        decoder.begin(s[rest], z_bar[rest], generator=generator)
        for more_s, more_z, *_ in chunks:
            decoder.add(more_s, more_z)
        decoder.finish()
    else:  # all simulations are leading ones
        x, features = points[0][rest] if points else None, stream.embedding.features
        decoder.fit(s[rest], z_bar[rest], generator=generator, x=x, features=features)
    return held_out, rest


def _null(
    decoder: Decoder, s: Tensor, z_bar: Tensor, held_out: Tensor, rest: Tensor, num_obs: int
) -> NullDistances:
    """Return null distances of simulations that were held out of the decoder's fit.

    A decoder in closed form can hold out each of the simulations that it was fitted to as well: the
    same law, and a far smaller error of the threshold. Any other decoder is compared with one, to
    tell its own error, which does not shrink with the number of observations, from noise.
    """
    rows, seen = s[held_out].double(), z_bar[held_out].double()
    with torch.no_grad():
        decoded = decoder(rows)
    if isinstance(decoder, LeaveOneOut):
        left_out = decoder.leave_one_out_residuals(s[rest], z_bar[rest])
        squared = [(decoded - seen).square().sum(-1), left_out.square().sum(-1).double()]
        return NullDistances.of(torch.cat(squared), num_obs)
    fixed = torch.Generator().manual_seed(0)
    smooth = RidgeDecoder().fit(s[rest], z_bar[rest], generator=fixed)(rows)
    return NullDistances.split(smooth - seen, decoded - smooth, num_obs)


def blind(share: Tensor) -> list[str]:
    """Return the names of summaries of whose changes too small a share `(d_s,)` is visible."""
    return [f"summary {j + 1}" for j in (share < BLIND).nonzero()[:, 0].tolist()]


def blindness(name: str) -> str:
    """Return a warning about a summary that residuals do not show."""
    return (
        f"Sorting cannot see what moves {name}: observations that change it look like others. Give "
        "a representation that shows it, such as the statistic of each observation that the "
        "summary averages: MinimumDistance(summary, representation=...)."
    )


def visible(fitted: Fitted, x: Tensor) -> Tensor:
    """Return the share `(d_s,)` of observations' influence on each summary that residuals explain.

    The influence, in units of its dataset's, is regressed on the residual and the summary.
    """
    procedure, x = fitted.procedure, x[: max(INFLUENCED, ROWS // x.shape[1])]
    assert procedure is not None
    s = fitted.summarise(x).double()
    every = torch.ones(x.shape[:2], dtype=torch.float64, device=x.device)
    influence = Speaker(fitted.summarise, procedure.refill).influence(x, every)
    size = influence.square().mean(1, keepdim=True).sqrt()
    target = (influence / torch.where(size > 0, size, 1.0)).flatten(0, 1)
    seen = procedure.seen(x, fitted.embedding, fitted.summarise)
    rho = procedure.sorter.residuals(seen, s).double()
    at = ((s - s.mean(0)) / scale_of(s))[:, None].expand(-1, x.shape[1], -1)
    ends = [(rho == end(1, keepdim=True)).double() for end in (rho.amin, rho.amax)]
    given = [rho, rho.square(), at, *ends]  # a minimum is moved by one observation
    if rho.shape[2] * s.shape[1] <= PRODUCTS:  # how a number moves a summary may depend on it
        given.append((rho[..., None] * at[:, :, None]).flatten(2))
    rows = torch.cat(given, 2).flatten(0, 1)
    if len(rows) < ENOUGH * rows.shape[1]:  # too few to tell
        return torch.ones_like(target[0])
    _, left_out = Regression.of(rows, target, FEATURES)
    total = (target - target.mean(0)).square().sum(0)
    left = (target - left_out).square().sum(0)
    return torch.where(total > 0, 1 - left / total.clamp(min=1e-300), 1.0)
