"""What a benchmark found, as one JSON file.

Groups can be measured in turn: a group that is measured again replaces its rows, as long as machine
and versions are those of the others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mindist.storage import write_whole
from mindist_paper.benchmark.growth import Line
from mindist_paper.benchmark.machine import machine, now, versions
from mindist_paper.benchmark.row import Row

NAME = "bench.json"


@dataclass(frozen=True)
class Record:
    """Rows by group, lines of growth, and where they come from.

    Arguments:
        profile: Of the sizes.
        machine: What it ran on.
        versions: Of the packages.
        groups: Rows by group, in the order they were measured.
        lines: How time and memory grow.
        dates: When each group was measured.
    """

    profile: str
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    groups: dict[str, list[Row]] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    dates: dict[str, str] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path, profile: str) -> Record:
        """The record in a folder if it is of this profile, machine and versions, else a new one."""
        new = cls(profile, machine(), versions())
        try:
            old = cls.from_json(json.loads((folder / NAME).read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError):
            return new
        same = (old.profile, old.machine, old.versions) == (profile, new.machine, new.versions)
        return old if same else new

    def put(self, group: str, rows: Sequence[Row]) -> None:
        """Set the rows of a group."""
        self.groups[group] = list(rows)
        self.dates[group] = now()

    def put_lines(self, lines: Sequence[Line]) -> None:
        """Set the lines of growth."""
        self.lines[:] = lines

    def write(self, folder: Path) -> Path:
        """Write the JSON file, and return its path."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / NAME
        write_whole(path, (json.dumps(self.to_json(), indent=1) + "\n").encode())
        return path

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "profile": self.profile,
            "machine": dict(self.machine),
            "versions": dict(self.versions),
            "dates": self.dates,
            "groups": {name: [row.to_json() for row in own] for name, own in self.groups.items()},
            "growth": [asdict(line) for line in self.lines],
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Record:
        """What `to_json` gave."""
        groups = {name: [Row.from_json(r) for r in own] for name, own in values["groups"].items()}
        lines = [Line.from_json(line) for line in values["growth"]]
        head = (values["profile"], values["machine"], values["versions"])
        return cls(*head, groups, lines, dict(values["dates"]))


__all__ = ["NAME", "Record"]
