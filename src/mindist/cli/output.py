"""Print and write results: words or a JSON document on stdout, all else on stderr; tables."""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import mindist
from mindist.cli.errors import CommandError, UsageError, extra

DELAY = 2.0  # seconds before a bar is shown: what is quicker needs none
PLAIN_WIDTH = 160  # of tables in a file or a pipe
MAX_LISTED = 20  # datasets, or outliers, that are listed in words
TABLES = (".csv", ".parquet")
COMPLETED = ("completed_mean", "completed_sd")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def on_terminal() -> bool:
    return sys.stderr.isatty()


def print_json(command: str, **values: Any) -> None:
    """Print one JSON document: the command, the version, and the result; NaN becomes null."""
    document = {"command": command, "mindist": mindist.__version__, **values}
    text = json.dumps(document, default=lambda v: v.tolist() if hasattr(v, "tolist") else str(v))
    print(json.dumps(json.loads(text, parse_constant=lambda _: None), indent=2))


def tell(command: str, words: object, as_json: bool, **values: Any) -> None:
    if as_json:
        print_json(command, **values)
    else:
        print(words)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> None:
    """Print a table on stdout; all columns but the first are numbers, to the right."""
    if title:
        print(title)
    table = Table(box=None, pad_edge=False)
    for i, name in enumerate(columns):
        table.add_column(name, justify="right" if i else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console().print(table, markup=False)


def console() -> Console:
    return Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH, highlight=False)


def bar(total: int, what: str) -> Any:
    from tqdm.auto import tqdm

    return tqdm(desc=what, total=total, delay=DELAY, disable=not on_terminal(), leave=False)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show a moving sign on a terminal, for steps of which nobody knows how long they take."""
    with Console(stderr=True).status(f"{what} ...") if on_terminal() else nullcontext():
        yield


def number(value: Any) -> str:
    return f"{float(value):.4g}"


def places(entries: Any) -> list[Any]:
    """Return where entries of a vector are true: numbers, or lists of them for an image."""
    where = entries.nonzero()
    return list((where[:, 0] if entries.dim() == 1 else where).tolist())


def listed(names: Sequence[Any], most: int) -> str:
    return ", ".join(map(str, names[:most])) + (", ..." if names[most:] else "")


def detection_values(observed: Any, index: int, detection: Any) -> dict[str, Any]:
    size = "n_entries" if observed.vectors else "n_obs"
    facts: dict[str, Any] = {"dataset": observed.names[index], size: observed.lengths[index]}
    facts |= {"misspecified": bool(detection.misspecified), "p_value": float(detection.p_value)}
    if observed.vectors:
        return facts | {"missing": places(detection.missing)}
    facts |= {"distance_obs": float(detection.distance_obs), "threshold": detection.threshold}
    return facts | {"s_obs": detection.s_obs.tolist()}


def adaptation_values(observed: Any, index: int, result: Any) -> dict[str, Any]:
    facts = detection_values(observed, index, result) | {"adapted": bool(result.adapted)}
    facts |= {"status": result.status.name.lower(), "message": result.message}
    facts["outliers"] = places(result.outliers)
    if observed.vectors:
        mean, sd = result.completed.mean(0), result.completed.std(0)
        return facts | {k: v.flatten().tolist() for k, v in zip(COMPLETED, (mean, sd), strict=True)}
    facts |= {"s_star": result.s_star.tolist(), "distance_star": float(result.distance_star)}
    return facts | {k: float(getattr(result, k)) for k in ("epsilon", "epsilon_error")}


def parts_of(result: Any) -> dict[str, Any]:
    """Return what is known of each observation of a dataset, or of each entry of a vector."""
    if not isinstance(result, mindist.Completion):
        facts: dict[str, Any] = {"observation": range(len(result.weights))}
        facts |= {"weight": result.weights, "outlier_score": result.outlier_score}
    else:
        every = places(result.missing | True)
        facts = {"entry": [e if isinstance(e, int) else ",".join(map(str, e)) for e in every]}
        facts |= {"observed": result.x_obs, "predicted": result.predicted, "spread": result.spread}
        facts |= {"outlier_score": result.outlier_score, "missing": result.missing}
    facts["outlier"] = result.outliers
    return {k: v.flatten().tolist() if hasattr(v, "flatten") else v for k, v in facts.items()}


def tell_rows(
    command: str, rows: list[Any], alpha: float, what: str, as_json: bool, **more: Any
) -> None:
    if as_json:
        print_json(command, alpha=alpha, datasets=rows, **more)
    elif rows:
        print_verdicts(rows, alpha, what)


def print_written(*paths: Path | None) -> None:
    for path in filter(None, paths):
        print(f"Written: {path}")


def print_verdicts(rows: list[dict[str, Any]], alpha: float, what: str = "dataset") -> None:
    """Say whether datasets could have come from the simulator; of many, which could not."""
    if len(rows) == 1:
        p, level = rows[0]["p_value"], number(alpha)
        verdict = "Misspecified: only" if rows[0]["misspecified"] else "Not misspecified:"
        said = f"{100 * p:.2g}% of simulated {what}s look as odd as this one"
        print(f"{verdict} {said} (p-value {number(p)}, level {level}).")
        return
    found = sorted((r for r in rows if r["misspecified"]), key=lambda row: row["p_value"])
    chance = f"about {number(alpha * len(rows))} would be called so by chance"
    said = f"{len(found)} of {len(rows)} {what}s are misspecified; were none, {chance}"
    print(f"{said} (level {number(alpha)}).")
    if found:
        shown = found[:MAX_LISTED]
        sizes = ["n_obs"] * ("n_obs" in shown[0])
        named = [[str(row[key]) for key in ("dataset", *sizes)] for row in shown]
        cells = [[*n, number(r["p_value"])] for n, r in zip(named, shown, strict=True)]
        title = "" if shown == found else f"The {len(shown)} of them with the lowest p-values:"
        print_table((what, *["observations"] * len(sizes), "p-value"), cells, title)


def check_suffix(path: Path | None, option: str, known: Sequence[str]) -> None:
    """Refuse a name of which the format is not known, and a folder that is not there, at once."""
    if path is None:
        return
    if path.suffix.lower() not in known:
        said = f"a file whose name ends in {', '.join(known)}"
        raise UsageError(f"{option}: expected {said}, got {path.name!r}.")
    if not path.parent.is_dir():
        raise UsageError(f"{option}: there is no folder {path.parent}. Make it first.")


def write_table(path: Path, content: Any) -> None:
    """Write columns by name, or a list of rows, to a file that ends in .csv or .parquet."""
    from mindist.storage import write_whole

    with extra("files"):
        import pandas as pd

        table, csv = pd.DataFrame(content), path.suffix.lower() == ".csv"
        written = table.to_csv(index=False).encode() if csv else table.to_parquet(index=False)
    try:
        write_whole(path, written)
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror or error}.") from error
