r"""How good plain NPE and mindist are on one model of the zoo, case by case.

NPE is a Gaussian regression network: parameters, in prior standard deviations, are independent
normal with mean :math:`m(s)` and standard deviation :math:`\sigma(s)`. At the summaries
:math:`s_j` that a `RobustPosterior` averages over, the posterior is a mixture, whose mean and
distribution function need no draws:

.. math:: \hat\theta = \tfrac1J \textstyle\sum_j m(s_j), \qquad
    F(\theta) = \tfrac1J \textstyle\sum_j \Phi((\theta - m(s_j)) / \sigma(s_j)) .

The 90% interval covers where F is between .05 and .95. Errors are root mean squares over datasets
and parameters, relative to plain NPE's on the clean datasets that all cases of a model share.

On published benchmarks (`compare`) there are draws, the paper's preset, and an oracle that asks at
the summary of the observations that were not replaced. Over the datasets of a cell are measured
`error`, the root mean square of posterior mean minus truth, for each parameter; `squared`, its
square; `over draws`, the root mean square of draw minus truth over draws and parameters, averaged
over datasets (Huang et al. 2023); and the posterior's 5, 50 and 95% points, the median of each.
"""

from __future__ import annotations

import time
import zlib
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mindist import MinimumDistance, RobustPosterior
from mindist_paper.zoo.cases import Array, Case, Generator, Model, contaminate, copies
from mindist_paper.zoo.published import Benchmark

NUM_RESAMPLES = 400  # of the bootstrap over datasets: its standard errors are good to 4%
MOST_EPOCHS, PATIENCE = 200, 20
DETECTED_AT_ONCE = 500  # datasets
NUM_DRAWS, LEVELS = 2_048, (0.05, 0.5, 0.95)  # of each posterior of a benchmark


@dataclass(frozen=True)
class Settings:
    """How much to compute."""

    simulations: int = 5_000
    datasets: int = 200  # in each cell
    size_datasets: int = 2_000  # clean ones, on which only the detection's size is measured
    preset: str = "default"  # or "paper"
    seed: int = 0


