r"""Training sbi's NPE, on tensors or on a bank of simulations that is larger than memory.

.. math:: \min_\psi -\textstyle\sum_i \log q_\psi(\theta_i \mid s_i) .

sbi keeps all simulations in memory, but asks a method of its own for the batches of an epoch. For a
large bank that method reads them from disk here: blocks of consecutive datasets in a random order,
as many at a time as a pool holds, and from the pool batches at random.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from sbi.inference import NPE
from sbi.neural_nets import posterior_nn
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, constraints

from mindist import checks
from mindist.features.stream import is_bank
from mindist.posteriors.guards import quiet, seeded
from mindist.protocols import StoredSimulations
from mindist.simulation.calls import draw_prior

# Warnings of sbi and its libraries that our own calls cause and that say nothing to our users.
HARMLESS: tuple[str, ...] = (
    "torch.triangular_solve is deprecated",  # nflows' LU layer, when a spline flow is inverted
    ".*samples drawn with reject_outside_prior",  # we draw without rejection to reject ourselves
    "Capping max_sampling_batch_size",  # our batches are already within sbi's cap
    "Maximum number of epochs",  # the caller of train_npe chose the number
    "Running on CPU with more than",  # TabPFN, whose context our caller has limited
)
POOL_BYTES = 2**28  # of data among which batches are drawn; a bank no larger is read whole
BLOCK_BYTES = 2**24  # read at once, where the bank does not say what it stores together
SAMPLE_BYTES = 2**26  # of a bank's data, from which sbi builds a network
NUM_PRIOR_DRAWS = 1_000  # for a prior's mean and standard deviation, which need not be exact


# A tracker of training statistics that drops them; sbi's default makes a folder for them.
class NoTracker:
    log_dir = None
    log_metric = log_metrics = log_params = add_figure = flush = lambda *_, **__: None


@torch.enable_grad()  # which importing BayesFlow turns off
def train_npe(
    prior: Any,
    theta: Tensor | StoredSimulations,
    x: Tensor | None = None,
    *,
    density_estimator: str = "nsf",
    embedding_net: nn.Module | None = None,
    z_score_x: str | None = None,
    learning_rate: float = 5e-4,
    max_num_epochs: int = 2**31 - 1,
    batch_size: int = 200,
    stop_after_epochs: int = 20,
    seed: int | None = None,
    show_progress: bool = False,
) -> Any:
    """Train sbi's NPE, printing and writing nothing, and return a `DirectPosterior`.

    The defaults are the paper's (appendix, Further Experimental Details): a neural spline flow as
    sbi configures it, Adam at 5e-4, until convergence by sbi's early stopping.

    Arguments:
        prior: A torch distribution, or any prior that sbi takes.
        theta: Parameters `(M, d_theta)`; or a bank of simulations (`mindist.simulate`), alone. Its
            summaries are read into memory, or its data if there is an embedding net; data above
            256 MB are read in each epoch in random blocks, the last tenth for validation.
        x: What to condition on: summaries `(M, d_s)`, or datasets `(M, N, *event)` together with
            an embedding net.
        density_estimator: One of sbi's, such as "nsf", "maf", "mdn" or "zuko_nsf".
        embedding_net: Maps datasets `(B, N, *event)` to summaries; a copy is trained jointly.
        z_score_x: sbi's standardisation of x: "independent", "structured" or "none". By default
            "independent" for summaries, and "structured" before an embedding net, where
            "independent" would break permutation invariance.
        learning_rate: Step size of Adam.
        max_num_epochs: At most this many epochs.
        batch_size: Simulations in each step; sbi's default.
        stop_after_epochs: Epochs without improvement before stopping; sbi's default.
        seed: Seed of initial weights and batches; None draws from the global generator.
        show_progress: Let sbi print the number of epochs.

    Example:
        >>> theta = torch.randn(200, 1)
        >>> prior = torch.distributions.MultivariateNormal(torch.zeros(1), torch.eye(1))
        >>> posterior = train_npe(prior, theta, theta, density_estimator="mdn", max_num_epochs=1)
        >>> posterior.sample((5,), x=theta[:1], show_progress_bars=False).shape
        torch.Size([5, 1])
    """
    default = "independent" if embedding_net is None else "structured"
    net = nn.Identity() if embedding_net is None else copy.deepcopy(embedding_net)
    streamed = None
    if not isinstance(theta, Tensor):
        if not is_bank(theta):
            said = "parameters (M, d_theta) as a tensor, or a bank of simulations"
            then = "Convert an array with torch.as_tensor."
            raise checks.wrong("theta", said, type(theta).__name__, then, TypeError)
        if x is not None:
            raise TypeError("x: expected None beside a bank, which has its own. Leave x out.")
        bank = theta
        if embedding_net is None:
            theta, x = _parameters_and_summaries(bank)
            theta, x = theta[there := torch.isfinite(x).all(1)], x[there]
        else:
            kept = KeptData(bank)
            whole = len(kept.rows) * kept.dataset_bytes <= POOL_BYTES
            size = len(kept.rows) if whole else max(1, SAMPLE_BYTES // kept.dataset_bytes)
            where = next((p.device for p in embedding_net.parameters()), None)
            theta, x = (part.to(where) for part in kept.read(kept.rows[:size]))
            streamed = None if whole else kept  # a sample of a large bank, whose data are streamed
    if x is None:
        said = "summaries (M, d_s), or datasets with an embedding net, beside the parameters"
        then = "Only a bank of simulations is passed alone, as theta."
        raise checks.wrong("x", said, None, then, TypeError)
    device, method = theta.device, NPE if streamed is None else partial(StreamedNPE, streamed)
    with seeded(seed, device), quiet(*HARMLESS, stdout=not show_progress):
        how: Any = {"z_score_x": z_score_x or default, "embedding_net": net}
        build: Any = posterior_nn(density_estimator, **how)
        own: Any = {"density_estimator": build, "device": str(device), "tracker": NoTracker()}
        inference = method(prior, **own, show_progress_bars=show_progress)
        how = {"training_batch_size": batch_size, "learning_rate": learning_rate}
        how |= {"stop_after_epochs": stop_after_epochs, "max_num_epochs": max_num_epochs}
        inference.append_simulations(theta.float(), x.float()).train(**how)
        return inference.build_posterior()


class KeptData:  # the parameters and the data of a complete bank that kept its data, by number
    def __init__(self, bank: StoredSimulations) -> None:
        self._theta, s = _parameters_and_summaries(bank)
        x: Any = bank.x
        if x is None:
            said = "a bank that kept its data, from which an embedding net learns"
            then = "Simulate with keep='data', or leave the net out, to train on the summaries."
            raise checks.wrong("theta", said, "one without", then)
        self._x = x
        self.rows = torch.isfinite(s).all(1).nonzero()[:, 0]
        self.dataset_bytes = max(1, int(x[:1].nbytes))
        stored = getattr(x, "chunks", None) or (max(1, BLOCK_BYTES // self.dataset_bytes),)
        self.block = int(stored[0])

    def read(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Read parameters `(m, d_theta)` and data `(m, N, *event)` of datasets, in rising order."""
        first, last = int(rows[0]), int(rows[-1])
        data = checks.as_tensor(self._x[first : last + 1], "x").float()
        return self._theta[rows].float(), data if len(data) == len(rows) else data[rows - first]


