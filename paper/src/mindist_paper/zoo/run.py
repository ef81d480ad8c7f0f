"""Run models of the zoo, or a published benchmark; a table, and a verdict on what must hold.

Every model has a JSON file, written when it is done: a second run with equal settings computes only
what is missing. Delete the files when the code has changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binom

from mindist_paper.zoo.evaluate import Settings, compare, evaluate
from mindist_paper.zoo.judges import JUDGES
from mindist_paper.zoo.models import MODELS
from mindist_paper.zoo.published import BENCHMARKS, Benchmark

Record = Mapping[str, Any]
KNOWN = MODELS | JUDGES  # developed on, and judged on
COLUMNS = "model|case|ε|plain NPE|mindist|against plain|plain covers|covers|detected"
SIZE_COLUMNS = "model|size|largest in a tenth|outer fiftieths|clean error (prior sd)|seconds"
# How much each profile of `mindist reproduce` computes
PROFILES = {
    "smoke": Settings(simulations=500, datasets=10, size_datasets=50),
    "quick": Settings(datasets=50, size_datasets=500),
    "paper": Settings(),
}
# What was published, and how it is called in a table
HEADLINES = {
    **{"error": "", "squared": "squared error"},
    **{"over draws": "RMSE over draws", "quantiles": "5 / 50 / 95%"},
}
NUM_SHOWN = 6  # of the cells or models that break a claim


def run_zoo(
    out: Path,
    settings: Settings,
    names: Sequence[str] = tuple(MODELS),
    tell: Callable[[str], None] = print,
) -> list[str]:
    """Evaluate models into a folder, write the table of all, and return the verdict."""
    unknown = sorted(set(names) - set(KNOWN))
    if unknown:
        raise ValueError(f"models: expected some of {', '.join(KNOWN)}, got {', '.join(unknown)}.")
    out.mkdir(parents=True, exist_ok=True)
    records = []
    for name in names:
        path = out / f"{name}.json"
        record = read(path, settings)
        if record is None:
            record = evaluate(KNOWN[name], settings)
            part = path.with_suffix(".part")
            part.write_text(json.dumps(record, indent=1), encoding="utf-8")
            part.replace(path)
        records.append(record)
        tell(f"{name}: " + ", ".join(f"{c['case']} {c['mindist']:.2f}" for c in record["cells"]))
    found = verdict(records)
    text = "\n".join(["# Zoo", "", *found, "", *table(records), ""])
    (out / "table.md").write_text(text, encoding="utf-8")
    return found


def read(path: Path, settings: Settings) -> Record | None:
    """Return the record of a model if it is there and has these settings."""
    if not path.exists():
        return None
    record: Record = json.loads(path.read_text(encoding="utf-8"))
    return record if record["settings"] == asdict(settings) else None


def table(records: Sequence[Record]) -> list[str]:
    """Return two Markdown tables: a row for each cell, and for each model's size."""
    cells, sizes = [], []
    for record in records:
        for c in record["cells"]:
            names = ("plain", "mindist", "against_plain")
            errors = [f"{c[name]:.2f} ± {c[f'{name}_se']:.2f}" for name in names]
            rates = [f"{c[name]:.2f}" for name in ("plain_covers", "mindist_covers", "detected")]
            cells.append([record["model"], c["case"], f"{c['epsilon']:g}", *errors, *rates])
        own, seconds = record["size"], sum(record["seconds"].values())
        rates = [f"{own['overall']:.3f}", f"{max(own['tenths']):.3f}"]
        rates.append(", ".join(f"{rate:.3f}" for rate in own["ends"]))
        sizes.append([record["model"], *rates, f"{record['clean_error']:.4f}", f"{seconds:.0f}"])
    return [*markdown(COLUMNS, cells), "", *markdown(SIZE_COLUMNS, sizes)]


