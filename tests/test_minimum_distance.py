import copy
import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from mindist import MinimumDistance, Search
from mindist.adaptation import Status
from mindist.decoders import MLPDecoder, RidgeDecoder
from mindist.summarise import Summariser

V1 = Path(__file__).parent / "fixtures" / "v1"
PER_DATASET = (
    "s_obs",
    "s_star",
    "distance_obs",
    "distance_star",
    "p_value",
    "misspecified",
    "adapted",
)


@pytest.fixture(scope="module")
def x_obs(task):
    """Six datasets, the first two clean."""
    generator = torch.Generator().manual_seed(5)
    x = task.simulate(task.sample_prior(6, generator), generator=generator)
    dirty = task.contaminate(x, 0.3, generator=generator)
    return torch.cat([x[:2], dirty[2:]])


def test_batches_single_datasets_and_numpy_agree(mds_small, x_obs):
    batch = mds_small.adapt(x_obs)
    from_numpy = mds_small.adapt(x_obs.numpy())
    assert len(batch) == 6
    assert batch.misspecified.tolist() == [False, False, True, True, True, True]
    for i in range(6):
        alone = mds_small.adapt(x_obs[i])
        for name in PER_DATASET:
            torch.testing.assert_close(
                getattr(alone, name), getattr(batch, name)[i], rtol=1e-5, atol=1e-6
            )
            assert torch.equal(getattr(from_numpy, name), getattr(batch, name))
        assert alone.status == batch.status[i] == batch[i].status
        assert alone.s_star.shape == (2,)
        assert alone.p_value.shape == ()
    detection = mds_small.detect(x_obs)
    assert torch.equal(detection.p_value, batch.p_value)


def test_the_gate_and_the_promise(mds_small, x_obs):
    """Where not misspecified the observed summary is kept bit by bit."""
    result = mds_small.adapt(x_obs)
    assert torch.equal(result.adapted, result.misspecified)
    assert torch.equal(result.s_star[:2], result.s_obs[:2])
    assert result.status[0] is Status.WELL_SPECIFIED
    assert result.status[2] is Status.SORTED
    assert (result.objective_star < result.objective_obs)[2:].all()
    assert torch.equal(result.misspecified, result.p_value <= 0.05)
    forced = mds_small.adapt(x_obs, force=True)
    assert forced.adapted.all()
    assert torch.equal(forced.misspecified, result.misspecified)
    torch.testing.assert_close(forced.s_star[2:], result.s_star[2:])


def test_results_read_well(mds_small, x_obs):
    result = mds_small.adapt(x_obs)
    assert repr(result) == "Adaptation(6 datasets, 4 misspecified, 4 adapted)"
    assert repr(result[0]).startswith("Adaptation(not misspecified, p_value=")
    assert "status=sorted" in repr(result[2])
    assert "observed summary is used" in result.message[0]
    assert "observations that the model explains" in result[2].message
    with pytest.raises(IndexError):
        result[6]
    assert repr(result[1:3]) == "Adaptation(2 datasets, 1 misspecified, 1 adapted)"
    assert result[result.misspecified].status == (Status.SORTED,) * 4
    assert len(list(result)) == 6


@pytest.fixture(scope="module")
def mds_quick(task, x_train):
    """One that searches for every misspecified dataset: nothing is sorted."""
    options = {"num_features": 64, "decoder": RidgeDecoder(100), "sorting": False}
    return MinimumDistance(task.summary, **options).fit(x_train[:1_000])


@pytest.mark.parametrize("solver", ["levenberg-marquardt", "lbfgs", "gradient-descent", "adam"])
@pytest.mark.parametrize(
    "starts", [("observed",), ("nearest",), ("mean",), ("perturbed",), ((0.0, 0.0),)]
)
def test_solvers_and_starts_reach_the_same_minimum(mds_quick, x_obs, solver, starts):
    stay = 0.0 if solver == "adam" else 0.03
    mds_quick.search = Search(stay=stay)
    expected = mds_quick.adapt(x_obs[2:]).s_star
    mds_quick.search = Search(solver=solver, starts=starts, stay=stay)
    atol = 0.02 if solver == "adam" else 1e-3
    torch.testing.assert_close(mds_quick.adapt(x_obs[2:]).s_star, expected, rtol=0, atol=atol)


