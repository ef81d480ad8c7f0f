"""The benchmark as a whole: every group, on one thread and on all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from mindist.storage import write_whole
from mindist_paper.benchmark.adaptation import adaptation_rows
from mindist_paper.benchmark.decoder import decoder_rows
from mindist_paper.benchmark.detection import detection_rows
from mindist_paper.benchmark.embedding import embedding_rows
from mindist_paper.benchmark.growth import measure_growth, memory_rows
from mindist_paper.benchmark.material import Material
from mindist_paper.benchmark.overhead import overhead_rows
from mindist_paper.benchmark.queries import query_rows
from mindist_paper.benchmark.record import Record
from mindist_paper.benchmark.row import Row
from mindist_paper.benchmark.sizes import PROFILES
from mindist_paper.benchmark.table import markdown
from mindist_paper.benchmark.timing import all_threads, num_threads
from mindist_paper.report.growth import draw_growth

TIMED: dict[str, Callable[[Material, int], list[Row]]] = {
    "embedding": embedding_rows,
    "decoder": decoder_rows,
    "adaptation": adaptation_rows,
    "detection": detection_rows,
    "overhead": overhead_rows,
    "queries": query_rows,
}
"""Groups that are measured on one thread and on all."""

GROUPS = (*TIMED, "memory", "growth")
TABLE_NAME, CACHE_NAME = "table.md", "cache"

Say = Callable[[str], None]


def run(profile: str, folder: Path, groups: Sequence[str] = GROUPS, say: Say = print) -> Record:
    """Measure groups, and write JSON, table and figures to a folder after each.

    Arguments:
        profile: A key of `PROFILES`.
        folder: Where to write; simulations that take long are kept there too.
        groups: Which of `GROUPS`.
        say: Told what is being done.
    """
    sizes, record = PROFILES[profile], Record.open(folder, profile)
    material = Material(sizes, folder / CACHE_NAME)
    for group in groups:
        if group in TIMED:
            rows = _on_threads(TIMED[group], material, group, say)
        elif group == "memory":
            say("memory ...")
            rows = memory_rows(sizes)
        else:
            say("growth ...")
            record.put_lines(list(measure_growth(sizes, say)))
            rows = [row for line in record.lines for row in line.rows()]
        record.put(group, rows)
        write(record, folder)
    return record


def write(record: Record, folder: Path) -> None:
    """JSON, table and figures."""
    record.write(folder)
    quantities = dict.fromkeys(line.quantity for line in record.lines)
    figures = [
        draw_growth(
            quantity,
            [line for line in record.lines if line.quantity == quantity],
            folder / f"growth-{quantity}.png",
        ).name
        for quantity in quantities
    ]
    write_whole(folder / TABLE_NAME, markdown(record, figures).encode())


def _on_threads(
    rows_of: Callable[[Material, int], list[Row]], material: Material, group: str, say: Say
) -> list[Row]:
    rows: list[Row] = []
    for threads in sorted({1, all_threads()}):
        say(f"{group}, {threads} thread{'s' if threads > 1 else ''} ...")
        with num_threads(threads):
            rows += rows_of(material, threads)
    return rows


__all__ = ["GROUPS", "TABLE_NAME", "TIMED", "run", "write"]
