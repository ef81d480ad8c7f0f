"""What the artefact of a fitted estimator must look like: see `mindist.layout`.

Axes: d summaries, K features of the wide kernel, M simulations in the bank, n null distances, D
numbers of a represented observation; H, B, R, m, q are sizes that one part has for itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch import Tensor

from mindist import storage
from mindist.adaptation import Search
from mindist.decoders import DECODERS
from mindist.features.bandwidth import parse_bandwidth
from mindist.features.embedding_layout import check_kernels, check_representation
from mindist.layout import Settings, Sizes

RIDGE = {
    "weight": "H K",
    "bias": "K",
    "frequency": "d H",
    "phase": "H",
    "centre": "d",
    "scale": "d",
}
MLP = {
    "weight": "H K",
    "bias": "K",
    "weight0": "d H",
    "bias0": "H",
    "weight1": "H H",
    "bias1": "H",
    "centre": "d",
    "scale": "d",
}
FLOW = {"draws": "Q D", "trend": "T D", "scale": "D", "centre_s": "d", "scale_s": "d"}
BANK = {"s": "M d", "z_bar": "M K", "centre": "d", "scale": "d"}
NULL = {"noise": "n", "cross": "n", "error": "n"}
NOISE = {
    "s": "B d",
    "deviation": "any B R d",  # float32 of what may be too large for it
    "scale": "d",
    "low": "d",
    "high": "d",
}
KERNEL = {"low": "d", "high": "d", "span": "2", "whitener": "K K"}
OUTLYINGNESS = {"points": "m d", "index": "int m", "centre": "d", "whitener": "d d"}
REGRESSION = {"z_centre": "K", "s_centre": "d", "s_scale": "d", "weight": "K d"}
RIDGE_NUMBERS = ("length_scale", "ridge")
TRAINING = ("learning_rate", "batch_size", "max_epochs", "patience")


def check_estimator(
    path: str | Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Raise a ValueError unless an estimator can be made of these settings and tensors."""
    folder = Path(path)
    settings = Settings(folder / storage.JSON_NAME, config)
    sizes = Sizes(folder / storage.TENSORS_NAME, tensors)
    event = check_kernels(settings, sizes)
    sizes.check("bank.", BANK)
    sizes.check("null.", NULL)
    raw = check_representation(settings, sizes, event)
    _probe(sizes, raw)
    _decoder(settings, sizes)
    _local(settings, sizes)
    _detector(settings, sizes)
    if any(name.startswith("noise.") for name in tensors):
        sizes.check("noise.", NOISE, B=None, R=None)
    _plain(settings)


def _plain(settings: Settings) -> None:
    """What is neither a tensor nor the size of one."""
    settings.whole("num_obs", least=1)
    settings.flag("numpy_summary")
    for name in ("least_mass", "score_threshold", "error"):
        if name in settings:
            settings.number(name)
    for name in ("continuous", "local"):
        if name in settings:
            settings.flag(name)
    if not isinstance(settings.values.get("bandwidth"), str):
        settings.number("bandwidth", positive=True)
    with _naming(settings, "bandwidth"):
        parse_bandwidth(settings.values["bandwidth"])
    settings.word("frequencies", ("sobol", "orthogonal", "random"))
    if "detection" in settings:
        settings.word("detection", ("combined", "distance"))
    alpha = settings.number("alpha", positive=True)
    if not alpha < 1:
        raise settings.refuse("alpha", "a level below 1")
    settings.whole("seed", least=-(2**63), most=2**64 - 1)
    _search(settings.part("search"))


def _search(search: Settings) -> None:
    search.only([field.name for field in fields(Search)])
    search.word("solver")
    search.word("divergence")
    for name in ("restarts", "reweight"):
        if name in search:
            search.whole(name, least=-1, most=1_000)
    for name in ("stay", "feedback"):
        if name in search:
            search.number(name)
    if "distinct" in search:
        search.flag("distinct")
    starts = search.values.get("starts")
    if not isinstance(starts, list) or not 0 < len(starts) <= 1_000:
        raise search.refuse("starts", "a list of starts")
    for start in starts:
        if not isinstance(start, str):
            Settings(search.file, {"starts": start}, search.where).numbers("starts")
    with _naming(search, "solver"):
        Search(**search.values)