def test_restarts_only_help_and_do_not_depend_on_the_batch(task, x_train, x_obs):
    mds = MinimumDistance(task.summary, num_features=64, sorting=False).fit(x_train[:1_000])
    mds.search = Search(starts=("observed",), stay=0)
    single = mds.adapt(x_obs)
    mds.search = Search(starts=("observed",), stay=0, restarts=5)
    several, alone = mds.adapt(x_obs), mds.adapt(x_obs[3])
    assert (several.distance_star <= single.distance_star + 1e-12).all()
    torch.testing.assert_close(alone.s_star, several.s_star[3], rtol=1e-5, atol=1e-6)


def test_an_iterator_of_chunks_gives_what_the_array_gives(task, x_train):
    x = x_train[:1_500]
    options = {"num_features": 64, "bandwidth": 2.0, "decoder": RidgeDecoder(100), "sorting": False}
    whole = MinimumDistance(task.summary, **options).fit(x)
    chunked = MinimumDistance(task.summary, **options).fit(chunk for chunk in x.split(400))
    pairs = MinimumDistance(task.summary, **options).fit(
        (c, c.mean(1)) for c in x.numpy().reshape(3, 500, 100, 2)
    )
    given = MinimumDistance(task.summary, **options).fit(x, x.mean(1))
    probe = x_train[1_500:1_520]
    for other in (chunked, pairs, given):
        torch.testing.assert_close(
            other.detect(probe).distance_obs, whole.detect(probe).distance_obs, rtol=1e-4, atol=1e-8
        )


def test_a_numpy_summary_is_recognised(x_train, x_obs):
    calls = []

    def summary(x):
        assert isinstance(x, np.ndarray)
        calls.append(x.shape)
        return np.median(x, axis=1)

    mds = MinimumDistance(summary, num_features=32).fit(x_train[:400, :20].numpy())
    assert mds.fitted_.summarise.numpy
    torch.testing.assert_close(
        mds.adapt(x_obs).s_obs, torch.from_numpy(np.median(x_obs.numpy(), axis=1)).float()
    )


@pytest.mark.slow
def test_a_constant_summary_is_left_alone(task, x_train, x_obs):
    """A component that never varied has no slope, so the search must not use it."""
    constant = lambda x: torch.cat([x.mean(1), torch.full((len(x), 1), 0.1)], 1)  # noqa: E731
    for decoder in ("ridge", MLPDecoder(max_epochs=20)):
        mds = MinimumDistance(constant, num_features=64, decoder=decoder).fit(x_train[:500])
        result = mds.adapt(x_obs)
        assert result.misspecified.any()
        assert torch.equal(result.s_star[:, 2], result.s_obs[:, 2])


def test_given_summaries_must_be_those_of_the_summary(task, x_train):
    x = x_train[:500]
    with pytest.raises(ValueError, match=r"s: expected the summaries that summary\(x\) gives"):
        MinimumDistance(task.summary).fit(x, x.mean(1).flip(0))
    with pytest.raises(ValueError, match="s: expected the summaries that"):
        MinimumDistance(task.summary).fit((c, c.mean((1, 2))[:, None]) for c in x.split(100))
    numpy_std = lambda x: x.std(1)  # noqa: E731
    mds = MinimumDistance(numpy_std, num_features=32, sorting=False)
    mds.fit(x.numpy(), x.numpy().std(1))
    assert mds.fitted_.summarise.numpy  # not torch's unbiased one


