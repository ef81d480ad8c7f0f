r"""The bridge to sbi: its posteriors over summaries, seen as :class:`Backend`; splitting.

This file and `sbi_training.py` are the only ones of `mindist` that import sbi. What they take from
sbi's private side is pinned by `tests/test_sbi_bridge.py` to sbi 0.27.0.

An NPE trained jointly with an embedding net is one network,
:math:`q_\psi(\theta \mid f_\phi(x_{1:N}))`. `split_embedding` cuts it at the summary
:math:`s = f_\phi(x_{1:N})`, which is what minimum-distance summaries need (Section 3 of the paper).
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sbi.inference.posteriors import (
    DirectPosterior,
    EnsemblePosterior,
    FilteredDirectPosterior,
    NPE_A_Posterior,
    VectorFieldPosterior,
)
from sbi.neural_nets.estimators import MixtureDensityEstimator, NFlowsFlow, ZukoFlow
from sbi.utils.sbiutils import Standardize, within_support
from torch import Tensor, nn

from mindist.posteriors.backend import Backend, is_bounded
from mindist.posteriors.embedding import EmbeddingSummary, warn_if_order_matters
from mindist.posteriors.guards import bounded_evaluations, quiet, shallow_copy
from mindist.posteriors.sbi_training import HARMLESS, train_marginal, train_npe, train_pfn


class _PriorSupport:
    """What both kinds of component take from the prior."""

    def __init__(self, posterior: Any, weight: float) -> None:
        self.posterior, self.weight = posterior, weight
        self.bounded = is_bounded(posterior.prior)

    def in_support(self, theta: Tensor) -> Tensor:
        inside: Tensor = within_support(self.posterior.prior, theta.flatten(0, -2))
        return inside.reshape(theta.shape[:-1])


class DirectComponent(_PriorSupport):
    """The conditional density of an NPE."""

    corrects_leakage = True

    def draw(
        self, num_samples: int, s: Tensor, *, show_progress_bars: bool, **options: Any
    ) -> Tensor:
        """Draws `(num_samples, B, d_theta)`."""
        _no_options(options)
        with quiet(*HARMLESS):
            theta: Tensor = self.posterior.posterior_estimator.sample(
                torch.Size((num_samples,)), condition=s
            )
        return theta

    def log_density(self, theta: Tensor, s: Tensor, **options: Any) -> Tensor:
        """log q, `(S, B)`."""
        _no_options(options)
        estimator = self.posterior.posterior_estimator.eval()
        log_q: Tensor = estimator.log_prob(theta, condition=s)
        return log_q


class FilteredComponent(DirectComponent):
    """The density of NPE-PFN with the simulations nearest to each summary as its context."""

    def draw(
        self, num_samples: int, s: Tensor, *, show_progress_bars: bool, **options: Any
    ) -> Tensor:
        """Draws `(num_samples, B, d_theta)`, one dataset after the other."""
        draw, progress = super().draw, show_progress_bars
        parts = []
        for one in s.split(1):
            self.posterior._set_context_for_x_o(one)
            parts.append(draw(num_samples, one, show_progress_bars=progress, **options))
        return torch.cat(parts, dim=1)

    def log_density(self, theta: Tensor, s: Tensor, **options: Any) -> Tensor:
        """log q, `(S, B)`, without a gradient."""
        log_q = []
        for one, parameters in zip(s.split(1), theta.split(1, dim=1), strict=True):
            self.posterior._set_context_for_x_o(one)
            log_q.append(super().log_density(parameters, one, **options))
        return torch.cat(log_q, dim=1)


class VectorFieldComponent(_PriorSupport):
    """The density to which a score or flow-matching network (NPSE, FMPE) transports noise."""

    corrects_leakage = False

    def draw(
        self, num_samples: int, s: Tensor, *, show_progress_bars: bool, **options: Any
    ) -> Tensor:
        """Draws `(num_samples, B, d_theta)`; options are those of sbi, such as `steps`."""
        options |= {
            "x": s,
            "max_sampling_batch_size": num_samples,
            "show_progress_bars": show_progress_bars,
            "reject_outside_prior": False,
        }
        twin, shape = self._twin(), torch.Size((num_samples,))
        with quiet(*HARMLESS), bounded_evaluations(self.posterior.vector_field_estimator.net):
            if len(s) > 1:
                theta: Tensor = twin.sample_batched(shape, **options)
            else:
                theta = twin.sample(shape, **options).unsqueeze(1)
        return theta

    def log_density(self, theta: Tensor, s: Tensor, **options: Any) -> Tensor:
        """log q, `(S, B)`, along the probability-flow ODE; the one option is `ode_kwargs`."""
        ode_kwargs = options.pop("ode_kwargs", None) or {}
        _no_options(options)
        estimator = self.posterior.vector_field_estimator.eval()
        potential = self._twin().potential_fn
        potential.set_x(s, x_is_iid=False, **ode_kwargs)
        with bounded_evaluations(estimator.net):
            if estimator.compose_enabled:
                log_q = potential.flow.log_prob(estimator.to_z(theta)) - estimator.log_abs_det()
            else:
                log_q = potential.flow.log_prob(theta)
        return torch.as_tensor(log_q)

    def _twin(self) -> Any:
        """A copy to call sbi's methods on, since they store the condition in the potential."""
        twin = shallow_copy(self.posterior)
        twin.potential_fn = shallow_copy(twin.potential_fn)
        return twin


