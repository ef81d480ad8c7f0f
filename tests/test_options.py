"""Every option of the wrong type or range: an error that names it, what was expected, what came."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mindist import MinimumDistance, RobustPosterior, Search
from mindist.decoders import RidgeDecoder
from mindist.posteriors.truncation import Budget, leakage_options

NOT_NUMBERS = ["5%", None, True, [0.5], {}, torch.ones(2), object()]
NOT_FLAGS = ["yes", "no", None, 1, 0.0, [], torch.tensor(True)]
NOT_COUNTS = ["2", None, 1.5, [1], torch.ones(2)]
NOT_WORDS = ["nonsense", None, 3, ["sobol"], np.array(["a", "b"])]
NOT_SEEDS = ["0", None, 0.5, [1], 2**64, -(2**63) - 1]


def mean(x: Tensor) -> Tensor:
    return x.mean(1)


WRONG: dict[str, list[Any]] = {
    "summary": ["mean", None, 3],
    "bandwidth": [*NOT_NUMBERS, "wide", "median 2", 0, -1.0, float("nan"), float("inf"), 1e300],
    "representation": ["fourier", None, 3, ["raw"]],
    "sorting": NOT_FLAGS,
    "num_features": [*NOT_COUNTS, 0, -2, 3],
    "frequencies": NOT_WORDS,
    "decoder": ["tree", None, 3, RidgeDecoder, mean, {"ridge": 1}],
    "search": [{"stay": 0}, "lbfgs", 3],
    "alpha": [*NOT_NUMBERS, 0, 1, 5, -0.1, float("nan")],
    "seed": NOT_SEEDS,
    "device": ["gpu", None, 3.5, "cuda:999", []],
}
CASES = [(name, value) for name, values in WRONG.items() for value in values]


@pytest.fixture(scope="module")
def small() -> MinimumDistance:
    x = torch.randn(100, 20, 2, generator=torch.Generator().manual_seed(0))
    return MinimumDistance(mean, num_features=32, alpha=0.2, representation="raw").fit(x)


def names_it(name: str) -> Any:
    """An error that begins with the argument and says what was expected and what came."""
    pattern = rf"(?s)^{re.escape(name)}\b.*: .*expected.*got"
    return pytest.raises((TypeError, ValueError), match=pattern)


def described(value: Any) -> str:
    return f"{type(value).__name__}-{str(value)[:20]}"


@pytest.mark.parametrize(("name", "value"), CASES, ids=lambda part: described(part))
def test_a_wrong_option_of_the_estimator_is_named(name: str, value: Any):
    options = {"summary": mean, name: value}
    with names_it(name):
        MinimumDistance(**options)


WRONG_SEARCHES: dict[str, list[Any]] = {
    "solver": NOT_WORDS,
    "divergence": NOT_WORDS,
    "starts": [3, None, object(), [], "far", [("a", "b")], [None]],
    "restarts": [*NOT_COUNTS, -1],
    "stay": [*NOT_NUMBERS, -0.5, float("nan")],
}
SEARCHES = [(name, value) for name, values in WRONG_SEARCHES.items() for value in values]


@pytest.mark.parametrize(("name", "value"), SEARCHES, ids=lambda part: described(part))
def test_a_wrong_option_of_the_search_is_named(name: str, value: Any):
    with pytest.raises((TypeError, ValueError), match=rf"(?s)\b{name}\b.*expected.*got"):
        Search(**{name: value})


@pytest.mark.parametrize("name", ["summary", "bandwidth", "alpha", "seed", "device"])
def test_the_papers_preset_says_the_same(name: str):
    for value in WRONG[name]:
        with names_it(name):
            MinimumDistance.paper(**{"summary": mean, name: value})
    with names_it("variant"):
        MinimumDistance.paper(mean, variant=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [0.1, np.float32(0.1), np.float64(0.1), torch.tensor(0.1)])
def test_numbers_of_every_kind_are_numbers(number: Any):
    mds = MinimumDistance(mean, alpha=number, bandwidth=number, seed=np.int64(3))
    assert mds.alpha == pytest.approx(0.1)
    assert mds.bandwidth == pytest.approx(0.1)
    assert mds.seed == 3
    assert MinimumDistance(mean, sorting=np.True_).sorting is True


def test_settings_that_are_changed_later_are_checked_too():
    mds = MinimumDistance(mean)
    for value in WRONG["alpha"]:
        with names_it("alpha"):
            mds.alpha = value
    for value in WRONG["search"]:
        with names_it("search"):
            mds.search = value
    for value in WRONG["device"]:
        with names_it("device"):
            mds.to(value)


@pytest.mark.parametrize("call", ["detect", "adapt"])
def test_wrong_observations_are_named(call: str, small: MinimumDistance):
    ask: Callable[[Any], Any] = getattr(small, call)
    event = tuple(small.event_shape)
    sparse, complex_ = torch.zeros(5, *event).to_sparse(), torch.zeros(5, *event).cfloat()
    text, loose = np.full((5, *event), "a"), np.full((5, *event), None)
    for x in [None, "x", 3, [[1.0, 2.0]], {}, text, loose, complex_, sparse]:
        with names_it("x"):
            ask(x)
    for shape in [(), (5,), (5, *event, 1), (1, 1, 5, *event), (0, *event), (1, *event)]:
        with names_it("x"):
            ask(torch.zeros(shape))
    for value in (torch.nan, torch.inf, -torch.inf):
        with names_it("x"):
            ask(torch.full((5, *event), value))


def test_force_is_true_or_false(small: MinimumDistance):
    x = torch.zeros(5, *small.event_shape)
    for value in NOT_FLAGS:
        with names_it("force"):
            small.adapt(x, force=value)


# ------------------------------------------------------------------------------ the posterior


@pytest.fixture(scope="module")
def robust(small: MinimumDistance) -> RobustPosterior:
    pytest.importorskip("sbi")
    from mindist.posteriors.sbi_bridge import train_npe

    prior = torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2))
    theta = torch.randn(100, 2, generator=torch.Generator().manual_seed(0))
    npe = train_npe(prior, theta, theta + 0.1, density_estimator="mdn", max_num_epochs=2)
    return RobustPosterior(npe, small)


OF_SAMPLE: dict[str, list[Any]] = {
    "sample_shape": [5, None, "5", 2.5, (2.5,), ("2",), (-1,)],
    "seed": [seed for seed in NOT_SEEDS if seed is not None],
    "reject_outside_prior": NOT_FLAGS,
    "max_sampling_batch_size": [*NOT_COUNTS, 0, -1],
    "max_sampling_time": ["1", True, [1], -1, float("nan")],
    "return_partial_on_timeout": NOT_FLAGS,
    "show_progress_bars": NOT_FLAGS,
}


@pytest.mark.parametrize("name", OF_SAMPLE)
def test_a_wrong_option_of_sampling_is_named(name: str, robust: RobustPosterior):
    x = torch.zeros(5, *robust.mds.event_shape)
    for value in OF_SAMPLE[name]:
        options: dict[str, Any] = {"sample_shape": (3,), name: value}
        with names_it(name):
            robust.sample(x=x, **options)
        with names_it(name):
            robust.sample_batched(x=x[None], **options)


def test_a_wrong_option_of_a_posterior_is_named(robust: RobustPosterior):
    for value in [None, "mds", MinimumDistance, 3]:
        with names_it("mds"):
            RobustPosterior(robust.posterior, value)
    for value in ["yes", 1, []]:
        with names_it("uncertainty"):
            RobustPosterior(robust.posterior, robust.mds, uncertainty=value)
    for value in [*NOT_COUNTS, 0, -1]:
        with names_it("max_draws_per_sample"):
            RobustPosterior(robust.posterior, robust.mds, max_draws_per_sample=value)
    for value in [None, "npe", 3, lambda s: s]:
        with names_it("posterior"):
            RobustPosterior(value, robust.mds)


def test_a_wrong_option_of_a_density_or_a_mode_is_named(robust: RobustPosterior):
    x, theta = torch.zeros(5, *robust.mds.event_shape), torch.zeros(3, 2)
    wrong: dict[str, list[Any]] = {
        "theta": [None, "a", 3, [[0.0, 0.0]], torch.zeros(3, 5), torch.zeros(())],
        "norm_posterior": ["no", 1],
        "track_gradients": NOT_FLAGS,
        "leakage_correction_params": [3, "a", {"draws": 10}],
    }
    for name, values in wrong.items():
        for value in values:
            with names_it(name):
                robust.log_prob(**{"theta": theta, "x": x, name: value})
    of_mode: dict[str, list[Any]] = {
        "init_method": [None, 3, "middle", torch.zeros(2), torch.zeros(4, 5), torch.zeros(0, 2)],
        "num_init_samples": [*NOT_COUNTS, 0],
        "force_update": NOT_FLAGS,
    }
    for name, values in of_mode.items():
        for value in values:
            with names_it(name):
                robust.map(x, **{name: value})
    for value in WRONG["device"]:
        with names_it("device"):
            robust.to(value)
    for value in ["x", 3, [[0.0, 1.0]]]:
        with names_it("x"):
            robust.set_default_x(value)


def test_budgets_and_leakage_options_check_themselves():
    with names_it("max_sampling_batch_size"):
        Budget(10, batch_size=0)
    with names_it("num_rejection_samples"):
        leakage_options({"num_rejection_samples": "many"})