@pytest.mark.slow
@pytest.mark.parametrize("event_shape", [(), (7,), (4, 5)])
def test_any_event_shape(event_shape):
    """Shifted data of every shape are detected and the shift of half the points is undone."""
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(700, 1, generator=generator)
    level = theta.view(-1, 1, *(1 for _ in event_shape))
    x = level + torch.randn(700, 60, *event_shape, generator=generator)
    summary = lambda x: x.flatten(2).mean((1, 2))[:, None] if x.dim() > 2 else x.mean(1)[:, None]  # noqa: E731
    mds = MinimumDistance(summary, num_features=64).fit(x[:600])
    clean = x[600:]
    dirty = clean.clone()
    dirty[:, :12] += 8.0
    assert mds.detect(clean).misspecified.float().mean() < 0.2
    result = mds.adapt(dirty)
    assert result.misspecified.all()
    error = lambda s: (s - summary(clean)).abs().mean()  # noqa: E731
    assert error(result.s_star) < 0.5 * error(result.s_obs)
    assert mds.event_shape == event_shape


@pytest.mark.slow
def test_same_seed_same_answer_and_global_state_untouched(task, x_train, x_obs):
    torch.manual_seed(9)
    before = torch.random.get_rng_state()
    search, x = Search(restarts=3), x_train[:400, :30]
    fits = [
        MinimumDistance(task.summary, num_features=32, seed=seed, search=search).fit(x)
        for seed in (0, 0, 1)
    ]
    first, second, third = (fit.adapt(x_obs) for fit in fits)
    assert torch.equal(first.s_star, second.s_star)
    assert not torch.equal(first.s_star, third.s_star)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_read_only_arrays_and_integers(mds_small, x_obs):
    array = x_obs.numpy().copy()
    array.flags.writeable = False
    assert torch.equal(mds_small.adapt(array).s_star, mds_small.adapt(x_obs).s_star)
    assert mds_small.detect(x_obs.int()).s_obs.dtype == torch.float32


def test_float64_data_keep_their_precision(task, x_train):
    mds = MinimumDistance(task.summary, num_features=32).fit(x_train[:400, :20].double())
    result = mds.adapt(x_train[0].double())
    assert result.s_star.dtype == torch.float64
    assert result.distance_obs.dtype == torch.float64


# ------------------------------------------------------------------------------- save and load


@pytest.mark.parametrize("decoder", ["ridge", "mlp", "flow"])
def test_save_and_load(task, x_train, x_obs, tmp_path, decoder):
    search = Search(solver="lbfgs", starts=("observed", (0.0, 0.0)))
    options = {"sorting": decoder == "ridge", "decoder": decoder, "search": search, "alpha": 0.1}
    mds = MinimumDistance(task.summary, num_features=32, **options)
    if decoder != "ridge":
        mds.decoder.max_epochs = 1
    mds.fit(x_train[:400, :30])
    mds.save(tmp_path / "mds")
    assert sorted(p.name for p in (tmp_path / "mds").iterdir()) == [
        "mindist.json",
        "tensors.safetensors",
    ]
    again = MinimumDistance.load(tmp_path / "mds", summary=task.summary)
    assert again.search == mds.search
    assert again.alpha == 0.1
    if decoder == "flow":  # whose search takes seconds: test_old_formats adapts with a loaded one
        assert torch.equal(mds.detect(x_obs).p_value, again.detect(x_obs).p_value)
    else:
        before, after = mds.adapt(x_obs), again.adapt(x_obs)
        for name in PER_DATASET:
            assert torch.equal(getattr(before, name), getattr(after, name))
    again.save(tmp_path / "mds")  # over an older artefact
    MinimumDistance.load(tmp_path / "mds", summary=task.summary)
    assert [p.name for p in tmp_path.iterdir()] == ["mds"]
    assert repr(again.fit(x_train[:200, :20])).startswith("MinimumDistance(decoder=")


