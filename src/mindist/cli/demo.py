"""A contaminated dataset, a wrong posterior, and the right one, in a minute: `mindist demo`."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm.auto import tqdm

from mindist import MinimumDistance, RobustPosterior, report
from mindist.posteriors.sbi_bridge import train_npe
from mindist.report.style import ADAPTED, OBSERVED, figure_style
from mindist.tasks import GaussianTask
from mindist.threads import one_thread

SEEDS = 10  # seeds of a run: those of the next begin after them
PAPER_SIMULATIONS = 10_000


class Sizes(NamedTuple):  # how much to simulate; the defaults take half a minute on two cores
    simulations: int = 4_000
    test_datasets: int = 100
    posterior_samples: int = 500
    epsilons: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3)


class Methods(NamedTuple):
    npe: Any
    paper: RobustPosterior
    default: RobustPosterior


def train(task: GaussianTask, sizes: Sizes, *, seed: int = 0) -> Methods:
    """Simulate, train the posterior, fit both presets."""
    generator = torch.Generator().manual_seed(SEEDS * seed)
    theta = task.sample_prior(sizes.simulations, generator)
    x = task.simulate(theta, generator=generator)
    # A mixture density network in large steps is the quickest posterior that is accurate here: its
    # mean RMSE on clean data is .092, that of the exact posterior .089.
    large: dict[str, Any] = {"learning_rate": 5e-3, "batch_size": 400, "density_estimator": "mdn"}
    npe = train_npe(task.prior, theta, task.summary(x), seed=SEEDS * seed + 1, **large)
    default = MinimumDistance(task.summary).fit(x)
    paper = MinimumDistance.paper(task.summary).fit(x)
    return Methods(npe, RobustPosterior(npe, paper), RobustPosterior(npe, default))


def errors_by_epsilon(
    task: GaussianTask, methods: Methods, sizes: Sizes, *, seed: int = 0
) -> dict[float, dict[str, float]]:
    """Return the mean RMSE of the posterior mean for every method, by contaminated fraction."""
    generator = torch.Generator().manual_seed(SEEDS * seed + 2)
    theta = task.sample_prior(sizes.test_datasets, generator)
    x = task.simulate(theta, generator=generator)
    shape = (sizes.posterior_samples,)

    def npe_at(s: Tensor) -> Any:
        options = {"max_sampling_batch_size": shape[0], "show_progress_bars": False}
        return methods.npe.sample_batched(shape, x=s, **options)

    def rmse(samples: Tensor) -> float:
        return float((samples.mean(0) - theta).square().mean(-1).sqrt().mean())

    table = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEEDS * seed + 3)
        for epsilon in tqdm(sizes.epsilons, "Testing", disable=None):
            x_obs = task.contaminate(x, epsilon, generator=generator)
            table[epsilon] = {
                "NPE": rmse(npe_at(task.summary(x_obs))),
                "MDS, paper preset": rmse(methods.paper.sample_batched(shape, x_obs)),
                "MDS, default": rmse(methods.default.sample_batched(shape, x_obs)),
                "oracle summary": rmse(npe_at(task.summary(x))),
            }
    return table


def draw_figure(task: GaussianTask, methods: Methods, path: Path, *, seed: int = 0) -> Path:
    """Draw the three panels of the paper's Figure 1."""
    generator = torch.Generator().manual_seed(SEEDS * seed + 4)
    theta = torch.tensor([[-0.5, 0.5]])
    x = task.simulate(theta, generator=generator)[0]
    outlier = torch.arange(len(x)) < len(x) // 5
    x_obs = torch.where(outlier[:, None], x + 8.0, x)
    result = methods.default.adapt(x_obs)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEEDS * seed + 5)
        before = methods.npe.sample((1_000,), x=result.s_obs, show_progress_bars=False)
    after = methods.default.sample((1_000,), x=x_obs, seed=SEEDS * seed + 5)
    fitted = methods.default.mds.fitted_
    with figure_style():
        figure, (left, middle, right) = report.new_figure(3)
    labels = ("clean observations", "contaminated observations")
    report.plot_data_space(left, x_obs, outlier, labels=labels)
    at = "model at the {} summary".format
    decoded = {at("observed"): (result.s_obs, OBSERVED), at("adapted"): (result.s_star, ADAPTED)}
    report.plot_density_contours(left, fitted, decoded).legend(fontsize=9, loc="upper left")
    s_ref = task.summary(x[None])[0]
    report.plot_summary_space(middle, fitted.wide.bank.s, result.s_obs, result.s_star, s_ref=s_ref)
    report.plot_posteriors(right, before, after, theta[0], labels=("NPE", "NPE with mindist"))
    return report.save_figure(figure, path)


def format_table(table: Mapping[float, Mapping[str, float]]) -> str:
    names = list(next(iter(table.values())))
    lines = ["epsilon  " + "  ".join(f"{name:>17}" for name in names)]
    for epsilon, row in table.items():
        lines.append(f"{epsilon:>7.1f}  " + "  ".join(f"{row[name]:>17.3f}" for name in names))
    return "\n".join(lines)


def run(*, seed: int, figure: Path, tell: Callable[[str], None]) -> dict[str, Any]:
    start, task, sizes = time.monotonic(), GaussianTask(), Sizes()
    tell("Location of a 2-d Gaussian from 100 observations. A fraction epsilon of them is wrong.")
    tell(f"Training on {sizes.simulations:,} simulations (the paper: {PAPER_SIMULATIONS:,}) ...")
    with one_thread():  # these networks are small: more threads would wait for each other
        methods = train(task, sizes, seed=seed)
        table = errors_by_epsilon(task, methods, sizes, seed=seed)
        tell(f"\nMean RMSE of the posterior mean over {sizes.test_datasets} datasets:\n")
        tell(format_table(table))
        draw_figure(task, methods, figure, seed=seed)
    seconds = time.monotonic() - start
    tell(f"\nThe paper's Figure 1 is in {figure} (took {seconds:.0f} s).")
    rows = [{"epsilon": epsilon, "rmse": row} for epsilon, row in table.items()]
    return {"figure": figure, "rows": rows, "seconds": seconds}
