"""Run experiments: rows, figures, tables, configuration, and one page for all of them.

An interrupted run goes on where it stopped, because finished cells and trained parts are found in
the store of the output folder, whichever experiment asked for them.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mindist import __version__
from mindist_paper.evaluation.cell import (
    METHOD_VERSIONS,
    RESULTS_VERSION,
    Cell,
    canonical,
    method_versions,
)
from mindist_paper.evaluation.runner import distinct, run
from mindist_paper.experiments.experiment import Experiment, Rows
from mindist_paper.experiments.material import draw_figure1, material
from mindist_paper.experiments.output import Output, as_json, read_json, rows_as_parquet
from mindist_paper.experiments.profiles import SIZES, THEOREM_SIZES
from mindist_paper.experiments.registry import EXPERIMENTS
from mindist_paper.report.figures import describe_figure, draw_figure, save_png_and_svg
from mindist_paper.report.losses import loss_sentences, loss_tables, panel_losses
from mindist_paper.report.page import Page, Section, write_page
from mindist_paper.report.table import Table, experiment_tables, tables_in_markdown

LIBRARIES = (
    "torch",
    "sbi",
    "numpy",
    "scipy",
    "scikit-learn",
    "zuko",
    "pandas",
    "matplotlib",
    "tabpfn",
)
MOLECULES = {"hsp90": "HSP90", "synthetic": "synthetic chain"}


@dataclass(frozen=True)
class Request:
    """What was asked for.

    Arguments:
        names: Of experiments, in order.
        profile: One of `PROFILES`.
        seeds: How many repetitions with other simulations and test datasets.
        out: Where results go.
        workers: Processes.
        everything: Whether `all` was asked for, which ends in a page.
    """

    names: Sequence[str]
    profile: str = "quick"
    seeds: int = 1
    out: Path = Path("results/reproduce/quick")
    workers: int = 1
    everything: bool = False

    def command(self, name: str) -> str:
        """A command line that gives the results of one experiment, or of all.

        An absolute folder is left out: it means nothing on another machine.
        """
        words = ["mindist", "reproduce", name, "--profile", self.profile]
        words += ["--seeds", str(self.seeds), "--workers", str(self.workers)]
        if not self.out.is_absolute() and self.out != default_folder(self.profile):
            words += ["--out", self.out.as_posix()]
        return shlex.join(words)


@dataclass(frozen=True)
class Result:
    """What became of one experiment.

    Arguments:
        section: Its part of the page.
        folder: Where its files are; None where it was skipped.
        skipped: Why it was, or None.
    """

    section: Section
    folder: Path | None
    skipped: str | None = None


def default_folder(profile: str) -> Path:
    """Where results go unless said otherwise."""
    return Path("results/reproduce") / profile


def reproduce(
    request: Request, say: Callable[[str], None], *, progress: bool = True
) -> list[Result]:
    """Run what was asked for, one experiment after the other.

    Arguments:
        request: What was asked for.
        say: Called with a line for people at each step.
        progress: Whether the runner shows its jobs.
    """
    output = Output(request.out, request.profile)
    results = []
    for count, name in enumerate(request.names, 1):
        say(f"[{count}/{len(request.names)}] {name}: {EXPERIMENTS[name].shows}")
        result = run_experiment(EXPERIMENTS[name], request, output, progress=progress)
        if result.skipped is not None:
            say(f"  skipped: {result.skipped}")
        else:
            say(f"  {result.section.verdict}")
            say(f"  {result.section.seconds:.0f} s, in {result.folder}")
        results.append(result)
    if request.everything:
        seconds = sum(result.section.seconds or 0.0 for result in results)
        output.write(request.out / "README.md", contents(request, results).encode())
        path = write_page(page(request, results, seconds), index(request))
        say(f"Everything on one page: {path}")
    return results


def index(request: Request) -> Path:
    """The page of a request."""
    return request.out / "index.html"


def run_experiment(
    experiment: Experiment, request: Request, output: Output, *, progress: bool
) -> Result:
    """Compute, draw and write one experiment."""
    reason = None if experiment.unavailable is None else experiment.unavailable()
    if reason is not None:
        section = replace(bare_section(experiment, request), verdict=f"Not run: {reason}")
        return Result(section, None, reason)
    start = time.perf_counter()
    cells = distinct(experiment.cells(request.profile, request.seeds))
    reused = sum(cell in output.store for cell in cells)
    rows = compute(experiment, cells, request, output, progress=progress)
    shown = rows if experiment.prepare is None else experiment.prepare(rows)
    anchors = experiment.anchors if anchors_hold(cells) else {}
    folder = output.place(experiment.name)
    lost = panel_losses(experiment.panels, shown)
    figure = draw(experiment, cells, shown, anchors, request.profile, output)
    section = replace(
        bare_section(experiment, request),
        figure=figure,
        alt=describe_figure(experiment.panels, shown),
        tables=experiment_tables(experiment.panels, shown, anchors),
        verdict="" if experiment.verdict is None else experiment.verdict(shown),
        losses=loss_sentences(lost),
        seconds=time.perf_counter() - start,
    )
    settings = configuration(experiment, request, cells, reused, section)
    if reused == len(cells):
        settings = as_first_computed(settings, read_json(folder / "config.json"))
    section = replace(section, configuration=settings, seconds=settings["seconds"])
    output.write(folder / "rows.parquet", rows_as_parquet(rows))
    tables = markdown(experiment, section, loss_tables(lost), anchors)
    output.write(folder / "table.md", tables.encode())
    output.write(folder / "config.json", as_json(section.configuration))
    return Result(section, folder)


def compute(
    experiment: Experiment,
    cells: Sequence[Cell],
    request: Request,
    output: Output,
    *,
    progress: bool,
) -> Rows:
    """The rows of the experiment's cells, or its own."""
    if experiment.own_rows is None:
        return run(cells, output.store, request.workers, progress=progress)
    make = experiment.own_rows
    key = [asdict(THEOREM_SIZES[request.profile]), request.seeds, METHOD_VERSIONS]
    return output.own_rows(experiment.name, key, lambda: make(request.profile, request.seeds))


