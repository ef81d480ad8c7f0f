"""Fitting to a bank of simulations: the same as to its datasets, whatever is stored of them."""

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import mindist
from mindist import MinimumDistance
from mindist.decoders import RidgeDecoder
from mindist.features import stream
from mindist.features.embedding import Embedding
from mindist.features.stream import is_bank
from mindist.posteriors.sbi_training import BankLoader, KeptData
from mindist.schema import Record
from stored_simulations import MemoryBank

OPTIONS = {"num_features": 32, "representation": "identity", "decoder": RidgeDecoder(50)}
PLAIN = OPTIONS | {"sorting": False}  # where whole datasets do not matter


@pytest.fixture(scope="module")
def simulations(task):
    generator = torch.Generator().manual_seed(3)
    theta = task.sample_prior(1_200, generator)
    return theta, task.simulate(theta, 20, generator=generator)


def banked(task, simulations, *, keep="embedding", **options):
    return MemoryBank.of(
        MinimumDistance(task.summary, **(OPTIONS | options)), *simulations, keep=keep
    )


def assert_same_fit(one, other, **tolerance):
    (config, tensors), (other_config, others) = one.fitted_.state(), other.fitted_.state()
    assert config.keys() == other_config.keys()
    assert config.get("representation") == other_config.get("representation")
    assert tensors.keys() == others.keys()
    for name, value in tensors.items():
        torch.testing.assert_close(others[name], value, msg=name, **tolerance)


def test_a_bank_is_what_the_protocol_says(task, simulations):
    assert is_bank(banked(task, simulations))
    for other in (simulations[1], simulations[1].numpy(), iter([]), [simulations[1]]):
        assert not is_bank(other)