@dataclass(frozen=True)
class SbiBackend:
    """An sbi posterior over summaries.

    Arguments:
        posterior: The user's posterior. It is read, never changed, except by `to`.

    Example:
        >>> from mindist.posteriors.sbi_training import train_npe
        >>> theta = torch.randn(200, 1)
        >>> s = theta + 0.1 * torch.randn(200, 1)
        >>> prior = torch.distributions.MultivariateNormal(torch.zeros(1), torch.eye(1))
        >>> short = {"density_estimator": "mdn", "max_num_epochs": 1, "seed": 0}
        >>> posterior = train_npe(prior, theta, s, **short)
        >>> SbiBackend(posterior).num_parameters, SbiBackend(posterior).condition_shape
        (1, torch.Size([1]))
    """

    posterior: Any

    @property
    def components(self) -> Sequence[DirectComponent | VectorFieldComponent]:
        """One component, or one for each member of an ensemble."""
        return _components(self.posterior, 1.0)

    @property
    def _estimators(self) -> list[Any]:
        return [_estimator(component.posterior) for component in self.components]

    @property
    def condition_shape(self) -> torch.Size:
        """Shape of what the posterior was trained on."""
        return torch.Size(self._estimators[0].condition_shape)

    @property
    def num_parameters(self) -> int:
        """d_theta."""
        return int(self._estimators[0].input_shape.numel())

    @property
    def device(self) -> torch.device:
        """Where the network's parameters are."""
        estimator = self._estimators[0]
        tensors = itertools.chain(estimator.parameters(), estimator.buffers())
        device: torch.device = next(tensors).device  # TabPFN has a buffer and no parameters
        return device

    @property
    def version(self) -> Hashable:
        """torch's count of the changes made in place to each of the networks' parameters."""
        return tuple(p._version for net in self._estimators for p in net.parameters())

    def sample_prior(self, num_samples: int) -> Tensor:
        """Draws `(num_samples, d_theta)`."""
        theta: Tensor = self.posterior.prior.sample((num_samples,))
        return theta

    def maximise(self, s: Tensor, start: Tensor, **options: Any) -> Tensor:
        """The mode `(1, d_theta)`, by sbi's own ascent on a copy of the posterior."""
        twin = copy.deepcopy(self.posterior)  # the ascent would leave gradients in the networks
        for component in _components(twin, 1.0):
            _estimator(component.posterior).requires_grad_(False)
            component.log_density(start[:1, None], s)  # raises where an ODE cannot be solved
        twin.set_default_x(s)
        with quiet(*HARMLESS), torch.enable_grad():
            mode: Tensor = twin.map(init_method=start, **options)
        return mode.detach().reshape(1, -1)

    def to(self, device: torch.device) -> None:
        """Move the user's posterior."""
        if device != self.device:
            self.posterior.to(device)


def bridge(posterior: Any, example: Tensor | None = None) -> Backend:
    """The backend of an sbi posterior, or a TypeError that says which kinds are accepted.

    Example:
        >>> from mindist.posteriors.sbi_training import train_npe
        >>> theta = torch.randn(200, 1)
        >>> s = theta + 0.1 * torch.randn(200, 1)
        >>> prior = torch.distributions.MultivariateNormal(torch.zeros(1), torch.eye(1))
        >>> short = {"density_estimator": "mdn", "max_num_epochs": 1, "seed": 0}
        >>> posterior = train_npe(prior, theta, s, **short)
        >>> bridge(posterior).num_parameters
        1
    """
    _components(posterior, 1.0)
    return SbiBackend(posterior)


