"""Posterior samples for the tables: as many as asked for, also where rejection finds nothing."""

import pytest
import torch

from mindist.tasks import GaussianTask, OrnsteinUhlenbeckTask
from mindist_paper.baselines import Options, Training, train_method
from mindist_paper.evaluation.sampling import draw


@pytest.mark.filterwarnings("ignore:Data has extreme outliers")
@pytest.mark.filterwarnings("ignore:.*outside the support of the prior")
def test_where_rejection_finds_nothing_the_estimator_is_asked_without_it():
    task, generator = OrnsteinUhlenbeckTask(num_obs=20), torch.Generator().manual_seed(0)
    theta = task.sample_prior(300, generator)
    x = task.simulate(theta, generator=generator)
    training = Training("mdn", learning_rate=5e-3, max_num_epochs=10)
    npe = train_method("npe", task, theta, x, Options(training=training))
    wild = task.contaminate(x[:2], 1.0, generator=generator)  # summaries far outside the simulated
    drawn = draw(task, npe, torch.cat([x[:2], wild]), 50, seed=1)
    assert drawn.samples.shape == (50, 4, 2)
    inside = task.prior.support.check(drawn.samples)
    assert inside[:, :2].all()
    assert drawn.num_inside[:2].tolist() == [50, 50]
    assert (drawn.num_inside[2:] < 50).all()
    assert not inside[:, 2:].all()
    alone = draw(task, npe, x[:2], 50, seed=1)
    torch.testing.assert_close(drawn.samples[:, :2], alone.samples)
    torch.testing.assert_close(npe.sample_batched((50,), x[:2], seed=1), alone.samples)


def test_the_exact_posterior_needs_a_task_that_has_one():
    x = torch.zeros(2, 100, 2)
    drawn = draw(GaussianTask(), None, x, 4_000, seed=0)
    torch.testing.assert_close(
        drawn.samples.std(0), torch.full((2, 2), 101**-0.5), rtol=0.05, atol=0
    )
    with pytest.raises(ValueError, match="needs a task with an exact posterior"):
        draw(OrnsteinUhlenbeckTask(), None, x, 10, seed=0)
