r"""The bridge to sbi: its posteriors over summaries as backends; joint posteriors split in two.

sbi's private side, here and in `sbi_training.py` and `sbi_storage.py`, is pinned to sbi 0.27.0 by
`tests/test_sbi_bridge.py`. An NPE with a net is :math:`q_\psi(\theta \mid f_\phi(x_{1:N}))`:
`split_embedding` cuts it at the summary :math:`s = f_\phi(x_{1:N})` (Section 3 of the paper).
"""

import copy
import itertools
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from sbi.inference import posteriors as kinds
from sbi.inference.posteriors import DirectPosterior, VectorFieldPosterior
from sbi.neural_nets.estimators import MixtureDensityEstimator, NFlowsFlow, ZukoFlow
from sbi.utils.sbiutils import Standardize, within_support
from torch import Tensor, nn

from mindist import checks
from mindist.posteriors.backend import Backend, is_bounded
from mindist.posteriors.guards import no_options, quiet
from mindist.posteriors.sbi_training import HARMLESS, train_npe

# Evaluations of a vector field in one solution of its ODE: 4096 steps (diffrax's default limit)
# of 7. zuko's solver has no limit, and where the field is not finite it shrinks its step for ever.
MAX_ODE_EVALUATIONS = 7 * 4096


class DirectComponent:
    corrects_leakage = True

    def __init__(self, posterior: Any, weight: float) -> None:
        self.posterior, self.weight = posterior, weight
        self.bounded = is_bounded(posterior.prior)

    def in_support(self, theta: Tensor) -> Tensor:
        return within_support(self.posterior.prior, theta.flatten(0, -2)).reshape(theta.shape[:-1])

    def draw(self, num_samples: int, s: Tensor, /, **options: Any) -> Tensor:
        no_options(options)
        with quiet(*HARMLESS):
            shape = torch.Size((num_samples,))
            return self.posterior.posterior_estimator.sample(shape, condition=s)

    def log_density(self, theta: Tensor, s: Tensor, **options: Any) -> Tensor:
        no_options(options)
        return self.posterior.posterior_estimator.eval().log_prob(theta, condition=s)


# The density of NPE-PFN with the simulations nearest to each summary as its context.
class FilteredComponent(DirectComponent):
    def draw(self, num_samples: int, s: Tensor, /, **options: Any) -> Tensor:
        parts = []
        for one in s.split(1):
            self.posterior._set_context_for_x_o(one)
            parts.append(super().draw(num_samples, one, **options))
        return torch.cat(parts, dim=1)

    def log_density(self, theta: Tensor, s: Tensor, **options: Any) -> Tensor:
        log_q = []
        for one, parameters in zip(s.split(1), theta.split(1, dim=1), strict=True):
            self.posterior._set_context_for_x_o(one)
            log_q.append(super().log_density(parameters, one, **options))
        return torch.cat(log_q, dim=1)


# The density to which a score or flow-matching network (NPSE, FMPE) transports noise.
class VectorFieldComponent(DirectComponent):
    corrects_leakage = False

    def draw(self, num_samples: int, s: Tensor, /, **options: Any) -> Tensor:
        """Draw `(num_samples, B, d_theta)`; options are those of sbi, such as `steps`."""
        options |= {"x": s, "max_sampling_batch_size": num_samples}
        options |= {"show_progress_bars": False, "reject_outside_prior": False}
        twin, shape = self._twin(), torch.Size((num_samples,))
        with quiet(*HARMLESS), _bounded_evaluations(self.posterior.vector_field_estimator.net):
            if len(s) > 1:
                return twin.sample_batched(shape, **options)
            return twin.sample(shape, **options).unsqueeze(1)

    def log_density(self, theta: Tensor, s: Tensor, **options: Any) -> Tensor:
        """Return log q, `(S, B)`, along the probability-flow ODE; one option: `ode_kwargs`."""
        ode_kwargs = options.pop("ode_kwargs", None) or {}
        no_options(options)
        estimator = self.posterior.vector_field_estimator.eval()
        potential = self._twin().potential_fn
        potential.set_x(s, x_is_iid=False, **ode_kwargs)
        with _bounded_evaluations(estimator.net):
            if estimator.compose_enabled:
                return potential.flow.log_prob(estimator.to_z(theta)) - estimator.log_abs_det()
            return potential.flow.log_prob(theta)

    def _twin(self) -> Any:
        """Return a copy to call sbi's methods on: they store the condition in the potential."""
        twin = shallow_copy(self.posterior)
        twin.potential_fn = shallow_copy(twin.potential_fn)
        return twin