def _components(posterior: Any, weight: float) -> list[DirectComponent | VectorFieldComponent]:
    if isinstance(posterior, EnsemblePosterior):
        members = zip(posterior.posteriors, posterior.weights.tolist(), strict=True)
        return [part for member, w in members for part in _components(member, weight * w)]
    if isinstance(posterior, VectorFieldPosterior):
        return [VectorFieldComponent(posterior, weight)]
    corrected = isinstance(posterior, NPE_A_Posterior) and posterior._apply_correction
    if isinstance(posterior, FilteredDirectPosterior):
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


def _no_options(options: dict[str, Any]) -> None:
    if options:
        raise TypeError(f"The wrapped posterior does not take the option {', '.join(options)}.")


def split_embedding(posterior: Any) -> tuple[EmbeddingSummary, Any]:
    r"""Cut a jointly trained NPE into its summary :math:`f_\phi` and a posterior over `s`.

    Together they are the posterior that was given, which stays as it is: `log_prob(theta, f(x))`
    of the second half is `log_prob(theta, x)` of the whole, and equal seeds give equal samples.

    Warning:
        sbi's default `z_score_x="independent"` standardises each of the N positions of a set with
        its own mean and scale, after which no embedding net is permutation invariant. Where the
        stored standardiser shows this, a warning says so.

    Arguments:
        posterior: A `DirectPosterior` trained with an `embedding_net` that maps `(B, N, *event)`
            to `(B, d_s)`, with any of sbi's flows (maf, nsf, ..., zuko_*) or mixtures (mdn).

    Returns:
        The frozen summary, for `MinimumDistance`, and a `DirectPosterior` over its values, for
        `RobustPosterior`.

    Example:
        >>> from mindist.posteriors.sbi_training import train_npe
        >>> from mindist.tasks import GaussianTask
        >>> task, generator = GaussianTask(), torch.Generator().manual_seed(0)
        >>> theta = task.sample_prior(200, generator)
        >>> x = task.simulate(theta, generator=generator)
        >>> net = task.summary_network()
        >>> whole = train_npe(
        ...     task.prior, theta, x, embedding_net=net, density_estimator="mdn", max_num_epochs=1
        ... )
        >>> summary, posterior = split_embedding(whole)
        >>> summary(x[:3]).shape
        torch.Size([3, 2])
    """
    bridge(posterior)
    if not isinstance(posterior, DirectPosterior):
        raise TypeError(
            "posterior: expected a DirectPosterior (NPE) trained with an embedding net, got "
            f"{type(posterior).__name__}. Split the members of an ensemble one by one; for a "
            "vector-field posterior, train on summaries: NPSE(...).append_simulations(theta, s)."
        )
    estimator = copy.deepcopy(posterior.posterior_estimator)
    if not isinstance(estimator, NFlowsFlow | ZukoFlow | MixtureDensityEstimator):
        raise TypeError(
            "posterior: expected an estimator of the kind NFlowsFlow, ZukoFlow or "
            f"MixtureDensityEstimator, got {type(estimator).__name__}. Train with "
            "density_estimator='nsf', 'maf', 'mdn' or 'zuko_nsf'."
        )
    owner: Any = estimator.net if isinstance(estimator, NFlowsFlow) else estimator
    summary = _frozen_summary(owner._embedding_net, estimator.condition_shape)
    owner._embedding_net = nn.Identity()
    estimator._condition_shape = torch.Size((summary.dim,))
    return summary, DirectPosterior(
        estimator,
        copy.deepcopy(posterior.prior),
        max_sampling_batch_size=posterior.max_sampling_batch_size,
        device=posterior.device,
        enable_transform=posterior.enable_transform,
    )


def _frozen_summary(embedding: nn.Module, condition_shape: torch.Size) -> EmbeddingSummary:
    """The embedding net that sbi built, `Sequential(Standardize, net)` or just `net`, frozen."""
    first, net = None, embedding
    if isinstance(embedding, nn.Sequential) and isinstance(embedding[0], Standardize):
        first, net = embedding[0], embedding[1]
    if isinstance(net, nn.Identity):
        raise ValueError(
            "posterior: expected one trained with an embedding net, got one without, conditioned "
            f"on shape {tuple(condition_shape)}. There is nothing to split: if it was trained on "
            "summaries, wrap it as it is, RobustPosterior(posterior, MinimumDistance(summary))."
        )
    statistics = [] if first is None else [first._mean, first._std]
    warn_if_order_matters(statistics, condition_shape)
    fixed_size = any(statistic.dim() for statistic in statistics)
    return EmbeddingSummary(embedding, condition_shape, fixed_size=fixed_size)


__all__ = ["SbiBackend", "bridge", "split_embedding", "train_marginal", "train_npe", "train_pfn"]
