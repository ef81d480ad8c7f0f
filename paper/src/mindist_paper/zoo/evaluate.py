r"""How good plain NPE and mindist are on one model of the zoo, case by case.

NPE is a Gaussian regression network: parameters, in prior standard deviations, are independent
normal with mean :math:`m(s)` and standard deviation :math:`\sigma(s)`. At the summaries
:math:`s_j` that a `RobustPosterior` averages over, the posterior is a mixture, whose mean and
distribution function need no draws:

.. math:: \hat\theta = \tfrac1J \textstyle\sum_j m(s_j), \qquad
    F(\theta) = \tfrac1J \textstyle\sum_j \Phi((\theta - m(s_j)) / \sigma(s_j)) .

The 90% interval covers where F is between .05 and .95. Errors are root mean squares over datasets
and parameters, relative to plain NPE's on the clean datasets that all cases of a model share.
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

NUM_RESAMPLES = 400  # of the bootstrap over datasets: its standard errors are good to 4%
MOST_EPOCHS, PATIENCE = 200, 20
DETECTED_AT_ONCE = 500  # datasets


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


def evaluate(model: Model, settings: Settings) -> dict[str, Any]:
    """Return everything measured on one model, as JSON values."""
    laps = [time.perf_counter()]

    def source(*part: int) -> Generator:
        return np.random.default_rng([settings.seed, zlib.crc32(model.name.encode()), *part])

    rng = source(0)
    theta = model.sample_prior(settings.simulations, rng)
    x = torch.from_numpy(model.simulate(theta, model.num_obs, rng))
    centre, scale = theta.mean(0), theta.std(0)
    targets = torch.from_numpy((theta - centre) / scale).float()
    net = train(model.summary(x).float(), targets, settings.seed)
    laps.append(time.perf_counter())
    make = MinimumDistance.paper if settings.preset == "paper" else MinimumDistance
    mds = make(model.summary, seed=settings.seed).fit(x)
    laps.append(time.perf_counter())

    def draw(s: Tensor, num: int) -> Tensor:
        mean, sd = net(s)
        return mean + sd * torch.randn(num, net.num)

    posterior, rng = RobustPosterior(draw, mds), source(1)
    theta = model.sample_prior(settings.datasets, rng)
    x_clean = model.simulate(theta, model.num_obs, rng)
    truth = torch.from_numpy((theta - centre) / scale).float()
    clean = score(net, model.summary(torch.from_numpy(x_clean))[:, None], truth)[0]
    cells = []
    for index, case in enumerate((Case("clean", 0.0, copies), *model.cases)):
        x_obs = x_clean
        if case.epsilon > 0:
            x_obs = contaminate(model, case, x_clean, theta, source(2, index))
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
        "size": size(mds, model, settings.size_datasets, source(3)),
        "seconds": dict(zip(("npe", "fit", "cells"), np.diff(laps).round(2).tolist(), strict=True)),
        "cells": cells,
    }
