"""The experiments that the paper does not have: ratios, verdicts, what is measured for them."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score

from mindist_paper.baselines.mds import Forced
from mindist_paper.evaluation import roc_auc
from mindist_paper.evaluation.bank import make_datasets
from mindist_paper.evaluation.cell import BankSpec, Cell, Recipe, TestSpec
from mindist_paper.evaluation.runner import rows, run
from mindist_paper.evaluation.store import Store
from mindist_paper.evaluation.trained import get_method
from mindist_paper.experiments import ablation, decoders, outliers, ratios, unseen
from mindist_paper.experiments.registry import EXPERIMENTS
from mindist_paper.report.statistics import standard_error, summarise

NEW = ("outlier_auc", "false_outliers", "epsilon_hat", "epsilon_error", "fit_seconds")
BANK = BankSpec("gaussian", 400, {"num_obs": 20})
TRAINING = {"density_estimator": "mdn", "max_num_epochs": 2}
TEST = TestSpec(0.4, {"delta": 6.0}, num=4, num_samples=30, num_predictive=0)


def cell(method, test=TEST, **options):
    return Cell(BANK, Recipe(method, TRAINING, options=options), test)


def frame(*, task="gaussian", case="cluster 20%", **errors):
    """Rows of several methods, each with the same number of datasets."""
    return pd.DataFrame(
        {"task": task, "case": case, "method": m, "seed": 0, "dataset": i, "rmse": value}
        for m, values in errors.items()
        for i, value in enumerate(values)
    )


# ---------------------------------------------------------------------------- ratios


def test_the_ratio_has_the_error_of_the_delta_method():
    """Against a simulation: the spread of the ratio over many repetitions of 40 datasets."""
    source = np.random.default_rng(0)
    base = 1 + 0.3 * source.random((2_000, 40))
    other = 1.2 * base + 0.2 * source.standard_normal((2_000, 40))
    found = [ratios.linearised(a, b) for a, b in zip(other, base, strict=True)]
    means = np.array([values.mean() for values in found])
    np.testing.assert_allclose(means, other.mean(1) / base.mean(1))
    errors = np.mean([standard_error(values) for values in found])
    assert errors == pytest.approx(means.std(), rel=0.05)


def test_a_table_of_the_column_is_a_table_of_ratios():
    rows = frame(npe=[1.0, 2.0, 3.0], mds=[1.0, 1.0, 2.0], oracle=[0.5, 1.0, np.nan])
    shown = ratios.with_ratio(rows, ("task", "case"))
    points = {m: p[0] for m, p in summarise(shown, "rmse_ratio", "case").items()}
    assert points["npe"].mean == pytest.approx(1)
    assert points["npe"].error == pytest.approx(0, abs=1e-12)
    value, error = ratios.ratio(rows, "mds", "npe")
    assert (points["mds"].mean, points["mds"].error) == pytest.approx((value, error))
    assert value == pytest.approx(4 / 6)
    assert points["oracle"].mean == pytest.approx(0.5)
    assert points["oracle"].missing == 1


@pytest.mark.parametrize(
    ("npe", "mds", "outcome", "words"),
    [
        ([1.0, 1.1, 1.0], [2.0, 2.1, 2.0], "worse", "is worse than NPE by more than 5% (Gaussian"),
        (
            [1.0, 1.1, 1.0],
            [0.5, 0.6, 0.5],
            "better",
            "nowhere worse than NPE by more than 5%; bett",
        ),
        ([1.0, 1.1, 1.0], [1.01, 1.1, 1.0], "as good", "better in 0 of 1 settings."),
        (
            [1.0, 1.0, 1.0],
            [0.5, 2.5, 1.0],
            "undecided",
            "above that within them: Gaussian, cluster 20%: 1.33",
        ),
        ([np.nan] * 3, [1.0, 1.0, 1.0], "no baseline", "NPE has no finite answer: Gaussian, clus"),
        ([1.0] * 3, [np.nan, 1.0, 1.0], "worse", "no finite answer for 1"),
        ([1.0] * 3, [np.inf, 1.0, 1.0], "worse", "no finite answer for 1"),
    ],
)
def test_nowhere_worse_says_where_it_is_not_so(npe, mds, outcome, words):
    rows = frame(npe=npe, mds=mds)
    assert ratios.compare(rows, "mds", "npe").outcome == outcome
    text = ratios.nowhere_worse("mds")(rows)
    assert words in text
    assert ("nowhere" in text) == (outcome != "worse")


def test_what_was_not_run_is_not_compared():
    text = ratios.nowhere_worse("mds")(frame(npe=[1.0, 2.0]))
    assert text == "MDS (default) was not compared with NPE."
    assert ratios.relative("mds", "npe", by="case")(frame(npe=[1.0, 2.0])) == ""


# ---------------------------------------------------------------------------- verdicts


def test_the_ablation_names_what_is_worse_and_where():
    def rows_of(task, variant, values):
        method = "mds-rf" if variant == ablation.PAPER else "mds"
        options = json.dumps(dict(ablation.VARIANTS.get(variant, {})), sort_keys=True)
        own = frame(task=task, **{method: values})
        return own.assign(method_options=options, epsilon=0.2)

    noise = [0.1, 0.101, 0.099]
    variants = (*ablation.VARIANTS, ablation.PAPER)
    parts = [rows_of(task, v, noise) for task in ("gaussian", "oup") for v in variants]
    rows = ablation.ablation_rows(pd.concat(parts, ignore_index=True))
    assert list(rows.variant.unique()) == list(variants)
    worse = (rows.variant == "no weights") & (rows.task == "oup")
    rows.loc[worse, "rmse"] += 0.4
    text = ablation.what_each_idea_is_worth(rows)
    most = "No weights: worse than the default in 1 (most on OUP at ε = 0.2: 0.5 against 0.1)"
    assert most in text
    assert "No gate: no different from the default, of 2 settings." in text


def test_the_cells_of_the_outliers_are_those_of_the_tasks():
    def addresses(name):
        return {c.address for c in EXPERIMENTS[name].cells("paper", 1)}

    own = addresses("outliers")
    others = [addresses(name) for name in ("gaussian-mean", "oup", "sir", "cryo-em")]
    assert own <= set().union(*others)
    assert all(own & other for other in others)


def test_networks_are_those_of_the_tasks():
    """Nothing but the fits of MDS is trained for the experiments beyond the paper."""

    def networks(name):
        found = EXPERIMENTS[name].cells("paper", 1)
        return {json.dumps([c.bank.task, dict(c.recipe.npe.training)]) for c in found}

    known = set().union(*(networks(n) for n in ("gaussian-mean", "oup", "sir", "cryo-em")))
    for name in ("unseen", "ablation", "decoders", "outliers"):
        assert networks(name) <= known


def test_every_suitable_kind_is_tried():
    found = {(c.bank.task, c.test.contamination["kind"]) for c in unseen.unseen_cells("quick", 1)}
    assert len(found) == 4 * 6 + 1
    assert {kind for _, kind in found} == unseen.FRACTIONS.keys()


# ---------------------------------------------------------------------------- measurements


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("store"))
    gross = replace(TEST, epsilon=0.03, contamination={"kind": "gross"})
    cells = [
        cell("npe"),
        cell("mds"),
        cell("mds", force=True),
        cell("mds", replace(TEST, epsilon=0.0)),
        cell("mds", replace(TEST, epsilon=0.0), force=True),
        *(cell(method, gross) for method in ("npe", "mds-rf", "mds")),
    ]
    return store, cells, run(cells, store, progress=False)


def of(measured, index):
    _, cells, frame = measured
    return frame[frame.address == cells[index].address]


def test_other_methods_say_nothing_about_observations(measured):
    assert of(measured, 0)[list(NEW)].isna().all(axis=None)


def test_outliers_are_measured_by_hand(measured):
    store, cells, _ = measured
    data = make_datasets(BANK, TEST)
    found = get_method(store, BANK, cells[1].recipe).adapt(data.x_obs)
    wrong = (data.x_obs != data.x_clean).any(2)
    own = of(measured, 1)
    expected = [
        roc_auc_score(w, s) for w, s in zip(wrong, found.outlier_score.numpy(), strict=True)
    ]
    np.testing.assert_allclose(own.outlier_auc, expected)
    flagged = [(f & ~w).sum() / (~w).sum() for f, w in zip(found.outliers, wrong, strict=True)]
    np.testing.assert_allclose(own.false_outliers, np.array(flagged), atol=1e-7)
    np.testing.assert_allclose(own.epsilon_hat, found.epsilon.numpy())
    assert own.fit_seconds.nunique() == 1
    assert own.fit_seconds.iloc[0] > 0


def test_clean_data_have_no_roc_curve_but_a_rate_of_false_outliers(measured):
    clean = of(measured, 3)
    assert clean.outlier_auc.isna().all()
    assert clean.false_outliers.between(0, 0.2).all()


def test_without_the_gate_everything_is_adapted_and_detection_stays(measured):
    gated, forced = of(measured, 3), of(measured, 4)
    np.testing.assert_array_equal(gated.p_value, forced.p_value)
    np.testing.assert_array_equal(gated.detected, forced.detected)
    assert not gated.adapted.all()
    assert forced.adapted.mean() > gated.adapted.mean()
    store, cells, _ = measured
    method = get_method(store, BANK, cells[4].recipe)
    assert isinstance(method.posterior.mds, Forced)
    assert method.posterior.mds.event_shape == torch.Size([2])


def test_gross_outliers_leave_finite_robust_posteriors(measured):
    for index in (6, 7):
        assert np.isfinite(of(measured, index)[["rmse", "reference_mmd", "summary_distance"]]).all(
            axis=None
        )
    assert len(of(measured, 5)) == TEST.num  # the NPE's may be anything, and are rows


def test_cells_of_earlier_versions_lack_columns_and_can_be_read_beside_new_ones(measured, tmp_path):
    source, cells, _ = measured
    store = Store(tmp_path / "store")
    store.write(cells[0], source.read(cells[0]).drop(columns=list(NEW)))
    store.write(cells[1], source.read(cells[1]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        both = rows(cells[:2], store)
    assert both[list(NEW)].notna().all(axis=1).tolist() == [False] * 4 + [True] * 4


def test_roc_auc_is_that_of_scikit_learn():
    score = torch.rand(3, 50, generator=torch.Generator().manual_seed(0)).mul(10).round()  # ties
    wrong = torch.rand(3, 50, generator=torch.Generator().manual_seed(1)) < 0.3
    expected = [roc_auc_score(w, s) for w, s in zip(wrong, score, strict=True)]
    torch.testing.assert_close(roc_auc(score, wrong), torch.tensor(expected, dtype=torch.float64))


def test_the_prepared_rows_name_the_decoder_and_the_task():
    rows = frame(mds=[0.1, 0.2]).assign(
        method_options=['{"decoder": "mlp"}', "{}"], epsilon=[0.0, 0.0]
    )
    shown = decoders.decoder_rows(rows)
    assert shown.decoder.tolist() == ["mlp", "ridge"]
    assert shown.task_name.tolist() == ["Gaussian"] * 2


def test_the_verdict_on_outliers_is_one_sentence_for_each_task():
    rows = frame(mds=[0.1, 0.2]).assign(
        epsilon=0.2, task_name="OUP", outlier_auc=0.9, epsilon_hat=[0.1, 0.3], false_outliers=0.0
    )
    assert outliers.found_outliers(rows) == (
        "OUP: ROC AUC 0.90 at ε = 0.2; estimated ε 0.20 at ε = 0.2; clean observations flagged "
        "0.00 at ε = 0.2."
    )