class SbiBackend:  # an sbi posterior over summaries, which is read, never changed, except by `to`
    def __init__(self, posterior: Any, example: Tensor | None = None) -> None:
        self.posterior, self.components = posterior, _components(posterior, 1.0)
        self.condition_shape = torch.Size(self._estimators[0].condition_shape)
        self.num_parameters = int(self._estimators[0].input_shape.numel())

    @property
    def _estimators(self) -> list[Any]:
        return [_estimator(component.posterior) for component in self.components]

    @property
    def device(self) -> torch.device:
        estimator = self._estimators[0]
        tensors = itertools.chain(estimator.parameters(), estimator.buffers())
        return next(tensors).device  # TabPFN has a buffer and no parameters

    @property
    def version(self) -> Hashable:
        return tuple(p._version for net in self._estimators for p in net.parameters())

    def sample_prior(self, num_samples: int) -> Tensor:
        return self.posterior.prior.sample((num_samples,))

    def maximise(self, s: Tensor, start: Tensor, **options: Any) -> Tensor:
        twin = copy.deepcopy(self.posterior)  # the ascent would leave gradients in the networks
        for component in _components(twin, 1.0):
            _estimator(component.posterior).requires_grad_(False)
            component.log_density(start[:1, None], s)  # raises where an ODE cannot be solved
        twin.set_default_x(s)
        with quiet(*HARMLESS), torch.enable_grad():
            return twin.map(init_method=start, **options).detach().reshape(1, -1)

    def to(self, device: torch.device) -> None:
        if device != self.device:
            self.posterior.to(device)


bridge: Callable[..., Backend] = SbiBackend


@contextmanager
def _bounded_evaluations(net: nn.Module) -> Iterator[None]:
    """Raise, rather than integrate for ever, once a net was evaluated too often."""
    count, limit = itertools.count(1), MAX_ODE_EVALUATIONS

    def check(*_: object) -> None:
        if next(count) > limit:
            raise RuntimeError(
                f"posterior: its ODE was not solved in {limit} evaluations of the vector field, "
                "which is stiff or not finite at this summary. The query is far from the summaries "
                "that the posterior was trained on: look at adapt(x).s_star, or build it with "
                "sample_with='sde'."
            )

    handle = net.register_forward_pre_hook(check)
    try:
        yield
    finally:
        handle.remove()


def shallow_copy(thing: Any) -> Any:
    """Return a copy with attributes of its own, which `copy.copy` of an sbi posterior has not."""
    twin = object.__new__(type(thing))
    twin.__dict__.update(thing.__dict__)
    return twin


def _components(posterior: Any, weight: float) -> list[DirectComponent]:
    if isinstance(posterior, kinds.EnsemblePosterior):
        members = zip(posterior.posteriors, posterior.weights.tolist(), strict=True)
        return [part for member, w in members for part in _components(member, weight * w)]
    if isinstance(posterior, VectorFieldPosterior):
        return [VectorFieldComponent(posterior, weight)]
    corrected = isinstance(posterior, kinds.NPE_A_Posterior) and posterior._apply_correction
    if isinstance(posterior, kinds.FilteredDirectPosterior):
        return [FilteredComponent(posterior, weight)]
    if isinstance(posterior, DirectPosterior) and not corrected:
        return [DirectComponent(posterior, weight)]
    raise TypeError(
        "posterior: expected an amortised sbi posterior, that is a DirectPosterior (NPE), a "
        "VectorFieldPosterior (NPSE, FMPE) or an EnsemblePosterior of these, got "
        f"{type(posterior).__name__}{' of a later round' if corrected else ''}. Build it with "
        "build_posterior(sample_with='direct'), 'ode' or 'sde'; or query yours at adapt(x).s_star."
    )


def _estimator(posterior: Any) -> Any:
    vector_field = isinstance(posterior, VectorFieldPosterior)
    return posterior.vector_field_estimator if vector_field else posterior.posterior_estimator


class EmbeddingSummary(nn.Module):
    r"""A frozen copy of an embedding net :math:`f_\phi`: `(B, N, *event)` to `(B, d_s)`.

    In training data had the `condition_shape`, `(N, *event)`; of `fixed_size` is a net that takes
    no other N. Standardisation of the data is part of it.

    Example:
        >>> summary = EmbeddingSummary(nn.Flatten(), torch.Size([3, 2]))
        >>> summary(torch.zeros(5, 3, 2)).shape, summary.dim
        (torch.Size([5, 6]), 6)
    """

    def __init__(
        self, net: nn.Module, condition_shape: torch.Size, *, fixed_size: bool = False
    ) -> None:
        super().__init__()
        self.net = copy.deepcopy(net).requires_grad_(False).eval()
        self.condition_shape, self.fixed_size = condition_shape, fixed_size
        like = next(self.net.parameters(), torch.zeros(()))
        self.dtype = like.dtype
        with torch.no_grad():
            self.dim = int(self.net(like.new_zeros((1, *condition_shape))).shape[-1])

    def train(self, mode: bool = True) -> "EmbeddingSummary":
        """Stay in evaluation mode: a summary has to be the same function every time."""
        super().train(False)
        return self

    def forward(self, x: Any) -> Tensor:
        """Return summaries `(B, d_s)` of datasets `(B, N, *event)`."""
        x = torch.as_tensor(x, dtype=self.dtype)
        if self.fixed_size and x.shape[1:] != self.condition_shape:
            raise ValueError(
                f"x: expected datasets of shape (B, {', '.join(map(str, self.condition_shape))}) "
                f"as in training, got shape {tuple(x.shape)}. Each position was standardised on "
                "its own, which ties the net to this number of observations. Train it again with "
                "z_score_x='structured' or 'none'."
            )
        return self.net(x)


