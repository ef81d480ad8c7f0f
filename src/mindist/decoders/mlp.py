r"""The paper's decoder: a fully connected network with two hidden layers of 256 units.

.. math:: \mathcal{L}(\omega) = \frac{1}{M} \sum_i \| \mu_\omega(s_i) - \bar z_i \|_2^2

fitted with Adam, stopped early on held-out simulations (Section 3.2 and the appendix "Further
Experimental Details"). The paper prints neither the activation nor the learning rate of this
network. We take SiLU, because the search differentiates through the network and a kinked ReLU
stops second-order steps at its kinks, and 1e-3, Adam's own default.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from mindist.decoders.ridge import Standardiser
from mindist.schema import INLINE, UNSTORED

HELD_OUT = 0.1


def train(
    decoder: Any,
    network: nn.Module,
    loss: Callable[[Tensor], Tensor],
    rows: Tensor,
    held_out: Tensor,
    generator: torch.Generator,
) -> float:
    """Minimise `loss(rows)` by Adam; keep the weights of the least `loss(held_out)`, return it."""
    optimiser = torch.optim.Adam(network.parameters(), lr=decoder.learning_rate)
    best, best_state, waited = math.inf, copy.deepcopy(network.state_dict()), 0
    label = type(decoder).__name__.replace("Decoder", " decoder")
    bar = tqdm(range(decoder.max_epochs), label, disable=not decoder.progress)
    for _ in bar:
        shuffled = rows[torch.randperm(len(rows), generator=generator).to(rows.device)]
        for batch in shuffled.split(decoder.batch_size):
            optimiser.zero_grad()
            with torch.enable_grad():
                loss(batch).backward()
            optimiser.step()
        with torch.no_grad():
            error = float(loss(held_out))
        waited = 0 if error < best else waited + 1
        if error < best:
            best, best_state = error, copy.deepcopy(network.state_dict())
        bar.set_postfix(error=f"{best:.4g}")
        if waited >= decoder.patience:
            break
    network.load_state_dict(best_state)
    return best


def jacobian(function: Callable[[Tensor], Tensor], s: Tensor) -> Tensor:
    """Return the derivative `(B, P, d)` of a function of rows `(B, d)` that gives rows `(B, P)`."""
    # By reverse mode twice: splines have no forward mode.
    units = torch.eye(s.shape[1]).to(s)
    columns = [torch.autograd.functional.jvp(function, s.detach(), e.expand_as(s)) for e in units]
    return torch.stack([slope for _, slope in columns], dim=-1)


@dataclass(eq=False, repr=False)
class MLPDecoder:
    """A multilayer perceptron from the standardised summary to the mean embedding.

    Arguments:
        width: Units of each of the two hidden layers.
        learning_rate: Adam's step size.
        batch_size: Simulations in a gradient step.
        max_epochs: Passes over the simulations at most.
        patience: Stop after so many passes without a lower held-out error.
        progress: Whether to show a progress bar while fitting.

    Example:
        >>> s = torch.linspace(-2, 2, 400)[:, None]
        >>> decoder = MLPDecoder(width=32, learning_rate=1e-2, batch_size=32)
        >>> decoder = decoder.fit(s, s.sin(), generator=torch.Generator())
        >>> bool((decoder(s.double()) - s.sin()).abs().max() < 0.2)
        True
    """

    num_points = 0
    width: Annotated[int, range(1, 2**31)] = 256
    _: KW_ONLY
    learning_rate: float = 1e-3
    batch_size: int = 256
    max_epochs: int = 200
    patience: int = 10
    progress: Annotated[bool, UNSTORED] = False
    held_out_error: Annotated[float, "any"] = field(init=False)  # infinite after no epoch
    weight: Annotated[Tensor, "H K"] = field(init=False)
    bias: Annotated[Tensor, "K"] = field(init=False)
    weight0: Annotated[Tensor, "d H"] = field(init=False)
    bias0: Annotated[Tensor, "H"] = field(init=False)
    weight1: Annotated[Tensor, "H H"] = field(init=False)
    bias1: Annotated[Tensor, "H"] = field(init=False)
    standardise: Annotated[Standardiser, INLINE] = field(init=False)

    def fit(
        self, s: Tensor, z_bar: Tensor, *, generator: torch.Generator, **_: Any
    ) -> "MLPDecoder":
        """Fit to summaries `(M, d_s)` and mean embeddings `(M, K)`; `x`, `features` are unused."""
        self.standardise = Standardiser.of(s)
        inputs, targets = self.standardise(s.double()).float(), z_bar.float()
        order = torch.randperm(len(s), generator=generator).to(s.device)
        held_out, rest = order.split([n := max(1, round(HELD_OUT * len(s))), len(s) - n])
        network = _network(s.shape[1], self.width, z_bar.shape[1], generator).to(s.device)

        def loss(rows: Tensor) -> Any:
            return (network(inputs[rows]) - targets[rows]).square().sum(-1).mean()

        self.held_out_error = train(self, network, loss, rest, held_out, generator)
        # In float64, with rows as inputs.
        state = (value.double().t().contiguous() for value in network.state_dict().values())
        self.weight0, self.bias0, self.weight1, self.bias1, self.weight, self.bias = state
        return self

    def basis(self, s: Tensor) -> Tensor:
        """Return the second hidden layer, `(B, width)`."""
        h = self.standardise(s)
        for weight, bias in ((self.weight0, self.bias0), (self.weight1, self.bias1)):
            h = nn.functional.silu(h @ weight.to(s.dtype) + bias.to(s.dtype))
        return h

    def basis_and_jacobian(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """Return the second hidden layer, `(B, width)`, and its derivative `(B, width, d_s)`."""
        return self.basis(s.detach()), jacobian(self.basis, s)

    def __call__(self, s: Tensor) -> Tensor:
        """Return decoded mean embeddings `(B, K)`, float64."""
        return self.basis(s.double()) @ self.weight + self.bias


def _network(inputs: int, width: int, outputs: int, generator: torch.Generator) -> nn.Sequential:
    """Two hidden layers, initialised as `torch.nn.Linear` does but from our own generator."""
    sizes = [(inputs, width), (width, width), (width, outputs)]
    linears = [nn.utils.skip_init(nn.Linear, n, m, dtype=torch.float32) for n, m in sizes]
    with torch.no_grad():
        for linear in linears:
            bound = linear.in_features**-0.5
            for parameter in (linear.weight, linear.bias):
                parameter.uniform_(-bound, bound, generator=generator)
    return nn.Sequential(linears[0], nn.SiLU(), linears[1], nn.SiLU(), linears[2])
