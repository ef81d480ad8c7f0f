"""Contaminations of every kind: their closed forms, and what all of them promise on all tasks."""

import math

import pytest
import torch
from scipy import stats

from mindist.tasks import GaussianTask, SIRTask
from mindist_paper.evaluation.bank import make_datasets
from mindist_paper.evaluation.cell import BankSpec, TestSpec
from mindist_paper.tasks import TASKS, contaminations, get_task
from mindist_paper.tasks.contaminations import CONTAMINATIONS, SUITABLE, Population, Setting

NUM_OBS = 10
BY_CHANCE = ("cluster", "student-t", "scale", "noise-scale", "missing")
UNIT = Population(torch.zeros(2), torch.ones(2), counts=False)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module", params=TASKS)
def known(request):
    """A task, its population, and a few clean datasets."""
    task = get_task(request.param, num_obs=NUM_OBS)
    theta = task.sample_prior(4, seeded(1))
    x = task.simulate(theta, generator=seeded(2))
    return task, Population.of_task(task), theta, x


def test_every_kind_keeps_its_input_and_gives_finite_summaries(known):
    task, population, theta, x = known
    before = x.clone()
    for kind in SUITABLE[task.name]:

        def contaminated(epsilon, kind=kind):
            setting = Setting(population, theta, seeded(3))
            return contaminations.contaminate(x, epsilon, setting, kind=kind, task=task.name)

        dirty = contaminated(0.4)
        assert torch.equal(x, before)
        assert torch.equal(dirty, contaminated(0.4))  # nothing but the generator is random
        assert (dirty.shape, dirty.dtype) == (x.shape, x.dtype)
        changed = (dirty != x).flatten(2).any(2)
        assert {bool(changed.any()), bool(changed.all())} == {True, False}, kind
        assert torch.isfinite(dirty).all(), kind
        assert torch.isfinite(task.summary(dirty)).all(), kind
        assert not population.counts or (dirty >= 0).all()
        assert torch.equal(contaminated(0.0), x)
        with pytest.raises(ValueError, match=r"epsilon: expected a fraction from 0 to 1"):
            contaminated(1.1)


@pytest.mark.parametrize("kind", CONTAMINATIONS)
def test_the_right_fraction_is_changed(kind):
    x = torch.randn(50, 100, 2, generator=seeded())
    setting = Setting(UNIT, torch.zeros(50, 2), seeded(1))
    changed = (CONTAMINATIONS[kind](x, 0.3, setting) != x).any(2).sum(1)
    if kind in BY_CHANCE:
        low, high = stats.binom.interval(0.999, 5_000, 0.3)
        assert low <= int(changed.sum()) <= high
    else:  # the original of the duplicates is as it was
        assert changed.unique().tolist() == [29 if kind == "duplicates" else 30]


def test_a_cluster_is_two_standard_deviations_to_one_side():
    population = Population(torch.tensor([1.0, -2.0]), torch.tensor([3.0, 0.5]), counts=False)
    x = torch.zeros(1, 20_000, 2)
    dirty = CONTAMINATIONS["cluster"](x, 1.0, Setting(population, torch.zeros(1, 2), seeded()))[0]
    torch.testing.assert_close(dirty.mean(0), torch.tensor([7.0, -1.0]), atol=0.01, rtol=0)
    torch.testing.assert_close(dirty.std(0), torch.tensor([0.3, 0.05]), atol=0, rtol=0.02)


def test_heavy_tails_are_those_of_students_t():
    x = torch.full((1, 20_000, 1), 5.0)
    population = Population(torch.zeros(1), torch.full((1,), 2.0), counts=False)
    dirty = CONTAMINATIONS["student-t"](x, 1.0, Setting(population, torch.zeros(1, 1), seeded()))
    noise = (dirty - 5.0) / (0.25 * 2.0)
    assert stats.kstest(noise.flatten().double().numpy(), stats.t(2).cdf).pvalue > 0.01


def test_counts_have_noise_in_proportion_and_a_scale_about_zero():
    population = Population(torch.tensor([10.0]), torch.tensor([5.0]), counts=True)
    setting = Setting(population, torch.zeros(1, 1), seeded())
    x = torch.tensor([0.0, 4.0]).view(1, 2, 1).repeat(1, 500, 1)
    scaled = CONTAMINATIONS["scale"](x, 1.0, setting)
    torch.testing.assert_close(scaled, 1.5 * x)
    noisy = CONTAMINATIONS["student-t"](x, 1.0, setting)
    assert noisy[x == 0].eq(0).all()
    assert noisy[x > 0].min() == 0  # where the noise was below -4


def test_noise_about_the_truth_keeps_the_location():
    task = GaussianTask(num_obs=5_000)
    theta = torch.tensor([[2.0, -1.0]])
    x = task.simulate(theta, generator=seeded())
    setting = Setting(Population.of_task(task), theta, seeded(1))
    dirty = contaminations.contaminate(x, 1.0, setting, kind="noise-scale", task="gaussian")[0]
    torch.testing.assert_close(dirty.mean(0), theta[0], atol=4 * 1.5 / 5_000**0.5, rtol=0)
    torch.testing.assert_close(dirty.std(0), torch.full((2,), 1.5), atol=0.06, rtol=0)


def test_the_population_of_the_gaussian_task_is_known():
    """x = theta + noise, both standard normal: mean 0 and variance 2."""
    population = Population.of_task(GaussianTask())
    torch.testing.assert_close(population.mean, torch.zeros(2), atol=4 * 500**-0.5, rtol=0)
    torch.testing.assert_close(population.scale, torch.full((2,), math.sqrt(2)), atol=0.1, rtol=0)
    assert not population.counts
    assert Population.of_task(SIRTask()).counts


def test_test_datasets_of_another_kind_have_the_same_clean_ones():
    bank = BankSpec("oup", 50, {"num_obs": 6})
    own = make_datasets(bank, TestSpec(0.2, num=30))
    few = make_datasets(bank, TestSpec(0.5, {"kind": "missing"}, num=3))
    more = make_datasets(bank, TestSpec(0.5, {"kind": "missing"}, num=30))
    assert torch.equal(own.x_clean, more.x_clean)
    assert torch.equal(few.x_obs, more.x_obs[:3])
    gap = slice(8, 16)
    changed = (more.x_obs != more.x_clean).any(2)
    assert more.x_obs[changed][:, gap].eq(0).all()
    assert torch.equal(more.x_obs[~changed], more.x_clean[~changed])
    larger = make_datasets(bank, TestSpec(1.0, {"kind": "gross", "size": 7.0}, num=3))
    assert larger.x_obs.eq(7).all()
    with pytest.raises(ValueError, match=r"kind: expected one of 'cluster'.*got 'typhoon'"):
        make_datasets(bank, TestSpec(0.5, {"kind": "typhoon"}, num=3))
    setting = Setting(UNIT, torch.zeros(3, 5), None)
    with pytest.raises(ValueError, match=r"noise-scale: expected a parameter for each coordinate"):
        CONTAMINATIONS["noise-scale"](torch.zeros(3, 4, 2), 0.5, setting)
