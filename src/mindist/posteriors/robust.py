r"""A posterior that is queried at the adapted summary of the data.

.. math::
    p_{\mathrm{robust}}(\theta \mid x_{1:N}) = p(\theta \mid s^\star(x_{1:N})), \qquad
    s^\star = f(x_{1:N}) \text{ where } x_{1:N} \text{ is not misspecified}

(Section 3 and Algorithm 1 of the paper). The posterior itself is not changed. What an adapted
summary is uncertain by, U of `mindist.adaptation.calibration`, widens the posterior, so that
credible intervals keep their level:

.. math:: p_{\mathrm{robust}}(\theta \mid x_{1:N}) = \tfrac1J \textstyle\sum_j p(\theta \mid s_j)
    \approx \int p(\theta \mid s)\, N(s; s^\star, U)\, ds , \quad J = 32 .
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mindist import checks
from mindist.adaptation import NUM_POINTS, Adaptation, SummaryNoise, spread
from mindist.entrywise import Entrywise
from mindist.minimum_distance import MinimumDistance
from mindist.posteriors.arviz_export import export
from mindist.posteriors.backend import find_backend, kind
from mindist.posteriors.queries import CAPACITY, Conditions, Queries, Recent, digest
from mindist.posteriors.truncation import Budget
from mindist.protocols import Array
from mindist.result import Completion

# Ten times as patient as sbi's own warning about low acceptance (1%). A posterior that loses 99.9%
# of its mass outside the prior describes nothing any more.
MAX_DRAWS_PER_SAMPLE = 1000
MAX_BYTES = 2**26  # of remembered adaptations: some numbers for each observation


class RobustPosterior:
    r"""A posterior over parameters given raw data, robust to misspecified data.

    It has the methods of an sbi posterior and takes their keywords, but `x` is a raw observed
    dataset with any number of observations: its summary is computed, tested, adapted where the data
    are misspecified, and only then is the posterior asked. sbi's diagnostics (`run_sbc`,
    `run_tarp`, ...) take it as it is. An adaptation is computed once for each dataset and found
    again by the dataset's content. The wrapped posterior is never changed.

    Warning:
        Draws outside the prior's support are rejected. Where nearly all are, sampling ends after
        `max_draws_per_sample` draws for each sample (or as soon as it is clear that these will not
        do), with a warning and the samples accepted so far: fewer than asked for, perhaps none.

    Arguments:
        posterior: A posterior over summaries. From sbi: a `DirectPosterior` (NPE), a
            `VectorFieldPosterior` (NPSE, FMPE) or an `EnsemblePosterior`. From BayesFlow: a
            workflow or approximator, given summaries or with a summary network. A conditional
            distribution of zuko, an NPE or FMPE of lampe, a posterior of ltu-ili. Any function
            `f(s, n)` that draws n parameters given one summary (see `CallablePosterior`).
        mds: A fitted `MinimumDistance` with the summary that the posterior was trained on; or a
            fitted `Entrywise`, for a posterior that was trained on single vectors: then a dataset
            is one vector `(*event)`, and the posterior is averaged over completed vectors.
        uncertainty: Whether the uncertainty of an adapted summary widens the posterior. By default
            where it is known, which it is not with `MinimumDistance.paper`; True raises there.
        max_draws_per_sample: Draws allowed for each sample, and at least 10,000 in all.

    Example:
        >>> import mindist
        >>> mindist.RobustPosterior("not a posterior", mds=None)
        Traceback (most recent call last):
            ...
        TypeError: posterior: expected a posterior over summaries from sbi, bayesflow, ...
    """

    def __init__(
        self,
        posterior: Any,
        mds: MinimumDistance | Entrywise,
        *,
        uncertainty: bool | None = None,
        max_draws_per_sample: int = MAX_DRAWS_PER_SAMPLE,
    ) -> None:
        backend = find_backend(posterior, example_summary(mds))
        if isinstance(mds, type) or not callable(getattr(mds, "adapt", None)):
            then = "Make one with MinimumDistance(summary).fit(x_train)."
            said = "a fitted MinimumDistance or Entrywise"
            raise checks.wrong("mds", said, kind(mds), then, TypeError)
        self.posterior = posterior
        self.mds: Any = mds
        self.queries = Queries(backend, max_draws_per_sample)
        self._adaptations = Adaptations(mds)
        self._default_x: Tensor | None = None
        self._uncertainty = uncertainty
        if uncertainty is not None:
            checks.flag(uncertainty, "uncertainty")
        if hasattr(mds, "fitted_"):
            self._noise()

    @property
    def num_parameters(self) -> int:
        """d_theta."""
        return self.queries.backend.num_parameters

    @property
    def parameter_names(self) -> tuple[str, ...] | None:
        """The names of the parameters, where the wrapped posterior has them: BayesFlow's has."""
        return getattr(self.queries.backend, "parameter_names", None)

    @property
    def default_x(self) -> Tensor | None:
        """The observed dataset that is used where none is given."""
        return self._default_x

    @default_x.setter
    def default_x(self, x: Array | None) -> None:
        self.set_default_x(x)

    def set_default_x(self, x: Array | None) -> "RobustPosterior":
        """Set the observed dataset `(N, *event)` to use where none is given, and return self."""
        self._default_x = None if x is None else checks.as_tensor(x, "x")
        return self

    def adapt(self, x: Array | None = None) -> Any:
        """Return what was found about `x`, a dataset or a batch, and the summary to be queried."""
        x = self._observed(x)
        adaptation = self._adaptations(x)
        return adaptation[0] if x.dim() == axes(self.mds) else adaptation

    def conditions(self, x: Array | None = None) -> Conditions:
        """Return the summaries at which the posterior is asked for datasets `(B, N, *event)`."""
        return self.conditions_of(self._adaptations(self._observed(x)))

    def conditions_of(self, adaptation: Adaptation | Completion) -> Conditions:
        """Return the summaries at which the posterior is asked, given the adaptation of data."""
        adaptation = _batch(adaptation)
        if isinstance(adaptation, Completion):  # average over completed vectors, or their mean
            around = self.queries.checked(adaptation.completed.flatten(2).flatten(0, 1))
            around = around.view(len(adaptation), -1, around.shape[1])
            adapted, sure = adaptation.adapted.to(around.device), self._uncertainty is False
            s = torch.where(adapted[:, None], around.mean(1), around[:, 0])
            return Conditions.certain(s) if sure else Conditions(s, adapted, around)
        s_star = self.queries.checked(adaptation.s_star)
        uncertain = adaptation.excess.flatten(1).any(1)
        noise = self._noise()
        if noise is None or not uncertain.any():
            return Conditions.certain(s_star)
        around = spread(adaptation.s_star, adaptation.excess, noise, NUM_POINTS)
        return Conditions(s_star, uncertain.to(s_star.device), around.to(s_star))

    def sample(
        self, sample_shape: Sequence[int] = (), x: Array | None = None, **options: Any
    ) -> Tensor:
        """Draw `(*sample_shape, d_theta)` from the posterior of one dataset.

        If only k were found the draws are `(k, d_theta)`, with a warning.

        Arguments:
            sample_shape: Shape of the samples to draw.
            x: One dataset `(N, *event)` or `(1, N, *event)`; by default `default_x`.
            seed: Seed of these samples; None draws from torch's global generator.
            reject_outside_prior: Whether to keep only draws inside the prior's support.
            max_sampling_batch_size: Draws given to the network at once.
            max_sampling_time: Seconds after which no more draws are begun.
            return_partial_on_timeout: Whether to return what was accepted by then, with a warning,
                rather than raise.
            show_progress_bars: Whether to show progress bars.
            nearest_if_none: Whether to replace each draw by the nearest of 10,000 draws from the
                prior, with a warning, where none lies inside its support, rather than raise.
            options: Further keywords of the wrapped posterior's `sample`, such as `steps`.
        """
        return self.sample_batched(sample_shape, self._one_dataset(x), **options).squeeze(-2)

    def sample_batched(
        self,
        sample_shape: Sequence[int],
        x: Array,
        *,
        seed: int | None = None,
        reject_outside_prior: bool = True,
        max_sampling_batch_size: int = 10_000,
        max_sampling_time: float | None = None,
        return_partial_on_timeout: bool = False,
        show_progress_bars: bool = False,
        nearest_if_none: bool = True,
        **options: Any,
    ) -> Tensor:
        """Draw `(*sample_shape, B, d_theta)` given B datasets `(B, N, *event)` at once.

        Arguments as in `sample`. With a warning, `(k, B, d_theta)` if only k were found for one.
        """
        partial = checks.flag(return_partial_on_timeout, "return_partial_on_timeout")
        limits = (self.queries.max_draws, max_sampling_batch_size, max_sampling_time, not partial)
        budget = Budget(*limits, show_progress_bars, reject_outside_prior, options, nearest_if_none)
        return self.queries.sample(sample_shape, self.conditions(x), budget, seed=seed)

    def log_prob(
        self,
        theta: Array,
        x: Array | None = None,
        norm_posterior: bool | None = None,
        track_gradients: bool = False,
        leakage_correction_params: Mapping[str, Any] | None = None,
        *,
        seed: int = 0,
        **options: Any,
    ) -> Tensor:
        """Return log-probabilities `(*,)` of parameters given one dataset; -inf outside the prior.

        Arguments:
            theta: Parameters `(*, d_theta)`; a single vector counts as one, `(1, d_theta)`.
            x: One dataset `(N, *event)` or `(1, N, *event)`; by default `default_x`.
            norm_posterior: Whether to divide by the posterior's mass inside the prior's support. By
                default as the wrapped posterior does: sbi's NPE does, its vector fields do not.
            track_gradients: Whether the result can be differentiated in `theta`.
            leakage_correction_params: How that mass is estimated: sbi's keywords, such as
                `num_rejection_samples`.
            seed: Seed of that estimate.
            options: Further keywords of the wrapped posterior's `log_prob`, such as `ode_kwargs`.
        """
        x = self._one_dataset(x)
        # All of it: importing BayesFlow turns autograd off, and a view then has no gradient.
        with torch.set_grad_enabled(checks.flag(track_gradients, "track_gradients")):
            theta = self._parameters(theta)
            rows = theta.reshape(-1, 1, theta.shape[-1])
            how = (norm_posterior, track_gradients, leakage_correction_params)
            log_p = self.log_prob_batched(rows, x, *how, seed=seed, **options)
            return log_p.reshape(theta.shape[:-1])

    def log_prob_batched(
        self,
        theta: Array,
        x: Array,
        norm_posterior: bool | None = None,
        track_gradients: bool = False,
        leakage_correction_params: Mapping[str, Any] | None = None,
        *,
        seed: int = 0,
        **options: Any,
    ) -> Tensor:
        """Return log-probabilities `(S, B)` of parameters `(S, B, d_theta)` given B datasets.

        Parameters `(B, d_theta)` are one for each dataset. Other arguments as in `log_prob`.
        """
        conditions = self.conditions(x)
        with torch.set_grad_enabled(checks.flag(track_gradients, "track_gradients")):
            theta = self._parameters(theta)
            theta = theta.reshape(-1, *theta.shape[-2:])
            if theta.shape[1] not in (1, len(conditions)):
                said = f"shape (S, B, d_theta) with B = {len(conditions)} datasets"
                then = "For one dataset use log_prob."
                raise checks.wrong("theta", said, tuple(theta.shape), then)
            norm = norm_posterior
            norm = None if norm is None else checks.flag(norm, "norm_posterior")
            how: Any = {"norm_posterior": norm, "leakage": leakage_correction_params, "seed": seed}
            each = theta.expand(-1, len(conditions), -1)
            return self.queries.log_prob(each, conditions, **how, options=options)

    def potential(
        self, theta: Array, x: Array | None = None, track_gradients: bool = False
    ) -> Tensor:
        """Return the log-probability up to a constant: `log_prob` with `norm_posterior=False`."""
        return self.log_prob(theta, x, norm_posterior=False, track_gradients=track_gradients)

    def map(
        self,
        x: Array | None = None,
        *,
        init_method: str | Tensor = "posterior",
        num_init_samples: int = 1_000,
        force_update: bool = False,
        seed: int | None = None,
        **options: Any,
    ) -> Tensor:
        """Return the mode `(1, d_theta)` at the adapted summary, by the posterior's own ascent.

        Arguments:
            x: One dataset; by default `default_x`.
            init_method: Where to start: "posterior" or "prior" draws, or parameters `(n, d_theta)`.
            num_init_samples: How many starts to draw.
            force_update: Compute again what is remembered for this dataset and these arguments.
            seed: Seed of the starts; None draws from torch's global generator.
            options: Further keywords of the wrapped posterior's `map`, such as `num_iter`.
        """
        force = checks.flag(force_update, "force_update")
        s = self.conditions(self._one_dataset(x)).s
        return self.queries.mode(s, init_method, num_init_samples, seed, force, options)

    def to_arviz(
        self,
        x: Array | None = None,
        num_samples: int = 1_000,
        *,
        names: Sequence[str] | None = None,
        simulator: Callable[..., Any] | None = None,
        at: str = "adapted",
        seed: int | None = None,
    ) -> Any:
        """Return samples and all that belongs to them as ArviZ data.

        That is an `InferenceData` with ArviZ 0.23, an `xarray.DataTree` with ArviZ 1 (extra
        `arviz`); `to_arviz(x).to_netcdf("posterior.nc")` saves it. The groups are ArviZ's own:
        `posterior`, the parameters by name; `sample_stats`, with `lp` where the posterior has
        log-probabilities; `observed_data` and, with a simulator, `posterior_predictive`, with `x`;
        `constant_data`, the summaries before and after and what was found about each observation.
        A batch of datasets has one more axis, `dataset`.

        Arguments:
            x: One dataset `(N, *event)` or a batch `(B, N, *event)`; by default `default_x`.
            num_samples: Draws from the posterior.
            names: Of the parameters; by default those that BayesFlow has, or `theta_0`, ...
            simulator: As of `mindist.simulate`, for the posterior predictive.
            at: `"observed"` asks at the summaries as observed, not as adapted.
            seed: Of all draws.
        """
        return export(self, self._observed(x), num_samples, names, simulator, at, seed)

    def to(self, device: str | torch.device) -> "RobustPosterior":
        """Move the posterior, the estimator and the default dataset to a device; return self."""
        device = checks.device(device)
        self.queries.to(device)
        self.mds.to(device)
        if self._default_x is not None:
            self._default_x = self._default_x.to(device)
        return self

    def __repr__(self) -> str:
        x, width = self._default_x, self.queries.backend.condition_shape.numel()
        return (
            f"RobustPosterior(\n  {type(self.posterior).__name__} over {self.num_parameters} "
            f"parameters given {width} summaries,\n  mds={self.mds!r},\n  default_x="
            f"{None if x is None else f'dataset of shape {tuple(x.shape)}'},\n)"
        )

    def _observed(self, x: Array | None) -> Tensor:
        x = self._default_x if x is None else x
        if x is None:
            said, got = "an observed dataset (N, *event)", "None, and no default is set"
            raise checks.wrong("x", said, got, "Pass x, or call set_default_x(x) first.")
        return checks.as_tensor(x, "x")

    def _one_dataset(self, x: Array | None) -> Tensor:
        x = self._observed(x)
        if x.dim() == axes(self.mds) + 1 and len(x) != 1:
            said = "one dataset (N, *event) or (1, N, *event)"
            got = f"a batch of {len(x)}, shape {tuple(x.shape)}"
            raise checks.wrong("x", said, got, "Use sample_batched or log_prob_batched.")
        return x

    def _noise(self) -> SummaryNoise | None:
        """Return the sampling noise of the summary, if the uncertainty is wanted and known."""
        if self._uncertainty is False or isinstance(self.mds, Entrywise):
            return None
        noise = self.mds.noise
        if noise is None and self._uncertainty:
            raise ValueError(
                "uncertainty: expected a MinimumDistance that knows the sampling noise of its "
                "summary, got one that does not. The paper's preset, sorting=False and files saved "
                "by 0.1.0 have none, nor has a summary that fails on observations drawn with "
                "replacement. Pass uncertainty=False, or fit the default MinimumDistance(summary)."
            )
        return noise

    def _parameters(self, theta: Array) -> Tensor:
        theta = checks.as_tensor(theta, "theta").to(self.queries.backend.device, torch.float32)
        theta = theta[None] if theta.dim() == 1 else theta
        if theta.dim() == 0 or theta.shape[-1] != self.num_parameters:
            raise checks.wrong("theta", f"shape (*, {self.num_parameters})", tuple(theta.shape))
        return theta