class Regression(nn.Module):
    """Mean and log sd of standardised parameters given a standardised summary.

    The mean starts at the least-squares line, which a network corrects: where the prior is many
    times as wide as the posterior a network alone would be too coarse.
    """

    def __init__(self, s: Tensor, theta: Tensor) -> None:
        super().__init__()
        self.num = theta.shape[1]
        self.centre, self.scale = s.mean(0), s.std(0).clamp_min(1e-9)
        design = torch.cat([self.standardised(s), torch.ones(len(s), 1)], 1)
        self.line = nn.Parameter(torch.linalg.lstsq(design, theta).solution)
        self.net = nn.Sequential(
            nn.Linear(s.shape[1], 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(),
            nn.Linear(64, 2 * self.num),
        )  # fmt: skip

    def standardised(self, s: Tensor) -> Tensor:
        """Return s in standard deviations of simulated summaries."""
        return (s - self.centre) / self.scale

    def forward(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation, `(*, d_theta)` each."""
        s = self.standardised(s.float())
        mean, log_sd = self.net(s).split(self.num, -1)
        return mean + s @ self.line[:-1] + self.line[-1], log_sd.clamp(-9, 1).exp()


def train(s: Tensor, theta: Tensor, seed: int) -> Regression:
    """Train the network by Adam; keep the weights of the lowest held-out loss."""
    with torch.random.fork_rng(), torch.enable_grad():
        torch.manual_seed(seed)
        net, num = Regression(s, theta), len(s) * 9 // 10
        optimiser = torch.optim.Adam(net.parameters(), 1e-3)
        slower = torch.optim.lr_scheduler.ReduceLROnPlateau(optimiser, patience=PATIENCE // 4)

        def loss(rows: Any) -> Tensor:
            mean, sd = net(s[rows])
            return (((theta[rows] - mean) / sd).square() / 2 + sd.log()).mean()

        best, since, kept = float("inf"), 0, net.state_dict()
        for _ in range(MOST_EPOCHS):
            for rows in torch.randperm(num).split(128):
                optimiser.zero_grad()
                loss(rows).backward()
                optimiser.step()
            with torch.no_grad():
                held_out = float(loss(slice(num, None)))
            slower.step(held_out)
            since += 1
            if held_out < best:
                best, since = held_out, 0
                kept = {name: value.clone() for name, value in net.state_dict().items()}
            if since > PATIENCE:
                break
        net.load_state_dict(kept)
    return net.requires_grad_(False)


def score(net: Regression, points: Tensor, theta: Tensor) -> tuple[Array, Array]:
    """Score mixtures over summaries `(B, J, d_s)` at the true parameters `(B, d_theta)`.

    Returns:
        Squared errors `(B,)` and shares of parameters inside their 90% intervals `(B,)`.
    """
    mean, sd = net(points)
    below = torch.special.ndtr((theta[:, None] - mean) / sd).mean(1)
    covered = ((below > 0.05) & (below < 0.95)).double().mean(1)
    return (mean.mean(1) - theta).double().square().mean(1).numpy(), covered.numpy()


def asked(posterior: RobustPosterior, x: Tensor) -> Tensor:
    """Return the summaries over which the robust posterior averages, `(B, J, d_s)`."""
    found = posterior.conditions(x)
    s = found.s[:, None]
    uncertain = found.uncertain[:, None, None]
    return torch.where(uncertain, found.around, s) if uncertain.any() else s


def ratios(plain: Array, mindist: Array, clean: Array) -> dict[str, float]:
    """Return ratios of root mean squares of `(B,)` errors, with bootstrap standard errors."""
    rows = np.random.default_rng(0).integers(0, len(clean), (NUM_RESAMPLES, len(clean)))
    rows = np.concatenate([np.arange(len(clean))[None], rows])
    a, b, c = (np.sqrt(error[rows].mean(1)) for error in (plain, mindist, clean))
    found = {"plain": a / c, "mindist": b / c, "against_plain": b / a}
    errors = {f"{name}_se": float(ratio[1:].std()) for name, ratio in found.items()}
    return {name: float(ratio[0]) for name, ratio in found.items()} | errors


def size(mds: MinimumDistance, model: Model, num: int, rng: Generator) -> dict[str, Any]:
    """Return rejection rates on clean data, by the first parameter's tenths and outer fiftieths."""
    theta = model.sample_prior(num, rng)
    x = torch.from_numpy(model.simulate(theta, model.num_obs, rng))
    rejected = torch.cat([mds.detect(part).misspecified for part in x.split(DETECTED_AT_ONCE)])
    ordered = rejected.double().numpy()[theta[:, 0].argsort()]
    tenths, fiftieths = (
        [float(part.mean()) for part in np.array_split(ordered, parts)] for parts in (10, 50)
    )
    ends = [fiftieths[0], fiftieths[-1]]
    return {"num": num, "overall": float(ordered.mean()), "tenths": tenths, "ends": ends}


def source(model: Model, settings: Settings, *part: int) -> Generator:
    """Return a generator of its own for a part of what is computed on a model."""
    return np.random.default_rng([settings.seed, zlib.crc32(model.name.encode()), *part])


def prepare(model: Model, settings: Settings) -> tuple[Regression, Tensor, Array, Array]:
    """Simulate and train; return the network, the datasets, and location and scale of theta."""
    rng = source(model, settings, 0)
    theta = model.sample_prior(settings.simulations, rng)
    x = torch.from_numpy(model.simulate(theta, model.num_obs, rng))
    centre, scale = theta.mean(0), theta.std(0)
    targets = torch.from_numpy((theta - centre) / scale).float()
    return train(model.summary(x).float(), targets, settings.seed), x, centre, scale


def robust(net: Regression, mds: MinimumDistance) -> RobustPosterior:
    """Return the network's posterior, asked at adapted summaries."""

    def draw(s: Tensor, num: int) -> Tensor:
        mean, sd = net(s)
        return mean + sd * torch.randn(num, net.num)

    return RobustPosterior(draw, mds)


def evaluate(model: Model, settings: Settings) -> dict[str, Any]:
    """Return everything measured on one model, as JSON values."""
    laps = [time.perf_counter()]
    net, x, centre, scale = prepare(model, settings)
    laps.append(time.perf_counter())
    make = MinimumDistance.paper if settings.preset == "paper" else MinimumDistance
    mds = make(model.summary, seed=settings.seed).fit(x)
    laps.append(time.perf_counter())
    posterior, rng = robust(net, mds), source(model, settings, 1)
    theta = model.sample_prior(settings.datasets, rng)
    x_clean = model.simulate(theta, model.num_obs, rng)
    truth = torch.from_numpy((theta - centre) / scale).float()
    clean = score(net, model.summary(torch.from_numpy(x_clean))[:, None], truth)[0]
    cells = []
    for index, case in enumerate((Case("clean", 0.0, copies), *model.cases)):
        x_obs = x_clean
        if case.epsilon > 0:
            x_obs = contaminate(model, case, x_clean, theta, source(model, settings, 2, index))
        x = torch.from_numpy(x_obs)
        plain, plain_covers = score(net, model.summary(x)[:, None], truth)
        result = posterior.adapt(x)
        mindist, mindist_covers = score(net, asked(posterior, x), truth)
        cell = {"case": case.name, "epsilon": case.epsilon, **ratios(plain, mindist, clean)}
        cell |= {"plain_covers": plain_covers.mean(), "mindist_covers": mindist_covers.mean()}
        cell |= {"detected": result.misspecified.double().mean().item()}
        cells.append(cell | {"status": Counter(map(str, result.status))})
    laps.append(time.perf_counter())
    return {
        "model": model.name,
        "settings": asdict(settings),
        "clean_error": float(np.sqrt(clean.mean())),  # in prior standard deviations
        "size": size(mds, model, settings.size_datasets, source(model, settings, 3)),
        "seconds": dict(zip(("npe", "fit", "cells"), np.diff(laps).round(2).tolist(), strict=True)),
        "cells": cells,
    }


def measure(draws: Array, theta: Array) -> dict[str, Any]:
    """Compare draws `(B, n, d_theta)` with the truth `(B, d_theta)`."""
    off = draws.mean(1) - theta
    quantiles = np.quantile(draws, LEVELS, axis=1)
    inside = (quantiles[0] < theta) & (theta < quantiles[2])
    distance = np.sqrt(((draws - theta[:, None]) ** 2).mean((1, 2)))
    return {
        "error": np.sqrt((off**2).mean(0)).tolist(),
        "squared": float((off**2).mean()),
        "over draws": float(distance.mean()),
        "quantiles": np.median(quantiles, 1).T.tolist(),
        "median": np.median(quantiles[1], 0).tolist(),
        "covers": inside.mean(0).tolist(),
    }


def compare(benchmark: Benchmark, settings: Settings) -> dict[str, Any]:
    """Return what was measured on one benchmark, of every way to a summary, as JSON values."""
    start, model = time.perf_counter(), benchmark.model
    net, x_train, centre, scale = prepare(model, settings)
    kinds: dict[str, Any] = {"mindist": MinimumDistance, "paper": MinimumDistance.paper}
    fitted = {n: make(model.summary, seed=settings.seed).fit(x_train) for n, make in kinds.items()}
    posteriors = {name: robust(net, mds) for name, mds in fitted.items()}
    rng = source(model, settings, 1)
    theta = model.sample_prior(settings.datasets, rng)
    if benchmark.truth is not None:
        theta = np.repeat(np.array([benchmark.truth], float), settings.datasets, 0)
    x_clean = model.simulate(theta, model.num_obs, rng)

    def measured(points: Tensor) -> dict[str, Any]:
        """Measure the mixture of the network's posteriors at summaries `(B, J, d_s)`."""
        mean, sd = (part.double().numpy() for part in net(points))
        chosen = np.arange(NUM_DRAWS) % mean.shape[1]
        noise = np.random.default_rng(0).standard_normal((len(mean), NUM_DRAWS, net.num))
        draws = (mean[:, chosen] + sd[:, chosen] * noise) * scale + centre
        return measure(benchmark.shown(draws), benchmark.shown(theta))

    cells = []
    for index, case in enumerate((Case("clean", 0.0, copies), *model.cases)):
        rng, x_obs = source(model, settings, 2, index), x_clean
        if case.epsilon > 0:
            x_obs = contaminate(model, case, x_clean, theta, rng)
        x = torch.from_numpy(x_obs)
        right = torch.from_numpy((x_obs == x_clean).reshape(*x.shape[:2], -1).all(2))
        ways = {"plain": model.summary(x)[:, None]}
        ways |= {name: asked(posterior, x) for name, posterior in posteriors.items()}
        if case.epsilon < 1:
            ways["oracle"] = of_chosen(benchmark, x, list(right))
        elif benchmark.oracle is not None:
            ways["oracle"] = benchmark.oracle(x)[:, None]
        for name, rival in benchmark.rivals.items():
            ways[name] = of_chosen(benchmark, x, [rival(one) for one in x])
        result = posteriors["mindist"].adapt(x)
        cell: dict[str, Any] = {
            "case": case.name if case.epsilon == 0 else f"{case.name}, {case.epsilon:g}",
            "methods": {name: measured(points) for name, points in ways.items()},
            "status": Counter(map(str, result.status)),
        }
        for name, posterior in posteriors.items():
            rejected = posterior.adapt(x).misspecified.double().mean()
            cell["methods"][name]["detected"] = float(rejected)
        for name, part in {"flagged": ~right, "flagged right": right}.items():
            share = result.outliers[part].double().mean()
            cell["methods"]["mindist"][name] = float(share) if part.any() else None
        cells.append(cell)
    seconds = round(time.perf_counter() - start)
    return {"settings": asdict(settings), "seconds": seconds, "cells": cells}


def of_chosen(benchmark: Benchmark, x: Tensor, chosen: list[Tensor]) -> Tensor:
    """Return the summaries `(B, 1, d_s)` of chosen observations of each dataset."""
    parts = [one[mask][None] for one, mask in zip(x, chosen, strict=True)]
    return torch.stack([benchmark.model.summary(part) for part in parts])
