"""The package as a user picks it up: its dependencies, its version, what importing it costs."""

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import mindist

ROOT = Path(__file__).parents[1]
OPTIONAL = {
    "arviz", "bayesflow", "cloudpickle", "dask", "distributed", "h5py", "joblib", "keras", "lampe",
    "matplotlib", "nflows", "pandas", "pyarrow", "ray", "rich", "sbi", "seaborn", "sklearn",
    "typer", "xarray", "zarr", "zuko"
}  # fmt: skip
LATER = {"scipy"}  # imported by the first detector


def test_importing_and_displaying_brings_no_optional_library() -> None:
    script = (
        "import sys, torch, mindist; s, p = torch.zeros(2), torch.tensor(0.5);"
        "mindist.Detection(s, p, p, p < 0.05, 1.0)._repr_html_();"
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not (OPTIONAL | LATER) & set(run.stdout.split())


@pytest.mark.slow
def test_import_takes_little_longer_than_that_of_torch() -> None:
    """Of every public name: 1.2 to 1.4 times the processor time; at most 1.5 is wanted."""
    script = "import time; start = time.process_time(); {}; print(time.process_time() - start)"

    def seconds(statement: str) -> float:
        command = [sys.executable, "-c", script.format(statement)]
        return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    pairs = [(seconds("import torch"), seconds("from mindist import *")) for _ in range(2)]
    torch, ours = (min(times) for times in zip(*pairs, strict=True))
    assert ours < 1.5 * torch, pairs


def test_import_warns_of_nothing() -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", "import mindist"], check=True)


def test_root_module_is_short_and_keeps_its_promises() -> None:
    lines = Path(mindist.__file__).read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 20
    assert {"MinimumDistance", "RobustPosterior"} <= set(mindist.__all__)
    assert all(hasattr(mindist, name) for name in mindist.__all__)


def test_core_needs_few_packages() -> None:
    declared = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    core = declared.split("\ndependencies = [\n")[1].split("\n]\n")[0]
    names = set(re.findall(r'^    "([\w.-]+)', core, re.M))
    assert names == {"torch", "lazy_loader", "numpy", "scipy", "safetensors", "tqdm"}


def test_types_are_shipped() -> None:
    assert (Path(mindist.__file__).parent / "py.typed").is_file()


def test_version_is_the_same_everywhere() -> None:
    version = mindist.__version__
    assert metadata.version("mindist") == version, "the environment is stale: run `make clean`"
    assert f"\n## [{version}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_citation_has_the_fields_that_cff_requires() -> None:
    keys = re.findall(r"^([\w-]+):", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.M)
    assert {"cff-version", "message", "title", "authors", "preferred-citation"} <= set(keys)
    assert len(keys) == len(set(keys))


def test_constraints_are_exact_and_name_no_build_or_address() -> None:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    pin = re.compile(r'[\w.-]+==[\w.]+( ; python_version >= "3\.\d+")?')
    assert [line for line in lines if not pin.fullmatch(line)] == []
    assert "torch==2.13.0" in lines
