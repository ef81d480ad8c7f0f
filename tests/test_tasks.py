"""What every task promises; what each one computes is in the test file of its own."""

import dataclasses
import pickle

import pytest
import torch
from sbi.utils.user_input_checks import process_prior
from scipy import stats

from mindist import MinimumDistance
from mindist.tasks import TASKS, Task, get_task

NUM_OBS = 6


@pytest.fixture(params=TASKS, scope="module")
def task(request) -> Task:
    return get_task(request.param, num_obs=NUM_OBS)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def simulated(task: Task, num: int = 5, seed: int = 0):
    generator = seeded(seed)
    theta = task.sample_prior(num, generator)
    return theta, task.simulate(theta, generator=generator)


def test_a_task_is_a_frozen_dataclass_under_its_own_name(task):
    assert isinstance(task, Task)
    assert type(TASKS[task.name]()) is type(task)
    assert task == get_task(task.name, num_obs=NUM_OBS)
    assert hash(task) == hash(get_task(task.name, num_obs=NUM_OBS))
    with pytest.raises(dataclasses.FrozenInstanceError):
        task.num_obs = 3  # type: ignore[misc]


@pytest.mark.parametrize("name", TASKS)
def test_the_defaults_are_the_papers(name):
    task = get_task(name)
    assert task.num_obs == 100
    size = {"gaussian": 50_000, "gaussian_factor": 50_000, "cryo_em": 15_000}.get(name, 10_000)
    assert task.num_simulations == size


def test_the_card_says_what_there_is_to_know(task):
    title, *lines = task.card.splitlines()
    assert title.strip() == title != ""
    heads = [line.split()[0] for line in lines if line[2] != " "]
    assert heads == ["prior", "simulator", "summary", "contamination", "defaults", "reference"]
    assert max(len(line) for line in lines) <= 100
    assert task.card == task.card.rstrip()


def test_shapes_are_those_announced(task):
    theta, x = simulated(task)
    assert theta.shape == (5, task.dim_theta)
    assert theta.dtype == x.dtype == torch.float32
    assert x.shape == (5, NUM_OBS, *task.event_shape)
    assert task.simulate(theta, 3, generator=seeded()).shape == (5, 3, *task.event_shape)
    assert task.summary(x).shape == (5, task.dim_summary)
    assert tuple(task.prior.event_shape) == (task.dim_theta,)
    assert x.is_contiguous()


def test_simulations_and_summaries_are_finite_over_the_prior(task):
    _, x = simulated(task, 200)
    assert torch.isfinite(x).all()
    s = task.summary(x)
    assert torch.isfinite(s).all()
    assert (s.std(0) > 0).all()


def test_equal_seeds_give_equal_data_and_the_global_seed_is_left_alone(task):
    torch.manual_seed(0)
    state = torch.get_rng_state()
    theta, x = simulated(task, seed=3)
    dirty = task.contaminate(x, 0.5, generator=seeded(4))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(1)
    theta_again, x_again = simulated(task, seed=3)
    assert torch.equal(theta, theta_again)
    assert torch.equal(x, x_again)
    assert torch.equal(dirty, task.contaminate(x_again, 0.5, generator=seeded(4)))
    other_theta, other_x = simulated(task, seed=5)
    assert not torch.equal(theta, other_theta)
    assert not torch.equal(x, other_x)


def test_observations_of_a_dataset_differ(task):
    _, x = simulated(task)
    assert (x[:, 0] != x[:, 1]).flatten(1).any(1).all()


def test_the_summary_is_of_a_set_and_of_one_dataset_at_a_time(task):
    _, x = simulated(task)
    s = task.summary(x)
    torch.testing.assert_close(task.summary(x.flip(1)), s, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(task.summary(x[2:3]), s[2:3], rtol=1e-4, atol=1e-5)


def test_a_task_and_its_summary_can_be_sent_to_another_process(task):
    _, x = simulated(task)
    copy, summary = pickle.loads(pickle.dumps((task, task.summary)))
    assert torch.equal(simulated(copy)[1], x)
    assert torch.equal(summary(x), task.summary(x))


def test_the_prior_draws_inside_its_support(task):
    theta = task.sample_prior(1_000, seeded())
    assert task.prior.support.check(theta).all()
    assert torch.isfinite(task.prior.log_prob(theta)).all()
    assert task.prior.support.check(task.prior.sample((1_000,))).all()


def test_sbi_takes_the_prior_as_it_is(task):
    prior, num_parameters, is_numpy = process_prior(task.prior)
    assert type(prior) is type(task.prior)
    assert (num_parameters, is_numpy) == (task.dim_theta, False)


def test_contamination_keeps_its_input_and_replaces_the_right_fraction(task):
    _, x = simulated(task, 100)
    before = x.clone()
    dirty = task.contaminate(x, 0.3, generator=seeded(1))
    assert torch.equal(x, before)
    assert dirty.shape == x.shape
    assert dirty.dtype == x.dtype
    changed = (dirty != x).flatten(2).any(2)
    low, high = stats.binom.interval(0.999, changed.numel(), 0.3)
    assert low <= int(changed.sum()) <= high
    assert torch.isfinite(task.summary(dirty)).all()


def test_contamination_goes_from_nothing_to_everything(task):
    _, x = simulated(task)
    assert torch.equal(task.contaminate(x, 0.0, generator=seeded()), x)
    changed = (task.contaminate(x, 1.0, generator=seeded()) != x).flatten(2).any(2)
    assert changed.all()


def test_the_summary_network_is_of_a_set_and_can_be_trained(task):
    torch.manual_seed(0)
    network = task.summary_network()
    _, x = simulated(task)
    s = network(x)
    assert s.shape == (5, task.dim_summary)
    torch.testing.assert_close(network(x.flip(1)), s, rtol=1e-4, atol=1e-4)
    assert network(x[:, :2]).shape == s.shape
    s.square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in network.parameters())
    assert any((p.grad != 0).any() for p in network.parameters())


