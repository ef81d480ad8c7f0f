r"""The paper's pipeline, written from stock parts, to measure ours against.

.. math::
    z(x) = \sqrt{2/K} \cos(x W + b), \qquad
    \omega = \arg\min \tfrac1M \textstyle\sum_i \|\mu_\omega(s_i) - \bar z_i\|^2, \qquad
    s^\star = \arg\min_s \|\mu_\omega(s) - \bar z\|^2

with scikit-learn's `RBFSampler` at the median distance, a torch network of two hidden layers of 256
units fitted with Adam and stopped early, and torch's L-BFGS with a strong-Wolfe line search from
the observed summary, one dataset at a time (Sections 3.2 and "Further Experimental Details" of the
paper). It is what somebody would write who reads the paper and has no package: no chunks, no
batched search, autograd for gradients. Activation, step size, batches and patience are those of
`mindist.decoders.MLPDecoder`, so that the two learn the same network; the tolerances of L-BFGS are
torch's own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from sklearn.kernel_approximation import RBFSampler
from torch import Tensor, nn

NUM_FEATURES = 512
WIDTH, LEARNING_RATE, BATCH_SIZE, PATIENCE, MAX_EPOCHS = 256, 1e-3, 256, 10, 200
HELD_OUT, CALIBRATION, LEVEL = 0.1, 0.05, 0.95
MAX_ITERATIONS = 100
PAIRS_OF = 2_000  # pooled observations whose distances give the median

Summary = Callable[[Tensor], Tensor]
Decoder = Callable[[Tensor], Tensor]


def draw_features(x: Tensor, seed: int = 0) -> RBFSampler:
    """Random features of the Gaussian kernel at the median distance of observations.

    Arguments:
        x: Simulated datasets `(M, N, *event)`.
        seed: Of the features and of the observations whose distances are taken.
    """
    rows = x.flatten(0, 1).flatten(1)
    chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:PAIRS_OF]
    bandwidth = float(torch.nn.functional.pdist(rows[chosen]).median())
    return RBFSampler(
        gamma=1 / (2 * bandwidth**2), n_components=NUM_FEATURES, random_state=seed
    ).fit(rows[:1].numpy())


def embed(features: RBFSampler, x: Tensor) -> Tensor:
    """Mean embeddings `(B, K)` of datasets `(B, N, *event)`: transform all rows, then average."""
    rows = x.flatten(0, 1).flatten(1).numpy()
    return torch.from_numpy(features.transform(rows)).view(*x.shape[:2], -1).mean(1)


@dataclass(frozen=True)
class Network:
    """A fitted network from summaries to mean embeddings, with its standardisation."""

    layers: nn.Sequential
    centre: Tensor
    scale: Tensor

    def __call__(self, s: Tensor) -> Tensor:
        """Decoded mean embeddings `(B, K)` at summaries `(B, d_s)`."""
        decoded: Tensor = self.layers((s - self.centre) / self.scale)
        return decoded


def fit_network(
    s: Tensor, z_bar: Tensor, *, seed: int = 0, max_epochs: int = MAX_EPOCHS
) -> Network:
    """Fit a network to summaries `(M, d_s)` and mean embeddings `(M, K)` with Adam."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        centre, scale = s.mean(0), s.std(0)
        layers = nn.Sequential(
            *(nn.Linear(s.shape[1], WIDTH), nn.SiLU()),
            *(nn.Linear(WIDTH, WIDTH), nn.SiLU()),
            nn.Linear(WIDTH, z_bar.shape[1]),
        )
        order = torch.randperm(len(s))
        inputs, targets = ((s - centre) / scale)[order], z_bar[order]
        _train(layers, inputs, targets, round(HELD_OUT * len(s)), max_epochs)
    return Network(layers.requires_grad_(False), centre, scale)


def _train(
    layers: nn.Sequential, inputs: Tensor, targets: Tensor, held_out: int, max_epochs: int
) -> None:
    """Adam until the error on the first rows, which it does not see, has not fallen for long."""
    optimiser = torch.optim.Adam(layers.parameters(), lr=LEARNING_RATE)
    best, best_state, waited = float("inf"), copy.deepcopy(layers.state_dict()), 0
    for _ in range(max_epochs):
        for batch in (held_out + torch.randperm(len(inputs) - held_out)).split(BATCH_SIZE):
            optimiser.zero_grad()
            loss = (layers(inputs[batch]) - targets[batch]).square().sum(-1).mean()
            loss.backward()
            optimiser.step()
        with torch.no_grad():
            error = (layers(inputs[:held_out]) - targets[:held_out]).square().sum(-1).mean().item()
        waited = 0 if error < best else waited + 1
        if error < best:
            best, best_state = error, copy.deepcopy(layers.state_dict())
        if waited >= PATIENCE:
            break
    layers.load_state_dict(best_state)


def minimise(decoder: Decoder, s_obs: Tensor, z_bar: Tensor) -> Tensor:
    """The summary `(d_s,)` whose decoded embedding is nearest to one observed embedding `(K,)`.

    Example:
        >>> minimise(lambda s: s, torch.zeros(2), torch.tensor([1.0, 2.0]))
        tensor([1.0000, 2.0000])
    """
    s = s_obs[None].clone().requires_grad_(True)
    optimiser = torch.optim.LBFGS([s], max_iter=MAX_ITERATIONS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        distance = (decoder(s) - z_bar).square().sum()
        distance.backward()
        return distance

    optimiser.step(closure)
    return s.detach()[0]


@dataclass(frozen=True)
class LiteralPipeline:
    """All of it, fitted.

    Arguments:
        summary: Datasets `(B, N, *event)` to summaries `(B, d_s)`.
        features: The drawn features.
        network: The fitted decoder.
        threshold: The distance that 95% of held-out simulations stay below.
    """

    summary: Summary
    features: RBFSampler
    network: Network
    threshold: float

    @classmethod
    def fit(
        cls, summary: Summary, x: Tensor, *, seed: int = 0, max_epochs: int = MAX_EPOCHS
    ) -> LiteralPipeline:
        """Fit to simulated datasets `(M, N, *event)`, a twentieth of them held out."""
        features = draw_features(x, seed)
        s, z_bar = summary(x), embed(features, x)
        size = round(CALIBRATION * len(x))
        network = fit_network(s[size:], z_bar[size:], seed=seed, max_epochs=max_epochs)
        distance = (network(s[:size]) - z_bar[:size]).square().sum(-1)
        return cls(summary, features, network, float(distance.quantile(LEVEL)))

    def adapt(self, x_obs: Tensor, *, force: bool = False) -> Tensor:
        """The summary `(d_s,)` to use for one dataset `(N, *event)`."""
        s_obs, z_bar = self.summary(x_obs[None]), embed(self.features, x_obs[None])
        distance = (self.network(s_obs) - z_bar).square().sum()
        if not force and distance <= self.threshold:
            return s_obs[0]
        return minimise(self.network, s_obs[0], z_bar[0])


__all__ = ["LiteralPipeline", "Network", "draw_features", "embed", "fit_network", "minimise"]
