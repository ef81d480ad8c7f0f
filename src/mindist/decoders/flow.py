r"""The paper's density decoder: a conditional neural spline flow :math:`q_\omega(x \mid s)`.

.. math:: \mathcal{L}(\omega) = -\frac{1}{MN} \sum_{i,n} \log q_\omega(x_n^{(i)} \mid s^{(i)})

(Section 3.1, Amortized Decoder Estimation), of which the variants MDS-Dec and KL are made. The flow
sees what a linear regression leaves over,

.. math:: u = (x - b - B^\top s) / \sigma, \qquad q_\omega(x \mid s) = p_\omega(u \mid s) / \sigma ,

because a flow's tails are not learned. They are now Gaussian around the regression, instead of
around a fixed point, which would make the KL variant look robust (docs/baselines.md).

As a `Decoder` its mean embedding is an average over stored draws of the base distribution,

.. math:: \mu(s) = \frac{1}{L} \sum_l z(T(u_l; s)), \qquad u_l \sim \mathcal{N}(0, I) ,

the same draws at every call, so that it is deterministic and differentiable in s.

Reference: Durkan et al., Neural Spline Flows, NeurIPS 2019. The flow is zuko's.
"""

from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from mindist.decoders.mlp import HELD_OUT, jacobian, train
from mindist.decoders.ridge import ROUNDING, Standardiser
from mindist.features.kernel import FourierFeatures
from mindist.schema import UNSTORED, Record

NUM_DRAWS = 512  # the squared error of mu(s) from its draws is below 1/512, calibrated as noise
NUM_FRESH = 128  # of a random objective, drawn anew at every step