def anchors_hold(cells: Sequence[Cell]) -> bool:
    """Whether published values are about the same thing: N = 100, and HSP90, not the chain."""
    options = [cell.bank.options for cell in cells]
    return all(o.get("molecule", "hsp90") == "hsp90" and "num_obs" not in o for o in options)


def draw(
    experiment: Experiment,
    cells: Sequence[Cell],
    shown: Rows,
    anchors: Any,
    profile: str,
    output: Output,
) -> Path:
    """Write the figure as PNG and SVG, and return the second."""
    stem = output.folder / experiment.name / "figure"
    if experiment.illustration == "figure1":
        return draw_figure1(profile, stem)[1]
    figure = draw_figure(
        experiment.panels,
        shown,
        title=experiment.title,
        anchors=anchors,
        material=material(cells, output.store),
    )
    return save_png_and_svg(figure, stem)[1]


def bare_section(experiment: Experiment, request: Request) -> Section:
    """What is known of an experiment before it ran."""
    shows = experiment.shows[:1].upper() + experiment.shows[1:] + "."
    return Section(
        name=experiment.name,
        title=experiment.title,
        shows=" ".join([shows, *experiment.notes]),
        source=experiment.source,
        command=request.command(experiment.name),
    )


def configuration(
    experiment: Experiment,
    request: Request,
    cells: Sequence[Cell],
    reused: int,
    section: Section,
) -> dict[str, Any]:
    """Everything that says how the results came about, without names of hosts or folders."""
    banks = {canonical(cell.bank): asdict(cell.bank) for cell in cells}
    recipes = {canonical(cell.recipe): asdict(cell.recipe) for cell in cells}
    tests = {canonical(cell.test): asdict(cell.test) for cell in cells}
    molecules = {b["options"].get("molecule") for b in banks.values()} - {None}
    return {
        "experiment": experiment.name,
        "source": experiment.source,
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
        "notes": list(experiment.notes),
        "published_values": experiment.anchors_source if anchors_hold(cells) else "",
        "molecules": sorted(MOLECULES[m] for m in molecules),
        "banks": list(banks.values()),
        "recipes": list(recipes.values()),
        "tests": list(tests.values()),
        "theorem_sizes": asdict(THEOREM_SIZES[request.profile]) if not cells else None,
        "versions": versions(),
    }


def as_first_computed(settings: dict[str, Any], before: Any) -> dict[str, Any]:
    """The time and the command of the run that computed all, where this one only drew it again."""
    told = ("command", "seconds", "workers", "cores", "cells_already_stored")
    same = ("experiment", "profile", "seeds", "results_version", "banks", "recipes", "tests")
    settled = json.loads(json.dumps(settings))
    if not isinstance(before, dict) or any(settled[k] != before.get(k) for k in same):
        return settings
    if settled["method_versions"] != before.get("method_versions", {}):  # {}: before there were any
        return settings
    return {**settings, **{name: before[name] for name in told if name in before}}


def contents(request: Request, results: Sequence[Result]) -> str:
    """All experiments in Markdown: what each shows, its verdict, where its table and figure are."""
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
            name = section.name
            lines += [
                f"[Tables, and where MDS loses]({name}/table.md)",
                f"![{section.title}]({name}/figure.png)",
            ]
    return "\n\n".join(lines) + "\n"


def markdown(experiment: Experiment, section: Section, lost: Sequence[Table], anchors: Any) -> str:
    """The tables of an experiment and of what is lost, with the command and the verdict."""
    head = [
        f"# {experiment.title}",
        f"{section.shows} ({experiment.source})",
        f"    {section.command}",
        section.verdict,
        "![Figure](figure.png)",
    ]
    if anchors and experiment.anchors_source:
        head.append(f"Published values: {experiment.anchors_source}")
    tables = tables_in_markdown([*section.tables, *lost], section.losses)
    return "\n\n".join([*head, tables])


def page(request: Request, results: Sequence[Result], seconds: float) -> Page:
    """The page of all experiments."""
    facts = {
        "Profile": f"{request.profile} ({sizes_in_words(request.profile)})",
        "Seeds": str(request.seeds),
        "Machine": f"{os.cpu_count()} cores, {request.workers} workers, {platform.machine()}",
    }
    return Page(
        [result.section for result in results],
        command=request.command("all"),
        versions=versions(),
        seconds=seconds,
        facts=facts,
    )


def sizes_in_words(profile: str) -> str:
    """Training and test datasets of each task."""
    sizes = SIZES[profile]
    return ", ".join(f"{name} {s.simulations:,} + {s.datasets}" for name, s in sizes.items())


def versions() -> dict[str, str]:
    """Of the package, of Python and of what results depend on."""
    found = {"mindist": __version__, "python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


__all__ = ["Request", "Result", "default_folder", "reproduce", "run_experiment"]
