"""The bridge to sbi: joint posteriors split in two, quiet training, files, what it knows of sbi."""

import copy
import importlib.metadata
import json
import math
import os
import pickle
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mindist import MinimumDistance, RobustPosterior
from mindist.tasks import GaussianTask

pytest.importorskip("sbi")

from sbi.inference import NPE, NPSE, EnsemblePosterior
from sbi.inference.posteriors import (
    DirectPosterior,
    MCMCPosterior,
    NPE_A_Posterior,
    VectorFieldPosterior,
)
from sbi.neural_nets import posterior_nn
from sbi.neural_nets.embedding_nets import FCEmbedding, PermutationInvariantEmbedding
from sbi.utils import BoxUniform
from sbi.utils.sbiutils import Standardize

from mindist.posteriors import load_pickled_posterior
from mindist.posteriors.guards import quiet
from mindist.posteriors.sbi_bridge import (
    EmbeddingSummary,
    bridge,
    shallow_copy,
    split_embedding,
    train_npe,
)
from mindist.posteriors.sbi_storage import load_posterior, save_posterior
from mindist.posteriors.sbi_training import NoTracker

TASK = GaussianTask(num_obs=10)
ESTIMATORS = [
    "maf",
    "nsf",
    "mdn",
    "made",
    "maf_rqs",
    "zuko_nsf",
    "zuko_maf",
    "zuko_nice",
    "zuko_gf",
]
spline_inverse = pytest.mark.filterwarnings("ignore:torch.triangular_solve is deprecated")


