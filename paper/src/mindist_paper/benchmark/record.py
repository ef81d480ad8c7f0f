"""Measure groups and keep what was found: one JSON file, one page of tables.

A group that is measured again replaces its rows, as long as profile, machine and versions agree.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path

from mindist.report.page import versions
from mindist_paper.benchmark.growth import Line, Say, measure_growth, memory_rows
from mindist_paper.benchmark.material import PROFILES, Material
from mindist_paper.benchmark.rows import TIMED
from mindist_paper.benchmark.timing import Row, all_threads, num_threads

RECORD, TABLE = "bench.json", "table.md"
TITLES = {
    "embedding": "Mean embeddings",
    "decoder": "Fitting a decoder",
    "adaptation": "Adapting",
    "detection": "Detecting",
    "overhead": "Overhead",
    "queries": "Asking the posterior for many datasets",
    "memory": "Memory of mean embeddings",
    "growth": "Growth",
}
GROUPS = tuple(TITLES)
HEADER = ("what", "measure", "threads", "value", "spread", "claim", "reached")
PACKAGES = ("mindist", "torch", "numpy", "scipy", "scikit-learn", "sbi")
SMALL = " These sizes show directions only: the claims are made for the profile full."


def origin() -> str:
    """Return processor, cores and versions in one line."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    processor = names[0] if names else platform.processor() or platform.machine()
    known = [f"{name} {version}" for name, version in versions(PACKAGES).items()]
    return f"{processor}, {all_threads()} cores, {platform.system()}; {', '.join(known)}"


@dataclass(frozen=True)
class Record:
    """Rows by group, lines of growth, and where they come from."""

    profile: str
    origin: str  # machine and versions
    groups: dict[str, list[Row]] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    dates: dict[str, str] = field(default_factory=dict)  # when each group was measured

    @classmethod
    def open(cls, folder: Path, profile: str) -> Record:
        """Return the record in a folder if profile, machine and versions agree, or a new one."""
        new = cls(profile, origin())
        try:
            old = cls.from_json((folder / RECORD).read_text(encoding="utf-8"))
        except (OSError, ValueError, KeyError, TypeError):
            return new
        return old if (old.profile, old.origin) == (new.profile, new.origin) else new

    @classmethod
    def from_json(cls, text: str) -> Record:
        """Read what `to_json` wrote."""
        values = json.loads(text)
        values["groups"] = {
            name: [Row.from_json(row) for row in rows] for name, rows in values["groups"].items()
        }
        values["lines"] = [Line(**line) for line in values["lines"]]
        return cls(**values)

    def to_json(self) -> str:
        """Return all of it as text."""
        return json.dumps(asdict(self), indent=1) + "\n"

    def put(self, group: str, rows: Sequence[Row]) -> None:
        """Set the rows of a group."""
        self.groups[group] = list(rows)
        self.dates[group] = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")

    def write(self, folder: Path) -> None:
        """Write JSON and table."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RECORD).write_text(self.to_json(), encoding="utf-8")
        (folder / TABLE).write_text(self.markdown(), encoding="utf-8")

    def about(self) -> str:
        """Return machine, versions and dates, and what the sizes are good for."""
        dates = sorted(self.dates.values())
        measured = f" Measured {dates[0]} to {dates[-1]}." if dates else ""
        return f"{self.origin}.{measured}{'' if self.profile == 'full' else SMALL}"

    def markdown(self) -> str:
        """Return all groups as a page."""
        parts = [f"# Benchmark, profile {self.profile}", "", self.about()]
        for group, rows in self.groups.items():
            parts += ["", f"**{TITLES[group]}**", "", _line(HEADER), "|---|" + "---:|" * 6]
            parts += [_line(cells(row)) for row in rows]
            notes = dict.fromkeys(f"- {row.what}: {row.note}." for row in rows if row.note)
            parts += ["", *notes] if notes else []
        return "\n".join(parts) + "\n"


def _line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def cells(row: Row) -> tuple[str, ...]:
    """Return a row as text, in the order of `HEADER`."""
    spread = f"{number(row.low)} to {number(row.high)}" if row.low < row.high else ""
    claim = "" if row.claim is None else str(row.claim)
    verdict = {True: "yes", False: "**no**", None: ""}[row.reached]
    value = f"{number(row.value)} {row.unit}".strip()
    return (row.what, row.measure, str(row.threads), value, spread, claim, verdict)


def number(value: float) -> str:
    """Return three digits, without an exponent where it can be read without."""
    return f"{value:.3g}" if abs(value) < 1_000 else f"{float(f'{value:.3g}'):,.0f}"


def run(profile: str, folder: Path, groups: Sequence[str] = GROUPS, say: Say = print) -> Record:
    """Measure groups, and write JSON and table to a folder after each."""
    sizes, record = PROFILES[profile], Record.open(folder, profile)
    material = Material(sizes)
    for group in groups:
        rows: list[Row] = []
        if group in TIMED:
            for threads in sorted({1, all_threads()}):
                say(f"{group}, {threads} thread{'s' if threads > 1 else ''} ...")
                with num_threads(threads):
                    rows += [replace(row, threads=threads) for row in TIMED[group](material)]
        elif group == "memory":
            say("memory ...")
            rows = memory_rows(sizes.memory)
        else:
            say("growth ...")
            record.lines[:] = measure_growth(sizes.growth, say)
            rows = [row for line in record.lines for row in line.rows()]
        record.put(group, rows)
        record.write(folder)
    return record