@pytest.mark.parametrize(
    "search",
    [
        Search(restarts=np.int64(1_001), stay=np.float32(0.5)),
        Search(starts=["mean", np.array([1, 2])]),
    ],
)
def test_whatever_a_search_accepts_can_be_loaded_again(task, mds_small, tmp_path, search):
    mds = copy.copy(mds_small)
    mds.search = search
    mds.save(tmp_path / "mds")
    assert MinimumDistance.load(tmp_path / "mds", task.summary).search == search


def test_a_constant_summary_and_many_features_can_be_loaded_again(x_train, tmp_path):
    """Its scale is infinite."""

    def summary(x):
        return torch.cat([x.mean(1), torch.ones(len(x), 1)], 1)

    mds = MinimumDistance(summary, num_features=1_030).fit(x_train[:400, :20])
    mds.save(tmp_path / "mds")
    again = MinimumDistance.load(tmp_path / "mds", summary)
    x = x_train[500:520] + 1
    assert torch.equal(again.detect(x).p_value, mds.detect(x).p_value)


@pytest.mark.parametrize("decoder", ["ridge", "mlp", "flow"])
@pytest.mark.filterwarnings("ignore:path. this estimator was saved by the first edition")
def test_moving_leaves_what_was_there(decoder):
    mds = MinimumDistance.load(V1 / decoder, summary=lambda x: x.mean(1))
    before, tensors = mds.fitted_, mds.fitted_.state()[1]
    assert mds.to("meta") is mds
    assert mds.fitted_.wide.decoder.weight.device.type == "meta"
    for name, value in before.state()[1].items():
        assert value.device.type == "cpu"
        assert torch.equal(value, tensors[name])


@pytest.fixture
def saved(mds_small, tmp_path):
    mds_small.save(tmp_path / "mds")
    return tmp_path / "mds"


def test_a_truncated_file_is_refused(task, saved):
    file = saved / "tensors.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match="truncated or altered"):
        MinimumDistance.load(saved, summary=task.summary)
    file.unlink()
    with pytest.raises(ValueError, match="it is missing"):
        MinimumDistance.load(saved, summary=task.summary)


def test_a_flipped_bit_is_refused(task, saved):
    file = saved / "tensors.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match="truncated or altered"):
        MinimumDistance.load(saved, summary=task.summary)


def test_altered_settings_are_refused(task, saved):
    file = saved / "mindist.json"
    header = json.loads(file.read_text())
    header["config"]["alpha"] = 0.5
    file.write_text(json.dumps(header))
    with pytest.raises(ValueError, match="checksum does not match its content"):
        MinimumDistance.load(saved, summary=task.summary)
    file.write_text(file.read_text()[:50])
    with pytest.raises(ValueError, match="not the JSON that save wrote"):
        MinimumDistance.load(saved, summary=task.summary)
    file.write_text("[]")
    with pytest.raises(ValueError, match="not the JSON that save wrote"):
        MinimumDistance.load(saved, summary=task.summary)


def test_a_newer_format_asks_for_an_upgrade(task, saved):
    file = saved / "mindist.json"
    header = json.loads(file.read_text())
    header["format_version"] += 1
    file.write_text(json.dumps(header))
    with pytest.raises(ValueError, match="Upgrade mindist"):
        MinimumDistance.load(saved, summary=task.summary)


def test_the_wrong_summary_is_noticed(saved):
    with pytest.raises(ValueError, match="summary: expected the function"):
        MinimumDistance.load(saved, summary=lambda x: x.mean(1) + 1)
    with pytest.raises(ValueError, match="expected summaries of shape"):
        MinimumDistance.load(saved, summary=lambda x: x.mean((1, 2))[:, None])


def test_files_hold_plain_tensors_and_folders_are_not_overwritten(mds_small, saved, tmp_path):
    tensors = safetensors.torch.load_file(saved / "tensors.safetensors")
    assert torch.equal(tensors["null.noise"], mds_small.fitted_.null.noise)
    (tmp_path / "empty").mkdir()
    mds_small.save(tmp_path / "empty")
    assert (tmp_path / "empty" / "mindist.json").is_file()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("do not touch")
    with pytest.raises(FileExistsError, match="not a mindist artefact"):
        mds_small.save(tmp_path / "mine")
    with pytest.raises(FileNotFoundError, match="found none at"):
        MinimumDistance.load(tmp_path / "nowhere", summary=lambda x: x.mean(1))


