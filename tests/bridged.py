"""A small trained posterior of each library that `RobustPosterior` takes, on one task."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal

from mindist import MinimumDistance, RobustPosterior
from mindist.posteriors import CallablePosterior
from mindist.posteriors.flow_bridge import load_weights, save_weights
from mindist.tasks import GaussianTask

TASK = GaussianTask(num_obs=30)


def simulate(num: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    theta = TASK.sample_prior(num, generator)
    return theta, TASK.simulate(theta, generator=generator)


THETA, X = simulate(1_000, seed=1)


def mean(x: Any) -> Any:
    return x.mean(1)


@cache
def mds_of_means() -> MinimumDistance:
    """One estimator for all tests that need no other; nobody changes it."""
    return MinimumDistance(mean, num_features=128).fit(X)


@dataclass
class Bridged:
    """A trained posterior, and how its library is asked.

    Arguments:
        posterior: What `RobustPosterior` wraps.
        draw: Draws `(n, d_theta)` given a dataset, by the library's own path, from a seed.
        log_prob: Log-densities `(S,)` of parameters given a dataset, by the library; or None.
        save: Writes the posterior.
        load: Reads it, into a new object.
        summary: Of the posterior, learned or not.
        moved: By how much contamination moves the posterior mean at least. The mean of the data
            goes 4/5 in each of two parameters, 1.13 in all, and these posteriors 1.07 to 1.17.
        left: The share of it that is left after adapting, at most. It is .11 to .14.
    """

    posterior: Any
    draw: Callable[[int, Tensor, int], Any]
    log_prob: Callable[[Tensor, Tensor], Any] | None
    save: Callable[[Path], None]
    load: Callable[[Path], Any]
    summary: Callable[[Any], Any] = mean
    moved: float = 1.0
    left: float = 0.25

    def robust(self, mds: MinimumDistance, **options: Any) -> RobustPosterior:
        return RobustPosterior(self.posterior, mds, **options)


def seeded(seed: int) -> None:
    torch.manual_seed(seed)


# ------------------------------------------------------------------------------ sbi


def sbi() -> Bridged:
    from mindist.posteriors.sbi_bridge import train_npe
    from mindist.posteriors.sbi_storage import load_posterior, save_posterior

    how = {"density_estimator": "mdn", "learning_rate": 3e-3, "max_num_epochs": 20, "seed": 1}
    npe = train_npe(TASK.prior, THETA, mean(X), **how)

    def draw(num: int, x: Tensor, seed: int) -> Tensor:
        seeded(seed)
        return npe.sample((num,), x=mean(x[None]), show_progress_bars=False)

    return Bridged(
        npe,
        draw,
        lambda theta, x: npe.log_prob(theta, x=mean(x[None])),
        lambda path: save_posterior(path, npe, density_estimator="mdn"),
        lambda path: load_posterior(path, TASK.prior)[0],
    )


# ------------------------------------------------------------------------------ BayesFlow


def workflow(*, learned: bool) -> Any:
    import bayesflow

    flow = bayesflow.networks.CouplingFlow(depth=2, subnet_kwargs={"widths": (16, 16)})
    names: dict[str, Any] = {"inference_conditions": ["s"]}
    if learned:
        small = (16, 16)
        net = bayesflow.networks.DeepSet(
            summary_dim=2,
            depth=1,
            mlp_widths_equivariant=small,
            mlp_widths_invariant_inner=small,
            mlp_widths_invariant_outer=small,
            mlp_widths_invariant_last=small,
            dropout=0.0,
        )
        names = {"summary_variables": ["x"], "summary_network": net}
    return bayesflow.BasicWorkflow(
        inference_network=flow,
        inference_variables=["theta"],
        standardize="all",
        initial_learning_rate=1e-2,
        **names,
    )


@cache
def train_workflow(*, learned: bool, epochs: int) -> Any:
    import keras

    keras.utils.set_random_seed(1)
    made = workflow(learned=learned)
    data = {"x": X.numpy()} if learned else {"s": mean(X).numpy()}
    made.fit_offline({"theta": THETA.numpy(), **data}, epochs=epochs, batch_size=100, verbose=0)
    return made


def bayesflow_bridged(*, learned: bool, epochs: int) -> Bridged:
    from mindist.posteriors.bayesflow_bridge import learned_summary, load_posterior, save_posterior

    made = train_workflow(learned=learned, epochs=epochs)

    def conditions(x: Tensor) -> dict[str, Any]:
        return {"x": x[None].numpy()} if learned else {"s": mean(x[None]).numpy()}

    def draw(num: int, x: Tensor, seed: int) -> Tensor:
        drawn = made.sample(num_samples=num, conditions=conditions(x), seed=seed)
        return torch.as_tensor(drawn["theta"][0])

    def log_prob(theta: Tensor, x: Tensor) -> Tensor:
        repeated = {k: v.repeat(len(theta), 0) for k, v in conditions(x).items()}
        return torch.as_tensor(made.log_prob({"theta": theta.numpy(), **repeated}))

    return Bridged(
        made,
        draw,
        log_prob,
        lambda path: save_posterior(path, made),
        lambda path: load_posterior(path, workflow(learned=learned)),
        # A network that has learned its summary in seconds is less sure of it: after 8, 10 and 12
        # epochs it moves by .52, .58 and .48, of which .25, .21 and .29 are left.
        **({"summary": learned_summary(made), "moved": 0.3, "left": 0.4} if learned else {}),
    )


# ------------------------------------------------------------------------------ torch flows


def train_flow(flow: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    optimiser = torch.optim.Adam(flow.parameters(), 5e-3)
    s = mean(X)
    with torch.enable_grad():
        for _ in range(300):
            rows = torch.randint(len(s), (200,))
            optimiser.zero_grad()
            loss(THETA[rows], s[rows]).backward()
            optimiser.step()


def flow_bridged(new: Callable[[], nn.Module], distribution: Callable[[Any], Any]) -> Bridged:
    seeded(0)
    flow = new()
    train_flow(flow, lambda theta, s: -distribution(flow)(s).log_prob(theta).mean())

    def draw(num: int, x: Tensor, seed: int) -> Tensor:
        seeded(seed)
        with torch.no_grad():
            return distribution(flow)(mean(x[None])).sample((num,))[:, 0]

    return Bridged(
        flow,
        draw,
        lambda theta, x: distribution(flow)(mean(x[None])).log_prob(theta).detach(),
        lambda path: save_weights(path, flow),
        lambda path: load_weights(path, new()),
    )


def zuko() -> Bridged:
    import zuko

    return flow_bridged(
        lambda: zuko.flows.MAF(2, 2, transforms=2, hidden_features=(16,)), lambda flow: flow
    )


def lampe() -> Bridged:
    from lampe.inference import NPE

    return flow_bridged(
        lambda: NPE(2, 2, transforms=2, hidden_features=(16,)), lambda npe: npe.flow
    )


# ------------------------------------------------------------------------------ ltu-ili


class IliPosterior(nn.Module):
    """The documented interface of ltu-ili's posteriors, which is not installable here.

    `sample(shape, x, show_progress_bars)`, `log_prob(theta, x)` and `prior`, with accept and reject
    inside, as its LampeEnsemble has them; the law is that of the exact posterior.
    """

    def __init__(self, spread: float) -> None:
        super().__init__()
        self.spread = nn.Parameter(torch.tensor(spread), requires_grad=False)
        self.prior = TASK.prior

    def _law(self, x: Tensor) -> Independent:
        return Independent(Normal(x, self.spread), 1)

    def sample(self, shape: Any, x: Any, show_progress_bars: bool = True) -> Tensor:
        if show_progress_bars:
            raise AssertionError("a bar was not asked for")
        return self._law(x).sample(shape).reshape(*shape, -1)

    def log_prob(self, theta: Tensor, x: Any) -> Tensor:
        return self._law(x).log_prob(theta)


def ili() -> Bridged:
    posterior = IliPosterior(0.18)

    def draw(num: int, x: Tensor, seed: int) -> Tensor:
        seeded(seed)
        return posterior.sample((num,), mean(x[None])[0], show_progress_bars=False)

    return Bridged(
        posterior,
        draw,
        lambda theta, x: posterior.log_prob(theta, mean(x[None])[0]),
        lambda path: save_weights(path, posterior),
        lambda path: load_weights(path, IliPosterior(1.0)),
    )


# ------------------------------------------------------------------------------ functions


def exact(s: Tensor, num: int) -> Tensor:
    return TASK.posterior_given_mean(s[None]).sample((num,))[:, 0]


def exact_log_prob(theta: Tensor, s: Tensor) -> Tensor:
    law = TASK.posterior_given_mean(s[None])
    return Independent(Normal(law.mean[0], law.variance[0].sqrt()), 1).log_prob(theta)


def function() -> Bridged:
    def draw(num: int, x: Tensor, seed: int) -> Tensor:
        seeded(seed)
        return exact(mean(x[None])[0], num)

    return Bridged(
        CallablePosterior(exact, exact_log_prob),
        draw,
        lambda theta, x: exact_log_prob(theta, mean(x[None])[0]),
        lambda path: None,  # a function is not stored: it is given again
        lambda path: CallablePosterior(exact, exact_log_prob),
    )


CONSTRUCTORS: dict[str, Callable[[], Bridged]] = {
    "sbi": sbi,
    "bayesflow": lambda: bayesflow_bridged(learned=False, epochs=5),
    "bayesflow-learned": lambda: bayesflow_bridged(learned=True, epochs=10),
    "zuko": zuko,
    "lampe": lampe,
    "ili": ili,
    "function": function,
}