@dataclass(eq=False, repr=False)
class FlowDecoder:
    r"""A conditional neural spline flow from the summary to one observation.

    Arguments:
        num_points: Observations of each simulated dataset that the fit sees. The paper uses all
            N; ten of each already give 500,000 pairs for 50,000 simulations.
        transforms: Number of spline transformations.
        width: Units of each of the two hidden layers.
        learning_rate: Adam's step size (5e-4: appendix "Further Experimental Details").
        batch_size, max_epochs, patience, progress: As of `MLPDecoder`, for pairs.

    Example:
        >>> from mindist.features import FourierFeatures
        >>> generator = torch.Generator().manual_seed(0)
        >>> x = torch.randn(200, 10, 1, generator=generator)
        >>> features = FourierFeatures.draw((1,), 16, bandwidth=1.0, generator=generator)
        >>> decoder = FlowDecoder(num_points=5, max_epochs=1)
        >>> given = {"x": x[:, :5], "features": features, "generator": generator}
        >>> decoder.fit(x.mean(1), features.mean(x), **given)(torch.zeros(3, 1)).shape
        torch.Size([3, 16])
    """

    num_points: int = 10
    _: KW_ONLY
    transforms: Annotated[int, range(1, 2**31)] = 3
    width: Annotated[int, range(1, 2**31)] = 64
    learning_rate: float = 5e-4
    batch_size: int = 1_024
    max_epochs: int = 50
    patience: int = 5
    progress: Annotated[bool, UNSTORED] = False
    held_out_error: Annotated[float, "any"] = field(init=False)  # infinite after no epoch
    draws: Annotated[Tensor, "Q D"] = field(init=False)
    trend: Annotated[Tensor, "T D"] = field(init=False)
    scale: Annotated[Tensor, "D"] = field(init=False)
    centre_s: Annotated[Tensor, "d"] = field(init=False)
    scale_s: Annotated[Tensor, "any d"] = field(init=False)
    flow: nn.Module = field(init=False)

    def fit(
        self,
        s: Tensor,
        z_bar: Tensor,
        *,
        generator: torch.Generator,
        x: Tensor | None = None,
        features: FourierFeatures | None = None,
    ) -> "FlowDecoder":
        """Fit to summaries `(M, d_s)` and observations `(M, n, *event)`."""
        if x is None or not isinstance(features, FourierFeatures):
            raise TypeError(
                "FlowDecoder.fit needs observations x of shape (M, n, *event) and the "
                "FourierFeatures that embed them."
            )
        self.features = features
        flat = x.reshape(*x.shape[:2], -1)
        standardise = Standardiser.of(s)
        self.centre_s, self.scale_s = standardise.centre, standardise.scale
        self.trend = torch.linalg.lstsq(self._design(s), flat.double().mean(1)).solution
        residual = flat.double() - self._expected(s)[:, None]
        spread, size = residual.flatten(0, 1).std(0), flat.abs().double().amax((0, 1))
        self.scale = torch.where(spread > ROUNDING * size, spread, 1.0)  # 1: a constant
        shape = (NUM_DRAWS, flat.shape[2])
        self.draws = torch.randn(shape, generator=generator, dtype=torch.float32).to(s.device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
            self.flow = self._build(flat.shape[2], s.shape[1]).to(s.device)
        x, context = residual / self.scale, self.standardise_s(s).float()

        def loss(pairs: Tensor) -> Any:
            dataset, point = pairs.T
            return -self.flow(context[dataset]).log_prob(x[dataset, point].float()).mean()

        order = torch.randperm(len(s), generator=generator).to(s.device)
        num, points = max(1, round(HELD_OUT * len(s))), torch.arange(x.shape[1], device=s.device)
        held_out, rest = (torch.cartesian_prod(i, points) for i in order.tensor_split([num]))
        self.held_out_error = train(self, self.flow, loss, rest, held_out, generator)
        self._freeze(z_bar.shape[1])
        return self

    @property
    def standardise_s(self) -> Standardiser:
        """Return the map of summaries to units of their own spread."""
        return Standardiser(self.centre_s, self.scale_s)

    def _design(self, s: Tensor) -> Tensor:
        """A one and the standardised summary, `(B, 1 + d_s)`, float64."""
        u = self.standardise_s(s.double())
        return torch.cat([torch.ones_like(u[:, :1]), u], 1)

    def _expected(self, s: Tensor) -> Tensor:
        """Return the regression's flattened observation `(B, D)` given summaries `(B, d_s)`."""
        return torch.mm(self._design(s), self.trend)

    def _build(self, dim: int, context: int) -> Any:
        try:
            import zuko
        except ImportError as error:
            raise ImportError(
                "The flow decoder needs zuko. Install it with: pip install 'mindist[flow]'"
            ) from error
        hidden = (self.width, self.width)
        flow = zuko.flows.NSF(dim, context, transforms=self.transforms, hidden_features=hidden)
        return flow.float()  # whatever torch's default precision is

    def _freeze(self, num_features: int) -> None:
        self.flow.requires_grad_(False).eval()
        device = self.draws.device
        self.weight = torch.eye(num_features, dtype=torch.float64, device=device)
        self.bias = torch.zeros(num_features, dtype=torch.float64, device=device)

    def _push(self, draws: Tensor, s: Tensor) -> Tensor:
        """Draws `(L, 1, D)` of the base pushed to observations `(B, L, *event)` given s."""
        flow = self.flow(self.standardise_s(s).float())
        x: Tensor = flow.transform.inv(draws.expand(-1, len(s), -1)).transpose(0, 1)
        x = x * self.scale.to(x.dtype) + self._expected(s)[:, None].to(x.dtype)
        return x.reshape(*x.shape[:2], *self.features.event_shape)

    def __call__(self, s: Tensor) -> Tensor:
        """Return decoded mean embeddings `(B, K)`, float64, from the stored draws."""
        draws = self.draws[:, None]
        if s.requires_grad and torch.is_grad_enabled():
            return self.features(self._push(draws, s)).mean(1).double()
        blocks = (self._push(draws, block) for block in s.split(256))  # 256 x 512 draws at once
        return torch.cat([self.features.mean(x) for x in blocks]).double()

    def resampled(self, s: Tensor, generator: torch.Generator) -> Tensor:
        """Return mean embeddings `(B, K)`, float64, of fresh draws; differentiable in `s`."""
        # The same draws for all datasets: a dataset's result does not depend on its batch.
        size = (NUM_FRESH, 1, self.draws.shape[1])
        draws = torch.randn(size, generator=generator, dtype=torch.float32).to(s.device)
        return self.features(self._push(draws, s)).mean(1).double()

    def log_prob(self, x: Tensor, s: Tensor) -> Tensor:
        """log q(x given s), `(B, N)`, float64, of datasets `(B, N, *event)`."""
        residual = x.reshape(*x.shape[:2], -1).double() - self._expected(s)[:, None]
        flow = self.flow(self.standardise_s(s).float())
        log_prob: Tensor = flow.log_prob((residual / self.scale).float().transpose(0, 1)).T.double()
        return log_prob - self.scale.log().sum()

    basis = __call__

    def basis_and_jacobian(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """Return the decoded mean embedding `(B, K)` and its derivative `(B, K, d_s)`."""
        return self(s.detach()), jacobian(self, s)

    @classmethod
    def restore(cls, record: Record, features: FourierFeatures) -> "FlowDecoder":
        """Read a fitted decoder over the features that were stored with it."""
        # The network is built before its weights are loaded: it may not be larger than they are.
        d, D = record.axes["d"], record.axes["D"]
        state = record.under("flow.")
        size = sum(value.numel() for value in state.values())
        width, transforms = record.whole("width", least=1), record.whole("transforms", least=1)
        if width * (width + d + D) * transforms > size:
            raise record.refuse("width", f"a network of at most {size} weights")
        record.axes["T"] = 1 + d
        decoder = record.read(cls)
        decoder.features, decoder.flow = features, decoder._build(D, d)
        try:
            decoder.flow.load_state_dict(state)
        except RuntimeError as error:
            raise ValueError(
                "decoder: expected the weights of the flow that the stored settings describe, got "
                f"others ({str(error).splitlines()[0]}). Fit and save the estimator again."
            ) from error
        decoder._freeze(features.num_features)
        return decoder
