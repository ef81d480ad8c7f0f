"""docs/command_line.md, as a new user would follow it."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mindist.cli import app

PAGE = Path(__file__).parents[1] / "docs" / "command_line.md"
NUMBER = r"-?\d[\d,]*(\.\d+)?(e[+-]?\d+)?%?"
STATUS = {"check": 3}


def blocks(kind):
    """The blocks of code of one kind."""
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)


def without_numbers(text):
    """Numbers differ a little from one machine to another, and so does the width of tables."""
    return " ".join(re.sub(rf"{NUMBER}(, {NUMBER})*", "#", text).split())


@pytest.mark.slow
def test_the_whole_way_from_a_csv_to_a_report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    model, *data = blocks("python")
    Path("model.py").write_text(model)
    for block in data:
        exec(block, {})
    assert len(Path("observed.csv").read_text().split()) == 101
    commands = [block for block in blocks("console") if block.startswith("$ mindist")]
    assert [shlex.split(block)[2] for block in commands] == [
        *("simulate", "fit", "check", "adapt", "train", "sample", "report"),
        *("fit", "adapt", "report"),
    ]
    for block in commands:
        line, _, expected = block.partition("\n")
        words = shlex.split(line)[2:]
        run = CliRunner().invoke(app, words)
        assert run.exit_code == STATUS.get(words[0], 0), run.output
        assert without_numbers(run.stdout) == without_numbers(expected)
    look_at_the_results()


def look_at_the_results():
    import arviz

    posterior = arviz.from_netcdf("samples.nc").posterior
    mean, sd = (float(posterior[name].mean()) for name in ("mean", "sd"))
    # 85 good observations of N(1, .5): standard errors .05 and .04; the wrong ones pull them to 1.8
    assert mean == pytest.approx(1.0, abs=0.2)
    assert sd == pytest.approx(0.5, abs=0.15)
    rows = [line.split(",") for line in Path("observations.csv").read_text().split()]
    assert rows[0] == ["dataset", "observation", "weight", "outlier_score", "outlier"]
    assert [row[4] for row in rows[1:16]] == ["True"] * 15
    bands = [line.split(",") for line in Path("bands.csv").read_text().split("\n")]
    assert [row[:2] for row in bands if row[-1] == "True"] == [["NGC 1", "2"]]
    assert [row[:2] for row in bands if row[-2:-1] == ["True"]] == [["NGC 2", "5"]]
    assert "Report on an observed vector" in Path("galaxy.html").read_text(encoding="utf-8")
    assert Path("report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
