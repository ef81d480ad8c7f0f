"""Run experiments: rows, figures, tables and configuration in OUT/NAME, one page in OUT/index.html.

OUT/store has finished cells and trained parts, found by their configuration.
"""

import hashlib
import json
import os
import platform
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from mindist.cli.demo import Sizes
from mindist.cli.demo import draw_figure as draw_demo
from mindist.cli.demo import train as train_demo
from mindist.report.page import versions
from mindist.storage import room_for, write_whole
from mindist.tasks import GaussianTask
from mindist.threads import one_thread
from mindist_paper.evaluation.bank import make_datasets, make_task
from mindist_paper.evaluation.cell import (
    METHOD_VERSIONS,
    RESULTS_VERSION,
    Cell,
    canonical,
    method_versions,
)
from mindist_paper.evaluation.runner import distinct, run
from mindist_paper.evaluation.store import Store, as_parquet, kept_samples
from mindist_paper.experiments.experiment import Experiment, Rows
from mindist_paper.experiments.profiles import SHOWN_EPSILON, SIZES, THEOREM_SIZES
from mindist_paper.experiments.registry import EXPERIMENTS
from mindist_paper.report import figures, table
from mindist_paper.report.statistics import Panel

MARKER = "mindist-reproduce.json"
LIBRARIES = "mindist torch sbi numpy scipy scikit-learn zuko pandas matplotlib tabpfn"
MOLECULES = {"hsp90": "HSP90", "synthetic": "synthetic chain"}
SHOWN_METHODS = ("npe", "mds-rf", "mds", "oracle")  # whose posteriors are drawn
PARAMETERS = {
    "gaussian": (r"$\theta_1$", r"$\theta_2$"),
    "oup": (r"$\theta_1$", r"$\theta_2$"),
    "sir": (r"$\beta$", r"$\gamma$"),
    "cryo_em": ("conformation",),
}
Say = Callable[[str], None]
NUM_IMAGES, NUM_TRAJECTORIES = 8, 12


class OutputError(ValueError):
    """The folder belongs to something else."""


@dataclass(frozen=True)
class Request:
    """The experiments that were asked for."""

    names: Sequence[str]  # Names of experiments, in order
    profile: str = "quick"  # One of `PROFILES`
    seeds: int = 1  # How many repetitions with other simulations and test datasets
    out: Path = Path("results/reproduce/quick")  # Where results go
    workers: int = 1  # Processes
    everything: bool = False  # Whether `all` was asked for, which ends in a page

    def command(self, name: str) -> str:
        """Return a command line that gives the results of one entry, or of all."""
        words = ["mindist", "reproduce", name, "--profile", self.profile]
        words += ["--seeds", str(self.seeds), "--workers", str(self.workers)]
        if not self.out.is_absolute() and self.out != default_folder(self.profile):
            words += ["--out", self.out.as_posix()]
        return shlex.join(words)


@dataclass(frozen=True)
class Result:
    """The outcome of one entry."""

    section: table.Section  # Its part of the page
    folder: Path | None  # Where its files are; None where it was skipped
    skipped: str | None = None  # Why it was, or None


def default_folder(profile: str) -> Path:
    """Return where results go unless said otherwise."""
    return Path("results/reproduce") / profile


def reproduce(request: Request, say: Say, *, progress: bool = True) -> list[Result]:
    """Run what was asked for, one experiment after the other."""
    claim(request.out, request.profile)
    store, results = Store(request.out / "store"), []
    for count, name in enumerate(request.names, 1):
        say(f"[{count}/{len(request.names)}] {name}: {EXPERIMENTS[name].shows}")
        result = run_experiment(EXPERIMENTS[name], request, store, progress=progress)
        if result.skipped is not None:
            say(f"  skipped: {result.skipped}")
        else:
            say(f"  {result.section.verdict}")
            say(f"  {result.section.seconds:.0f} s, in {result.folder}")
        results.append(result)
    if request.everything:
        write(request.out / "README.md", contents(request, results).encode())
        path = request.out / "index.html"
        write(path, table.as_html(whole_page(request, results)).encode())
        say(f"Everything on one page: {path}")
    return results


def claim(folder: Path, profile: str) -> None:
    """Mark a new folder as one for results of a profile; refuse one that is something else."""
    marker = folder / MARKER
    mine = {"kind": "mindist reproduce", "results": RESULTS_VERSION, "profile": profile}
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"--out: expected a folder, got the file {folder}.")
    if marker.is_file():
        found = read_json(marker)
        if not isinstance(found, dict) or found.get("kind") != mine["kind"]:
            raise OutputError(f"--out: {marker} is damaged. Delete it to go on in its folder.")
        for name, words in {"results": "of version", "profile": "of the profile"}.items():
            if found.get(name) != mine[name]:
                got = f"{folder} holds results {words} {found.get(name)}, not {mine[name]}"
                raise OutputError(f"--out: {got}. Choose another folder.")
    elif folder.is_dir() and any(folder.iterdir()):
        why = f"{folder} is not empty and was not made by mindist (no {MARKER})"
        raise OutputError(f"--out: {why}. Choose a new or an empty folder.")
    else:
        write(marker, as_json(mine))