# ---------------------------------------------------------------------------------- bad input


def test_nan_and_infinite_observations(mds_small, x_obs):
    for value in (torch.nan, torch.inf):
        bad = x_obs.clone()
        bad[1, 7, 0] = value
        with pytest.raises(ValueError, match=r"x: .* observation 7 of dataset 1.*Remove"):
            mds_small.adapt(bad)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((0, 2), "empty dataset"),
        ((3, 0, 2), "empty dataset"),
        ((1, 2), "single observation"),
        ((4, 1, 2), "single observation"),
        ((2,), "single observation"),
        ((100, 3), r"expected one dataset of shape \(N, 2\) .* got shape \(100, 3\)"),
        ((2, 3, 100, 2), r"got shape \(2, 3, 100, 2\)"),
        ((), "got shape"),
    ],
)
def test_wrong_shapes_of_observations(mds_small, shape, message):
    for call in (mds_small.adapt, mds_small.detect):
        with pytest.raises(ValueError, match=message):
            call(torch.zeros(shape))


def test_unusual_arrays(mds_small, x_obs):
    expected = mds_small.adapt(x_obs).s_star
    big_endian = x_obs.numpy().astype(">f4")
    assert torch.equal(mds_small.adapt(big_endian).s_star, expected)
    wide = mds_small.adapt(x_obs.numpy().astype(np.longdouble)).s_star
    torch.testing.assert_close(wide.float(), expected, rtol=1e-4, atol=1e-4)
    masked = np.ma.masked_greater(x_obs.numpy(), 2.9)
    with pytest.raises(ValueError, match="x: expected an array without masked elements"):
        mds_small.adapt(masked)


def test_numpy_numbers_as_options(task, x_train, tmp_path):
    mds = MinimumDistance(
        task.summary, bandwidth=np.float32(2.0), seed=np.int64(3), num_features=np.int64(32)
    )
    mds.fit(x_train[:400, :20]).save(tmp_path / "mds")
    assert MinimumDistance.load(tmp_path / "mds", task.summary).bandwidth == 2.0
    with pytest.raises(TypeError, match="seed: expected a whole number"):
        MinimumDistance(task.summary, seed=1.5)


@pytest.mark.slow
def test_other_default_precision(task, x_train, x_obs):
    torch.set_default_dtype(torch.float64)
    try:
        for decoder in ("ridge", "mlp", "flow"):
            mds = MinimumDistance(task.summary, num_features=32, decoder=decoder)
            if decoder != "ridge":
                mds.decoder.max_epochs = 1
            assert mds.fit(x_train[:400, :20]).detect(x_obs).p_value.shape == (6,)
    finally:
        torch.set_default_dtype(torch.float32)


def test_things_that_are_not_arrays(mds_small, x_train):
    with pytest.raises(TypeError, match="x: expected a torch tensor or a NumPy array, got list"):
        mds_small.adapt([[0.0, 1.0]])
    with pytest.raises(TypeError, match="x: expected numbers, got a NumPy array of dtype"):
        mds_small.adapt(np.array([["a", "b"]]))
    with pytest.raises(TypeError, match="x: expected real numbers"):
        mds_small.adapt(torch.zeros(5, 2, dtype=torch.complex64))
    with pytest.raises(TypeError, match="x: expected a torch tensor"):
        MinimumDistance(lambda x: x.mean(1)).fit(3)
    with pytest.raises(TypeError, match="summary: expected a function"):
        MinimumDistance("mean")