# A data loader as sbi asks for it: whole batches of parameters, data and prior masks.
class BankLoader:
    def __init__(self, data: KeptData, rows: Tensor, batch_size: int, *, shuffle: bool) -> None:
        self._data, self._rows = data, rows
        self._order = torch.randperm if shuffle else torch.arange
        self.batch_size = min(batch_size, len(rows))

    def __len__(self) -> int:
        return len(self._rows) // self.batch_size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        left: tuple[Tensor, ...] = ()
        ends = torch.unique_consecutive(self._rows // self._data.block, return_counts=True)[1]
        blocks = self._rows.split(ends.tolist())  # numbers of datasets that are read together
        size = max(1, POOL_BYTES // (self._data.block * self._data.dataset_bytes))
        for pool in self._order(len(blocks)).split(size):
            read = (self._data.read(blocks[i]) for i in pool.tolist())
            parts = [left, *read] if left else list(read)
            theta, x = (torch.cat(column) for column in zip(*parts, strict=True))
            for chosen in self._order(len(theta)).split(self.batch_size):
                batch = theta[chosen], x[chosen]
                if len(chosen) == self.batch_size:
                    yield *batch, torch.ones(len(chosen), 1, dtype=torch.bool)
            left = batch if len(chosen) < self.batch_size else ()


# NPE whose batches come from a bank; sbi scales its network by the sample appended to it.
class StreamedNPE(NPE):  # type: ignore[misc]  # sbi is not typed
    def __init__(self, kept: KeptData, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._kept = kept

    def get_dataloaders(
        self, starting_round: int, batch_size: int, validation: float, *_: Any, **__: Any
    ) -> tuple[BankLoader, BankLoader]:
        """Return loaders, as sbi's method does: for training and, the last of it, validation."""
        appended, _, _ = self.get_simulations(starting_round)
        self.train_indices = torch.arange(len(appended))  # sbi builds the network from these
        rows, load = self._kept.rows, partial(BankLoader, self._kept, batch_size=batch_size)
        first, last = rows.tensor_split([int((1 - validation) * len(rows))])
        return load(first, shuffle=True), load(last, shuffle=False)


def _parameters_and_summaries(bank: StoredSimulations) -> tuple[Tensor, Tensor]:
    """Read all parameters `(M, d_theta)` and summaries `(M, d_s)`, NaN where data are missing."""
    if not bank.complete:
        said = f"a complete bank of {len(bank)} simulations"
        then = "Call mindist.simulate again with the same arguments: it continues where it stopped."
        raise checks.wrong("theta", said, "one that is not", then)
    return checks.as_tensor(bank.theta[:], "theta"), checks.as_tensor(bank.s[:], "s")


# A prior of `mindist.simulate` that can only be drawn from; its support is the whole space.
class FunctionPrior(Distribution):
    arg_constraints: dict[str, Any] = {}  # noqa: RUF012  (torch's own is like this)
    support = constraints.independent(constraints.real, 1)
    mean = stddev = torch.empty(0)  # by which sbi scales parameters

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        some = self._draw(NUM_PRIOR_DRAWS, 0)
        self.mean, self.stddev = some.mean(0), some.std(0)
        super().__init__(event_shape=some.shape[1:], validate_args=False)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        shape = torch.Size(sample_shape)
        theta = self._draw(shape.numel(), int(torch.randint(2**31, ())))
        return theta.reshape(*shape, *self.event_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return 0: the density is not known."""
        return value.new_zeros(value.shape[:-1])

    def _draw(self, num: int, seed: int) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            theta = draw_prior(self._function, num, seed)
        return torch.as_tensor(theta, dtype=torch.float32)


def as_distribution(prior: Any) -> tuple[Distribution, bool]:
    """Return a prior of `mindist.simulate` over vectors, and whether its support is known."""
    if isinstance(prior, Distribution):
        return (Independent(prior, len(prior.batch_shape)) if prior.batch_shape else prior), True
    return FunctionPrior(prior), False


def check_prior(prior: Any, shape: Sequence[int], of: str) -> None:
    drawn = tuple(prior.sample((1,)).shape[1:])
    if drawn != tuple(shape):
        said = f"one of parameters of shape {tuple(shape)}, as the {of} has them"
        then = "Is it the prior of another model?"
        raise checks.wrong("prior", said, f"one of shape {drawn}", then)