def write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, and its folder."""
    with room_for(path.parent, path.name):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)


def read_json(path: Path) -> Any:
    """Return the content of a JSON file, None if there is none or it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def as_json(value: Any) -> bytes:
    """Return indented JSON, UTF-8, with a final line break."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def run_experiment(entry: Experiment, request: Request, store: Store, *, progress: bool) -> Result:
    """Compute, draw and write one entry."""
    reason = None if entry.unavailable is None else entry.unavailable()
    if reason is not None:
        section = replace(bare_section(entry, request), verdict=f"Not run: {reason}")
        return Result(section, None, reason)
    start = time.perf_counter()
    cells = distinct(entry.cells(request.profile, request.seeds))
    reused = sum((store.cells / f"{cell.address}.parquet").exists() for cell in cells)
    rows = compute(entry, cells, request, store, progress=progress)
    shown = rows if entry.prepare is None else entry.prepare(rows)
    anchors = entry.anchors if anchors_hold(cells) else {}
    folder = request.out / entry.name
    losses, lost_tables = table.panel_losses(entry.panels, shown)
    section = replace(
        bare_section(entry, request),
        figure=draw(entry, cells, shown, anchors, request, store),
        alt=figures.describe_figure(entry.panels, shown),
        tables=table.experiment_tables(entry.panels, shown, anchors),
        verdict="" if entry.verdict is None else entry.verdict(shown),
        losses=losses,
        seconds=time.perf_counter() - start,
    )
    settings = configuration(entry, request, cells, reused, section)
    if reused == len(cells):  # drawn again: time and command are those of the run that computed it
        before = read_json(folder / "config.json")
        told = ("command", "seconds", "workers", "cores", "cells_already_stored")
        if before and before.get("seeds") == request.seeds:
            settings |= {name: before[name] for name in told if name in before}
    section = replace(section, configuration=settings, seconds=settings["seconds"])
    write(folder / "rows.parquet", as_parquet(rows))
    write(folder / "table.md", markdown(section, lost_tables, settings).encode())
    write(folder / "config.json", as_json(settings))
    return Result(section, folder)


def compute(
    entry: Experiment, cells: Sequence[Cell], request: Request, store: Store, *, progress: bool
) -> Rows:
    """Return the rows of the experiment's cells, or its own."""
    if entry.own_rows is None:
        return run(cells, store, request.workers, progress=progress)
    sizes = asdict(THEOREM_SIZES[request.profile])
    key = [RESULTS_VERSION, entry.name, sizes, request.seeds, METHOD_VERSIONS]
    address = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    rows = store.find(address)
    if rows is None:
        rows = entry.own_rows(request.profile, request.seeds)
        store.write(address, rows)
    return rows


def anchors_hold(cells: Sequence[Cell]) -> bool:
    """Return whether published values are about the same: N = 100, and HSP90, not the chain."""
    options = [cell.bank.options for cell in cells]
    return all(o.get("molecule", "hsp90") == "hsp90" and "num_obs" not in o for o in options)


def draw(
    entry: Experiment, cells: list[Cell], shown: Rows, anchors: Any, request: Request, store: Store
) -> Path:
    """Write the figure as PNG and SVG, and return the path of the second."""
    stem = request.out / entry.name / "figure"
    if entry.illustration == "figure1":
        return draw_figure1(request.profile, stem)
    find = partial(material, cells=cells, store=store)
    title = entry.title
    figure = figures.draw_figure(entry.panels, shown, title=title, anchors=anchors, material=find)
    return figures.save_png_and_svg(figure, stem)[1]


def draw_figure1(profile: str, stem: Path) -> Path:
    """Draw the paper's Figure 1 as PNG and SVG; return the path of the second."""
    with one_thread():
        task = GaussianTask()
        sizes = Sizes(simulations=SIZES[profile]["gaussian"].simulations)
        methods = train_demo(task, sizes)
        draw_demo(task, methods, stem.with_suffix(".png"))
        return draw_demo(task, methods, stem.with_suffix(".svg"))


def material(panel: Panel, cells: Sequence[Cell], store: Store) -> figures.Material | None:
    """Return what a panel draws besides rows: posteriors, sample images, or time series."""
    shown = [c for c in cells if c.test.epsilon == SHOWN_EPSILON and c.bank.seed == 0]
    if not shown:
        return None
    if panel.metric == "posterior":
        return posteriors(shown, store)
    data = make_datasets(shown[0].bank, shown[0].test)
    replaced = (data.x_obs != data.x_clean).flatten(2).any(-1)
    if panel.metric == "images":
        name = MOLECULES[str(shown[0].bank.options.get("molecule"))]
        pictures = {name: data.x_clean[~replaced], "contamination": data.x_obs[replaced]}
        return figures.Images({k: v[:NUM_IMAGES] for k, v in pictures.items() if len(v)})
    which = int(replaced.sum(1).argmax())  # a dataset that has both, where few are contaminated
    wrong = replaced[which]
    series = {"clean": data.x_clean[which][~wrong], "contaminated": data.x_obs[which][wrong]}
    step = getattr(make_task(shown[0].bank), "step", 1.0)
    series = {k: v[:NUM_TRAJECTORIES] for k, v in series.items() if len(v)}
    return figures.Trajectories(series, step)