@pytest.mark.parametrize(
    ("summary", "message"),
    [
        (lambda x: x.mean(), "expected summaries of shape"),
        (lambda x: x.numpy().mean(), r"expected summaries of shape .* got shape \(\)"),
        (lambda x: x.mean((1, 2)), "expected summaries of shape"),
        (lambda x: x, "expected summaries of shape"),
        (lambda x: x.mean(0), "expected summaries of shape|not to depend on the other datasets"),
        (lambda x: x.mean(1) - x.mean((0, 1)), "not to depend on the other datasets"),
        (lambda x: x[:, :0].sum(2), "expected summaries of shape"),
        (lambda x: "mean", r"summary \(its result\): expected a torch tensor"),
    ],
)
def test_wrong_summaries(x_train, summary, message):
    with pytest.raises((ValueError, TypeError), match=message):
        MinimumDistance(summary, num_features=32).fit(x_train[:500])


def test_a_summary_with_the_same_number_of_datasets_and_observations(x_train):
    """x.mean(0) of 100 datasets of 100 observations has a plausible shape; still refused."""
    with pytest.raises(ValueError, match=r"lambda x: x.mean\(1\), not x.mean\(0\)"):
        MinimumDistance(lambda x: x.mean(0), num_features=32).fit(x_train[:100])


def test_nan_summaries_of_observed_data(x_train, x_obs):
    summary = lambda x: torch.where(x.mean(1) > 1e3, torch.nan, x.mean(1))  # noqa: E731
    mds = MinimumDistance(summary, num_features=32, sorting=False).fit(x_train[:500])
    bad = x_obs.clone()
    bad[3] += 1e6
    with pytest.raises(ValueError, match=r"summary: expected finite summaries .* dataset 3"):
        mds.adapt(bad)


def test_constant_simulations_have_no_bandwidth():
    with pytest.raises(ValueError, match="zero bandwidth"):
        MinimumDistance(lambda x: x.mean(1)).fit(torch.ones(1_000, 10, 2))


def test_too_few_simulations_to_calibrate(task, x_train):
    with pytest.raises(ValueError, match="expected at least 380 simulated datasets, got 379"):
        MinimumDistance(task.summary, num_features=32).fit(x_train[:379])
    with pytest.raises(ValueError, match=r"expected at least 180 .* alpha = 0.1 "):
        MinimumDistance(task.summary, num_features=32, alpha=0.1).fit(x_train[:100])
    MinimumDistance(task.summary, num_features=32).fit(x_train[:380, :20])
    with pytest.raises(ValueError, match="got none"):
        MinimumDistance(task.summary).fit(iter([]))
    with pytest.raises(ValueError, match="got none"):
        MinimumDistance(task.summary).fit(torch.zeros(0, 10, 2))


def test_simulations_with_nan_are_dropped_with_a_count(task, x_train):
    x = x_train[:600].clone()
    x[5, 3, 1], x[17, 0, 0] = torch.nan, torch.inf
    options = {"num_features": 32, "bandwidth": 2.0, "sorting": False}
    with pytest.warns(UserWarning, match="dropped 2 of 600 simulations"):
        dirty = MinimumDistance(task.summary, **options).fit(x)
    keep = torch.isfinite(x).flatten(1).all(1)
    assert dirty.fitted_.wide.bank.s.shape == (598, 2)
    assert sorted(dirty.fitted_.wide.bank.s[:, 0].tolist()) == sorted(
        x[keep].mean(1)[:, 0].double().tolist()
    )
    nan_summary = lambda x: torch.where(x.mean(1) > 2, torch.nan, x.mean(1))  # noqa: E731
    with pytest.warns(UserWarning, match="simulations because they or their summaries"):
        MinimumDistance(nan_summary, **options).fit(x_train[:600])
    with pytest.raises(ValueError, match="got none with finite values"):
        MinimumDistance(task.summary).fit(torch.full((500, 10, 2), torch.nan))
    always_nan = lambda x: x.mean(1) * torch.nan  # noqa: E731
    with pytest.raises(ValueError, match="got none with finite values"):
        MinimumDistance(always_nan).fit(x_train[:500])


