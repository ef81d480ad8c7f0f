"""The sampling noise of a summary, what an adapted one has beyond it, and the points around it."""

import math
from dataclasses import fields

import pytest
import torch
from torch import Tensor

from exact_models import normal
from mindist import MinimumDistance, storage
from mindist.adaptation.calibration import SummaryNoise, spread, standard_points
from mindist.summarise import Summariser

# A variance from 50 datasets with 16 replicates each has 50 * 15 degrees of freedom, and the
# datasets themselves, of 100 observations, vary by sqrt(2 / 99) each.
ERROR = math.sqrt(2 / 750 + 2 / 99 / 50)


def mean(x: Tensor) -> Tensor:
    return x.mean(1)


def learn(summary, x: Tensor, seed: int = 0) -> SummaryNoise:
    s = summary(x)
    generator = torch.Generator().manual_seed(seed)
    noise = SummaryNoise.of(Summariser(summary), x, s, s, generator)
    assert noise is not None
    return noise


def noise_of(scale: Tensor, low: float = -1e6, high: float = 1e6) -> SummaryNoise:
    """Only what `spread` needs."""
    d = len(scale)
    range_ = torch.full((d,), low).double(), torch.full((d,), high).double()
    return SummaryNoise(torch.zeros(1, d), torch.zeros(1, 2, d), scale.double(), *range_)


# ------------------------------------------------------------------------------ V


def test_the_covariance_of_a_sample_mean_is_that_of_an_observation_over_n():
    root = torch.tensor([[1.0, 0.0], [0.6, 0.8]])
    x = normal(8_000, 100, 2, dtype=torch.float32) @ root.T + normal(8_000, 1, 2).float()
    V = learn(mean, x).covariance(torch.tensor([[0.0, 0.0], [1.0, -1.0]]))
    expected = (root @ root.T).double() / 100
    assert V.shape == (2, 2, 2)
    torch.testing.assert_close(V, expected.expand(2, 2, 2), atol=4 * ERROR / 100, rtol=0)
    # Over all datasets, with 7,500 degrees of freedom and 500 datasets, unbiased to 1%.
    every = learn(mean, x).deviation.double().flatten(0, 1)
    tight = 4 * math.sqrt(2 / 7_500 + 2 / 99 / 500) / 100
    torch.testing.assert_close(every.T @ every / 500, expected, atol=tight, rtol=0)


def test_the_covariance_follows_the_summary():
    log_sd = torch.linspace(-1, 1, 8_000)[torch.randperm(8_000)]
    x = normal(8_000, 100, 1).float() * log_sd.exp()[:, None, None]

    def log_scale(x: Tensor) -> Tensor:
        return torch.cat([x.mean(1), x.std(1).log()], dim=1)

    V = learn(log_scale, x).covariance(torch.tensor([[0.0, -0.7], [0.0, 0.7]]))
    # Nearest are 50 of 500 over two units of log-sd: exp(2 log-sd) is averaged over about 0.3.
    torch.testing.assert_close(V[:, 0, 0] * 100, torch.tensor([-1.4, 1.4]).double().exp(),
                               rtol=4 * ERROR + 0.1, atol=0)  # fmt: skip
    torch.testing.assert_close(V[:, 1, 1] * 100, torch.tensor([0.5, 0.5]).double(),
                               rtol=4 * ERROR + 0.1, atol=0)  # fmt: skip


@pytest.mark.parametrize("problem", ["fails", "nan", "one observation"])
def test_without_a_summary_of_resampled_data_there_is_no_noise(problem):
    x = normal(20, 1 if problem == "one observation" else 10, 1).float()

    def summary(x: Tensor) -> Tensor:
        ties = (x[:, 1:].sort(1).values.diff(dim=1) == 0).flatten(1).any(1)
        if problem == "fails" and ties.any():
            raise RuntimeError("observations are not distinct")
        return torch.where(ties[:, None] & (problem == "nan"), torch.nan, x.mean(1))

    summarise, generator = Summariser(summary), torch.Generator()
    assert SummaryNoise.of(summarise, x, x.mean(1), x.mean(1), generator) is None


# ------------------------------------------------------------------------------ U


def test_constant_and_redundant_summaries_are_not_moved_on_their_own():
    x = normal(2_000, 50, 1).float()

    def summary(x: Tensor) -> Tensor:
        s = x.mean(1)
        return torch.cat([s, 2 * s, torch.ones_like(s)], dim=1)

    V = learn(summary, x).covariance(torch.tensor([[0.0, 0.0, 1.0]]))
    direction = torch.tensor([1.0, 2.0, 0.0]).double()
    torch.testing.assert_close(V[0], V[0, 0, 0] * torch.outer(direction, direction))
    around = spread(torch.tensor([[0.0, 0.0, 1.0]]), 4 * V, learn(summary, x))[0]
    torch.testing.assert_close(around[:, 1], 2 * around[:, 0])
    assert torch.equal(around[:, 2], torch.ones(32).double())


def test_more_summaries_than_replicates():
    """V has no more directions than it was learned from."""
    x = normal(2, 30, 60).float()
    noise = learn(mean, x)  # two datasets: 30 directions
    V = noise.covariance(x[:1].mean(1))
    assert torch.linalg.matrix_rank(V)[0] == 30


# ------------------------------------------------------------------------------ points