def posteriors(cells: Sequence[Cell], store: Store) -> figures.Posteriors | None:
    """Return the posteriors of the first datasets by several methods."""
    kept = {}
    for cell in cells:
        usual = cell.test.contamination.get("delta", 3.0) == 3.0
        rows = store.find(cell.address)
        if usual and cell.recipe.method in SHOWN_METHODS and rows is not None:
            kept[cell.recipe.method] = kept_samples(rows)
    kept = {method: frame for method, frame in kept.items() if len(frame)}
    if not kept:
        return None
    samples = {method: list(frame.samples) for method, frame in kept.items()}
    theta = list(next(iter(kept.values())).theta)
    return figures.Posteriors(samples, theta, PARAMETERS.get(cells[0].bank.task, ()))


def bare_section(entry: Experiment, request: Request) -> table.Section:
    """Return what is known of an experiment before it ran."""
    shows = entry.shows[:1].upper() + entry.shows[1:] + "."
    return table.Section(
        name=entry.name,
        title=entry.title,
        shows=" ".join([shows, *entry.notes]),
        source=entry.source,
        command=request.command(entry.name),
    )


def configuration(
    entry: Experiment, request: Request, cells: list[Cell], reused: int, section: table.Section
) -> dict[str, Any]:
    """Return everything that says how the results came about, without names of hosts or folders."""

    def different(specs: Sequence[Any]) -> list[dict[str, Any]]:
        return list({canonical(spec): asdict(spec) for spec in specs}.values())

    options = [cell.bank.options for cell in cells]
    molecules = {str(own["molecule"]) for own in options if "molecule" in own}
    return {
        "experiment": entry.name,
        "source": entry.source,
        "command": section.command,
        "profile": request.profile,
        "seeds": request.seeds,
        "results_version": RESULTS_VERSION,
        "method_versions": method_versions(cells) if cells else METHOD_VERSIONS,
        "seconds": round(section.seconds or 0.0, 1),
        "workers": request.workers,
        "cores": os.cpu_count(),
        "cells": len(cells),
        "cells_already_stored": reused,
        "verdict": section.verdict,
        "notes": list(entry.notes),
        "published_values": entry.anchors_source if anchors_hold(cells) else "",
        "molecules": sorted(MOLECULES[m] for m in molecules),
        "banks": different([cell.bank for cell in cells]),
        "recipes": different([cell.recipe for cell in cells]),
        "tests": different([cell.test for cell in cells]),
        "theorem_sizes": asdict(THEOREM_SIZES[request.profile]) if not cells else None,
        "versions": versions(LIBRARIES.split()),
    }


def contents(request: Request, results: Sequence[Result]) -> str:
    """Return the list of all experiments in Markdown, with verdicts and links."""
    lines = [
        f"# The paper reproduced, profile {request.profile}",
        f"    {request.command('all')}",
        f"{sizes_in_words(request.profile).capitalize()} training + test datasets. Each folder has "
        "the figure, the tables, the rows behind them and the configuration; "
        "[index.html](index.html) has all of it on one page.",
    ]
    for result in results:
        section = result.section
        lines += [f"## {section.title}", f"{section.shows} ({section.source})", section.verdict]
        if result.folder is not None:
            lines.append(f"[Tables, and where MDS loses]({section.name}/table.md)")
            lines.append(f"![{section.title}]({section.name}/figure.png)")
    return "\n\n".join(lines) + "\n"


def markdown(section: table.Section, lost: Sequence[table.Table], settings: dict[str, Any]) -> str:
    """Return the tables of an experiment and of what is lost, with command and verdict."""
    head = [f"# {section.title}", f"{section.shows} ({section.source})", f"    {section.command}"]
    head += [section.verdict, "![Figure](figure.png)"]
    if settings["published_values"]:
        head.append(f"Published values: {settings['published_values']}")
    return "\n\n".join([*head, table.tables_in_markdown([*section.tables, *lost], section.losses)])


def whole_page(request: Request, results: Sequence[Result]) -> table.Page:
    """Return the page of all experiments."""
    facts = {
        "Command": request.command("all"),
        "Profile": f"{request.profile} ({sizes_in_words(request.profile)})",
        "Seeds": str(request.seeds),
        "Machine": f"{os.cpu_count()} cores, {request.workers} workers, {platform.machine()}",
    }
    sections = [result.section for result in results]
    seconds = sum(section.seconds or 0.0 for section in sections)
    return table.Page(sections, versions(LIBRARIES.split()), seconds, facts)


def sizes_in_words(profile: str) -> str:
    """Return how many training and test datasets each task has."""
    sizes = SIZES[profile]
    return ", ".join(f"{name} {s.simulations:,} + {s.datasets}" for name, s in sizes.items())
