"""Measure `mindist.Entrywise` on six models: wrong and missing entries of one observed vector.

    python scripts/entrywise.py OUT.md [MODEL ...]
    python scripts/entrywise.py speed
    python scripts/entrywise.py exact

Writes a table for each model. Errors are root mean squares of posterior mean minus truth in prior
standard deviations, relative to the same posterior's on clean vectors; in brackets the coverage of
90% intervals. The posterior is a Gaussian regression network trained on raw vectors
(`mindist_paper.zoo.evaluate`). "known" asks with the wrong entries declared missing.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mindist import Entrywise
from mindist_paper.zoo.evaluate import Regression, score, train

Simulate = Callable[[Tensor, torch.Generator], tuple[Tensor, Tensor]]
SIZES = (3.0, 10.0, 60.0, 1e6)
SHARES = (0.05, 0.2, 0.3)
NUM_VECTORS = 200
NUM_LEVEL = 1_000  # clean vectors for the share that is flagged


@dataclass(frozen=True)
class Model:
    """Vectors and the noise sd of each entry, from uniform parameters `(n, d)` on [0, 1]."""

    num_parameters: int
    simulate: Simulate
    shape: tuple[int, ...]
    num_simulations: int = 20_000
    seed: int = 1  # of the vectors that it is judged on; training has 100 more


def noisy(mean: Tensor, sd: Tensor, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return vectors with normal noise, and its sd."""
    sd = sd.expand_as(mean)
    return mean + sd * torch.randn(mean.shape, generator=g), sd