def example_summary(mds: Any) -> Tensor | None:
    """Return one simulated summary `(1, d_s)`, or None before the fit."""
    fitted = getattr(mds, "fitted_", None)
    if isinstance(mds, Entrywise) and fitted is not None:
        bank = fitted.search.bank
        return (bank.z[:1] * bank.scale + bank.centre).float()
    return None if fitted is None else fitted.summarise(fitted.probe)[:1].float()


def axes(mds: Any) -> int:
    """Return how many axes one dataset has: that of observations, if any, and an event's."""
    return len(mds.event_shape) + (not isinstance(mds, Entrywise))


# `MinimumDistance.adapt`, remembered by content while the fit and the settings last.
class Adaptations:
    def __init__(self, mds: Any) -> None:
        self.mds = mds
        self._state: tuple[Any, ...] = ()  # what the remembered were computed with
        self._recent: Recent[Any] = Recent()

    def __call__(self, x: Tensor) -> Any:
        datasets = list(x) if x.dim() > axes(self.mds) else [x]
        fitted = self.mds.fitted_
        version = (id(fitted), self.mds.alpha, getattr(self.mds, "search", None), self.mds.seed)
        if self._state[:-1] != version:  # the fit or the settings have changed: forget everything
            self._recent.clear()
            self._state = (*version, fitted)  # kept alive, so that its id stays its own
        keys = [(digest(dataset), version) for dataset in datasets]
        found = {key: self._recent.get(key) for key in keys}
        missing = {key: index for index, key in enumerate(keys) if found[key] is None}
        if missing or not keys:
            every = len(missing) == len(keys)
            computed = _batch(self.mds.adapt(x if every else x[list(missing.values())]))
            if not keys:
                return computed
            found |= {key: computed[row : row + 1] for row, key in enumerate(missing)}
            size = sum(v.nbytes for v in vars(computed[0]).values() if isinstance(v, Tensor))
            self._recent.capacity = room = max(1, min(CAPACITY, MAX_BYTES // size))
            computed = computed[torch.arange(len(missing))[-room:]]  # a copy keeps no more alive
            for row, key in enumerate(list(missing)[-room:]):
                self._recent.put(key, computed[row : row + 1])
        parts = [part for key in keys if (part := found[key]) is not None]
        return type(parts[0]).join(parts)[torch.arange(len(parts))]  # with tensors of its own


def _batch(adaptation: Any) -> Any:
    if adaptation.batched:
        return adaptation
    values = {k: v[None] for k, v in vars(adaptation).items() if isinstance(v, Tensor)}
    return type(adaptation)(**{**vars(adaptation), **values, "status": (adaptation.status,)})