@pytest.mark.parametrize("dim", [1, 2, 6, 31, 40])
def test_points_are_white(dim):
    q = standard_points(32, dim)
    some = q[:, :31]
    torch.testing.assert_close(q.mean(0), torch.zeros(dim).double(), atol=1e-12, rtol=0)
    torch.testing.assert_close(some.T @ some / 32, torch.eye(some.shape[1]).double())
    assert torch.equal(q, standard_points(32, dim))
    state = torch.get_rng_state()
    standard_points(32, dim)
    assert torch.equal(state, torch.get_rng_state())


def test_one_dimension_is_close_to_normal_quantiles():
    q = standard_points(32, 1)[:, 0].sort().values
    exact = torch.special.ndtri((torch.arange(32).double() + 0.5) / 32)
    torch.testing.assert_close(q, exact, atol=0.35, rtol=0)
    torch.testing.assert_close(q[8:24], exact[8:24], atol=0.1, rtol=0)


def test_spread_has_mean_and_covariance_and_stays_in_range():
    root = normal(2, 3, 3)
    U, s_star = root @ root.mT, normal(2, 3, seed=1)
    noise = noise_of(torch.tensor([1.0, 20.0, 0.1]))
    around = spread(s_star, U, noise)
    assert around.shape == (2, 32, 3)
    off = around - s_star[:, None]
    torch.testing.assert_close(off.mean(1), torch.zeros(2, 3).double(), atol=1e-12, rtol=0)
    torch.testing.assert_close(off.mT @ off / 32, U)
    assert torch.equal(spread(s_star, 0 * U, noise)[:, 5], s_star)
    narrow = spread(s_star, U, noise_of(torch.ones(3), low=-0.5, high=0.5))
    outside = s_star.abs() > 0.5
    assert (narrow.abs().amax(1)[~outside] <= 0.5).all()
    assert (narrow.abs().amax(1)[outside] <= s_star.abs()[outside]).all()


# ------------------------------------------------------------------------------ the estimator


def contaminated(task, num: int, num_obs: int = 100) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    x = task.simulate(task.sample_prior(num, generator), num_obs, generator=generator)
    return task.contaminate(x, 0.3, generator=generator)


@pytest.mark.slow
def test_an_adapted_summary_is_as_uncertain_as_one_of_what_is_left(task, mds):
    x = contaminated(task, 20)
    result = mds.adapt(x)
    # The two signs of the contamination may cancel: such a summary has not moved.
    assert result.adapted.float().mean() > 0.6
    V = mds.fitted_.noise.covariance(result.s_star)
    torch.testing.assert_close(V[0], torch.eye(2).double() / 100, atol=5 * ERROR / 100, rtol=0)
    assert not result.excess[~result.misspecified].any()
    # Thirty observations of a hundred are contaminated, though not all beyond doubt: 1 / 70 would
    # be the covariance of the mean of the others.
    total = (result.excess + V)[result.adapted].diagonal(dim1=1, dim2=2).mean()
    assert 1.05 / 100 < total < 2.5 / 100
    torch.testing.assert_close(mds.adapt(x[3]).excess, result.excess[3], rtol=1e-5, atol=1e-12)


@pytest.mark.slow
def test_no_excess_where_nothing_was_detected_and_none_in_the_papers_preset(task, mds, x_train):
    mds_paper = MinimumDistance.paper(task.summary)
    mds_paper.decoder.max_epochs = 10
    mds_paper.fit(x_train[:1_000])
    generator = torch.Generator().manual_seed(4)
    x = task.simulate(task.sample_prior(50, generator), generator=generator)
    result = mds.adapt(x)
    assert not result.excess[~result.misspecified].any()
    assert mds_paper.noise is None
    adapted = mds_paper.adapt(contaminated(task, 10))
    assert adapted.adapted.any()
    assert not adapted.excess.any()


@pytest.mark.slow
def test_fewer_observations_than_simulated_are_uncertain(task, mds):
    """The posterior takes every summary for one of 100 observations; C knows that these are 25."""
    generator = torch.Generator().manual_seed(5)
    x = task.simulate(task.sample_prior(20, generator), 25, generator=generator)
    result = mds.adapt(x, force=True)
    moved = result.adapted
    total = result.excess[moved].diagonal(dim1=1, dim2=2).mean() + 1 / 100
    assert 0.7 / 25 < total < 1.6 / 25


def test_saved_and_loaded(task, mds_small, tmp_path):
    x = contaminated(task, 5)
    mds_small.save(tmp_path / "mds")
    loaded = MinimumDistance.load(tmp_path / "mds", task.summary)
    for field in fields(mds_small.fitted_.noise):
        before, after = (getattr(m.fitted_.noise, field.name) for m in (mds_small, loaded))
        assert torch.equal(before, after)
    assert torch.equal(loaded.adapt(x).excess, mds_small.adapt(x).excess)
    config, tensors = storage.read_artefact(tmp_path / "mds", "MinimumDistance")
    older = {name: value for name, value in tensors.items() if not name.startswith("noise.")}
    storage.write_artefact(tmp_path / "older", "MinimumDistance", config, older)
    without = MinimumDistance.load(tmp_path / "older", task.summary)
    assert without.fitted_.noise is None
    assert not without.adapt(x).excess.any()  # without noise nothing can be calibrated, nor sorted
