"""Fitting a decoder: closed-form ridge regression against the paper's network, on each task."""

from __future__ import annotations

import torch
from torch import Tensor

from mindist.decoders import MLPDecoder, RidgeDecoder
from mindist.protocols import Decoder
from mindist_paper.benchmark import literal
from mindist_paper.benchmark.material import Embedded, Material
from mindist_paper.benchmark.row import Claim, Row, ratio_row
from mindist_paper.benchmark.timing import Contender, race

OURS, PRESET, STOCK = "ridge", "MLPDecoder", "literal MLP"


def decoder_rows(material: Material, threads: int) -> list[Row]:
    """Time and held-out error on each task."""
    rows: list[Row] = []
    for name in material.sizes.tasks:
        rows += _task_rows(name, material, threads)
    return rows


def _task_rows(name: str, material: Material, threads: int) -> list[Row]:
    data, sizes = material.embedded(name), material.sizes
    fitted: dict[str, literal.Decoder] = {}

    def fit_ours(key: str, decoder: Decoder) -> None:
        generator = torch.Generator().manual_seed(0)
        fitted[key] = decoder.fit(data.s, data.z_bar, generator=generator)

    def fit_stock() -> None:
        fitted[STOCK] = literal.fit_network(data.s, data.z_bar, max_epochs=sizes.max_epochs)

    times = race(
        {
            OURS: Contender(lambda: fit_ours(OURS, RidgeDecoder())),
            PRESET: Contender(
                lambda: fit_ours(PRESET, MLPDecoder(max_epochs=sizes.max_epochs)), warm=False
            ),
            STOCK: Contender(fit_stock, warm=False),
        },
        sizes.slow_rounds,
    )
    what = f"{name}, {len(data.s):,} datasets"
    note = material.molecule if name == "cryo_em" else ""
    return [
        ratio_row(
            what, times, STOCK, OURS, claim=Claim("at least", 10), threads=threads, note=note
        ),
        ratio_row(what, times, PRESET, OURS, threads=threads, note=note),
        _error_row(what, fitted, data, threads),
    ]


def _error_row(what: str, fitted: dict[str, literal.Decoder], data: Embedded, threads: int) -> Row:
    """The ratio of the mean held-out errors, with two standard errors."""
    ours, stock = (held_out_errors(fitted[name], data) for name in (OURS, STOCK))
    value = float(ours.mean() / stock.mean())
    error = float((ours - value * stock).std() / stock.mean()) / len(ours) ** 0.5
    return Row(
        what,
        f"held-out error, {OURS} / {STOCK}",
        value,
        value - 2 * error,
        value + 2 * error,
        Claim("at most", 1),
        threads=threads,
        note=f"mean squared distance on {len(ours):,} other datasets: {float(ours.mean()):.3g} "
        f"and {float(stock.mean()):.3g}; within two standard errors",
    )


@torch.no_grad()
def held_out_errors(decoder: literal.Decoder, data: Embedded) -> Tensor:
    """Squared distances `(n,)` of held-out embeddings from the decoder's."""
    return (decoder(data.s_test) - data.z_test).square().sum(-1).double()


__all__ = ["decoder_rows", "held_out_errors"]