@contextmanager
def _naming(settings: Settings, name: str) -> Iterator[None]:
    """Name the file in what a part of mindist says of a setting."""
    try:
        yield
    except ValueError as error:
        raise settings.refuse(name, f"something else ({error})") from error


def _probe(sizes: Sizes, raw: tuple[int, ...]) -> None:
    table = {"x": " ".join(["1", "N", *map(str, raw)]), "s": "1 d"}
    if "probe.seen" in sizes.tensors:
        table["seen"] = "1 N D"
    sizes.check("probe.", table, N=None)


def _decoder(settings: Settings, sizes: Sizes) -> None:
    kind, own = settings.word("decoder", tuple(DECODERS)), settings.part("decoder_config")
    if kind == "ridge":
        _ridge(own)
        sizes.check("decoder.", RIDGE, H=None)
        return
    own.number("learning_rate")
    for name in TRAINING[1:]:
        own.whole(name)
    if kind == "mlp":
        own.only(("width", *TRAINING, "held_out_error"))
        sizes.check("decoder.", MLP, H=own.whole("width", least=1))
    else:
        _flow(own, sizes)
    _held_out(own)


def _ridge(own: Settings) -> None:
    own.whole("num_basis", least=1)
    for name in ("length_scales", "ridges"):
        own.numbers(name)
    for name in RIDGE_NUMBERS:
        own.number(name)
    _held_out(own)


def _held_out(own: Settings) -> None:
    if not isinstance(own.values.get("held_out_error"), float | int):  # infinite after no epoch
        raise own.refuse("held_out_error", "a number")


def _flow(own: Settings, sizes: Sizes) -> None:
    """A flow is built before its weights are loaded: it may not be larger than they are."""
    names = ("num_points", "transforms", "width", *TRAINING, "held_out_error")
    own.only(names)
    own.whole("num_points")
    elements = sum(v.numel() for k, v in sizes.tensors.items() if k.startswith("decoder.flow."))
    width, transforms = own.whole("width", least=1), own.whole("transforms", least=1)
    if width * (width + sizes["d"] + sizes["D"]) * transforms > elements:
        raise own.refuse("width", f"a network of at most {elements} weights")
    sizes.check("decoder.", FLOW, exact=False, Q=None, T=1 + sizes["d"])


def _local(settings: Settings, sizes: Sizes) -> None:
    if "local_bandwidth" not in settings:
        return
    settings.number("local_error")
    _ridge(settings.part("local_decoder"))
    own = 2 * sizes["L"]
    sizes.check("local.", RIDGE, H=None, K=own)
    sizes.check("local_bank.", BANK, M=None, K=own)


def _detector(settings: Settings, sizes: Sizes) -> None:
    if "detector" not in settings:
        return
    own = settings.part("detector")
    widths = [sizes["K"]] + ([2 * sizes["L"]] if "local_bandwidth" in settings else [])
    sizes.equal("the number of kernels", own.whole("kernels"), len(widths))
    own.whole("num_obs", least=1)
    for i, width in enumerate(widths):
        kernel = own.part(f"kernel{i}")
        kernel.whole("num_simulations", least=1)
        _ridge(kernel.part("log_scale"))
        prefix = f"detector.kernel{i}."
        sizes.check(prefix, KERNEL, exact=False, K=width)
        sizes.check(f"{prefix}log_scale.", RIDGE, H=None, K=1)
    _joint(own, sizes, sum(widths), 2 * len(widths) + 2)


def _joint(own: Settings, sizes: Sizes, width: int, statistics: int) -> None:
    for name in ("outlyingness", "regression"):
        own.part(name)
    own.part("regressed").whole("num_simulations", least=1)
    sizes.equal("the number of statistics", len(own.part("test").words("names")), statistics)
    sizes.check("detector.outlyingness.", OUTLYINGNESS, m=None)
    sizes.check("detector.regression.", REGRESSION, K=width)
    sizes.check("detector.regressed.", {"whitener": "d d"})
    sizes.check("detector.test.", {"null": f"q {statistics}"}, q=None)


__all__ = ["check_estimator"]