def split_embedding(posterior: Any) -> tuple[EmbeddingSummary, Any]:
    r"""Cut a jointly trained NPE into its frozen summary and a `DirectPosterior` over its values.

    Together they are the posterior that was given, which stays as it is: `log_prob(theta, f(x))`
    of the second half is `log_prob(theta, x)` of the whole, and equal seeds give equal samples.
    A warning says where sbi's default `z_score_x="independent"` has standardised each of the N
    positions of a set on its own, after which no embedding net is permutation invariant.

    Arguments:
        posterior: A `DirectPosterior` trained with an `embedding_net` that maps `(B, N, *event)`
            to `(B, d_s)`, with any of sbi's flows (maf, nsf, ..., zuko_*) or mixtures (mdn).

    Example:
        >>> from mindist.tasks import GaussianTask
        >>> task, generator = GaussianTask(), torch.Generator().manual_seed(0)
        >>> theta = task.sample_prior(200, generator)
        >>> x = task.simulate(theta, generator=generator)
        >>> short = {"density_estimator": "mdn", "max_num_epochs": 1}
        >>> whole = train_npe(task.prior, theta, x, embedding_net=task.summary_network(), **short)
        >>> summary, posterior = split_embedding(whole)
        >>> summary(x[:3]).shape
        torch.Size([3, 2])
    """
    bridge(posterior)
    if not isinstance(posterior, DirectPosterior):
        said = "a DirectPosterior (NPE) trained with an embedding net"
        then = (
            "Split the members of an ensemble one by one; for a vector-field posterior, train on "
            "summaries: NPSE(...).append_simulations(theta, s)."
        )
        raise checks.wrong("posterior", said, type(posterior).__name__, then, TypeError)
    estimator = copy.deepcopy(posterior.posterior_estimator)
    if not isinstance(estimator, NFlowsFlow | ZukoFlow | MixtureDensityEstimator):
        said = "an estimator of the kind NFlowsFlow, ZukoFlow or MixtureDensityEstimator"
        then = "Train with density_estimator='nsf', 'maf', 'mdn' or 'zuko_nsf'."
        raise checks.wrong("posterior", said, type(estimator).__name__, then, TypeError)
    owner = owner_of_net(estimator)
    embedding, condition_shape = owner._embedding_net, estimator.condition_shape
    net, statistics = embedding, []
    if standardised(embedding):
        net, statistics = embedding[1], [embedding[0]._mean, embedding[0]._std]
    if isinstance(net, nn.Identity):
        raise ValueError(
            "posterior: expected one trained with an embedding net, got one without, conditioned "
            f"on shape {tuple(condition_shape)}. There is nothing to split: if it was trained on "
            "summaries, wrap it as it is, RobustPosterior(posterior, MinimumDistance(summary))."
        )
    by_position = [t for t in statistics if t.dim() and t.shape == condition_shape]
    if any(not torch.equal(t, t[:1].expand_as(t)) for t in by_position):
        checks.warn_user(
            f"posterior: sbi standardised each of the {condition_shape[0]} observations of a "
            "dataset with a mean and a scale of its own (z_score_x='independent', its default), so "
            "the learned summary depends on the order of the observations. Train it again with "
            "z_score_x='structured' or 'none'."
        )
    fixed = any(t.dim() for t in statistics)
    summary = EmbeddingSummary(embedding, condition_shape, fixed_size=fixed)
    owner._embedding_net = nn.Identity()
    estimator._condition_shape = torch.Size((summary.dim,))
    kept = ("max_sampling_batch_size", "device", "enable_transform")
    options = {name: getattr(posterior, name) for name in kept}
    return summary, DirectPosterior(estimator, copy.deepcopy(posterior.prior), **options)


def owner_of_net(estimator: Any) -> Any:
    return estimator.net if isinstance(estimator, NFlowsFlow) else estimator


def standardised(embedding: Any) -> bool:
    return isinstance(embedding, nn.Sequential) and isinstance(embedding[0], Standardize)


__all__ = ["EmbeddingSummary", "split_embedding", "train_npe"]
