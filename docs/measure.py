"""The measurements behind docs/method.md, on the Gaussian task: `python docs/measure.py`."""

from __future__ import annotations

import time

import torch

from mindist import MinimumDistance
from mindist.decoders import MLPDecoder, RidgeDecoder
from mindist.tasks import GaussianTask

TASK = GaussianTask()


def simulate(num: int, seed: int, num_obs: int = 100) -> torch.Tensor:
    """Clean datasets `(num, num_obs, 2)`."""
    generator = torch.Generator().manual_seed(seed)
    return TASK.simulate(TASK.sample_prior(num, generator), num_obs, generator=generator)


def decoders(x: torch.Tensor) -> None:
    """Held-out squared error and time of fit, relative to the default's."""
    print("\n| decoder | mean held-out squared distance | time of fit / default's |\n|---|---|---|")
    fitted = MinimumDistance(TASK.summary).fit(x).fitted_
    z_bar, s = fitted.embedding.features.mean(x), TASK.summary(x)
    x_test = simulate(5_000, seed=1)
    z_test, s_test = fitted.embedding.features.mean(x_test).double(), TASK.summary(x_test).double()
    rows = {f"ridge, P = {size}": RidgeDecoder(size) for size in (500, 32, 64, 128, 256, 1_000)}
    rows["MLP, 2 x 256"] = MLPDecoder()
    unit = None
    for name, decoder in rows.items():
        start = time.perf_counter()
        decoder.fit(s, z_bar, generator=torch.Generator().manual_seed(0))
        seconds = time.perf_counter() - start
        unit = unit or seconds
        error = (decoder(s_test) - z_test).square().sum(-1).mean()
        print(f"| {name} | {error:.3e} | {seconds / unit:.2f} |", flush=True)


def sizes(x: torch.Tensor) -> None:
    """Rejections among 2,000 clean datasets at alpha = 0.05, by number of observations."""
    print("\n| N | default | paper preset |\n|---|---|---|")
    presets = [MinimumDistance(TASK.summary).fit(x), MinimumDistance.paper(TASK.summary).fit(x)]
    for num_obs in (5, 10, 20, 50, 100, 200, 500, 1_000, 5_000):
        x_obs = simulate(2_000, seed=2 + num_obs, num_obs=num_obs)
        rates = [float(mds.detect(x_obs).misspecified.float().mean()) for mds in presets]
        print(f"| {num_obs} | {rates[0]:.3f} | {rates[1]:.3f} |", flush=True)


if __name__ == "__main__":
    simulations = simulate(20_000, seed=0)
    decoders(simulations)
    sizes(simulations)
