r"""The bridge to BayesFlow: its continuous approximators, workflows around them, and their files.

.. math:: p(\theta \mid s), \quad s \text{ an inference condition, or } s = h(x_{1:N})
    \text{ of a summary network } h .

Equal seeds give the draws of `workflow.sample(..., seed=seed)`, bit by bit (docs/bridges.md). On
disk a workflow is its weights, and one row of each variable, from which adapter and networks learn
how wide they are. `tests/test_bayesflow_bridge.py` pins BayesFlow's private names to 2.0.12.
"""

import copy
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mindist import checks, storage
from mindist.posteriors.backend import Backend
from mindist.posteriors.flow_bridge import Density, with_prefix
from mindist.posteriors.guards import seed_for_others

with torch.set_grad_enabled(torch.is_grad_enabled()):  # which BayesFlow sets to False
    import bayesflow
    import keras

VARIABLES, CONDITIONS, DATA = "inference_variables", "inference_conditions", "summary_variables"
KIND = "BayesFlowPosterior"
MAX_NUMBERS = 2**22  # of datasets given to a summary network at once: 16 MB in float32


# The density of a trained approximator, given what its inference network is conditioned on.
class BayesFlowDensity(Density):
    def __init__(self, approximator: Any) -> None:
        super().__init__()
        self.approximator = approximator
        self.learned = approximator.summary_network is not None
        self.parameters = raw_widths(approximator, VARIABLES)
        self.conditions = {} if self.learned else raw_widths(approximator, CONDITIONS)

    @property
    def tensors(self) -> Iterable[Tensor]:
        approximator = self.approximator
        for part in (approximator.inference_network, approximator.standardizer):
            yield from (variable.value for variable in part.weights)

    @torch.no_grad()
    def draw(self, num_samples: int, s: Tensor, /, **options: Any) -> Tensor:
        """Draw `(num_samples, B, d_theta)`; options are those of BayesFlow's `sample`."""
        own = self.approximator
        rows = own.sampler.repeat_and_flatten_conditions(self._conditions(s), num_samples)
        with seed_for_others() as seed:
            generator = keras.random.SeedGenerator(seed)
            z = own.inference_network.sample((len(rows),), rows, seed=generator, **options)
        z = z.reshape(len(s), num_samples, -1)
        z = standardised(own, VARIABLES, z, forward=False)
        raw = own.adapter({VARIABLES: z.cpu().numpy()}, inverse=True, strict=False)
        parts = [torch.as_tensor(np.asarray(raw[name])) for name in self.parameters]
        return torch.cat(parts, dim=-1).to(s).transpose(0, 1).contiguous()

    @torch.no_grad()
    def log_density(self, theta: Tensor, s: Tensor, **options: Any) -> Tensor:
        """Return log q, `(S, B)`, without a gradient; options are BayesFlow's."""
        own, rows = self.approximator, theta.flatten(0, 1)
        conditions = self._conditions(s).repeat(len(theta), 1)
        raw = split_columns(rows, self.parameters)
        adapted, log_det = own.adapter(raw, strict=False, log_det_jac=True, stage="inference")
        z = torch.as_tensor(adapted[VARIABLES])
        z, log_scale = standardised(own, VARIABLES, z, log_det_jac=True)
        try:
            log_q = own.inference_network.log_prob(z, conditions=conditions, **options)
        except NotImplementedError:
            kind = type(own.inference_network).__name__
            said = f"log_prob: BayesFlow has no density for a {kind}; it can only be sampled."
            raise NotImplementedError(said) from None
        log_q = log_q + log_scale + torch.as_tensor(log_det.get(VARIABLES, 0.0)).to(log_q)
        return torch.as_tensor(log_q).to(s).reshape(theta.shape[:-1])

    def _conditions(self, s: Tensor) -> Tensor:
        if self.learned:
            return s
        adapted = self.approximator.adapter(split_columns(s, self.conditions), strict=False)
        z = keras.ops.convert_to_tensor(adapted[CONDITIONS])
        return standardised(self.approximator, CONDITIONS, z)


