"""The demo, smaller, with its real neural posterior and its real figure."""

import subprocess
import sys
from pathlib import Path

import pytest

from mindist.cli.demo import Sizes, draw_figure, errors_by_epsilon, format_table, train
from mindist.tasks import GaussianTask

SIZES = Sizes(simulations=2_000, test_datasets=100, posterior_samples=200, epsilons=(0.0, 0.2))


@pytest.fixture(scope="module")
def methods():
    return train(GaussianTask(), SIZES)


@pytest.mark.slow
def test_the_table_shows_a_wrong_posterior_and_a_better_one(methods):
    table = errors_by_epsilon(GaussianTask(), methods, SIZES)
    clean, dirty = table[0.0], table[0.2]
    # The exact posterior mean has a mean RMSE of .0886 (Rayleigh, N = 100); 100 datasets: 5%.
    assert clean["NPE"] == pytest.approx(0.0886, rel=0.2)
    assert clean["MDS, default"] <= 1.03 * clean["NPE"]
    for preset in ("MDS, default", "MDS, paper preset"):
        assert dirty["oracle summary"] < dirty[preset] < 0.8 * dirty["NPE"]
    assert dirty["MDS, default"] <= 1.03 * dirty["MDS, paper preset"]
    lines = format_table(table).splitlines()
    assert " ".join(lines[0].split()) == "epsilon NPE MDS, paper preset MDS, default oracle summary"
    assert lines[2].split()[:2] == ["0.2", f"{dirty['NPE']:.3f}"]


@pytest.mark.slow
def test_the_figure_is_written(methods, tmp_path):
    path = draw_figure(GaussianTask(), methods, tmp_path / "new" / "figure1.png")
    content = Path(path).read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) > 50_000


@pytest.mark.slow
def test_the_demo_needs_nothing_beyond_its_extra():
    others = ("zarr", "pandas", "arviz", "h5py", "dask", "bayesflow", "lampe")
    code = f"import sys; sys.modules.update(dict.fromkeys({others})); import mindist.cli.demo"
    subprocess.run([sys.executable, "-c", code], check=True)
