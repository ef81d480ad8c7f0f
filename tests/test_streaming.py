"""Simulations that are read once: what is kept, what is summed, and that memory stays flat."""

import copy
import subprocess
import sys

import pytest
import torch

from exact_models import normal
from mindist import MinimumDistance, Search
from mindist.decoders import RidgeDecoder
from mindist.decoders.ridge import Sums, held_out_errors
from mindist.features import stream
from mindist.features.stream import Reservoir


def filled(chunks, capacity=50, seed=0):
    reservoir = Reservoir(capacity, torch.Generator().manual_seed(seed))
    for chunk in chunks:
        reservoir.replace(*reservoir.fill(chunk, 2.0 * chunk))
    return reservoir


def test_a_reservoir_does_not_depend_on_the_chunks():
    rows = torch.arange(3_000)
    whole = filled([rows])
    for size in (1, 7, 50, 1_000):
        chunked = filled(rows.split(size))
        assert torch.equal(chunked.rows()[0], whole.rows()[0])
    assert torch.equal(whole.rows()[0], whole.index)
    assert torch.equal(whole.rows()[1], 2.0 * whole.index)
    assert len(whole.index.unique()) == 50


def test_every_row_is_kept_equally_often():
    """400 reservoirs of 50 of 1,000 rows: each tenth of them holds a tenth of 20,000 kept rows."""
    rows = torch.arange(1_000)
    kept = torch.cat([filled([rows], seed=seed).index for seed in range(400)])
    count = torch.histc(kept.double(), 10, 0, 1_000)
    # Binomial(20,000, .1) has a standard deviation of 42.
    assert (count - 2_000).abs().max() < 4 * 42


def test_a_reservoir_with_room_keeps_all_in_order():
    rows = torch.arange(40)
    for reservoir in (filled(rows.split(9)), filled(rows.split(9), capacity=None)):
        assert torch.equal(reservoir.rows()[0], rows)
        assert torch.equal(reservoir.index, rows)
    first = Reservoir(10)
    first.replace(*first.fill(rows))
    assert torch.equal(first.rows()[0], rows[:10])


# ---------------------------------------------------------------------------- the sums


def test_sums_give_the_errors_of_regressions_on_the_rows():
    h, z = normal(90, 7), normal(90, 3, seed=1)
    train, test = Sums.empty(7, 3, torch.device("cpu")), Sums.empty(7, 3, torch.device("cpu"))
    for sums, rows in ((train, slice(30, None)), (test, slice(30))):
        for part in torch.arange(90)[rows].split(13):
            sums.add(h[part], z[part])
    errors = held_out_errors(train, test, (1e-3, 0.1))
    for ridge, error in errors.items():
        H, Z = h[30:], z[30:]
        centred = H - H.mean(0)
        penalty = 60 * ridge * torch.eye(7, dtype=torch.float64)
        weight = torch.linalg.solve(centred.T @ centred + penalty, centred.T @ Z)
        left = z[:30] - Z.mean(0) - (h[:30] - H.mean(0)) @ weight
        assert error == pytest.approx(float(left.square().sum(1).mean()), rel=1e-9)
    torch.testing.assert_close((train + test).gram, h.T @ h)


def curve(num, seed=0):
    s = normal(num, 2, seed=seed)
    return s, torch.cat([s.sin(), (s[:, :1] * s[:, 1:]).cos()], 1) + 0.1 * normal(num, 3, seed=9)