class LearnedSummary:
    r"""A copy of a trained summary network :math:`h`: datasets `(B, N, *event)` to `(B, d_s)`."""

    def __init__(self, approximator: Any, conditions: Any = None) -> None:
        self.network = copy.deepcopy(approximator.summary_network)
        self.standardizer = copy.deepcopy(approximator.standardizer)
        self.adapter = copy.deepcopy(approximator.adapter)
        names = list(raw_widths(approximator, DATA))
        if conditions is None and len(names) != 1:
            said = f"a function from datasets to the summary variables {', '.join(names)}"
            raise checks.wrong("conditions", said, "None, and there is more than one of them")
        self.conditions = conditions or (lambda x: {names[0]: x})

    @torch.no_grad()
    def __call__(self, x: Any) -> Tensor:
        x, parts = torch.as_tensor(x), []
        for part in x.split(max(1, MAX_NUMBERS // max(1, x[:1].numel()))):
            adapted = self.adapter(dict(self.conditions(_array(part))), strict=False)
            z = standardised(self, DATA, keras.ops.convert_to_tensor(adapted[DATA]))
            parts.append(self.network(z).detach())
        return torch.cat(parts)


def bridge(posterior: Any, example: Tensor | None = None) -> Backend:
    density = BayesFlowDensity(trained(posterior))
    width = sum(density.conditions.values())
    if density.learned:
        shape = input_shapes(density.approximator)[DATA]
        width = density.approximator.summary_network.compute_output_shape(shape)[-1]
    names: list[str] = []
    for name, size in density.parameters.items():
        names += [name] if size == 1 else [f"{name}_{index}" for index in range(size)]
    density.condition_shape, density.num_parameters = torch.Size((int(width),)), len(names)
    density.parameter_names = tuple(names)
    return density


def learned_summary(
    posterior: Any, *, conditions: Callable[[Any], Mapping[str, Any]] | None = None
) -> LearnedSummary:
    """Return the summary that a BayesFlow workflow has learned, for `MinimumDistance`.

    Arguments:
        posterior: A trained workflow or approximator with a summary network.
        conditions: From datasets, an array `(B, N, *event)`, to the variables that the workflow
            summarises, by name; needed only where there are several.
    """
    approximator = trained(posterior)
    if approximator.summary_network is None:
        got = "one without: it was trained on summaries"
        then = "Pass the function that made them to MinimumDistance."
        raise checks.wrong("posterior", "a workflow with a summary network", got, then)
    return LearnedSummary(approximator, conditions)


def raw_conditions(posterior: Any) -> tuple[str | None, dict[str, int]]:
    """Return the one variable that a network summarises, or None and the widths of summaries."""
    density = BayesFlowDensity(trained(posterior))
    if not density.learned:
        return None, density.conditions
    names = list(raw_widths(density.approximator, DATA))
    if len(names) != 1:
        said = "a BayesFlow workflow that summarises one variable, the data"
        raise checks.wrong("posterior", said, f"one that summarises {', '.join(names)}")
    return names[0], {}


def trained(posterior: Any) -> Any:
    """Return the trained approximator of a workflow; raise if it cannot be asked."""
    if keras.backend.backend() != "torch":
        then = "Set the environment variable KERAS_BACKEND to 'torch' before BayesFlow is imported."
        said = f"posterior: Keras runs on {keras.backend.backend()}, and mindist on torch."
        raise RuntimeError(f"{said} {then}")
    approximator = getattr(posterior, "approximator", posterior)
    if not isinstance(approximator, bayesflow.ContinuousApproximator):
        said = "a BayesFlow workflow or approximator of the kind ContinuousApproximator"
        then = "Wrap members of an ensemble one by one; point estimates and ratios have no samples."
        raise checks.wrong("posterior", said, type(approximator).__name__, then, TypeError)
    if not approximator.built:
        said = "a trained BayesFlow workflow"
        then = "Call fit_offline or fit_online first, or load its weights."
        raise checks.wrong("posterior", said, "one that is not built", then)
    given = {CONDITIONS, DATA} & set(input_shapes(approximator))
    if len(given) != 1:
        said = f"one given {CONDITIONS} (summaries) or given {DATA} (data)"
        then = "What else it is conditioned on has to be part of the summary."
        raise checks.wrong("posterior", said, "both" if given else "neither", then)
    return approximator


def input_shapes(approximator: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes an approximator was built for, batch axis first, by kind of variable."""
    shapes = approximator.get_build_config()["input_shape"]
    return {name: tuple(shape) for name, shape in shapes.items()}


def raw_widths(approximator: Any, kind: str) -> dict[str, int]:
    """Return names and widths of the user's variables that an adapter makes one kind of."""
    zero = np.zeros((1, *input_shapes(approximator)[kind][1:]), np.float32)
    inverse = approximator.adapter({kind: zero}, inverse=True, strict=False)
    return {name: np.asarray(value).shape[-1] for name, value in inverse.items()}


def standardised(owner: Any, kind: str, z: Any, **how: bool) -> Any:
    """Standardise one kind of variable as in training, or undo that with `forward=False`."""
    return owner.standardizer.maybe_standardize(z, key=kind, stage="inference", **how)


def split_columns(rows: Tensor, widths: Mapping[str, int]) -> dict[str, NDArray[Any]]:
    parts = rows.split(list(widths.values()), dim=-1)
    return {name: _array(part) for name, part in zip(widths, parts, strict=True)}


def _array(x: Tensor) -> NDArray[Any]:
    return x.detach().cpu().numpy()


def save_posterior(path: str | os.PathLike[str], posterior: Any) -> None:
    """Write the weights of a trained workflow or approximator to a new or an empty folder."""
    approximator = trained(posterior)
    tensors = {f"weight.{i}": weight.value for i, weight in enumerate(approximator.weights)}
    for kind, shape in input_shapes(approximator).items():  # one row of each, at the mean
        mean = standardised(approximator, kind, torch.zeros(1, *shape[1:]), forward=False)
        rows = approximator.adapter({kind: _array(mean)}, inverse=True)
        copied = {name: torch.tensor(np.ascontiguousarray(row)) for name, row in rows.items()}
        tensors |= {f"example.{name}": row for name, row in copied.items()}
    config = {"inference_network": type(approximator.inference_network).__name__}
    storage.write_artefact(path, KIND, config, tensors)


def load_posterior(path: str | os.PathLike[str], posterior: Any) -> Any:
    """Read what `save_posterior` wrote into a workflow, and return it; equal seeds, equal draws.

    The workflow or approximator is made as the saved one was, trained or not: same networks, same
    adapter, same `standardize`. Its weights are replaced.
    """
    _, tensors = storage.read_artefact(path, KIND)
    approximator = getattr(posterior, "approximator", posterior)
    try:
        examples = with_prefix(tensors, "example.")
        adapted = approximator.adapter({name: row.numpy() for name, row in examples.items()})
        if not approximator.built:
            approximator.build({kind: tuple(row.shape) for kind, row in adapted.items()})
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        raise _other(path, f"its adapter or networks cannot be built for it: {error}") from error
    weights = with_prefix(tensors, "weight.")
    stored = [weights[str(i)] for i in range(len(weights)) if str(i) in weights]
    wanted = [tuple(variable.shape) for variable in approximator.weights]
    if [tuple(value.shape) for value in stored] != wanted:
        raise _other(path, f"{len(wanted)} weights for the {len(stored)} stored, or other shapes")
    for variable, value in zip(approximator.weights, stored, strict=True):
        variable.assign(value)
    trained(posterior)
    return posterior


def _other(path: str | os.PathLike[str], why: str) -> ValueError:
    return ValueError(
        "posterior: expected a workflow made like the one whose weights are in "
        f"{os.fspath(path)}, got another one: {why}"
    )


__all__ = ["learned_summary", "load_posterior", "save_posterior"]
