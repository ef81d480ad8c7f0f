"""NNPE and RNPE: the error model, the latent summaries, and the exact answers they have."""

import math

import pytest
import torch

from mindist.decoders.standardise import Standardiser
from mindist.tasks import GaussianTask, OrnsteinUhlenbeckTask
from mindist_paper.baselines import Options, SpikeAndSlab, Training, train_method
from mindist_paper.baselines.latent_mcmc import Chains, LatentPrior, sample_latents, split_r_hat
from mindist_paper.baselines.nnpe import Squash

MODELS = [SpikeAndSlab.printed(), SpikeAndSlab(), SpikeAndSlab(rho=0.0, sigma=0.3)]
GRID = torch.linspace(-8, 8, 8_001, dtype=torch.float64)  # five steps in a spike
# The paper's figure, Gaussian task, NNPE, delta 3
ANCHORS = {0.0: 0.125, 0.1: 0.194, 0.2: 0.264, 0.3: 0.349, 0.5: 0.516}


def latent_mean(model, y):
    """E[x given y] for x ~ N(0, 1) and errors from the model, by quadrature, of y `(*,)`."""
    weights = (-GRID.square() / 2 + model.log_prob_each(y[..., None], GRID)).softmax(-1)
    return (weights * GRID).sum(-1)


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_density_and_noise_have_the_distribution_function_of_the_mixture(model):
    def below(edge):
        spike = 0.5 * (1 + math.erf(edge / model.sigma / math.sqrt(2)))
        slab = 0.5 + math.atan(edge / model.tau) / math.pi
        return (1 - model.rho) * spike + model.rho * slab

    density = model.log_prob(GRID[:, None], torch.zeros(1, dtype=torch.float64)).exp()
    noise = model.noise((100_000,), torch.Generator().manual_seed(0))
    for edge in (-0.5, -0.004, 0.0, 0.02, 1.0):
        expected, step = below(edge), float(GRID[1] - GRID[0])
        mass = float(density[edge + step / 2 >= GRID].sum()) * step
        assert mass == pytest.approx(expected - below(-8.0), abs=0.025)  # half a step at the spike
        # 4 standard errors of a share of 100,000
        assert float((noise <= edge).double().mean()) == pytest.approx(expected, abs=0.0064)


def test_bad_error_models_are_refused():
    with pytest.raises(ValueError, match=r"rho: expected a probability between 0 and 1, got 1\.2"):
        SpikeAndSlab(rho=1.2)
    with pytest.raises(ValueError, match=r"tau: expected a positive number, got 0\.0"):
        SpikeAndSlab(tau=0.0)


def test_squash_is_one_to_one_and_near_linear_in_the_middle():
    squash = Squash(Standardiser.of(torch.tensor([[1.0], [5.0]])))  # mean 3, spread 2
    s = torch.tensor([[3.0], [3.2], [1e6]])
    expected = torch.asinh(torch.tensor([[0.0], [0.1], [(1e6 - 3) / 2]]))
    torch.testing.assert_close(squash(s), expected)


def test_the_exact_nnpe_agrees_with_the_anchors():
    """With rho = 1 as printed, no NNPE can be as good on clean data as the paper's figure says."""
    task, generator = GaussianTask(), torch.Generator().manual_seed(5)
    theta = task.sample_prior(200, generator)
    x, scale = task.simulate(theta, generator=generator), math.sqrt(1.01)

    def error(model, x_obs):
        mean = latent_mean(model, x_obs.mean(1).double() / scale) * scale * 100 / 101
        return float((mean - theta).square().mean(1).sqrt().mean())

    for epsilon, anchor in ANCHORS.items():
        x_obs = task.contaminate(x, epsilon, generator=generator)
        assert error(SpikeAndSlab(), x_obs) == pytest.approx(anchor, rel=0.2)
    assert error(SpikeAndSlab.printed(), x) == pytest.approx(0.205, rel=0.1)


@pytest.mark.parametrize("model", MODELS[:2], ids=str)
def test_chains_find_the_exact_latent_mean(model):
    normal = torch.distributions.Normal(torch.zeros(2).double(), 1.0)
    generator = torch.Generator().manual_seed(0)
    pool = torch.randn(20_000, 2, generator=generator, dtype=torch.float64)
    prior = LatentPrior(lambda x: normal.log_prob(x).sum(-1), pool, normal.log_prob(pool).sum(-1))
    y = torch.tensor([[0.5, -1.0], [0.0, 40.0], [3.0, 1.0]], dtype=torch.float64)
    chains = Chains(num_chains=200, warm_up=300)
    draws = sample_latents(prior, model, y, 60, chains, generator)
    assert draws.shape == (60, 200, 3, 2)
    assert split_r_hat(draws).max() < 1.2
    by_chain = draws.mean(0)  # chains are independent, so their means tell the standard error
    standard_error = by_chain.std(0) / len(by_chain) ** 0.5
    assert ((by_chain.mean(0) - latent_mean(model, y)) / standard_error).abs().max() < 4


def test_r_hat_tells_chains_that_agree_from_chains_that_do_not():
    draws = torch.randn(200, 8, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(split_r_hat(draws), torch.ones(3), atol=0.02, rtol=0)
    draws[:, 0, 1] += 5
    assert split_r_hat(draws)[1] > 1.3
    assert split_r_hat(draws[:3]).isnan().all()


@pytest.mark.slow
def test_a_trained_nnpe_is_the_exact_one():
    """On sample means; the squared error of training is small against the anchors' 20%."""
    task, generator = GaussianTask(), torch.Generator().manual_seed(1)
    theta = task.sample_prior(5_000, generator)
    x = task.simulate(theta, generator=generator)
    training = Training("mdn", learning_rate=2e-3, max_num_epochs=40)
    nnpe = train_method("nnpe", task, theta, x, Options(training=training))
    theta = task.sample_prior(200, generator)
    x = task.simulate(theta, generator=generator)
    for epsilon in (0.0, 0.2):
        x_obs = task.contaminate(x, epsilon, generator=generator)
        found = nnpe.sample_batched((500,), x_obs, seed=0).mean(0)
        error = float((found - theta).square().mean(1).sqrt().mean())
        assert error == pytest.approx(ANCHORS[epsilon], rel=0.2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Data has extreme outliers")
@pytest.mark.filterwarnings("ignore:The chains of latent summaries disagree")
def test_latent_summaries_return_to_the_clean_region_on_oup():
    """Observed summaries lie tens of standard deviations outside; latent ones inside."""
    task, generator = OrnsteinUhlenbeckTask(), torch.Generator().manual_seed(1)
    theta = task.sample_prior(1_500, generator)
    x = task.simulate(theta, generator=generator)
    training = Training("mdn", learning_rate=2e-3, max_num_epochs=15)
    rnpe = train_method("rnpe", task, theta, x, Options(training=training))
    s, clean = task.summary(x), x[:20]
    x_obs = task.contaminate(clean, 0.1, generator=generator)
    latents = rnpe.latents(x_obs, 8)
    drawn = latents.s.flatten(0, 1)

    def distance(values):
        return ((values - task.summary(clean)) / s.std(0)).norm(dim=-1)

    margin = 0.1 * s.std(0)
    inside = (drawn > s.amin(0) - margin) & (drawn < s.amax(0) + margin)
    assert distance(task.summary(x_obs)).median() > 10
    assert distance(rnpe.used_summary(x_obs)).median() < 3
    assert inside.all(-1).double().mean() > 0.95
    assert latents.r_hat.median() < 1.2
    samples = rnpe.sample_batched((50,), x_obs, seed=0)
    assert samples.shape == (50, 20, 2)
