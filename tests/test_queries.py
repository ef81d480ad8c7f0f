"""Queries of exact models: averages over summaries, draws that are rejected, and an end."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.distributions import MultivariateNormal

import mindist
from exact_models import normal
from mindist.adaptation.calibration import spread
from mindist.posteriors import CallablePosterior
from mindist.posteriors.queries import AveragedComponent, Conditions, Queries
from mindist.posteriors.truncation import (
    MIN_DRAWS,
    Budget,
    draw_mixture,
    draw_truncated,
    estimate_leakage,
)
from test_noise import noise_of

GAIN = torch.tensor([[0.9, 0.2], [0.0, 0.7]]).double()
WITHIN = torch.tensor([[0.05, 0.02], [0.02, 0.03]]).double()
U = torch.tensor([[[0.10, -0.03], [-0.03, 0.04]], [[0.02, 0.0], [0.0, 0.3]]]).double()
S_STAR = torch.tensor([[0.5, -1.0], [0.0, 2.0]]).double()
AROUND = spread(S_STAR, U, noise_of(torch.ones(2)))


@dataclass(frozen=True)
class LinearGaussian:
    """q(theta given s) = N(K s, S), perhaps known to be inside a half-space only."""

    weight: float = 1.0
    bounded: bool = False
    corrects_leakage: bool = True

    def law(self, s: Tensor) -> MultivariateNormal:
        return MultivariateNormal(s @ GAIN.T, WITHIN)

    def draw(self, num_samples: int, s: Tensor, **options: Any) -> Tensor:
        return self.law(s).sample((num_samples,))

    def in_support(self, theta: Tensor, /) -> Tensor:
        return theta[..., 0] > 0 if self.bounded else torch.ones_like(theta[..., 0]).bool()

    def log_density(self, theta: Tensor, s: Tensor, **options: Any) -> Tensor:
        return self.law(s).log_prob(theta)


class Echo(LinearGaussian):
    """A draw is its summary."""

    def draw(self, num_samples: int, s: Tensor, **options: Any) -> Tensor:
        return s.expand(num_samples, -1, -1).clone()


@dataclass(frozen=True)
class Exact:
    """A backend of one such component."""

    component: Any = LinearGaussian()
    condition_shape: torch.Size = torch.Size((2,))  # noqa: RUF009
    num_parameters: int = 2
    device: torch.device = torch.device("cpu")  # noqa: RUF009
    version: int = 0

    @property
    def components(self) -> Sequence[Any]:
        return [self.component]


def test_the_average_has_the_covariance_of_the_posterior_plus_that_of_its_mean():
    torch.manual_seed(0)
    draws = AveragedComponent(LinearGaussian(), 32).draw(64_000, AROUND.flatten(1))
    assert draws.shape == (64_000, 2, 2)
    expected = WITHIN + GAIN @ U @ GAIN.T
    for b in range(2):
        # Every summary has equally many draws, so that only what is within them is random.
        error = 4 * math.sqrt(2 / 64_000) * expected[b].diagonal().max()
        torch.testing.assert_close(draws[:, b].T.cov(), expected[b], atol=float(error), rtol=0)
        away = (draws[:, b].mean(0) - GAIN @ S_STAR[b]).abs()
        assert (away < 4 * (WITHIN.diagonal() / 64_000).sqrt()).all()


def test_the_average_has_the_density_of_the_exact_convolution():
    """32 points stand for the integral over N(s*, U), whose result is Gaussian."""
    exact = MultivariateNormal(S_STAR @ GAIN.T, WITHIN + GAIN @ U @ GAIN.T)
    torch.manual_seed(1)
    theta = exact.sample((500,))
    ours = AveragedComponent(LinearGaussian(), 32).log_density(theta, AROUND.flatten(1))
    mixture = torch.stack(
        [LinearGaussian().log_density(theta, AROUND[:, j]) for j in range(32)]
    ).logsumexp(0) - math.log(32)
    torch.testing.assert_close(ours, mixture)
    divergence = (exact.log_prob(theta) - ours).mean(0)
    assert divergence.abs().max() < 0.05


def test_each_summary_gets_as_many_draws_or_one_more_and_any_prefix_is_random():
    component, rows = AveragedComponent(Echo(), 32), AROUND.flatten(1)
    torch.manual_seed(0)
    for num in (1, 31, 32, 33, 100):
        draws = component.draw(num, rows)
        assert draws.shape == (num, 2, 2)
        for b in range(2):
            of = (draws[:, b, None] == AROUND[b]).all(2).sum(0)
            assert of.sum() == num
            assert of.min() >= num // 32
            assert of.max() <= -(-num // 32)
    first = torch.stack([component.draw(40, rows)[0]
                         for _ in range(2_000)])  # fmt: skip
    off = (first.mean(0) - S_STAR).abs()
    assert (off < 4 * (U.diagonal(dim1=1, dim2=2) / 2_000).sqrt()).all()


def test_blocks_of_parameters_change_nothing(monkeypatch):
    theta, rows = normal(50, 2, 2), AROUND.flatten(1)
    component = AveragedComponent(LinearGaussian(), 32)
    whole = component.log_density(theta, rows)
    monkeypatch.setattr("mindist.posteriors.queries.MAX_ROWS", 640)
    torch.testing.assert_close(component.log_density(theta, rows), whole)


def test_the_average_is_cut_to_the_prior_as_one_density():
    """Where a summary leaks all of its mass, the others are still drawn from, and normalised."""
    queries = Queries(Exact(LinearGaussian(bounded=True)), 100)
    around = torch.tensor([[[1.0, 0.0], [-50.0, 0.0]]]).double()  # the second has no mass inside
    at = Conditions(around.mean(1), torch.tensor([True]), around)
    samples = queries.sample((2_000,), at, seed=0)
    assert (samples[..., 0] > 0).all()
    mean = LinearGaussian().law(around[:, 0]).mean
    assert ((samples.mean(0) - mean).abs() < 4 * (WITHIN.diagonal() / 2_000).sqrt()).all()
    log_p = queries.log_prob(mean[None], at)
    expected = LinearGaussian().log_density(mean, around[:, 0])  # Z is 1/2, as is the share
    torch.testing.assert_close(log_p[0], expected, atol=4 / math.sqrt(10_000), rtol=0)


def test_certain_and_uncertain_datasets_in_one_batch():
    queries = Queries(Exact(), 100)
    s = torch.cat([S_STAR, S_STAR + 1])
    uncertain = torch.tensor([False, True, True, False])
    around = torch.cat([AROUND, AROUND + 1])
    conditions = Conditions(s, uncertain, around)
    samples = queries.sample((8_000,), conditions, seed=0)
    sides = torch.where(uncertain[:, None, None], torch.cat([U, U]), 0.0)
    for b in range(4):
        expected = WITHIN + GAIN @ sides[b] @ GAIN.T
        error = float(4 * math.sqrt(2 / 8_000) * expected.diagonal().max())
        torch.testing.assert_close(samples[:, b].T.cov(), expected, atol=error, rtol=0)
        away = (samples[:, b].mean(0) - GAIN @ s[b]).abs()
        assert (away < 4 * (expected.diagonal() / 8_000).sqrt()).all()
    theta = normal(3, 4, 2)
    together = queries.log_prob(theta, conditions)
    for b in range(4):
        one = Conditions(s[[b]], uncertain[[b]], around[[b]])
        alone = queries.log_prob(theta[:, b : b + 1], one)
        torch.testing.assert_close(together[:, b], alone[:, 0])
    still = queries.sample((8,), Conditions.certain(s[~uncertain]), seed=0)
    again = queries.sample((8,), conditions, seed=0)
    assert torch.equal(again[:, ~uncertain], still)


# ------------------------------------------------------------------------------ an end


class Uniform:
    """Uniform draws on [0, 1/s): a component whose mass inside [0, 1) is the summary s itself."""

    weight, bounded, corrects_leakage = 1.0, True, True

    def draw(self, num_samples: int, s: Tensor) -> Tensor:
        return torch.rand(num_samples, *s.shape) / s

    def in_support(self, theta: Tensor) -> Tensor:
        return (theta < 1).all(-1)


def test_accepted_draws_are_the_truncated_density():
    s = torch.tensor([[1.0], [0.5], [0.02]])
    drawn = draw_truncated(Uniform(), s, 2000, Budget(1000))
    assert drawn.complete
    assert drawn.samples.shape == (2000, 3, 1)
    for i in range(3):
        assert stats.kstest(drawn.samples[:, i, 0], "uniform").pvalue > 0.01 / 3
        rate = drawn.accepted[i] / drawn.draws[i]
        assert abs(rate - s[i]) <= 4 * (s[i] * (1 - s[i]) / drawn.draws[i]).sqrt()
    # A dataset that is done is left alone: the first took one batch, the last many.
    assert drawn.draws[0] == 2000
    assert drawn.draws[2] > 50_000


def test_drawing_ends_where_nothing_is_accepted():
    s = torch.tensor([[1.0], [1e-9]])
    drawn = draw_truncated(Uniform(), s, 1000, Budget(1000))
    assert drawn.obtained.tolist() == [1000, 0]
    assert drawn.samples.shape == (0, 2, 1)
    # 9/n, the upper limit of the rate after n draws, is below 1/1000 from n = 9000 on.
    assert 9_000 < drawn.draws[1] <= 9_000 + 2 * 10_000
    assert draw_truncated(Uniform(), s, 1, Budget(1)).draws[1] == MIN_DRAWS


def test_drawing_never_exceeds_its_budget_and_does_not_give_up_too_early():
    twice_the_limit = torch.full((200, 1), 2e-3)
    drawn = draw_truncated(Uniform(), twice_the_limit, 20, Budget(1000))
    assert drawn.complete  # 200 datasets, each given up wrongly with probability below 1e-4
    below_the_limit = torch.full((50, 1), 5e-4)
    drawn = draw_truncated(Uniform(), below_the_limit, 20, Budget(1000))
    assert (drawn.draws <= 20_000).all()
    short = drawn.obtained < 20
    assert short.float().mean() > 0.9  # 10 accepted of 20,000 expected, 20 with probability .003


def test_a_mixture_keeps_the_weights_of_its_truncated_components():
    class Shifted(Uniform):
        """Leaks most of its mass, and puts the rest on [0, 1/2)."""

        weight = 0.75

        def draw(self, num_samples: int, s: Tensor) -> Tensor:
            theta = super().draw(num_samples, s / 10)
            return torch.where(theta < 1, theta / 2, theta)

    whole = Uniform()
    whole.weight = 0.25
    drawn = draw_mixture([whole, Shifted()], torch.ones(1, 1), 8000, Budget(1000))
    below = (drawn.samples < 0.5).float().mean()  # 1/4 * 1/2 + 3/4
    assert abs(below - 0.875) < 4 * math.sqrt(0.875 * 0.125 / 8000)


def test_leakage_is_estimated_with_an_end():
    s = torch.tensor([[0.5], [0.005], [1e-9]])
    leakage = estimate_leakage(Uniform(), s, 10_000, Budget(1000))
    assert leakage.draws[0] == 10_000
    assert leakage.draws[2] == 100_000
    assert leakage.resolved.tolist() == [True, True, False]
    relative = ((1 - s[:2, 0]) / s[:2, 0] / leakage.draws[:2]).sqrt()
    assert ((leakage.log_mass[:2].exp() / s[:2, 0] - 1).abs() < 4 * relative).all()
    assert leakage.log_mass[2].item() == pytest.approx(math.log(1e-5))


class Far:
    """A normal density at s, and a prior that is uniform on the unit square."""

    prior = torch.distributions.Independent(
        torch.distributions.Uniform(torch.zeros(2), torch.ones(2)), 1
    )

    def __call__(self, s: Tensor, num: int) -> Tensor:
        return s + 0.1 * torch.randn(num, 2)


def far_posterior():
    x = uniform_data(500)
    mds = mindist.MinimumDistance(lambda x: x.mean(1), num_features=16).fit(x)
    return mindist.RobustPosterior(CallablePosterior(Far(), prior=Far.prior), mds), x


def uniform_data(num: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(num, 1, 2, generator=generator) + 0.1 * torch.randn(
        num, 20, 2, generator=generator
    )


def test_where_no_draw_is_admissible_the_nearest_are_the_answer():
    robust, _ = far_posterior()
    at = Conditions.certain(torch.tensor([[0.5, 0.5], [0.5, 9.0], [-7.0, 0.5]]))
    with pytest.warns(UserWarning, match=r"datasets 1, 2 is replaced by the nearest .* no poster"):
        theta = robust.queries.sample((400,), at, seed=0)
    assert theta.shape == (400, 3, 2)
    assert Far.prior.support.check(theta).all()
    # The distance to the square is least at its edge, at the other coordinate of the draw.
    assert theta[:, 1, 1].min() > 0.95
    assert theta[:, 2, 0].max() < 0.05
    assert theta[:, 1, 0].mean().item() == pytest.approx(0.5, abs=0.2)  # far away hardly told
    # The first dataset is drawn for as ever: 400 draws, a standard error of .005.
    assert theta[:, 0].mean(0).tolist() == pytest.approx([0.5, 0.5], abs=0.02)


def test_where_no_draw_is_admissible_an_error_can_be_had():
    robust, x = far_posterior()
    robust.mds.alpha = 1e-9  # nothing is adapted
    with pytest.raises(RuntimeError, match="Only 0 of 5 requested samples"):
        robust.sample((5,), x[0] + 50, nearest_if_none=False)
