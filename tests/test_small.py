"""The house stays small: files that data pass through, files and lines in all."""

import runpy
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
FILES = {"adapt and sample": 30, "adapt and sample, sbi": 30, "fit": 20}
# Issue 18, and 900 lines for one observation: issue 20
TOTALS = {
    "lines of src/mindist": 18_000,
    "lines of the method": 5_500,
    "files of src/mindist": 130,
    "lines of paper": 9_500,
}


@pytest.mark.slow
def test_data_pass_through_few_files() -> None:
    found = runpy.run_path(str(SCRIPTS / "trace_files.py"))["trace"](sbi=True)
    assert found.keys() == FILES.keys()
    for way, files in found.items():
        assert "minimum_distance.py" in files
        assert len(files) <= FILES[way], f"{way}: {files}"


def test_both_houses_keep_to_their_budgets() -> None:
    totals = runpy.run_path(str(SCRIPTS / "count_lines.py"))["totals"]()
    for what, (counted, _) in totals.items():
        assert 0 < counted <= TOTALS[what], what


def test_a_first_run_is_compared_with_a_second() -> None:
    cold_start = runpy.run_path(str(SCRIPTS / "cold_start.py"))
    assert cold_start["ratio"]({"fit": 3.0, "adapt": 1.0}, {"fit": 1.5, "adapt": 0.5}) == 2.0
