"""The rows of each group: ratios of contenders on the same input, and what is claimed of them."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from mindist.decoders import RidgeDecoder
from mindist.features import FourierFeatures
from mindist.minimum_distance import MinimumDistance
from mindist.posteriors import RobustPosterior
from mindist_paper.benchmark import literal
from mindist_paper.benchmark.literal import NUM_FEATURES
from mindist_paper.benchmark.material import EPSILON, Embedded, Material
from mindist_paper.benchmark.timing import Contender, Row, at_least, at_most, race, ratio_row

TASK, ALONE = "oup", "one OUP dataset alone"
MAX_SBI_SAMPLES = 1_000  # sbi's default: it uses no more simulated observations in a shuffle
QUERIED = 100  # samples for each of many datasets


def embedding_rows(material: Material) -> list[Row]:
    """Time mean embeddings against scikit-learn and against the bare multiply and cosine."""
    return [row for size in material.sizes.embedding for row in _embed(material, size)]


def _embed(material: Material, size: tuple[int, int, int]) -> list[Row]:
    num, num_obs, dim = size
    x = torch.randn(size, generator=torch.Generator().manual_seed(0))
    stock = literal.draw_features(x[:100])
    generator, bandwidth = torch.Generator().manual_seed(0), 1 / math.sqrt(2 * stock.gamma)
    ours = FourierFeatures.draw((dim,), NUM_FEATURES, bandwidth=bandwidth, generator=generator)
    weight = torch.randn(dim, NUM_FEATURES, generator=generator)
    bare, name = literal.best_bare(x.flatten(0, 1), weight, torch.get_num_threads())
    contenders = {
        "mindist": Contender(lambda: ours.mean(x), num),
        "RBFSampler": Contender(lambda: literal.embed(stock, x), num),
        "bare": Contender(bare, num),
    }
    times = race(contenders, material.sizes.rounds)
    what = f"{num:,} x {num_obs} x {dim:,}, K = {NUM_FEATURES}"
    claim = at_least(3) if dim < 512 else None  # the multiply dominates, and all have to do it
    note = f"the fastest bare way is {name}"
    return [
        ratio_row(what, times, "RBFSampler", "mindist", claim),
        ratio_row(what, times, "mindist", "bare", at_most(1.3), note=note),
    ]


def decoder_rows(material: Material) -> list[Row]:
    """Time closed-form ridge regression against the paper's network, and compare their errors."""
    return [row for name in material.sizes.tasks for row in _decoder_rows(material, name)]


def _decoder_rows(material: Material, name: str) -> list[Row]:
    data, sizes = material.embedded(name), material.sizes
    fitted: dict[str, literal.Decoder] = {}

    def fit_ridge() -> None:
        generator = torch.Generator().manual_seed(0)
        fitted["ridge"] = RidgeDecoder().fit(data.s, data.z_bar, generator=generator)

    def fit_network() -> None:
        fitted["MLP"] = literal.fit_network(data.s, data.z_bar, sizes.epochs)

    contenders = {"ridge": Contender(fit_ridge), "literal MLP": Contender(fit_network, warm=False)}
    times = race(contenders, sizes.slow_rounds)
    what = f"{name}, {len(data.s):,} datasets"
    ours, theirs = (held_out_errors(fitted[key], data) for key in ("ridge", "MLP"))
    value = float(ours.mean() / theirs.mean())
    error = 2 * float((ours - value * theirs).std() / theirs.mean()) / len(ours) ** 0.5
    measure = "held-out error, ridge / literal MLP"
    note = f"mean squared distance on {len(ours):,} other datasets, two standard errors"
    return [
        ratio_row(what, times, "literal MLP", "ridge", at_least(10)),
        Row(what, measure, value, value - error, value + error, at_most(1), note=note),
    ]


@torch.no_grad()
def held_out_errors(decoder: literal.Decoder, data: Embedded) -> Tensor:
    """Return squared distances `(n,)` of held-out embeddings from the decoder's."""
    return (decoder(data.s_test) - data.z_test).square().sum(-1).double()


def adaptation_rows(material: Material) -> list[Row]:
    """Time adapting contaminated OUP datasets, against L-BFGS one dataset at a time."""
    sizes, x = material.sizes, material.observed(TASK)[1]
    default, preset, stock = material.default(TASK), material.paper(TASK), material.literal(TASK)
    few, one = x[: sizes.one_by_one], x[: sizes.alone]
    singly = {
        "default": _one_by_one(lambda x: default.adapt(x, force=True), one),
        "paper preset": _one_by_one(lambda x: preset.adapt(x, force=True), one),
        "literal L-BFGS": _one_by_one(stock.adapt, one),
    }
    together = {
        "default": Contender(lambda: default.adapt(x, force=True), len(x)),
        "paper preset": Contender(lambda: preset.adapt(few, force=True), len(few)),
        "literal L-BFGS": _one_by_one(stock.adapt, few),
    }
    alone, many = (race(each, sizes.slow_rounds) for each in (singly, together))
    what = f"{len(x):,} OUP datasets, epsilon {EPSILON:g}"
    note = f"per dataset; default on all at once, the others on {len(few)}"
    return [
        ratio_row(what, many, "literal L-BFGS", "default", at_least(5), note=note),
        ratio_row(what, many, "paper preset", "default", note=note),
        ratio_row(ALONE, alone, "literal L-BFGS", "default", at_least(1.5)),
        ratio_row(ALONE, alone, "paper preset", "default"),
    ]


