"""Batches from a bank, and sbi's NPE trained on them."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from mindist import MinimumDistance
from mindist.posteriors import sbi_training
from mindist.posteriors.sbi_training import BankLoader, KeptData
from mindist.tasks import GaussianTask
from stored_simulations import MemoryBank

TASK = GaussianTask(num_obs=10)


def numbered(num=103):
    """A bank whose dataset i holds the number i, the twelfth missing."""
    number = np.arange(num, dtype=np.float32)[:, None]
    s = number.copy()
    s[11] = np.nan
    x = np.repeat(number[:, None], 5, axis=1)
    return MemoryBank(number, s, None, x, (torch.zeros(2, 5, 1), torch.zeros(2, 1)), None)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 8 datasets, pools of 3 blocks."""
    monkeypatch.setattr(sbi_training, "BLOCK_BYTES", 8 * 20)
    monkeypatch.setattr(sbi_training, "POOL_BYTES", 24 * 20)


@pytest.mark.parametrize("batch_size", [1, 7, 24, 50])
def test_a_pass_gives_every_dataset_once(small_blocks, batch_size):
    data = KeptData(numbered())
    assert len(data.rows) == 102
    loader = BankLoader(data, data.rows, batch_size, shuffle=True)
    passes = []
    for _ in range(2):
        batches = list(loader)
        assert len(batches) == len(loader) == 102 // batch_size
        for theta, x, mask in batches:
            assert theta.shape == (batch_size, 1)
            assert torch.equal(x, theta[:, None].expand(-1, 5, 1))
            assert mask.all()
        passes.append(torch.cat([theta for theta, _, _ in batches])[:, 0])
        assert len(passes[-1].unique()) == len(passes[-1])
        assert 11 not in passes[-1]
    assert not torch.equal(*passes)
    neighbours = (passes[0].diff() == 1).double().mean()
    assert neighbours < 0.2  # a full shuffle: 1%; shuffled blocks of 8 alone: 88%


def test_some_datasets_in_order(small_blocks):
    data = KeptData(numbered())
    loader = BankLoader(data, data.rows[90:], 4, shuffle=False)
    assert torch.cat([theta for theta, _, _ in loader])[:, 0].tolist() == list(range(91, 103))
    few = BankLoader(data, data.rows[:3], 200, shuffle=True)
    assert (few.batch_size, len(few)) == (3, 1)


def test_what_cannot_be_loaded_is_said():
    bank = numbered()
    with pytest.raises(ValueError, match="theta: expected a complete bank of 103"):
        KeptData(replace(bank, complete=False))
    with pytest.raises(ValueError, match=r"theta: expected a bank that kept its data.*keep='data'"):
        KeptData(replace(bank, x=None))


# ---------------------------------------------------------------------------- sbi


@pytest.fixture(scope="module")
def simulations():
    generator = torch.Generator().manual_seed(0)
    theta = TASK.sample_prior(2_000, generator)
    return theta, TASK.simulate(theta, generator=generator)


@pytest.fixture(scope="module")
def bank(simulations):
    mds = MinimumDistance(TASK.summary, num_features=8, bandwidth=2.0, representation="raw")
    return MemoryBank.of(mds, *simulations, keep="data")


@pytest.fixture
def train():
    """sbi's training with a small mixture-density network, ready for a bank or for tensors."""
    torch.manual_seed(1)
    how = {"density_estimator": "mdn", "seed": 0, "learning_rate": 5e-3, "max_num_epochs": 1}
    return partial(sbi_training.train_npe, TASK.prior, **how)


class Mean(torch.nn.Module):
    """A summary that leaves little to learn."""

    def __init__(self):
        super().__init__()
        self.last = torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.last(x.mean(1))


def same(one, other):
    pairs = [p.posterior_estimator.parameters() for p in (one, other)]
    return all(torch.equal(a, b) for a, b in zip(*pairs, strict=True))


def test_npe_on_a_small_bank_is_npe_on_its_arrays(simulations, bank, train):
    theta, x = simulations
    assert same(train(bank), train(theta, TASK.summary(x)))
    net = Mean()
    assert same(train(bank, embedding_net=net), train(theta, x, embedding_net=net))
    with pytest.raises(TypeError, match="x: expected None beside a bank"):
        train(bank, x)
    with pytest.raises(TypeError, match="x: expected summaries"):
        train(theta)
    with pytest.raises(TypeError, match=r"theta: expected parameters .* got ndarray"):
        train(theta.numpy(), x)


@pytest.mark.slow
def test_npe_streams_a_bank_that_is_larger_than_its_memory(simulations, bank, train, monkeypatch):
    """It learns as much as from memory: the means of both are near the exact posterior's."""
    x = simulations[1]
    how = {"embedding_net": Mean(), "max_num_epochs": 10, "batch_size": 50}
    posteriors = [train(bank, **how)]
    monkeypatch.setattr(sbi_training, "BLOCK_BYTES", 100 * x[:1].nbytes)
    monkeypatch.setattr(sbi_training, "POOL_BYTES", 400 * x[:1].nbytes)
    posteriors.append(train(bank, **how))
    assert not same(*posteriors)
    generator = torch.Generator().manual_seed(5)
    at = TASK.simulate(TASK.sample_prior(300, generator), generator=generator)
    exact, errors = TASK.posterior(at), []
    for posterior in posteriors:
        with torch.no_grad():
            means = posterior.posterior_estimator.sample((400,), at).mean(0)
        errors.append(float(((means - exact.mean) / exact.stddev).square().mean()))
    # In posterior variances: .0025 from 400 samples; always answering the prior mean gives 5.
    assert max(errors) < 0.1
