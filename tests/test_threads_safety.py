"""Several threads use the same fitted objects, and each gets what it would get alone."""

import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor

from mindist import MinimumDistance, RobustPosterior
from mindist.posteriors.guards import seeded
from mindist.posteriors.queries import Recent

NUM_THREADS = 6
Result = TypeVar("Result")


def at_once(calls: Sequence[Callable[[], Result]]) -> list[Result]:
    """Results of calls that are all begun at the same moment, each in a thread of its own."""
    start = threading.Barrier(len(calls))

    def begin(call: Callable[[], Result]) -> Result:
        start.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(begin, calls))


def mean(x: Tensor) -> Tensor:
    return x.mean(1)


def simulate(num: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    theta = torch.randn(num, 1, 2, generator=generator)
    return theta + torch.randn(num, 20, 2, generator=generator)


def contaminated(seed: int, num: int = 30) -> Tensor:
    x = simulate(num, seed)
    x[:, :6] = 5 + 0.1 * x[:, :6]
    return x


@pytest.fixture
def mds() -> MinimumDistance:
    """Fitted anew for each test, so that what is prepared at the first call is not there yet."""
    mds = MinimumDistance(mean, num_features=32, alpha=0.2, representation="identity")
    return mds.fit(simulate(100, seed=0))


def assert_equal(got: Any, expected: Any) -> None:
    """Equal to float64 rounding: the last bit of a matrix product depends on where memory lies."""
    for name in vars(expected):
        one, other = getattr(got, name), getattr(expected, name)
        if isinstance(one, Tensor):
            torch.testing.assert_close(one, other, atol=1e-11, rtol=1e-11, msg=name)
        else:
            assert one == other, name


@pytest.mark.parametrize("call", ["detect", "adapt"])
def test_threads_share_an_estimator(call, mds):
    data = [contaminated(seed) for seed in range(NUM_THREADS)]
    got = at_once([lambda x=x: getattr(mds, call)(x) for x in data])
    for x, result in zip(data, got, strict=True):
        assert_equal(result, getattr(mds, call)(x))


@pytest.mark.slow
def test_threads_that_make_threads_of_their_own_share_an_estimator(mds, monkeypatch):
    monkeypatch.setattr("mindist.minimum_distance.BLOCK_BYTES", 2**17)  # several blocks each
    data = [contaminated(seed, num=60) for seed in range(3)]

    def adapt(x: Tensor) -> Any:
        torch.set_num_threads(2)
        return mds.adapt(x)

    try:
        alone = [adapt(x) for x in data]
        got = at_once([lambda x=x: adapt(x) for x in data])
    finally:
        torch.set_num_threads(1)
    for result, expected in zip(got, alone, strict=True):
        assert_equal(result, expected)


def test_a_seed_means_the_same_in_every_thread():
    def draw(seed: int | None) -> Tensor:
        with seeded(seed):
            return torch.cat([torch.rand(1000) for _ in range(50)])

    alone = [draw(seed) for seed in range(4)]
    got = at_once([lambda s=s: draw(s) for s in [0, None, 1, None, 2, 3]])
    for index, expected in zip([0, 2, 4, 5], alone, strict=True):
        assert torch.equal(got[index], expected)
    assert not torch.equal(got[1], got[3])


def test_seeded_threads_leave_the_global_generator_as_it_was():
    state = torch.get_rng_state()

    def draw() -> None:
        with seeded(1):
            torch.rand(10_000)

    at_once([draw] * NUM_THREADS)
    assert torch.equal(torch.get_rng_state(), state)


def test_threads_share_a_memory_of_results():
    recent: Recent[int] = Recent(4)

    def use(first: int) -> None:
        for key in range(first, first + 3000):
            recent.put(key % 9, key % 9)
            assert recent.get(key % 7) in (None, key % 7)

    at_once([lambda first=first: use(first) for first in range(NUM_THREADS)])
    assert len(recent) == 4


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["mdn", "maf"])
def test_threads_share_a_robust_posterior(estimator, mds):
    pytest.importorskip("sbi")
    from mindist.posteriors.sbi_bridge import train_npe

    prior = torch.distributions.Independent(torch.distributions.Uniform(-2 * torch.ones(2), 2.0), 1)
    theta = prior.sample((200,))
    npe = train_npe(prior, theta, theta + 0.2, density_estimator=estimator, max_num_epochs=3)
    data = [contaminated(seed, num=1)[0] for seed in range(NUM_THREADS)]
    grid = prior.sample((20,))

    def ask(robust: RobustPosterior, x: Tensor, seed: int) -> tuple[Tensor, ...]:
        samples = robust.sample((50,), x, seed=seed)
        return samples, robust.log_prob(grid, x), robust.adapt(x).s_star, robust.sample((2,), x)

    alone = [ask(RobustPosterior(npe, mds), x, seed) for seed, x in enumerate(data)]
    shared, filters = RobustPosterior(npe, mds), list(warnings.filters)
    got = at_once([lambda x=x, seed=seed: ask(shared, x, seed) for seed, x in enumerate(data)])
    for mine, expected in zip(got, alone, strict=True):
        for one, other in zip(mine[:3], expected[:3], strict=True):  # the last has no seed
            torch.testing.assert_close(one, other)
    assert warnings.filters == filters


def test_what_was_computed_with_other_settings_is_not_remembered(mds):
    from mindist.posteriors.robust import Adaptations

    x = simulate(40, seed=9)
    remembered = Adaptations(mds)
    strict, lenient = 0.01, 0.9

    def adapt(alpha: float) -> Any:
        mds.alpha = alpha
        return remembered(x)

    assert adapt(strict).misspecified.sum() < adapt(lenient).misspecified.sum()
    assert torch.equal(adapt(lenient).misspecified, mds.adapt(x).misspecified)
