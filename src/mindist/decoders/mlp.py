r"""The paper's decoder: a fully connected network with two hidden layers of 256 units.

.. math:: \mathcal{L}(\omega) = \frac{1}{M} \sum_i \| \mu_\omega(s_i) - \bar z_i \|_2^2

fitted with Adam, stopped early on held-out simulations (Section 3.2 and the appendix "Further
Experimental Details"). The paper prints neither the activation nor the learning rate of this
network. We take SiLU, because the search differentiates through the network and a kinked ReLU
stops second-order steps at its kinks, and 1e-3, Adam's own default.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from mindist.decoders.standardise import Standardiser
from mindist.protocols import FeatureMap, State

HELD_OUT = 0.1


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

    def __init__(
        self,
        width: int = 256,
        *,
        learning_rate: float = 1e-3,
        batch_size: int = 256,
        max_epochs: int = 200,
        patience: int = 10,
        progress: bool = False,
    ) -> None:
        self.width = width
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.patience = patience
        self.progress = progress

    def fit(
        self,
        s: Tensor,
        z_bar: Tensor,
        *,
        generator: torch.Generator,
        x: Tensor | None = None,
        features: FeatureMap | None = None,
    ) -> MLPDecoder:
        """Fit to summaries `(M, d_s)` and mean embeddings `(M, K)`; `x`, `features` are unused."""
        del x, features
        self.standardise = Standardiser.of(s)
        inputs, targets = self.standardise(s.double()).float(), z_bar.float()
        order = torch.randperm(len(s), generator=generator).to(s.device)
        held_out, rest = order.split([n := max(1, round(HELD_OUT * len(s))), len(s) - n])
        network = _network(s.shape[1], self.width, z_bar.shape[1], generator).to(s.device)
        optimiser = torch.optim.Adam(network.parameters(), lr=self.learning_rate)
        best, best_state, waited = float("inf"), copy.deepcopy(network.state_dict()), 0
        with torch.enable_grad():
            for _ in (
                bar := tqdm(range(self.max_epochs), "MLP decoder", disable=not self.progress)
            ):
                shuffled = rest[torch.randperm(len(rest), generator=generator).to(s.device)]
                for batch in shuffled.split(self.batch_size):
                    optimiser.zero_grad()
                    _loss(network, inputs[batch], targets[batch]).backward()
                    optimiser.step()
                with torch.no_grad():
                    error = float(_loss(network, inputs[held_out], targets[held_out]))
                waited = 0 if error < best else waited + 1
                if error < best:
                    best, best_state = error, copy.deepcopy(network.state_dict())
                bar.set_postfix(error=f"{best:.2e}")
                if waited >= self.patience:
                    break
        self.held_out_error = best
        self._read(best_state)
        return self

    def _read(self, parameters: dict[str, Tensor]) -> None:
        """Keep a network's parameters in float64, with rows as inputs."""
        first, second, last = (parameters[f"{i}.weight"].double().T.contiguous() for i in (0, 2, 4))
        biases = [parameters[f"{i}.bias"].double() for i in (0, 2, 4)]
        self.layers = ((first, biases[0]), (second, biases[1]))
        self.weight, self.bias = last, biases[2]

    def basis(self, s: Tensor) -> Tensor:
        """The second hidden layer, `(B, width)`."""
        h = self.standardise(s)
        for weight, bias in self.layers:
            h = nn.functional.silu(h @ weight.to(s.dtype) + bias.to(s.dtype))
        return h

    @torch.no_grad()
    def basis_and_jacobian(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """The second hidden layer, `(B, width)`, and its derivative `(B, width, d_s)`."""
        h = self.standardise(s)
        jacobian = torch.diag_embed((1 / self.standardise.scale.to(s.dtype)).expand_as(s))
        for weight, bias in self.layers:
            a = h @ weight.to(s.dtype) + bias.to(s.dtype)
            gate = a.sigmoid()
            h = a * gate
            slope = gate * (1 + a * (1 - gate))
            jacobian = slope[..., None] * (weight.T.to(s.dtype) @ jacobian)
        return h, jacobian

    def __call__(self, s: Tensor) -> Tensor:
        """Decoded mean embeddings `(B, K)`, float64."""
        return self.basis(s.double()) @ self.weight + self.bias

    def state(self) -> State:
        """Configuration and tensors from which the fitted decoder can be rebuilt."""
        names = ("width", "learning_rate", "batch_size", "max_epochs", "patience")
        config: dict[str, Any] = {name: getattr(self, name) for name in names}
        tensors = {"weight": self.weight, "bias": self.bias}
        for i, (weight, bias) in enumerate(self.layers):
            tensors |= {f"weight{i}": weight, f"bias{i}": bias}
        tensors |= {"centre": self.standardise.centre, "scale": self.standardise.scale}
        return config | {"held_out_error": self.held_out_error}, tensors

    @classmethod
    def from_state(
        cls, config: dict[str, Any], tensors: dict[str, Tensor], features: FeatureMap
    ) -> MLPDecoder:
        """Rebuild a fitted decoder."""
        del features
        config = dict(config)
        held_out_error = config.pop("held_out_error")
        decoder = cls(**config)
        decoder.held_out_error = held_out_error
        decoder.weight, decoder.bias = tensors["weight"], tensors["bias"]
        decoder.layers = tuple((tensors[f"weight{i}"], tensors[f"bias{i}"]) for i in (0, 1))  # type: ignore[assignment]
        decoder.standardise = Standardiser(tensors["centre"], tensors["scale"])
        return decoder

    def to(self, device: torch.device) -> MLPDecoder:
        """Move the tensors to a device and return the decoder."""
        self.weight, self.bias = self.weight.to(device), self.bias.to(device)
        self.layers = tuple((w.to(device), b.to(device)) for w, b in self.layers)  # type: ignore[assignment]
        self.standardise = self.standardise.to(device)
        return self


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


def _loss(network: nn.Sequential, inputs: Tensor, targets: Tensor) -> Tensor:
    loss: Tensor = (network(inputs) - targets).square().sum(-1).mean()
    return loss