def bands(u: Tensor, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Fourteen bands: amplitude, slope, the place of a break and its depth; 5% noise."""
    wave = torch.linspace(0, 1, 14)
    a, b, c, d = u.split(1, 1)
    step = torch.sigmoid((wave - 0.2 - 0.6 * c) / 0.05)
    flux = (a - 0.5).exp() * (-(4 * b - 2) * (wave - 0.5)).exp() * (1 - (0.2 + 0.6 * d) * step)
    return noisy(flux, 0.05 * flux, g)


def linear(u: Tensor, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Twenty linear functions of three parameters."""
    loadings = torch.randn(3, 20, generator=torch.Generator().manual_seed(0))
    return noisy((u - 0.5) @ loadings, torch.tensor(0.1), g)


def lines(u: Tensor, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """A decaying spectrum of sixty channels with two lines of one strength and one width."""
    wave = torch.linspace(0, 1, 60)
    a, b, c, d = u.split(1, 1)
    width = 0.02 + 0.04 * d
    peaks = sum((-0.5 * ((wave - place) / width) ** 2).exp() for place in (0.35, 0.7))
    return noisy((0.5 + a) * (-3 * b * wave).exp() + c * peaks, torch.tensor(0.05), g)


def series(u: Tensor, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Fifty steps of a first-order autoregression: level, memory and innovations."""
    level, memory, sd = 4 * u[:, 0] - 2, 0.9 * u[:, 1], 0.3 + 0.7 * u[:, 2]
    noise = torch.randn(len(u), 50, generator=g) * sd[:, None]
    values = [noise[:, 0] / (1 - memory**2).sqrt()]
    for step in noise.T[1:]:
        values.append(memory * values[-1] + step)
    return level[:, None] + torch.stack(values, 1), sd[:, None].expand(-1, 50)


def epidemic(u: Tensor, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Thirty days of infected of an SIR model: contact rate, recovery rate, first cases."""
    beta, gamma, now = 0.4 + 0.8 * u[:, 0], 0.1 + 0.2 * u[:, 1], 0.002 + 0.02 * u[:, 2]
    susceptible, curve = 1 - now, []
    for _ in range(30):
        for _ in range(4):
            new, gone = beta * susceptible * now / 4, gamma * now / 4
            susceptible, now = susceptible - new, now + new - gone
        curve.append(now)
    mean = torch.stack(curve, 1)
    return noisy(mean, 0.005 + 0.05 * mean, g)


def image(u: Tensor, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """A blob of 8 by 8 pixels: place, width and brightness."""
    grid = torch.linspace(0, 1, 8)
    row, column, width, bright = (part[:, :, None] for part in u.split(1, 1))
    far = (grid[:, None] - 0.2 - 0.6 * row) ** 2 + (grid - 0.2 - 0.6 * column) ** 2
    mean = (0.5 + bright) * (-far / (0.1 + 0.2 * width) ** 2).exp()
    return noisy(mean, torch.tensor(0.05), g)


MODELS = {
    "bands": Model(4, bands, (14,)),
    "linear": Model(3, linear, (20,), 10_000),
    "lines": Model(4, lines, (60,), 10_000),
    "series": Model(3, series, (50,), 10_000),
    "epidemic": Model(3, epidemic, (30,), 10_000),
    "image": Model(4, image, (8, 8), 10_000),
}


def draw(model: Model, num: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return standardised parameters, vectors and noise sds."""
    g = torch.Generator().manual_seed(seed)
    u = torch.rand(num, model.num_parameters, generator=g)
    return (u - 0.5) * math.sqrt(12), *model.simulate(u, g)


def chosen(model: Model, num: int, count: int, block: bool, g: torch.Generator) -> Tensor:
    """Choose `count` entries of each vector: anywhere, or next to each other."""
    size = math.prod(model.shape)
    if not block:
        return (torch.rand(num, size, generator=g).argsort(1) < count).view(num, *model.shape)
    if len(model.shape) == 1:
        first = torch.randint(size - count + 1, (num, 1), generator=g)
        return (torch.arange(size) >= first) & (torch.arange(size) < first + count)
    side = max(1, round(math.sqrt(count)))
    first = torch.randint(model.shape[0] - side + 1, (num, 2, 1), generator=g)
    inside = (torch.arange(model.shape[0]) >= first) & (torch.arange(model.shape[0]) < first + side)
    return inside[:, 0, :, None] & inside[:, 1, None]


def known(entries: Entrywise, x: Tensor, bad: Tensor) -> Tensor:
    """Return vectors completed where entries are declared missing, and nothing else set aside."""
    alpha, entries.alpha = entries.alpha, 1e-9
    found = entries.adapt(x.masked_fill(bad, torch.nan)).completed
    entries.alpha = alpha
    return found


def measure(model: Model, out: list[str]) -> list[tuple[float, ...]]:
    """Measure one model; return ratios robust/plain and robust/known of each case."""
    theta, x, _ = draw(model, model.num_simulations, model.seed + 100)
    net: Regression = train(x.flatten(1), theta, 0)
    start = time.perf_counter()
    single = Entrywise().fit(x)
    seconds = time.perf_counter() - start
    blocks = Entrywise(groups="auto").fit(x)
    truth, clean, sd = draw(model, NUM_VECTORS, model.seed)
    level = draw(model, NUM_LEVEL, model.seed + 1)[1]
    base = 1.0

    def shown(points: Tensor) -> tuple[float, str]:
        squares, covered = score(net, points.flatten(2), truth)
        error = math.sqrt(squares.mean())
        return error, f"{error / base:.3g} ({covered.mean():.2f})"

    base, _ = shown(clean[:, None])
    flagged = [e.adapt(level).outliers.flatten(1).any(1).double().mean() for e in (single, blocks)]
    settings = single.fitted_.search
    out.append(
        f"\nClean error {base:.3f}. Clean vectors with an entry set aside: {flagged[0]:.3f}, in "
        f"groups {flagged[1]:.3f} (of {NUM_LEVEL:,}). {settings.neighbours} neighbours, shrinkage "
        f"{settings.shape.shrinkage:g}, {settings.shape.basis.shape[1]} components, "
        f"{len(blocks.fitted_.search.groups.members)} groups; fit {seconds:.0f} s.\n"
    )
    out.append("| case | plain | robust | known | detected | wrong flagged | right flagged |")
    out.append("|---|---|---|---|---|---|---|")
    out.append(
        f"| clean | {shown(clean[:, None])[1]} | {shown(single.adapt(clean).completed)[1]} |"
    )
    g, ratios = torch.Generator().manual_seed(model.seed + 2), []
    size = math.prod(model.shape)
    gone = chosen(model, NUM_VECTORS, 4 if size == 14 else round(0.2 * size), False, g)
    out.append(f"| {gone[0].sum()} missing | - | - | {shown(known(single, clean, gone))[1]} |")
    for block, entries in ((False, single), (True, blocks)):
        for count in sorted({max(1, round(share * size)) for share in SHARES}):
            bad = chosen(model, NUM_VECTORS, count, block, g)
            sign = torch.randint(0, 2, (NUM_VECTORS, *[1] * len(model.shape)), generator=g)
            if not block:
                sign = torch.randint(0, 2, clean.shape, generator=g)
            best = shown(known(entries, clean, bad))
            for off in SIZES:
                x = torch.where(bad, clean + (2 * sign - 1) * off * sd, clean)
                result = entries.adapt(x)
                plain, robust = shown(x[:, None]), shown(result.completed)
                right, wrong = (result.outliers[part].double().mean() for part in (~bad, bad))
                name = f"{int(bad[0].sum())} {'in a block' if block else 'single'}, {off:g} sd"
                found = result.misspecified.double().mean()
                out.append(
                    f"| {name} | {plain[1]} | {robust[1]} | {best[1]} | {found:.2f} | {wrong:.2f} "
                    f"| {right:.3f} |"
                )
                ratios.append((robust[0] / plain[0], robust[0] / best[0]))
    return ratios


def speed() -> None:
    """Print seconds of a fit and milliseconds of a vector: 100 entries, 100,000 simulations."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(100_000, 4, generator=g) @ torch.randn(4, 100, generator=g)
    x = x + 0.3 * torch.randn(x.shape, generator=g)
    start = time.perf_counter()
    entries = Entrywise().fit(x[50:])
    print(f"fit {time.perf_counter() - start:.0f} s")
    wrong = torch.where(torch.arange(100) < 10, x[:50] + 5, x[:50])
    for name, some in (("clean", x[:50]), ("ten entries wrong", wrong)):
        start = time.perf_counter()
        entries.adapt(some)
        print(f"{name}: {(time.perf_counter() - start) * 20:.0f} ms a vector")


def exact(num: int = 200_000, share: float = 0.15, width: float = 10.0) -> None:
    """Print what exact inference gives on the bands: the likelihood known, wrong entries wide.

    Each entry is right, or with some probability normal with `width` times its noise (cut at 3 sd,
    so that no size is impossible); parameters are drawn from the prior and weighted.
    """
    model = MODELS["bands"]
    g = torch.Generator().manual_seed(model.seed + 3)
    u = torch.rand(num, model.num_parameters, generator=g)
    sd = model.simulate(u, g)[1]
    flux, theta = sd / 0.05, (u - 0.5) * math.sqrt(12)
    truth, clean, noise = draw(model, NUM_VECTORS, model.seed)

    def error(x: Tensor, wrong: float) -> float:
        means = []
        for y in x:
            right = -((y - flux) / sd).square() / 2 - sd.log() + math.log(1 - wrong)
            off = ((y - flux) / (width * sd)).clamp(-3, 3)
            other = -off.square() / 2 - (width * sd).log() + math.log(wrong)
            means.append(torch.softmax(torch.logaddexp(right, other).sum(1), 0) @ theta)
        return float((torch.stack(means) - truth).square().mean().sqrt())

    base = error(clean, 1e-12)
    for count in (1, 3, 4):
        bad = chosen(model, NUM_VECTORS, count, False, g)
        sign = 2 * torch.randint(0, 2, clean.shape, generator=g) - 1
        sizes = {off: torch.where(bad, clean + sign * off * noise, clean) for off in SIZES[:3]}
        found = ", ".join(f"{off:g} sd {error(x, share) / base:.2f}" for off, x in sizes.items())
        print(f"{count} single: {found}", flush=True)


def main(path: str, *names: str) -> None:
    """Measure the models and write the page; or only print the speed, or what is possible."""
    torch.set_num_threads(1)
    if path in ("speed", "exact"):
        return speed() if path == "speed" else exact()
    out, every = ["# Entrywise, measured\n"], []
    for name in names or MODELS:
        model = MODELS[name]
        out.append(f"\n## {name}\n\n{model.simulate.__doc__}")
        ratios = torch.tensor(measure(model, out))
        every.append(ratios)
        worse, near = (ratios[:, 0] > 1.05).sum(), (ratios[:, 1] <= 1.5).double().mean()
        out.append(
            f"\nOf {len(ratios)} cases {worse} are worse than plain by more than 5% (at most "
            f"{ratios[:, 0].max():.2f} times); {near:.0%} are within 1.5 of known."
        )
        Path(path).write_text("\n".join(out) + "\n", encoding="utf-8")
        print(name, out[-1], flush=True)
    total = torch.cat(every)
    out.append(
        f"\nAll: {len(total)} cases; {(total[:, 0] > 1.05).sum()} worse than plain by more than "
        f"5%; {(total[:, 1] <= 1.5).double().mean():.0%} within 1.5 of known."
    )
    Path(path).write_text("\n".join(out) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
