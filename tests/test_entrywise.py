"""One observed vector: wrong and missing entries, against closed forms, and bad input."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import binom, kstest

from mindist import (
    Completion,
    Entrywise,
    MinimumDistance,
    MisspecificationWarning,
    RobustPosterior,
    storage,
    watch,
)
from mindist.entries.conditionals import Factors, Shape, Table
from mindist.entries.fitting import correlated_windows
from mindist.entries.neighbours import Bank, Pool
from mindist.entries.search import Groups, Vectors, completed

D, NOISE = 8, 0.3
LOADINGS = torch.tensor([[1.0] * D, [math.cos(i) for i in range(D)]], dtype=torch.float64)
COVARIANCE = LOADINGS.T @ LOADINGS + NOISE**2 * torch.eye(D, dtype=torch.float64)


def simulate(num, seed):
    """Draw from x = theta A + noise with standard normal theta: everything has a closed form."""
    generator = torch.Generator().manual_seed(seed)
    theta = torch.randn(num, 2, dtype=torch.float64, generator=generator)
    noise = torch.randn(num, D, dtype=torch.float64, generator=generator)
    return theta, theta @ LOADINGS + NOISE * noise


def exact_posterior(y, kept):
    """Return mean and covariance of theta given some entries of one vector."""
    A = LOADINGS[:, kept]
    precision = torch.eye(2, dtype=torch.float64) + A @ A.T / NOISE**2
    covariance = torch.linalg.inv(precision)
    return covariance @ A @ y[kept] / NOISE**2, covariance


def exact_draw(x, num):
    """Draw from the exact posterior given a whole vector: any function is a posterior."""
    mean, covariance = exact_posterior(x.double(), torch.ones(D, dtype=torch.bool))
    return (mean + torch.randn(num, 2).double() @ torch.linalg.cholesky(covariance).T).float()


@pytest.fixture(scope="module")
def entries():
    return Entrywise().fit(simulate(20_000, 0)[1])


def within(share, num, expected, extra=0.0):
    """Whether a share of `num` trials is inside the binomial 99.9% interval of what is expected."""
    low, high = (binom.ppf(q, num, expected) / num for q in (0.0005, 0.9995))
    return low - extra <= share <= high + extra


# ------------------------------------------------------------------- exact


def test_a_swept_table_has_the_conditionals_of_a_gaussian():
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(3, D, dtype=torch.float64, generator=generator)
    mean = torch.randn(3, D, dtype=torch.float64, generator=generator)
    kept = torch.rand(3, D, generator=generator) > 0.4
    noise = torch.rand(3, D, dtype=torch.float64, generator=generator)
    dense = Table(mean, COVARIANCE.expand(3, -1, -1), y, kept, noise)
    check_conditionals(dense, COVARIANCE, mean, y, noise, generator)


def test_principal_components_give_the_same_conditionals():
    """Neighbours of which two components are all that is shared: their own covariance is known."""
    generator = torch.Generator().manual_seed(1)
    points = simulate(50, 20)[1].expand(3, -1, -1).float()
    V = torch.linalg.svd(points[0] - points[0].mean(0))[2][:2].T.contiguous()
    y, noise = torch.randn(2, 3, D, dtype=torch.float64, generator=generator)
    noise = noise.square()
    kept = torch.rand(3, D, generator=generator) > 0.4
    table = Factors(points, Shape(torch.eye(2).double(), V, 0.0), y, kept, noise)
    off = (points[0] - points[0].mean(0)).double()
    along, W = off @ V.double(), V.double()
    left = (off - along @ W.T).square().mean(0) + 1e-6
    own = W @ (along.T @ along / 49 + 1e-6 * torch.eye(2)) @ W.T + left.diag()
    mean = points.double().mean(1)
    check_conditionals(table, own, mean, y, noise, generator)
    moved = table.move(table.d[:, None])[:, 0]
    for b in range(3):
        K, S = table.kept[b], own + noise[b].diag()
        exact = own[:, K] @ torch.linalg.solve(S[K][:, K], table.d[b, K])
        assert torch.allclose(moved[b], exact)


def check_conditionals(table, own, mean, y, noise, generator):
    """Compare a swept table with the conditionals of a Gaussian, entries going in and out."""
    for _ in range(4):
        residual, variance = table.conditional()
        for b in range(3):
            S, d = own + noise[b].diag(), y[b] - mean[b]
            for i in range(D):
                K = [j for j in range(D) if table.kept[b, j] and j != i]
                weights = torch.linalg.solve(S[K][:, K], S[K, i])
                assert torch.isclose(residual[b, i], d[i] - weights @ d[K])
                assert torch.isclose(variance[b, i], S[i, i] - weights @ S[K, i])
            K = table.kept[b]
            assert torch.isclose(table.chi_square[b], d[K] @ torch.linalg.solve(S[K][:, K], d[K]))
        table.toggle(torch.arange(3), torch.randint(D, (3,), generator=generator))


def test_nearest_counts_believed_entries_only():
    bank = Bank.standardise(simulate(500, 1)[1])
    y = bank.units(simulate(3, 2)[1])
    believed = torch.rand(3, D, generator=torch.Generator().manual_seed(0)) > 0.5
    distance = ((bank.z - y[:, None]).square() * believed[:, None]).sum(2)
    near = Pool.of(bank, y, believed[:, None], exact=20).nearest(believed[:, None], 7)[:, 0]
    assert torch.equal(near, distance.argsort(1)[:, :7])
    every = torch.ones(3, 1, D, dtype=torch.bool)
    near = Pool.of(bank, y, every).nearest(every, 50)[:, 0]
    exact = (bank.z - y[:, None]).square().sum(2).argsort(1)[:, :50]
    assert torch.equal(near.sort(1).values, exact.sort(1).values)  # each of 500 pivots lists all


def test_completed_entries_have_the_conditional_mean_and_variance(entries):
    search, x = entries.fitted_.search, simulate(300, 3)[1]
    kept = (torch.arange(D) < D - 2).expand(300, 1, D)
    y = search.bank.units(x)
    v = Vectors(y, kept[:, 0], torch.zeros_like(y))
    how = (search.pool(v, kept), 32, entries.fitted_.widening, 0)
    mean, drawn = completed(search, v, kept, *how)
    K, U = slice(0, D - 2), slice(D - 2, D)
    gain = torch.linalg.solve(COVARIANCE[K, K], COVARIANCE[K, U])
    exact = x[:, K] @ gain
    variance = (COVARIANCE[U, U] - COVARIANCE[U, K] @ gain).diagonal()
    got = (mean[:, 0] * search.bank.scale + search.bank.centre)[:, U]
    assert ((got - exact).square().mean(0) < 0.03 * variance).all()  # of 200 neighbours or more
    spread = ((drawn - mean) * search.bank.scale)[..., U].square().mean((0, 1))
    assert torch.allclose(spread, variance, rtol=0.1)


def test_missing_entries_give_the_conjugate_posterior(entries):
    posterior = RobustPosterior(exact_draw, entries)
    x, kept = simulate(1, 4)[1][0], torch.arange(D) % 3 > 0
    y = torch.where(kept, x, torch.nan)
    mean, covariance = exact_posterior(x, kept)
    theta = posterior.sample((8_000,), x=y, seed=0).double()
    sd = covariance.diagonal().sqrt()
    assert ((theta.mean(0) - mean).abs() < 0.25 * sd).all()  # 32 completed vectors: .18 sd
    assert torch.allclose(theta.std(0), sd, rtol=0.25)
    assert entries.adapt(y).status.value == "filled_in"


def test_errors_are_noise_beyond_the_simulations(entries):
    generator = torch.Generator().manual_seed(5)
    errors = torch.full((D,), 0.5, dtype=torch.float64)
    x = simulate(200, 6)[1]
    y = x + 0.5 * torch.randn(x.shape, dtype=torch.float64, generator=generator)
    result = entries.adapt(y, errors=errors)
    fine = ~result.misspecified
    assert within(float(fine.double().mean()), 200, 0.95, 0.02)
    assert entries.detect(y).misspecified.double().mean() > 0.15  # without: too much noise
    gain = torch.linalg.solve(COVARIANCE + 0.25 * torch.eye(D), COVARIANCE)
    exact = (y @ gain)[fine]
    variance = (COVARIANCE - COVARIANCE @ gain).diagonal()
    off = (result.completed[fine].mean(1) - exact).square().mean(0)
    assert (off < (1 / 32 + 0.1) * variance).all()  # neighbours are near y, not near what it was


# ------------------------------------------------------------------- level and power


def test_the_level_and_uniform_p_values(entries):
    x = simulate(600, 7)[1]
    result = entries.adapt(x)
    assert within(float(result.outliers.any(1).double().mean()), 600, 0.05, 0.02)
    assert kstest(result.p_value.numpy(), "uniform").pvalue > 0.001
    assert result.p_value.min() >= 1 / 1001
    untouched = ~result.misspecified
    assert torch.equal(result.completed[untouched], x[untouched][:, None].expand(-1, 32, -1))


@pytest.mark.parametrize("size", [3.0, 1e6])
def test_wrong_entries_are_found(entries, size):
    x, generator = simulate(200, 8)[1], torch.Generator().manual_seed(9)
    bad = torch.rand(x.shape, generator=generator).argsort(1) < 2
    y = torch.where(bad, x + size, x)
    result = entries.adapt(y)
    assert result.misspecified.double().mean() > 0.97
    assert result.outliers[bad].double().mean() > 0.95
    assert result.outliers[~bad].double().mean() < 0.05
    assert set(map(str, result.status)) <= {"set_aside", "unexplained", "as_observed", "doubted"}
    kept = ~result.outliers
    assert torch.equal(y[kept], result.x_obs[kept])
    off = (result.predicted - x)[bad] / result.spread[bad]
    assert (off.abs() < 3).double().mean() > 0.96  # of 400; a few have another explanation
    assert 0.3 < off.square().median() < 0.6  # chi-square with one degree of freedom: .455


@pytest.mark.slow
def test_three_entries_of_eight_cannot_hide():
    entries = Entrywise().fit(simulate(20_000, 10)[1])
    x, generator = simulate(200, 11)[1], torch.Generator().manual_seed(12)
    bad = torch.rand(x.shape, generator=generator).argsort(1) < 3
    signs = torch.randint(0, 2, x.shape, generator=generator) * 2 - 1
    result = entries.adapt(torch.where(bad, x + 20 * signs, x))
    assert (result.outliers == bad).all(1).double().mean() > 0.85


def test_groups_fail_together():
    labels = torch.arange(D) // 2
    entries = Entrywise(groups=labels).fit(simulate(3_000, 13)[1])
    x = simulate(50, 14)[1]
    x[:, 4] += 3
    outliers = entries.adapt(x).outliers
    assert outliers[:, 4].double().mean() > 0.9
    assert torch.equal(outliers[:, 4], outliers[:, 5])


def test_groups_may_differ_in_size():
    """A smaller group is set aside, and stays aside, like a larger one."""
    groups = Groups.of(torch.tensor([0, 0, 0, 0, 0, 1, 1, 2]))
    y, every = simulate(3, 15)[1], torch.ones(3, D, dtype=torch.bool)
    local = (torch.zeros_like(y), COVARIANCE.expand(3, -1, -1))
    for g in range(3):
        aside = every & (groups.labels != g)
        tables = (Table(*local, y, kept, torch.zeros_like(y)) for kept in (every, aside))
        rows = torch.arange(3)
        believed, again = (groups.distance(table, every, rows)[:, g] for table in tables)
        assert torch.allclose(believed, again)
    entries = Entrywise(groups=groups.labels).fit(simulate(3_000, 13)[1])
    x = simulate(50, 14)[1]
    x[:, 6] += 3
    outliers = entries.adapt(x).outliers
    assert outliers[:, 5:7].double().mean() > 0.9
    assert outliers[:, :5].double().mean() < 0.1


def test_auto_groups_are_windows_of_correlated_neighbours():
    generator = torch.Generator().manual_seed(0)
    steps = torch.randn(1_000, 10, generator=generator).repeat_interleave(4, 1)
    x = steps + 0.1 * torch.randn(1_000, 40, generator=generator)
    labels = correlated_windows(x, torch.Size([40]))
    assert 10 <= len(labels.unique()) <= 20
    patches = correlated_windows(x[:, :36], torch.Size([6, 6]))
    assert len(patches) == 36
    assert len(patches.unique()) >= 8


# ------------------------------------------------------------------- results, files


def test_a_batch_gives_what_single_vectors_give_again_and_again(entries):
    x = simulate(6, 15)[1]
    x[1, 2], x[2, 3], x[3, 1] = 9.0, torch.nan, torch.inf
    whole = entries.adapt(x)
    assert len(whole) == 6
    for i in range(6):
        one, again = entries.adapt(x[i]), entries.adapt(x[i])
        assert torch.equal(one.completed, again.completed)
        assert one.status == whole.status[i]
        assert torch.equal(one.outliers, whole[i].outliers)
        assert torch.allclose(one.completed, whole[i].completed, atol=1e-6)
        assert torch.isclose(one.p_value, whole[i].p_value)
    assert whole[[0, 2]].status == (whole.status[0], whole.status[2])
    assert "6 vectors" in repr(whole)
    assert repr(whole[1]).startswith("Completion(misspecified")


def test_a_file_gives_the_same_results(entries, tmp_path):
    entries.save(tmp_path / "entries")
    loaded = Entrywise.load(tmp_path / "entries")
    x = simulate(4, 16)[1]
    x[0, 0] = 20.0
    ours, theirs = entries.adapt(x), loaded.adapt(x)
    assert torch.equal(ours.completed, theirs.completed)
    assert torch.equal(ours.p_value, theirs.p_value)
    with pytest.raises(ValueError, match="holds Entrywise, expected MinimumDistance"):
        MinimumDistance.load(tmp_path / "entries", summary=lambda x: x.mean(1))


def test_as_many_neighbours_as_a_fit_may_choose(tmp_path, monkeypatch):
    """One list of a pivot has enough of them, also far outside, and files keep their number."""
    monkeypatch.setattr("mindist.entries.fitting.NEIGHBOURS", (400,))
    entries = Entrywise().fit(simulate(4_000, 21)[1])
    entries.save(tmp_path / "entries")
    loaded = Entrywise.load(tmp_path / "entries")
    assert loaded.fitted_.search.neighbours == 400
    x = torch.cat([simulate(2, 22)[1], torch.full((1, D), 50.0, dtype=torch.float64)])
    assert torch.equal(loaded.adapt(x).completed, entries.adapt(x).completed)


# ------------------------------------------------------------------- bad input


def test_infinite_entries_are_wrong_and_said_so(entries):
    x = simulate(1, 17)[1][0]
    x[3] = -torch.inf
    result = entries.adapt(x)
    assert result.outliers.nonzero().tolist() == [[3]]
    assert result.p_value == pytest.approx(1 / 1001)
    assert "infinite entries count as wrong" in result.message
    assert torch.isfinite(result.completed).all()


def test_all_missing_is_said_so(entries):
    result = entries.adapt(torch.full((D,), torch.nan))
    assert result.status.value == "nothing_observed"
    assert not result.misspecified
    assert torch.isfinite(result.completed).all()
    assert result.completed.std(0).mean() > 0.5  # as simulations scatter


def test_constant_entries_and_fewer_simulations_than_entries():
    x = simulate(400, 18)[1]
    x[:, 5] = 2.0
    entries = Entrywise().fit(x)
    y = simulate(2, 19)[1]
    y[:, 5] = torch.tensor([2.0, 3.0])
    assert entries.adapt(y).outliers[:, 5].tolist() == [False, True]
    wide = torch.randn(210, 1) + 0.1 * torch.randn(210, 230)
    result = Entrywise().fit(wide).adapt(torch.where(torch.arange(230) < 20, 9.0, wide[0]))
    assert result.outliers[:20].double().mean() > 0.9


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda e: e.adapt(torch.zeros(D + 1)), r"x: expected one vector of shape \(8,\)"),
        (lambda e: e.detect(torch.zeros(2, 2, D)), r"x: expected one vector of shape \(8,\)"),
        (lambda e: e.adapt(torch.zeros(D), errors=-torch.ones(D)), "errors: expected standard"),
        (lambda e: e.adapt(torch.zeros(D), errors=torch.ones(3)), "errors: expected a shape"),
        (lambda _: Entrywise().fit(torch.randn(50, D)), "x: expected at least 200 simulated"),
        (lambda _: Entrywise().fit(torch.full((300, D), torch.nan)), "x: expected finite sim"),
        (lambda _: Entrywise(groups="windows"), "groups: expected one of 'auto'"),
        (lambda _: Entrywise(groups=[0, 1]).fit(torch.randn(300, D)), "groups: expected 'auto'"),
        (
            lambda _: Entrywise(groups=[[0, 1, 2], [2, 3]]).fit(torch.randn(300, D)),
            "groups: .* cannot overlap",
        ),
        (lambda _: Entrywise(alpha=2), "alpha: expected a level"),
    ],
)
def test_errors_name_the_argument(entries, act, message):
    with pytest.raises(ValueError, match=message):
        act(entries)


def test_not_fitted():
    with pytest.raises(RuntimeError, match=r"not fitted. Call fit\(x\)"):
        Entrywise().adapt(torch.zeros(3))


# ------------------------------------------------------------------- posteriors


@pytest.fixture(scope="module")
def sbi_posterior():
    pytest.importorskip("sbi")
    from mindist.posteriors.sbi_training import train_npe

    theta, x = simulate(2_000, 20)
    prior = torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2))
    how = {"density_estimator": "mdn", "max_num_epochs": 8, "seed": 0}
    return train_npe(prior, theta.float(), x.float(), **how)


def test_sbi_through_robust_posterior_and_watch(sbi_posterior, entries):
    x = simulate(40, 21)[1]
    clean = x[~entries.detect(x).misspecified][0].float()
    bad = clean.clone()
    bad[2] += 8
    robust, watched = RobustPosterior(sbi_posterior, entries), watch(sbi_posterior, entries)
    torch.manual_seed(0)
    own = sbi_posterior.sample((50,), x=clean, show_progress_bars=False)
    torch.manual_seed(0)
    assert torch.equal(robust.sample((50,), x=clean), own)
    assert torch.allclose(robust.log_prob(own, x=clean), sbi_posterior.log_prob(own, x=clean))
    near, far = (robust.sample((2_000,), x=v, seed=1).mean(0) for v in (clean, bad))
    plain = sbi_posterior.sample((2_000,), x=bad, show_progress_bars=False).mean(0)
    assert (near - far).norm() < 0.5 * (near - plain).norm()
    with pytest.warns(MisspecificationWarning, match=r"entrywise.adapt\(x\) says which entries"):
        watched.sample((5,), x=bad, show_progress_bars=False)
    watched.sample((5,), x=clean, show_progress_bars=False)
    both = robust.sample_batched((10,), torch.stack([clean, bad]))
    assert both.shape == (10, 2, 2)


def test_log_probabilities_average_over_completed_vectors(entries):
    class Normal:
        def sample(self, shape, x):
            return x[..., :1] + torch.randn(*shape, 1)

        def log_prob(self, theta, x):
            return torch.distributions.Normal(x[..., 0], 1.0).log_prob(theta[..., 0])

    x = simulate(1, 22)[1][0]
    x[0] = torch.nan
    robust = RobustPosterior(Normal(), entries)
    theta = torch.tensor([[0.3]])
    at = robust.adapt(x)
    assert isinstance(at, Completion)
    each = torch.distributions.Normal(at.completed[:, 0].float(), 1.0).log_prob(theta)
    expected = each.logsumexp(-1) - math.log(32)
    assert torch.allclose(robust.log_prob(theta, x=x), expected.float(), atol=1e-5)


def test_arviz_has_the_entries(entries):
    pytest.importorskip("arviz")
    x = simulate(2, 23)[1].numpy()
    x[0, 1] = np.nan
    data = RobustPosterior(exact_draw, entries).to_arviz(x, 20, seed=0)
    assert data.constant_data["missing"].values.sum() == 1
    assert data.constant_data["outlier_score"].dims == ("dataset", "event_0")


class WithMask:
    """A posterior asked at vectors and masks of missing entries: sbi drops vectors with NaN."""

    def __init__(self, robust):
        self.robust = robust

    def sample_batched(self, shape, x, **_):
        missing = x[..., D:] > 0.5
        return self.robust.sample_batched(shape, x[..., :D].masked_fill(missing, torch.nan))

    sample = sample_batched


@pytest.mark.slow
def test_sbc_and_tarp_pass_with_a_fifth_of_the_entries_missing(entries):
    pytest.importorskip("sbi")
    from sbi.diagnostics import check_sbc, check_tarp, run_sbc, run_tarp

    theta, x = (part.float() for part in simulate(400, 30))
    missing = torch.rand(x.shape, generator=torch.Generator().manual_seed(31)) < 0.2
    x = torch.cat([x.masked_fill(missing, 0), missing.float()], 1)
    posterior = WithMask(RobustPosterior(exact_draw, entries))
    how = {"num_posterior_samples": 200, "use_batched_sampling": True, "show_progress_bar": False}
    ranks, averaged = run_sbc(theta, x, posterior, **how)
    checked = check_sbc(ranks, theta, averaged, num_posterior_samples=200)
    assert (checked["ks_pvals"] > 0.01).all()
    assert (checked["c2st_dap"] < 0.6).all()
    excess, p_value = check_tarp(*run_tarp(theta, x, posterior, **how))
    assert abs(excess) < 1
    assert p_value > 0.01


def test_altered_files_name_what_is_wrong(entries, tmp_path):
    entries.save(tmp_path / "entries")
    config, tensors = storage.read_artefact(tmp_path / "entries", "Entrywise")
    for name, tensor in tensors.items():
        altered = [tensor[:0], tensor[..., None]]
        last = name.split(".")[-1]
        positive = last in ("members", "scale", "everywhere", "squares", "cells")
        altered += [torch.full_like(tensor, -7)] * positive
        for wrong in altered:
            storage.write_artefact(tmp_path / "bad", "Entrywise", config, tensors | {name: wrong})
            with pytest.raises(ValueError, match="is damaged"):
                Entrywise.load(tmp_path / "bad")
    for name in config:
        rest = {key: value for key, value in config.items() if key != name}
        storage.write_artefact(tmp_path / "bad", "Entrywise", rest, tensors)
        with pytest.raises(ValueError, match="is damaged: it lacks"):
            Entrywise.load(tmp_path / "bad")


# ------------------------------------------------------------------- many entries, and lonely ones


def test_three_hundred_entries():
    """Of 300 linear functions of three numbers, fifteen are wrong by eight standard deviations."""
    generator = torch.Generator().manual_seed(30)
    loadings = torch.randn(3, 300, dtype=torch.float64, generator=generator)
    latent = torch.randn(2_020, 3, dtype=torch.float64, generator=generator)
    x = latent @ loadings + 0.5 * torch.randn(2_020, 300, dtype=torch.float64, generator=generator)
    entries = Entrywise().fit(x[20:])
    assert entries.fitted_.search.shape.basis.shape[1] < 100
    bad = torch.rand(20, 300, generator=generator).argsort(1) < 15
    y = torch.where(bad, x[:20] + 4, x[:20])
    y[:, -1] = torch.nan
    result = entries.adapt(y)
    assert result.misspecified.all()
    assert result.outliers[bad].double().mean() > 0.9
    assert result.outliers[~bad].double().mean() < 0.01
    # What is missing has the conditional law: variance .25 and three latent numbers' uncertainty.
    off = result.completed[..., -1].mean(1) - x[:20, -1]
    assert off.square().mean() < 0.25 * (1 + 1 / 32) * 20 / 8.26  # chi-square, 1% point of 20
    assert 0.15 < result.completed[..., -1].var(1).mean() < 0.35


def test_what_nothing_else_knows_is_not_given_up_for_being_rare():
    """Mean and variance of normal samples: the mean in the tail of its prior is all there is."""
    generator = torch.Generator().manual_seed(31)
    theta = 5 * torch.randn(20_000, 1, dtype=torch.float64, generator=generator)
    x = theta + torch.randn(20_000, 30, dtype=torch.float64, generator=generator)
    s = torch.stack([x.mean(1), x.var(1)], 1)
    entries = Entrywise().fit(s)
    rare = s[s[:, 0].abs() > 12][:40]
    assert entries.adapt(rare).outlier_score[:, 0].max() < 0.2
    wrong = entries.adapt(torch.tensor([[1.0, 9.0], [1e4, 1.0]], dtype=torch.float64))
    assert wrong.outliers.tolist() == [[False, True], [True, False]]