def simulate(num: int = 300, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    theta = TASK.sample_prior(num, generator)
    return theta, TASK.simulate(theta, generator=generator)


def train(estimator: str = "mdn", *, net: nn.Module | None = None, epochs: int = 2, **options: Any):
    theta, x = simulate()
    torch.manual_seed(0)
    net = TASK.summary_network(width=16) if net is None else net
    options = {"max_num_epochs": epochs, "seed": 1} | options
    return train_npe(
        TASK.prior, theta, x, density_estimator=estimator, embedding_net=net, **options
    )


@pytest.fixture(scope="module")
def joint() -> DirectPosterior:
    return train("mdn", epochs=5)


@pytest.fixture(scope="module")
def over_means() -> DirectPosterior:
    """A posterior given the sample mean, trained long enough to be close to the exact one."""
    theta, x = simulate(1500, seed=3)
    options = {"density_estimator": "mdn", "learning_rate": 5e-3, "max_num_epochs": 25, "seed": 0}
    return train_npe(TASK.prior, theta, x.mean(1), **options)


# ------------------------------------------------------------------------------ splitting


@spline_inverse
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("z_score_x", ["structured", "none"])
def test_the_halves_are_the_whole_also_from_disk(estimator, z_score_x, tmp_path):
    posterior = train(estimator, z_score_x=z_score_x)
    summary, over_s = split_embedding(posterior)
    theta, x = simulate(5, seed=1)
    s = summary(x)
    assert s.shape == (5, 2)
    for i in range(5):
        torch.testing.assert_close(
            over_s.log_prob(theta, x=s[i], norm_posterior=False),
            posterior.log_prob(theta, x=x[i], norm_posterior=False),
            atol=1e-5,
            rtol=1e-5,
        )
    torch.manual_seed(3)
    expected = posterior.sample((50,), x=x[0], show_progress_bars=False)
    torch.manual_seed(3)
    samples = over_s.sample((50,), x=s[0], show_progress_bars=False)
    torch.testing.assert_close(samples, expected, atol=1e-5, rtol=1e-5)

    how, like = {"density_estimator": estimator}, partial(TASK.summary_network, width=16)
    save_posterior(tmp_path / "joint", posterior, **how)
    loaded, _ = load_posterior(tmp_path / "joint", TASK.prior, embedding_net=like())
    assert_equal_samples(posterior, loaded, x[:1])
    save_posterior(tmp_path / "split", over_s, summary=summary, **how)
    loaded, loaded_summary = load_posterior(tmp_path / "split", TASK.prior, summary_net=like())
    assert torch.equal(summary(x), loaded_summary(x))
    assert loaded_summary.condition_shape == summary.condition_shape
    assert_equal_samples(over_s, loaded, s[:1])
    with pytest.raises(ValueError, match=r"summary_net: .* holds a learned summary"):
        load_posterior(tmp_path / "split", TASK.prior)


def assert_equal_samples(a: Any, b: Any, condition: Tensor) -> None:
    """Bit by bit."""

    def draw(posterior: Any) -> Tensor:
        torch.manual_seed(3)
        return posterior.sample((50,), x=condition, show_progress_bars=False)

    first, second = draw(a), draw(b)
    assert torch.equal(first, second)
    assert torch.equal(a.log_prob(first, x=condition), b.log_prob(first, x=condition))


def test_sbis_own_permutation_invariant_net_can_be_split():
    trial_net = FCEmbedding(2, output_dim=8, num_layers=2, num_hiddens=16)
    net = PermutationInvariantEmbedding(trial_net, 8, aggregation_fn="mean", output_dim=3)
    summary, over_s = split_embedding(train("zuko_maf", net=net))
    x = simulate(4, seed=1)[1]
    assert summary.dim == 3
    assert summary(x).shape == (4, 3)
    assert over_s.posterior_estimator.condition_shape == (3,)
    shuffled = x[:, torch.randperm(10)]
    torch.testing.assert_close(summary(shuffled), summary(x), atol=1e-5, rtol=1e-5)


def test_the_summary_is_frozen(joint):
    summary, _ = split_embedding(joint)
    assert isinstance(summary, EmbeddingSummary)
    assert not any(parameter.requires_grad for parameter in summary.parameters())
    assert not any(module.training for module in summary.train().modules())
    x = simulate(3, seed=1)[1]
    assert not summary(x).requires_grad
    assert torch.equal(summary(x), summary(x.double()))
    torch.testing.assert_close(summary(x[:1]), summary(x)[:1])  # datasets are independent
    assert summary(x[:, :4]).shape == (3, 2)  # any number of observations


def test_standardisation_is_part_of_the_summary(joint):
    summary, _ = split_embedding(joint)
    standardise, net = summary.net
    assert isinstance(standardise, Standardize)
    x = simulate()[1]
    assert standardise._mean.item() == pytest.approx(x.mean().item(), abs=0.02)  # of 90% of them
    torch.testing.assert_close(summary(x), net((x - standardise._mean) / standardise._std))


def test_the_given_posterior_is_left_alone(joint):
    before = copy.deepcopy(joint.posterior_estimator.state_dict())
    summary, over_s = split_embedding(joint)
    with torch.no_grad():
        for parameter in [*summary.parameters(), *over_s.posterior_estimator.parameters()]:
            parameter.zero_()
    assert joint.posterior_estimator.condition_shape == (10, 2)
    assert not isinstance(joint.posterior_estimator.embedding_net, nn.Identity)
    assert all(p.requires_grad for p in joint.posterior_estimator.parameters())
    torch.testing.assert_close(joint.posterior_estimator.state_dict(), before, rtol=0, atol=0)


def test_settings_of_the_posterior_are_kept(joint):
    box = BoxUniform(-torch.ones(2), torch.ones(2))
    given = DirectPosterior(
        joint.posterior_estimator, box, max_sampling_batch_size=77, enable_transform=False
    )
    _, over_s = split_embedding(given)
    assert over_s.max_sampling_batch_size == 77
    assert not over_s.enable_transform
    assert over_s.sample((20,), x=torch.zeros(2), show_progress_bars=False).abs().max() <= 1


@pytest.mark.parametrize("estimator", ["mdn", "maf", "zuko_nsf"])
def test_a_warning_where_standardisation_broke_exchangeability(estimator):
    posterior = train(estimator, z_score_x="independent")
    with pytest.warns(
        UserWarning, match=r"each of the 10 observations.*'structured' or 'none'"
    ) as w:
        summary, _ = split_embedding(posterior)
    assert w[0].filename == __file__
    x = simulate(3, seed=1)[1]
    assert (summary(x.flip(1)) - summary(x)).abs().max() > 2e-5  # it is true, ...
    structured, _ = split_embedding(train(estimator, z_score_x="structured"))
    assert (structured(x.flip(1)) - structured(x)).abs().max() < 1e-6  # ... and this is the way out
    with pytest.raises(ValueError, match=r"expected datasets of shape \(B, 10, 2\) as in training"):
        summary(x[:, :5])


def test_no_warning_where_all_positions_were_standardised_alike():
    posterior = train("mdn", z_score_x="independent")
    standardise = posterior.posterior_estimator.embedding_net[0]
    standardise._mean.copy_(standardise._mean.mean(0, keepdim=True).expand(10, 2))
    standardise._std.fill_(1.0)
    summary, _ = split_embedding(posterior)  # warnings are errors here
    x = simulate(3, seed=1)[1]
    torch.testing.assert_close(summary(x.flip(1)), summary(x))


def test_what_cannot_be_split_is_refused(joint, quick):
    theta, x = simulate()
    for posterior in (quick, _without_standardisation()):
        with pytest.raises(ValueError, match=r"expected one trained with an embedding net"):
            split_embedding(posterior)
    with pytest.raises(TypeError, match=r"expected a DirectPosterior \(NPE\).*members"):
        split_embedding(EnsemblePosterior([joint, joint]))
    inference = NPSE(TASK.prior, tracker=NoTracker(), show_progress_bars=False)
    with quiet("Maximum number of epochs"):
        inference.append_simulations(theta, x.mean(1)).train(max_num_epochs=1)
    with pytest.raises(TypeError, match="got VectorFieldPosterior"):
        split_embedding(inference.build_posterior())
    with pytest.raises(TypeError, match="got str"):
        split_embedding("posterior")


def _without_standardisation() -> Any:
    theta, x = simulate()
    options = {"density_estimator": "mdn", "max_num_epochs": 1, "z_score_x": "none"}
    return train_npe(TASK.prior, theta, x.mean(1), **options)


def test_from_a_joint_posterior_to_a_robust_one(joint):
    """The whole way: split, fit, adapt, query."""
    summary, over_s = split_embedding(joint)
    x = simulate(500, seed=2)[1]
    robust = RobustPosterior(over_s, MinimumDistance(summary, num_features=64).fit(x))
    x_obs = x[0].clone()
    torch.testing.assert_close(robust.adapt(x_obs).s_obs, summary(x_obs[None])[0])
    theta = torch.zeros(1, 2)
    if not robust.adapt(x_obs).adapted:
        expected = joint.log_prob(theta, x=x_obs)
        torch.testing.assert_close(robust.log_prob(theta, x_obs), expected, atol=1e-5, rtol=1e-5)
    x_obs[:4] = 9.0
    adaptation = robust.adapt(x_obs)
    assert adaptation.adapted
    assert robust.sample((5,), x_obs, seed=0).shape == (5, 2)


# ------------------------------------------------------------------------------ training


def test_training_finds_the_exact_posterior(over_means):
    for s in ([0.0, 0.0], [1.0, -0.5]):
        samples = over_means.sample((2000,), x=torch.tensor(s), show_progress_bars=False)
        exact = TASK.posterior_given_mean(torch.tensor([s]))
        assert ((samples.mean(0) - exact.mean[0]) / exact.stddev[0]).abs().max() < 0.3
        torch.testing.assert_close(samples.std(0), exact.stddev[0], rtol=0.2, atol=0)


def test_training_is_quiet_and_leaves_nothing_behind(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    theta, x = simulate()
    how = {"density_estimator": "mdn", "learning_rate": 0.02}
    for epochs, patience in ((1, 20), (200, 1)):  # stopped by the number of epochs, and early
        options = how | {"max_num_epochs": epochs, "stop_after_epochs": patience}
        train_npe(TASK.prior, theta, x.mean(1), **options)
    assert os.listdir(tmp_path) == []
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""
    train_npe(TASK.prior, theta, x.mean(1), max_num_epochs=1, show_progress=True, **how)
    assert "Epochs trained" in capsys.readouterr().out


def test_training_repeats_under_a_seed_and_leaves_the_global_generator_alone():
    net = TASK.summary_network(width=8)
    before, state = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    first = train("maf", net=net)
    torch.manual_seed(99)
    state = torch.get_rng_state()
    theta, x = simulate()
    options = {"density_estimator": "maf", "embedding_net": net, "max_num_epochs": 2}
    second = train_npe(TASK.prior, theta, x, seed=1, **options)
    assert torch.equal(state, torch.get_rng_state())
    other = train_npe(TASK.prior, theta, x, seed=2, **options)
    states = [p.posterior_estimator.state_dict() for p in (first, second, other)]
    torch.testing.assert_close(states[0], states[1], rtol=0, atol=0)
    assert any(not torch.equal(states[0][name], states[2][name]) for name in states[0])
    torch.testing.assert_close(net.state_dict(), before, rtol=0, atol=0)


# ------------------------------------------------------------------------------ files


@pytest.fixture(scope="module")
def quick() -> DirectPosterior:
    """A posterior given the sample mean, hardly trained."""
    theta, x = simulate()
    return train_npe(TASK.prior, theta, x.mean(1), density_estimator="mdn", max_num_epochs=2)


def test_a_posterior_over_summaries_comes_back_as_it_was(quick, tmp_path):
    save_posterior(tmp_path / "npe", quick, density_estimator="mdn")
    state = torch.get_rng_state()
    loaded, summary = load_posterior(tmp_path / "npe", TASK.prior)
    assert torch.equal(state, torch.get_rng_state())
    assert summary is None
    assert_equal_samples(quick, loaded, torch.zeros(1, 2))


def test_one_parameter(tmp_path):
    """sbi builds another network for a single parameter, which cryo-EM has."""
    prior = torch.distributions.Independent(torch.distributions.Normal(torch.zeros(1), 1.0), 1)
    theta, x = simulate()
    posterior = train_npe(prior, theta[:, :1], x.mean(1), max_num_epochs=2)
    save_posterior(tmp_path / "npe", posterior, density_estimator="nsf")
    loaded, _ = load_posterior(tmp_path / "npe", prior)
    assert_equal_samples(posterior, loaded, torch.zeros(1, 2))


def test_what_does_not_fit_is_refused(quick, tmp_path):
    save_posterior(tmp_path / "npe", quick, density_estimator="mdn")
    with pytest.raises(ValueError, match="posterior: expected a network with the names and shapes"):
        load_posterior(tmp_path / "npe", TASK.prior, embedding_net=nn.Linear(2, 3))
    with pytest.raises(TypeError, match="expected a DirectPosterior"):
        save_posterior(tmp_path / "no", object(), density_estimator="mdn")
    files = sorted(file.name for file in (tmp_path / "npe").iterdir())
    assert files == ["mindist.json", "tensors.safetensors"]
    assert json.loads((tmp_path / "npe" / "mindist.json").read_text())["kind"] == "NeuralPosterior"


def dump(value, path):
    path.write_bytes(pickle.dumps(value))


class Trace:
    """Leaves a trace when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("save", [torch.save, dump])
def test_pickles_are_run_only_on_trust(save, tmp_path):
    save(Trace(tmp_path / "trace"), tmp_path / "posterior.pkl")
    for trust in (False, "yes", 1):
        with pytest.raises(
            ValueError, match=r"trust: .* is a pickle, and to load one is to run the"
        ):
            load_pickled_posterior(tmp_path / "posterior.pkl", trust=trust)
    assert not (tmp_path / "trace").exists()
    load_pickled_posterior(tmp_path / "posterior.pkl", trust=True)
    assert (tmp_path / "trace").exists()
    with pytest.raises(FileNotFoundError, match="there is no file"):
        load_pickled_posterior(tmp_path / "none.pkl", trust=True)


@pytest.mark.parametrize("save", [torch.save, dump])
def test_a_trusted_posterior_is_the_posterior(save, quick, tmp_path):
    save(quick, tmp_path / "posterior.pkl")
    loaded = load_pickled_posterior(tmp_path / "posterior.pkl", trust=True)
    assert_equal_samples(quick, loaded, torch.zeros(1, 2))


# ------------------------------------------------------------------------------ what is accepted


def test_only_amortised_posteriors_are_accepted(joint):
    over_s = split_embedding(joint)[1]
    estimator, prior = over_s.posterior_estimator, over_s.prior
    bridge(over_s)
    bridge(NPE_A_Posterior(estimator, prior))
    later = NPE_A_Posterior(
        estimator, prior, proposal_mog=estimator.get_uncorrected_mog(torch.zeros(1, 2))
    )
    with pytest.raises(TypeError, match="got NPE_A_Posterior of a later round"):
        bridge(later)
    mcmc = MCMCPosterior(over_s.potential_fn, prior, over_s.theta_transform)
    for posterior in (mcmc, EnsemblePosterior([over_s, mcmc])):
        with pytest.raises(TypeError, match=r"DirectPosterior \(NPE\).*got MCMCPosterior"):
            bridge(posterior)


def test_a_first_round_of_npe_a_is_an_npe(joint):
    over_s = split_embedding(joint)[1]
    posterior = NPE_A_Posterior(over_s.posterior_estimator, over_s.prior)
    component = bridge(posterior).components[0]
    s, theta = torch.zeros(1, 2), torch.randn(4, 2)
    torch.manual_seed(0)
    expected = posterior.sample((10,), x=s, show_progress_bars=False)
    torch.manual_seed(0)
    drawn = component.draw(10, s)[:, 0]
    torch.testing.assert_close(drawn, expected)
    torch.testing.assert_close(
        component.log_density(theta[:, None], s)[:, 0], posterior.log_prob(theta, x=s)
    )


def test_nested_ensembles_multiply_their_weights(joint):
    over_s = split_embedding(joint)[1]
    inner = EnsemblePosterior([over_s, over_s], weights=[0.25, 0.75])
    outer = EnsemblePosterior([over_s, inner], weights=[0.2, 0.8])
    weights = [component.weight for component in bridge(outer).components]
    assert weights == pytest.approx([0.2, 0.2, 0.6])


# ------------------------------------------------------------------------------ pinned to sbi


def test_what_we_know_of_sbi_0_27_0():
    """Private attributes that the bridge relies on; look at each again when sbi is updated."""
    assert importlib.metadata.version("sbi") == "0.27.0"
    theta, x = simulate(20)
    for name in ESTIMATORS:
        estimator = posterior_nn(name, embedding_net=TASK.summary_network(width=4))(theta, x)
        owner = estimator if name.startswith(("mdn", "zuko")) else estimator.net
        assert owner._embedding_net is estimator.embedding_net
        assert estimator._condition_shape == estimator.condition_shape == (10, 2)
        standardise, _ = estimator.embedding_net
        assert isinstance(standardise, Standardize)
        assert standardise._mean.shape == standardise._std.shape == (10, 2)
        torch.testing.assert_close(standardise._mean, x.mean(0))
    posterior = DirectPosterior(estimator, TASK.prior)
    assert (
        NPE_A_Posterior(posterior_nn("mdn")(theta, x.mean(1)), TASK.prior)._apply_correction
        is False
    )
    assert hasattr(posterior, "_leakage_density_correction_factor")
    # copy.copy of an sbi posterior is no copy, which is why there is shallow_copy.
    assert vars(copy.copy(posterior)) is vars(posterior)
    assert vars(shallow_copy(posterior)) is not vars(posterior)


def test_sbi_0_27_0_normalises_with_a_stale_constant(over_means):
    """Why leakage is not left to sbi: its constant outlives the observation it was computed for."""
    box = BoxUniform(torch.zeros(2), torch.full((2,), 3.0))
    posterior, theta = DirectPosterior(over_means.posterior_estimator, box), torch.ones(1, 2)
    posterior.set_default_x(torch.ones(2)).log_prob(theta)  # hardly leaks
    stale = posterior.set_default_x(torch.zeros(2)).log_prob(theta)  # leaks three quarters
    fresh = DirectPosterior(over_means.posterior_estimator, box).log_prob(theta, x=torch.zeros(2))
    assert abs((fresh - stale).item() - math.log(4)) < 0.5


def test_vector_fields_are_reached_without_private_attributes():
    theta, x = simulate(20)
    inference = NPSE(TASK.prior, tracker=NoTracker(), show_progress_bars=False)
    with quiet("Maximum number of epochs"):
        inference.append_simulations(theta, x.mean(1)).train(
            max_num_epochs=1, training_batch_size=10
        )
    posterior = inference.build_posterior()
    assert isinstance(posterior, VectorFieldPosterior)
    for name in ("net", "condition_shape", "input_shape", "compose_enabled", "to_z", "log_abs_det"):
        assert hasattr(posterior.vector_field_estimator, name)
    posterior.potential_fn.set_x(torch.zeros(3, 2), x_is_iid=False)
    assert posterior.potential_fn.flow.log_prob(torch.zeros(4, 3, 2)).shape == (4, 3)


def test_no_tracker_has_what_sbi_asks_of_a_tracker(tmp_path, monkeypatch):
    from sbi.sbi_types import Tracker

    asked = {name for name in vars(Tracker) if not name.startswith("_")}
    assert asked <= set(dir(NoTracker()))
    monkeypatch.chdir(tmp_path)
    NPE(TASK.prior, tracker=NoTracker())
    assert os.listdir(tmp_path) == []