def test_simulated_datasets_of_the_wrong_shape(task, x_train):
    with pytest.raises(
        ValueError, match=r"x: expected simulated datasets of shape \(M, N, \*event\)"
    ):
        MinimumDistance(task.summary).fit(torch.zeros(10))
    with pytest.raises(ValueError, match="single observation"):
        MinimumDistance(task.summary).fit(torch.randn(500, 1, 2))
    with pytest.raises(ValueError, match="empty dataset"):
        MinimumDistance(task.summary).fit(torch.zeros(500, 0, 2))
    with pytest.raises(ValueError, match="got a chunk with datasets of shape"):
        MinimumDistance(task.summary).fit(iter([x_train[:1_000], x_train[:500, :50]]))
    with pytest.raises(ValueError, match="got a chunk with datasets of shape"):
        MinimumDistance(task.summary).fit(iter([x_train[:100], x_train[:500, :50]]))
    with pytest.raises(ValueError, match="s: expected summaries of shape"):
        MinimumDistance(task.summary).fit(x_train[:500], torch.zeros(499, 2))
    with pytest.raises(ValueError, match="s: expected None when x is an iterator"):
        MinimumDistance(task.summary).fit(iter([x_train[:500]]), torch.zeros(500, 2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 0.0}, "alpha: expected a level between 0 and 1"),
        ({"alpha": 5}, "alpha: expected a level between 0 and 1"),
        ({"decoder": "forest"}, "decoder: expected one of 'ridge', 'mlp', 'flow', got 'forest'"),
        ({"bandwidth": "mean"}, "bandwidth: expected"),
        ({"num_features": 0}, "num_features: expected a positive even number"),
        ({"frequencies": "golden"}, "frequencies: expected one of 'sobol', 'orthogonal', 'random'"),
        ({"num_features": 33}, "num_features: expected a positive even number"),
        ({"search": Search(solver="adam", divergence="kl")}, "decoder='flow'"),
    ],
)
def test_wrong_options(task, options, message):
    with pytest.raises(ValueError, match=message):
        MinimumDistance(task.summary, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"solver": "newton"}, "solver: expected one of"),
        ({"starts": ("here",)}, "starts: expected one of"),
        ({"starts": ()}, "expected 1 to 10,000 starts"),
        ({"restarts": -1}, "and 0 to 10,000 restarts, got .* restarts=-1"),
        ({"divergence": "kl"}, "not a sum of squares"),
        ({"divergence": "tv"}, "divergence: expected one of"),
    ],
)
def test_wrong_searches(options, message):
    with pytest.raises(ValueError, match=message):
        Search(**options)


def test_a_start_of_the_wrong_length_is_refused(task, x_train, x_obs):
    said = "starts: expected vectors of length 2, got length 3"
    search = Search(starts=((0.0, 0.0, 0.0),))
    with pytest.raises(ValueError, match=said):
        MinimumDistance(task.summary, num_features=32, search=search).fit(x_train[:400, :20])
    mds = MinimumDistance(task.summary, num_features=32, search=search, sorting=False)
    mds.fit(x_train[:500])
    with pytest.raises(ValueError, match=said):
        mds.adapt(x_obs)


def test_not_fitted(task, x_obs):
    mds = MinimumDistance(task.summary)
    for call in (mds.adapt, mds.detect):
        with pytest.raises(RuntimeError, match=r"not fitted. Call fit\(x\)"):
            call(x_obs)
    assert "not fitted" in repr(mds)


def test_a_numpy_summary_that_takes_tensors_too_is_called_with_arrays():
    """`.std(1)` of a tensor is another number than of an array, and np.concatenate takes both."""
    x = torch.randn(5, 20, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    summarise = Summariser(lambda x: np.concatenate([x.mean(1), x.std(1)], axis=1))
    torch.testing.assert_close(summarise(x)[:, 1:], x.std(1, correction=0))
    assert summarise.numpy is True
