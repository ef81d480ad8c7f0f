"""Draws the pictures of the landing page, docs/_static/landing-*.svg, in the package's own style.

    python docs/landing_figure.py

A location from 100 observations, a fifth of which come from elsewhere; the exact posterior of the
paper's Gaussian task, asked at the observed and at the adapted summary.
"""

from pathlib import Path

import torch
from themed import save

import mindist
from mindist.report import new_figure, plot_data_space, plot_posteriors
from mindist.report.style import figure_style
from mindist.tasks import GaussianTask

SIMULATIONS, SAMPLES = 4_000, 2_000


def draw() -> list[Path]:
    """Simulate, contaminate, adapt, and draw data and posteriors."""
    torch.set_num_threads(1)
    task, generator = GaussianTask(), torch.Generator().manual_seed(3)
    x = task.simulate(task.sample_prior(SIMULATIONS, generator), generator=generator)
    mds = mindist.MinimumDistance(task.summary).fit(x)
    theta = torch.tensor([-0.5, -0.5])
    x_obs = task.simulate(theta[None], generator=generator)[0]
    x_obs[:20] = torch.tensor([3.5, 3.0]) + 0.6 * torch.randn(20, 2, generator=generator)
    result = mds.adapt(x_obs)

    def exact(s):
        """Draws from the posterior given the mean of 100 observations: N(100 s / 101, I / 101)."""
        return 100 / 101 * s + torch.randn(SAMPLES, 2, generator=generator) / 101**0.5

    with figure_style():
        data, (axes,) = new_figure(1, (5.4, 4.4))
        plot_data_space(axes, x_obs, result.outliers)
        axes.set(title="A dataset with wrong observations", xlabel="x₁", ylabel="x₂")
        posterior, (axes,) = new_figure(1, (5.4, 4.4))
        labels = ("the posterior as it is", "the same posterior, with mindist")
        plot_posteriors(axes, exact(result.s_obs), exact(result.s_star), theta, labels=labels)
        axes.set(title="Where are the parameters?", xlabel="θ₁", ylabel="θ₂")
        return save(data, "landing-data") + save(posterior, "landing-posterior")


if __name__ == "__main__":
    print(*draw(), sep="\n")