@pytest.mark.parametrize("keep", ["embedding", pytest.param("data", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kept", [600, pytest.param(20_000, marks=pytest.mark.slow)])
def test_a_bank_gives_the_fit_to_its_chunks(task, simulations, monkeypatch, keep, kept):
    """Also where the simulations overflow what is kept of them."""
    monkeypatch.setattr(stream, "MAX_KEPT", kept)
    from_bank = MinimumDistance(task.summary, **OPTIONS).fit(banked(task, simulations, keep=keep))
    x = simulations[1][:20] + 1.0
    s, s_star = x.mean(1), from_bank.adapt(x).s_star
    for size in (300, 1_000):
        streamed = MinimumDistance(task.summary, **OPTIONS).fit(simulations[1].split(size))
        if size == 300:  # sums over other chunks are rounded otherwise, and weights far from unique
            assert_same_fit(from_bank, streamed, rtol=1e-6, atol=1e-7)
        decoded = streamed.fitted_.wide.decoder(s)
        torch.testing.assert_close(from_bank.fitted_.wide.decoder(s), decoded, rtol=0, atol=1e-4)
        torch.testing.assert_close(streamed.adapt(x).s_star, s_star, rtol=0, atol=1e-3)


def test_stored_embeddings_are_not_made_again(task, simulations, monkeypatch):
    bank = banked(task, simulations, keep="data")
    calls, mean = [], Embedding.mean
    monkeypatch.setattr(Embedding, "mean", lambda self, x: calls.append(len(x)) or mean(self, x))
    MinimumDistance(task.summary, **OPTIONS).fit(bank)
    assert calls == [3, 480]  # the check of the pilot; the datasets that are sorted to calibrate


DIFFERENT = [
    ({"num_features": 16}, r"num_features \(32 in the bank, 16 here\)"),
    (
        {"bandwidth": 7.0},
        r"bandwidth \(a kernel of width [\d.]+ in the bank, a kernel of width 7 h",
    ),
    ({"representation": "raw"}, r"representation \('identity' in the bank, 'raw' here\)"),
    ({"seed": 5, "bandwidth": 3.0}, "frequencies or seed"),
    ({"frequencies": "random", "bandwidth": 3.0}, "frequencies or seed"),
]


@pytest.mark.parametrize(("change", "message"), DIFFERENT, ids=lambda value: str(value)[:30])
def test_another_embedding_needs_the_data(task, simulations, change, message):
    base = {"bandwidth": 3.0} if change.get("bandwidth") == 3.0 else {}
    mds = MinimumDistance(task.summary, **(PLAIN | change))
    with pytest.raises(ValueError, match=f"differs in {message}.*keep='data'"):
        mds.fit(banked(task, simulations, **base))
    mds.fit(banked(task, simulations, keep="data", **base))
    again = copy.copy(mds).fit(simulations[1].split(500))
    assert_same_fit(mds, again, rtol=1e-4, atol=1e-5)


def test_a_bank_without_embeddings_is_embedded(task, simulations):
    bank = replace(banked(task, simulations, keep="data"), z_bar=None, embedding_state=None)
    mds = MinimumDistance(task.summary, **PLAIN).fit(bank)
    streamed = MinimumDistance(task.summary, **PLAIN).fit(simulations[1].split(500))
    assert_same_fit(mds, streamed, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="differs in the embeddings, of which it has none"):
        MinimumDistance(task.summary, **OPTIONS).fit(replace(bank, x=None))


def test_a_function_as_representation_is_checked_on_the_pilot(task, simulations):
    def encode(x):
        return x * torch.tensor([1.0, 2.0])

    def flip(x):  # the same range, another map
        return torch.where(x.abs().amax(-1, keepdim=True) > 6, 1.0, -1.0) * encode(x)

    x = torch.cat([simulations[1], -simulations[1]])
    bank = MemoryBank.of(
        MinimumDistance(task.summary, **(OPTIONS | {"representation": encode})),
        torch.cat([simulations[0]] * 2),
        x,
        keep="embedding",
    )
    mds = MinimumDistance(task.summary, **(PLAIN | {"representation": encode})).fit(bank)
    assert mds.fitted_.embedding.representation.function is encode
    with pytest.raises(ValueError, match=r"representation|pilot"):
        MinimumDistance(task.summary, **(OPTIONS | {"representation": flip})).fit(bank)


def test_simulations_with_nan_are_left_out(task, simulations):
    bank = banked(task, simulations)
    bank.z_bar[[5, 900]], bank.s[1_100] = np.nan, np.nan
    with pytest.warns(UserWarning, match="dropped 3 of 1200"):
        mds = MinimumDistance(task.summary, **PLAIN).fit(bank)
    assert len(mds.fitted_.wide.bank.s) == 1_197


def test_a_summary_for_arrays_is_recognised(task, simulations):
    """NumPy's and torch's standard deviations differ by N / (N - 1)."""

    def spread(x):
        return x.std(1)

    theta, x = simulations
    bank = MemoryBank.of(MinimumDistance(task.summary, **OPTIONS), theta, x, keep="data")
    s = spread(x[:, :5].numpy())
    five = replace(
        bank, x=x[:, :5].numpy(), s=s, pilot=(x[:1_000, :5], torch.from_numpy(s[:1_000]))
    )
    mds = MinimumDistance(spread, **PLAIN).fit(five)
    assert mds.fitted_.summarise.numpy
    torch.testing.assert_close(mds.detect(x[:2, :5]).s_obs, torch.from_numpy(s[:2]))


def test_what_a_bank_cannot_serve_is_said(task, simulations):
    bank = banked(task, simulations)
    mds = MinimumDistance(task.summary, **OPTIONS)
    with pytest.raises(ValueError, match=r"complete bank of 1200 .*\.simulate again with the same"):
        mds.fit(replace(bank, complete=False))
    with pytest.raises(ValueError, match="s: expected None with a bank"):
        mds.fit(bank, simulations[1].mean(1))
    with pytest.raises(ValueError, match="summary: expected the function that the bank was"):
        MinimumDistance(lambda x: x.mean(1) + 1, **OPTIONS).fit(bank)
    raw = banked(task, simulations, representation="raw")
    with pytest.raises(ValueError, match=r"decoder: .* keep='data'"):
        MinimumDistance(task.summary, num_features=32, decoder="flow").fit(raw)


def test_a_network_as_decoder_keeps_all_embeddings(task, simulations):
    mds = MinimumDistance(task.summary, **(OPTIONS | {"decoder": "mlp"}))
    mds.decoder.max_epochs = 1
    theta, x = simulations
    mds.fit(banked(task, (theta[:500], x[:500])))
    assert len(mds.fitted_.wide.bank.s) == 500


def test_an_embedding_is_chosen_as_the_fit_does(task, simulations):
    x = simulations[1]
    mds = MinimumDistance(task.summary, **PLAIN).fit(x.split(1_000))
    chosen = MinimumDistance(task.summary, **OPTIONS).choose_embedding(x[:1_000].numpy())
    for (name, value), again in zip(
        mds.fitted_.embedding.state()[1].items(), chosen.state()[1].values(), strict=True
    ):
        assert torch.equal(value, again), name
    config, tensors = chosen.state()
    restored = Embedding.read(Record(Path("f"), config, tensors=tensors))
    assert torch.equal(restored.mean(x[:5]), chosen.mean(x[:5]))


# ---------------------------------------------------------------------------- banks on disk


def on_disk(task, path, num, failures):
    """Datasets in chunks of 400, a few of whose draws fail."""
    pytest.importorskip("zarr")

    def simulator(theta, n_obs, generator):
        x = task.simulate(theta, n_obs, generator=generator)
        return torch.where(theta[:, None, :1] > 2, torch.nan, x)

    how = {"mds": MinimumDistance(task.summary, **OPTIONS), "keep": "data", "chunk": 400}
    return mindist.simulate(
        task.prior, simulator, task.summary, num, n_obs=30, out=path, failures=failures, **how
    )


def test_a_bank_on_disk_gives_the_fit_to_its_data(task, tmp_path):
    bank = on_disk(task, tmp_path / "bank", 600, "redraw")
    assert is_bank(bank)
    data = [torch.from_numpy(chunk.x) for chunk in bank.chunks()]
    for options in (OPTIONS, PLAIN | {"seed": 3}):  # as stored, and embedded anew
        from_bank = MinimumDistance(task.summary, **options).fit(bank)
        streamed = MinimumDistance(task.summary, **options).fit(data)
        assert_same_fit(from_bank, streamed, rtol=1e-5, atol=1e-6)


def test_a_small_bank_has_chunks_of_one_dataset(task, tmp_path):
    pytest.importorskip("zarr")
    mds, how = MinimumDistance(task.summary, **OPTIONS), {"n_obs": 5, "out": tmp_path / "bank"}
    bank = mindist.simulate(
        task.prior, lambda theta: theta + torch.randn(5, 2), task.summary, 20, mds=mds, **how
    )
    assert len(next(bank.chunks()).s) == 1
    with pytest.raises(ValueError, match="expected at least 380 simulated datasets, got 20"):
        mds.fit(bank)


def test_what_failed_is_not_learned_from(task, tmp_path):
    bank = on_disk(task, tmp_path / "bank", 800, "report")
    there = ~np.isnan(bank.s[:]).any(1)
    assert 10 < (~there).sum() < 30  # 2.3% of 800
    mds = MinimumDistance(task.summary, **PLAIN).fit(bank)
    assert len(mds.fitted_.wide.bank.s) == there.sum()
    data = KeptData(bank)
    assert data.block == 400
    loaded = torch.cat([theta for theta, _, _ in BankLoader(data, data.rows, 1, shuffle=False)])
    assert torch.equal(loaded, torch.from_numpy(bank.theta[:][there]).float())
