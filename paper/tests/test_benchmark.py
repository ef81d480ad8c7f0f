"""The benchmark: its arithmetic exactly, and the direction of its ratios with wide margins."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from mindist.cli import app
from mindist_paper.benchmark import growth, literal, rows
from mindist_paper.benchmark.material import PROFILES, Material
from mindist_paper.benchmark.record import RECORD, TABLE, Record
from mindist_paper.benchmark.timing import Claim, Contender, Row, Times, race


class FakeClock:
    """A clock that moves only when a contender works."""

    def __init__(self) -> None:
        self.now, self.order = 0.0, ""

    def __call__(self) -> float:
        return self.now

    def worker(self, name: str, seconds: Callable[[int], float]) -> Callable[[], None]:
        def work() -> None:
            self.now += seconds(self.order.count(name))
            self.order += name

        return work


def test_contenders_take_turns_in_rotating_order() -> None:
    clock = FakeClock()
    contenders = {name: Contender(clock.worker(name, lambda _: 100.0)) for name in "abc"}
    times = race(contenders, 4, least=1.0, clock=clock)
    assert clock.order == "abc" + "abc" + "bca" + "cab" + "abc"  # the warm-up, then the rounds
    assert times.seconds == {name: [100.0] * 4 for name in "abc"}


def test_a_quick_contender_runs_several_times_and_times_are_for_one_unit() -> None:
    clock = FakeClock()
    contenders = {"a": Contender(clock.worker("a", lambda _: 0.25), units=5)}
    times = race(contenders, 2, least=1.0, clock=clock)
    assert clock.order == "a" * (2 + 2 * (1 + 4))  # to warm up, and once before each timing
    assert times.seconds == {"a": [0.05, 0.05]}


def test_ratios_are_taken_within_rounds() -> None:
    # A machine that gets ten times slower changes both contenders, and no ratio.
    times = Times({"slow": [2.0, 20.0, 4.0], "fast": [1.0, 10.0, 1.0]})
    assert times.ratio("slow", "fast") == (2.0, 2.0, 3.8)


@pytest.mark.parametrize("exponent", [0.0, 1.0, 1.5])
def test_the_exponent_of_a_power_law_is_found(exponent: float) -> None:
    sizes = [10, 100, 1_000, 10_000]
    assert growth.fit_slope(sizes, [3 * n**exponent for n in sizes])[0] == pytest.approx(exponent)
    sizes += [100_000, 1_000_000]
    # fixed costs do not hide it
    exponent, first = growth.fit_slope(sizes, [50 + 0.01 * n for n in sizes])
    assert first == 10_000
    assert exponent == pytest.approx(1.0, abs=0.1)


def example_record() -> Record:
    record = Record("smoke", "a machine")
    claim = Claim("at least", 2)
    record.put("embedding", [Row("x", "a / b", 3.0, 2.0, 4.0, claim, seconds={"a": 0.1})])
    record.lines.append(growth.Line("features", "fit", False, [1, 2], [0.1, 0.2], [None, 5.0]))
    return record


def test_files_are_written_and_a_record_of_another_machine_is_not_mixed_in(tmp_path: Path) -> None:
    example_record().write(tmp_path)
    table = (tmp_path / TABLE).read_text(encoding="utf-8")
    assert "| x | a / b | 1 | 3 | 2 to 4 | at least 2 | yes |" in table
    assert not Record.open(tmp_path, "smoke").groups


def test_a_record_of_this_machine_is_gone_on_with(tmp_path: Path) -> None:
    record = Record.open(tmp_path, "smoke")
    record.put("memory", [])
    record.write(tmp_path)
    assert Record.open(tmp_path, "smoke") == record
    assert not Record.open(tmp_path, "full").groups
    assert Record.from_json(example_record().to_json()) == example_record()
    (tmp_path / RECORD).write_text("{")
    assert not Record.open(tmp_path, "smoke").groups


def test_literal_search_finds_a_known_minimum() -> None:
    target = torch.tensor([0.5, -1.0], dtype=torch.float64)

    def decoder(s: torch.Tensor) -> torch.Tensor:
        return torch.cat([s, s.square(), s.sin()], dim=-1)

    found = literal.minimise(decoder, torch.zeros(2).double(), decoder(target[None])[0])
    torch.testing.assert_close(found, target, atol=1e-5, rtol=0)


@pytest.mark.skipif(not growth.STATUS.exists(), reason="other systems cannot set their peak back")
def test_peak_memory_is_that_of_the_call() -> None:
    def call() -> float:
        return float(torch.ones(2**24).sum())  # 64 MB, gone before it ends

    peak = growth.peak_above(call)
    assert peak is not None
    assert 60 < peak < 80


def value(found: list[Row], what: str, measure: str) -> float:
    return next(row.value for row in found if what in row.what and measure in row.measure)


@pytest.mark.slow
def test_every_group_points_in_the_right_direction() -> None:
    sizes = ((300, 100, 2), (10, 100, 1_024))
    material = Material(replace(PROFILES["smoke"], embedding=sizes, rounds=5))
    found = rows.embedding_rows(material)
    assert value(found, "x 100 x 2,", "RBFSampler / mindist") > 1
    assert value(found, "1,024", "mindist / bare") < 2
    found = rows.decoder_rows(material)
    for task in material.sizes.tasks:
        assert value(found, task, "literal MLP / ridge") > 1
        assert value(found, task, "held-out error") < 1.1
    assert value(rows.detection_rows(material), "OUP", "/ default") > 20
    assert value(rows.adaptation_rows(material), "60 OUP", "literal L-BFGS / default") > 1
    found = rows.overhead_rows(material)
    assert [row.what.split(",")[0] for row in found] == ["offline", "online", "online"]
    assert all(row.value > 0 for row in found)
    assert value(rows.query_rows(material), "samples", "loop") > 1


def test_the_command_knows_its_groups() -> None:
    unknown = CliRunner().invoke(app, ["bench", "--only", "embeding"])
    assert unknown.exit_code == 2
    assert "Did you mean 'embedding'?" in unknown.output


@pytest.mark.slow
def test_the_command_writes_what_it_measured(tmp_path: Path) -> None:
    command = ["bench", "--profile", "smoke", "--only", "memory", "--out", str(tmp_path)]
    ended = CliRunner().invoke(app, command)
    assert ended.exit_code == 0, ended.output
    assert "peak memory" in ended.output
    assert {RECORD, TABLE} <= {path.name for path in tmp_path.iterdir()}