def markdown(columns: str, rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table, given the names of columns between bars."""
    head = columns.split("|")
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


def verdict(records: Sequence[Record]) -> list[str]:
    """Return a line for each thing that must hold in the zoo, with those that break it most."""
    cells = {f"{r['model']}, {c['case']}, {c['epsilon']:g}": c for r in records for c in r["cells"]}
    num = records[0]["size"]["num"]
    low, high = np.array(binom.interval(0.99, num, 0.05)) / num

    def of(name: str, chosen: Callable[[Record], bool] = lambda c: True) -> dict[str, float]:
        return {where: c[name] for where, c in cells.items() if chosen(c)}

    def sizes(name: str) -> dict[str, float]:
        rates = {record["model"]: record["size"][name] for record in records}
        return {f"{m}, {i + 1}": p for m, own in rates.items() for i, p in enumerate(own)}

    overall = {record["model"]: record["size"]["overall"] for record in records}
    wrong = of("mindist", lambda c: 0 < c["epsilon"] < 1)
    middle = {"it is": float(np.median(list(wrong.values())))}
    surely = {w: c["against_plain"] - 2 * c["against_plain_se"] for w, c in cells.items()}
    partly, strong = of("mindist_covers", lambda c: c["epsilon"] < 1), lambda c: c["plain"] >= 3
    none, nine = 0.0, 0.1  # the share that may be outside
    claims: Sequence[tuple[str, Mapping[str, float], float, float, float]] = (
        ("clean at most 1.02", of("mindist", lambda c: c["epsilon"] == 0), 0, 1.02, none),
        ("median of contaminated cells at most 1.25", middle, 0, 1.25, none),
        ("contaminated cells at most 1.6, nine in ten", wrong, 0, 1.6, nine),
        ("worse than plain by 5% and 2 standard errors: none", surely, -np.inf, 1.05, none),
        ("clean and contaminated cells cover .82 to .97, nine in ten", partly, 0.82, 0.97, nine),
        ("the same with misspecified cells", of("mindist_covers"), 0.82, 0.97, nine),
        ("power at least .9 where plain has 3", of("detected", strong), 0.9, 1, none),
        (f"size between {low:.3f} and {high:.3f}", overall, low, high, none),
        ("size in every tenth at most .08", sizes("tenths"), 0, 0.08, none),
        ("size in the outer fiftieths at most .12", sizes("ends"), 0, 0.12, none),
    )
    return [claim(*one) for one in claims]


def claim(text: str, values: Mapping[str, float], low: float, high: float, allowed: float) -> str:
    """Say whether all values but an allowed share lie between two bounds, and which do not."""
    off = {where: max(low - value, value - high) for where, value in values.items()}
    broken = sorted((where for where in off if off[where] > 0), key=lambda where: -off[where])
    holds = "holds" if len(broken) <= allowed * len(values) else "MISSED"
    shown = broken[:NUM_SHOWN] or sorted(off, key=lambda where: -off[where])[:1]
    worst = "; ".join(f"{where}: {values[where]:.3g}" for where in shown)
    return f"- {holds}: {text} ({len(broken)} of {len(values)} outside; {worst or 'none'})"


def run_benchmark(
    out: Path, name: str, settings: Settings, tell: Callable[[str], None] = print
) -> list[str]:
    """Evaluate a benchmark into a folder, unless it is there; write its table; return a verdict."""
    benchmark, path = BENCHMARKS[name], out / "record.json"
    out.mkdir(parents=True, exist_ok=True)
    record = read(path, settings)
    if record is None:
        record = compare(benchmark, settings)
        path.write_text(json.dumps(record, indent=1), encoding="utf-8")
    cells = {cell["case"]: cell for cell in record["cells"]}
    found = [claim(text, of(cells), low, high, 0.0) for text, of, low, high in benchmark.claims]
    sizes = f"{settings.simulations:,} simulations, {settings.datasets} datasets in each cell"
    title = [f"# {name}", "", f"{benchmark.source}; {sizes}; {record['seconds']} s.", "", *found]
    lines = comparison(benchmark, record)
    (out / "table.md").write_text("\n".join([*title, "", *lines, ""]), encoding="utf-8")
    tell("\n".join(lines))
    return found


def comparison(benchmark: Benchmark, record: Record) -> list[str]:
    """Return Markdown tables: every method and what was published, and what was detected."""
    head, rows, found = HEADLINES[benchmark.headline], [], []
    for cell in record["cells"]:
        for name, values in cell["methods"].items():
            value = values[benchmark.headline]
            value = value[0] if benchmark.headline == "quantiles" else np.atleast_1d(value)
            errors = " / ".join(map(number, values["error"]))
            covers = " / ".join(f"{rate:.2f}" for rate in values["covers"])
            shown = [" / ".join(map(number, value))] if head else []
            rows.append([cell["case"], name, *shown, errors, covers])
        for name, text in benchmark.published.get(cell["case"], {}).items():
            rows.append([cell["case"], f"*{name}, published*", text, "", ""])
        rates = [number(cell["methods"][name]["detected"]) for name in ("mindist", "paper")]
        own = cell["methods"]["mindist"]
        rates += [number(own[name]) for name in ("flagged", "flagged right")]
        statuses = ", ".join(f"{name} {n}" for name, n in cell["status"].items())
        found.append([cell["case"], *rates, statuses])
    columns = ["data", "method", *([head] if head else [])]
    columns += [f"error of {' / '.join(benchmark.parameters)}", "covers"]
    about = "data|detected|paper's preset|wrong ones flagged|right ones flagged|status"
    return [*markdown("|".join(columns), rows), "", *markdown(about, found)]


def number(value: float | None) -> str:
    """Return three digits without a leading zero; nothing for None."""
    if value is None:
        return ""
    text = "0" if abs(value) < 1e-5 else np.format_float_positional(float(f"{value:.3g}"), trim="-")
    return text[1:] if text.startswith("0.") else text