def test_no_datasets_are_no_trouble(task):
    x = task.simulate(task.sample_prior(0, seeded()), generator=seeded())
    assert x.shape == (0, NUM_OBS, *task.event_shape)
    assert task.contaminate(x, 0.5, generator=seeded()).shape == x.shape


def test_chunks_cover_what_was_asked_for(task):
    chunks = list(task.simulate_chunks(10, generator=seeded(), chunk=4))
    assert [len(theta) for theta, _ in chunks] == [4, 4, 2]
    assert all(x.shape == (len(theta), NUM_OBS, *task.event_shape) for theta, x in chunks)
    generator = seeded()
    theta = task.sample_prior(4, generator)
    assert torch.equal(chunks[0][0], theta)
    assert torch.equal(chunks[0][1], task.simulate(theta, generator=generator))


@pytest.mark.parametrize("name", TASKS)
def test_a_chunk_takes_little_memory(name):
    _, x = next(iter(get_task(name).simulate_chunks(100_000, generator=seeded())))
    assert 2**23 < x.nbytes <= 2**24


@pytest.mark.slow
def test_the_estimator_can_be_fitted_to_a_stream_of_chunks(task):
    chunks = task.simulate_chunks(400, generator=seeded(), chunk=150)
    mds = MinimumDistance(task.summary, num_features=32).fit(x for _, x in chunks)
    _, x = simulated(task, 3, seed=1)
    result = mds.adapt(task.contaminate(x, 0.5, generator=seeded(2)), force=True)
    assert result.s_star.shape == (3, task.dim_summary)
    assert torch.isfinite(result.s_star).all()


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_epsilon_is_a_fraction(task, value):
    _, x = simulated(task)
    with pytest.raises(ValueError, match=r"epsilon: expected a fraction from 0 to 1, got"):
        task.contaminate(x, value, generator=seeded())


def test_parameters_are_checked(task):
    theta = task.sample_prior(2, seeded())
    shape = rf"theta: expected parameters of shape \(B, {task.dim_theta}\), got shape"
    for wrong in (theta[0], theta[:, :0], theta[None]):
        with pytest.raises(ValueError, match=shape):
            task.simulate(wrong, generator=seeded())
    for value in (float("nan"), float("inf")):
        wrong = theta.clone()
        wrong[1] = value
        with pytest.raises(ValueError, match=r"support of the prior.*1 of 2 outside.*theta\[1\]"):
            task.simulate(wrong, generator=seeded())
    with pytest.raises(TypeError, match="theta: expected a torch tensor"):
        task.simulate("theta", generator=seeded())  # type: ignore[arg-type]


def test_datasets_are_checked(task):
    _, x = simulated(task)
    for wrong in (x[0], x[..., :-1], x[:, :0]):
        with pytest.raises(ValueError, match=r"x: expected datasets of shape \(B, N, .*got shape"):
            task.contaminate(wrong, 0.1, generator=seeded())


@pytest.mark.parametrize("number", [0, -3, 2.5])
def test_numbers_are_checked(task, number):
    theta = task.sample_prior(2, seeded())
    with pytest.raises(ValueError, match="num_observations: expected a whole number of at least 1"):
        task.simulate(theta, number, generator=seeded())
    with pytest.raises(ValueError, match="num_obs: expected a whole number of at least 1"):
        get_task(task.name, num_obs=number)
    with pytest.raises(ValueError, match="chunk: expected a whole number of at least 1"):
        next(task.simulate_chunks(2, generator=seeded(), chunk=number))


def test_an_unknown_name_brings_the_list_of_known_ones():
    with pytest.raises(
        ValueError, match=r"task: expected one of 'gaussian', .*got 'guassian'"
    ) as e:
        get_task("guassian")
    assert all(repr(name) in str(e.value) for name in TASKS)