def test_adding_simulations_later_is_fitting_to_all():
    s, z = curve(700)
    options = {"length_scales": (0.5,), "ridges": (1e-4,)}

    def begin(num):
        generator = torch.Generator().manual_seed(0)
        return RidgeDecoder(40, **options).begin(s[:num], z[:num], generator=generator)

    streamed = begin(300)
    for rows in torch.arange(300, 700).split(90):
        streamed.add(s[rows], z[rows])
    streamed.finish()
    h = streamed.basis(s)
    centred, penalty = h - h.mean(0), 700 * 1e-4 * torch.eye(40, dtype=torch.float64)
    weight = torch.linalg.solve(centred.T @ centred + penalty, centred.T @ (z - z.mean(0)))
    torch.testing.assert_close(streamed.weight, weight, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(streamed.bias, z.mean(0) - h.mean(0) @ weight, rtol=1e-6, atol=1e-9)


def test_single_precision_changes_nothing_that_matters():
    s, z = curve(5_000)
    exact, rounded = (
        RidgeDecoder(200).fit(s, target, generator=torch.Generator().manual_seed(0))
        for target in (z, z.float())
    )
    at, seen = curve(500, seed=4)
    errors = [float((seen - d(at)).square().sum(1).mean()) for d in (exact, rounded)]
    assert errors[1] == pytest.approx(errors[0], rel=1e-3)
    torch.testing.assert_close(
        rounded.leave_one_out_residuals(s, z.float()).double(),
        exact.leave_one_out_residuals(s, z),
        rtol=0,
        atol=1e-3,
    )


# ---------------------------------------------------------------------------- the estimator

OPTIONS = {"num_features": 32, "bandwidth": 2.0, "decoder": RidgeDecoder(50)}
PLAIN = OPTIONS | {"sorting": False}


@pytest.fixture
def few_kept(monkeypatch):
    """A reservoir that 2,000 simulations overflow."""
    monkeypatch.setattr(stream, "MAX_KEPT", 600)


@pytest.mark.slow
def test_a_long_stream_is_summed_whole_and_kept_in_part(task, x_train, few_kept):
    x, probe = x_train[:2_000, :20], x_train[2_000:2_050, :20]
    fits = [MinimumDistance(task.summary, **OPTIONS).fit(x.split(size)) for size in (300, 2_000)]
    first = fits[0].fitted_
    for fit in (fit.fitted_ for fit in fits):
        assert fit.wide.decoder._count == 2_000 - 30  # 5% of the leading 600 are held out
        assert len(fit.wide.bank.s) == 600
        assert torch.equal(fit.wide.bank.s, first.wide.bank.s)
    later = (first.wide.bank.s[:, None] == x[600:].mean(1).double()).all(2).any(1).double().mean()
    assert 0.6 < later < 0.8  # 1,400 of 2,000, with a standard deviation of .02
    p_values = [fit.detect(probe).p_value for fit in fits]
    torch.testing.assert_close(p_values[1], p_values[0], rtol=0, atol=0.02)


def test_a_sorted_array_is_read_in_random_order(task, x_train, few_kept):
    x, probe = x_train[:2_000, :20], x_train[2_000:3_000, :20]
    by_size = x[x.mean((1, 2)).argsort()]
    for array, options in ((by_size, PLAIN), (by_size.numpy(), OPTIONS)):
        mds = MinimumDistance(task.summary, **options).fit(array)
        assert mds.fitted_.wide.decoder._count == 1_970
        spread = mds.fitted_.wide.bank.s.std() / x.mean(1).std()
        assert 0.9 < spread < 1.1
        assert mds.detect(probe).misspecified.double().mean() < 0.09


def test_given_summaries_follow_their_datasets(task, x_train, few_kept):
    x = x_train[:2_000]
    given = MinimumDistance(task.summary, **PLAIN).fit(x, x.mean(1))
    own = MinimumDistance(task.summary, **PLAIN).fit(x)
    torch.testing.assert_close(given.fitted_.wide.decoder.weight, own.fitted_.wide.decoder.weight)


def test_decoders_that_need_several_passes_keep_everything(task, x_train, few_kept):
    mds = MinimumDistance(task.summary, num_features=32, decoder="mlp", sorting=False)
    mds.decoder.max_epochs = 1
    mds.fit(x_train[:2_000].split(500))
    assert len(mds.fitted_.wide.bank.s) == 2_000
    assert len(mds.fitted_.null.noise) == 100


@pytest.mark.slow
def test_level_and_search_change_without_a_new_fit(task, x_train):
    """Only `adapt` and `detect` are called afterwards, and give what a new fit would."""
    calls = []

    def summary(x):
        calls.append(len(x))
        return x.mean(1)

    x_obs = task.contaminate(x_train[600:620], 0.2, generator=torch.Generator().manual_seed(0))
    searches = (Search(), Search(stay=0), Search(starts=("observed",), restarts=2))
    options = {"num_features": 32, "sorting": False}  # which calls the summary of parts of the data
    mds = MinimumDistance(summary, **options).fit(x_train[:600])
    fitted = mds.fitted_
    for alpha, search in zip((0.04, 0.1, 0.2), searches, strict=True):
        fresh = MinimumDistance(task.summary, alpha=alpha, search=search, **options)
        expected = fresh.fit(x_train[:600]).adapt(x_obs)
        mds.alpha, mds.search = alpha, search
        calls.clear()
        result = mds.adapt(x_obs)
        assert sum(calls) == len(x_obs)
        assert mds.fitted_ is fitted
        assert torch.equal(result.s_star, expected.s_star)
        assert torch.equal(result.misspecified, expected.misspecified)
        assert torch.equal(result.excess, expected.excess)


def test_levels_and_searches_are_checked_when_they_are_set(task):
    mds = MinimumDistance(task.summary)
    with pytest.raises(ValueError, match="alpha: expected a level between 0 and 1"):
        mds.alpha = 2.0
    with pytest.raises(ValueError, match="decoder='flow'"):
        mds.search = Search(solver="adam", divergence="kl")
    again = copy.deepcopy(mds)
    assert (again.alpha, again.search) == (0.05, Search())


MEMORY_SCRIPT = """
import re, sys, torch
from mindist import MinimumDistance
from mindist.tasks import GaussianTask
task, generator = GaussianTask(), torch.Generator().manual_seed(0)
def peak():  # of this process: ru_maxrss would begin with what its parent had
    return int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])
before = peak()
def chunks():
    for _ in range(int(sys.argv[1])):
        yield task.simulate(task.sample_prior(500, generator), 10, generator=generator)
MinimumDistance(task.summary, sorting=len(sys.argv) > 2).fit(chunks())
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_memory_does_not_grow_with_the_simulations_of_a_stream():
    """Embeddings of 45,000 more simulations would be 92 MB; peaks vary by 35 MB.

    The default, whose own vary from .35 to .7 GB, takes less than 1 GB.
    """

    def peak(*words):
        command = [sys.executable, "-c", MEMORY_SCRIPT, *map(str, words)]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        return int(run.stdout)

    assert peak(135) - peak(45) < 60_000
    assert peak(45, "sorting") < 1_000_000
