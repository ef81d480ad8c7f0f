"""Count the lines and files of both houses against their budgets.

    python scripts/count_lines.py

Every file of src/mindist and of paper (its tests too) counts, with docstrings, blank lines and
templates. Exits with 1 where a total is over its budget; a folder may lend lines to another.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUDGETS = {
    "root": 2_200,
    "features": 1_500,
    "decoders": 900,
    "solvers": 500,
    "detection": 900,
    "adaptation": 1_700,
    "entries": 900,
    "posteriors": 3_200,
    "simulation": 1_700,
    "observed": 500,
    "report": 2_000,
    "cli": 1_300,
    "tasks": 700,
}
"""Lines of each folder of src/mindist (../shared/DESIGN.md, second edition)."""
MOST_LINES, MOST_FILES, MOST_PAPER = 19_500, 130, 9_000  # issue 17


def files_in(folder: Path) -> list[Path]:
    """Return the files of a folder and those below it, but no caches."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in found if not any(_made(part) for part in path.parts))


def _made(part: str) -> bool:
    return part == "__pycache__" or part.endswith(".egg-info")


def lines_of(files: list[Path]) -> int:
    """Return the number of lines of all files."""
    return sum(len(path.read_bytes().splitlines()) for path in files)


def by_folder(source: Path) -> dict[str, list[Path]]:
    """Return the files of each folder of a package; those beside the folders are "root"."""
    groups: dict[str, list[Path]] = {name: [] for name in BUDGETS}
    for path in files_in(source):
        parts = path.relative_to(source).parts
        groups.setdefault(parts[0] if len(parts) > 1 else "root", []).append(path)
    return groups


def totals() -> dict[str, tuple[int, int]]:
    """Return what is counted and what is allowed."""
    mindist, paper = (files_in(ROOT / part) for part in ("src/mindist", "paper"))
    return {
        "lines of src/mindist": (lines_of(mindist), MOST_LINES),
        "files of src/mindist": (len(mindist), MOST_FILES),
        "lines of paper": (lines_of(paper), MOST_PAPER),
    }


def main() -> None:
    """Print a table of folders, then the totals."""
    print(f"{'folder':<12}{'files':>6}{'lines':>8}{'budget':>8}")
    for name, files in by_folder(ROOT / "src/mindist").items():
        budget, lines = BUDGETS.get(name, 0), lines_of(files)
        over = "  over" if lines > budget else ""
        print(f"{name:<12}{len(files):>6}{lines:>8,}{budget:>8,}{over}")
    for what, (counted, allowed) in totals().items():
        print(f"{what}: {counted:,} of {allowed:,}")
    sys.exit(any(counted > allowed for counted, allowed in totals().values()))


if __name__ == "__main__":
    main()