def _one_by_one(step: Callable[[Tensor], object], x: Tensor) -> Contender:
    def run() -> None:
        for one in x:
            step(one)

    return Contender(run, len(x))


def detection_rows(material: Material) -> list[Row]:
    """Time detection for a dataset: ours on many at once, sbi's test on one."""
    sizes, x = material.sizes, material.observed(TASK)[1]
    simulated = material.simulated(TASK).x.flatten(0, 1)
    chosen = torch.randperm(len(simulated), generator=torch.Generator().manual_seed(0))
    pooled = simulated[chosen[:MAX_SBI_SAMPLES]].flatten(1)
    default, preset = material.default(TASK), material.paper(TASK)
    ask_sbi = partial(literal.sbi_p_value, x[0].flatten(1), pooled, sizes.num_shuffles)
    times = race(
        {
            "default": Contender(lambda: default.detect(x), len(x)),
            "paper preset": Contender(lambda: preset.detect(x), len(x)),
            "sbi's MMD": Contender(ask_sbi, warm=False),
        },
        sizes.slow_rounds,
    )
    what = f"{len(x):,} OUP datasets"
    note = (
        f"per dataset; sbi on one: its {x.shape[1]} observations against {len(pooled):,} simulated "
        f"ones, {sizes.num_shuffles:,} shuffles"
    )
    return [
        ratio_row(what, times, "sbi's MMD", "default", at_least(5_000), note=note),
        ratio_row(what, times, "sbi's MMD", "paper preset", note=note),
    ]


def overhead_rows(material: Material) -> list[Row]:
    """Time what robustness adds to an NPE: offline to its training, online to a query."""
    rows: list[Row] = []
    for name in material.sizes.tasks:
        rows += [_offline(material, name), *_online(material, name)]
    return rows


def _offline(material: Material, name: str) -> Row:
    data, summary = material.simulated(name), material.task(name).summary
    contenders = {
        "fit": Contender(lambda: MinimumDistance(summary).fit(data.x, data.s)),
        "training the NPE": Contender(lambda: material.train_npe(name), warm=False),
    }
    times = race(contenders, material.sizes.slow_rounds)
    claim = at_most(0.1 if name == "sir" else 0.05)
    what = f"offline, {name}, {len(data.x):,} simulations"
    return ratio_row(what, times, "fit", "training the NPE", claim)


def _online(material: Material, name: str) -> list[Row]:
    mds, npe = material.default(name), material.npe(name)
    clean, observed = material.observed(name)
    s, x, size = material.task(name).summary(clean[:1])[0], observed[0], material.sizes.samples

    def sample() -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            npe.sample((size,), x=s, show_progress_bars=False)

    contenders = {
        "adapt": Contender(lambda: mds.adapt(x)),
        "detect": Contender(lambda: mds.detect(x)),
        "drawing posterior samples": Contender(sample),
    }
    times = race(contenders, material.sizes.rounds)
    what = f"online, one {name} dataset, epsilon {EPSILON:g}"
    note = f"{size:,} samples; the dataset is {'' if mds.detect(x).misspecified else 'not '}adapted"
    return [
        ratio_row(what, times, step, "drawing posterior samples", claim, note=note)
        for step, claim in (("adapt", at_most(1)), ("detect", None))
    ]


def query_rows(material: Material) -> list[Row]:
    """Time samples for many datasets: at once, or in a loop; nothing is remembered between runs."""
    x, npe, mds = material.observed(TASK)[1], material.npe(TASK), material.default(TASK)
    few = x[: material.sizes.one_by_one]

    def loop() -> None:
        posterior = RobustPosterior(npe, mds)
        for one in few:
            posterior.sample((QUERIED,), one, seed=0)

    contenders = {
        "sample_batched": Contender(
            lambda: RobustPosterior(npe, mds).sample_batched((QUERIED,), x, seed=0), len(x)
        ),
        "loop of sample": Contender(loop, len(few)),
    }
    times = race(contenders, material.sizes.slow_rounds)
    what = f"{QUERIED} samples for each of {len(x):,} OUP datasets"
    note = f"per dataset; the loop over {len(few)}"
    return [ratio_row(what, times, "loop of sample", "sample_batched", note=note)]


# Groups that are measured on one thread and on all
TIMED: dict[str, Callable[[Material], list[Row]]] = {
    "embedding": embedding_rows,
    "decoder": decoder_rows,
    "adaptation": adaptation_rows,
    "detection": detection_rows,
    "overhead": overhead_rows,
    "queries": query_rows,
}
