"""Arguments and options that several commands share, and what they name: code, folders, files.

Beside an artefact a command leaves a note, `command.json`, of what the user typed. It is text for
messages such as "it was fitted with --summary model.py:summary": nothing in it is ever executed.
"""

import importlib
import inspect
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache, reduce
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

from typer import Argument, Option

import mindist
from mindist.cli.errors import USER_FILES, CommandError, UsageError, extra
from mindist.cli.output import say, waiting

NAME, RANDOM = "FILE.py:NAME", "Of everything random"
LEVEL = "Share of well-specified datasets that may be called misspecified; "

MdsFolder = Annotated[Path, Argument(metavar="MDS", help="The folder that `mindist fit` wrote.")]
BANK = "The folder that `mindist simulate` wrote."
BankFolder = Annotated[Path, Argument(metavar="BANK", help=BANK)]
FILES = "Observed data: .csv, .npy, .npz, .parquet, .h5 or .zarr."
DataFile = Annotated[Path, Argument(metavar="DATA", help=FILES)]
A_SUMMARY = "The summary function: datasets (B, N, ...) to summaries (B, d). Its file is executed."
Summary = Annotated[str | None, Option("--summary", metavar=NAME, help=A_SUMMARY)]
A_PRIOR = "An object with .sample((n,)) (and .log_prob), or a function of n."
Prior = Annotated[str | None, Option("--prior", metavar=NAME, help=f"The prior. {A_PRIOR}")]
A_POSTERIOR = "A folder of `mindist train` (with --prior), FILE.py:NAME, or sbi's pickle (--trust)."
Posterior = Annotated[str | None, Option("--posterior", metavar="POSTERIOR", help=A_POSTERIOR)]
PICKLE = "Unpickle the posterior. A pickle is a program, which this executes."
Trust = Annotated[bool, Option("--trust", help=PICKLE)]
THETA = "Names of the parameters, for the output."
ThetaNames = Annotated[str | None, Option("--names", metavar="A,B,...", help=THETA)]
OBSERVATION = "Columns of a table that are the observation; else all numbers."
Columns = Annotated[str | None, Option(metavar="A,B,...", help=OBSERVATION)]
DATASET = "Column of a table that names the dataset of each row."
DatasetColumn = Annotated[str | None, Option(metavar="COLUMN", help=DATASET)]
ARRAY = "Array in a file that holds several; '*' for all."
Key = Annotated[str | None, Option(metavar="NAME", help=ARRAY)]
MISSING = "What becomes of observations with missing values; error by default."
MissingValues = Annotated[Literal["error", "drop"] | None, Option("--missing", help=MISSING)]
Alpha = Annotated[float | None, Option(min=0, max=1, help=f"{LEVEL}else as fitted.")]
Seed = Annotated[int, Option("--seed", help=f"{RANDOM}.", min=0)]
DOCUMENT = "Print one JSON document to stdout, and all else to stderr."
Json = Annotated[bool, Option("--json", help=DOCUMENT)]
IN_FILE: dict[str, Any] = {"columns": Columns, "key": Key}
OBSERVED = {"summary": Summary, "dataset_column": DatasetColumn, "missing": MissingValues}
OBSERVED |= {"alpha": Alpha, **IN_FILE}
ASKED = {"posterior": Posterior, "prior": Prior, "trust": Trust, "names": ThetaNames}


def takes(shared: dict[str, Any]) -> Callable[[Any], Any]:
    """Let a command take options as its `**told`: None by default, False where they are flags."""

    def taking(command: Any) -> Any:
        signature = inspect.signature(command)
        *own, _ = signature.parameters.values()
        for name, kind in shared.items():
            how: Any = {"default": False if kind is Trust else None, "annotation": kind}
            own.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, **how))
        command.__signature__ = signature.replace(parameters=own)
        command.__annotations__ |= shared
        return command

    return taking


def split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",")]


SUMMARY = ("summary", "summary function")
NOTE, SELFTEST = "command.json", "selftest.json"
WRITERS = dict.fromkeys(("MinimumDistance", "Entrywise"), "mindist fit")
WRITERS["NeuralPosterior"] = "mindist train"
MAX_TEXT = 200  # characters of a note that are shown
POSTERIORS = "a folder that `mindist train` wrote, file.py:name, or a pickle of sbi's with --trust"


def write_note(folder: Path, file: str = NOTE, **words: Any) -> None:
    from mindist.storage import write_whole

    write_whole(folder / file, (json.dumps(words, indent=2) + "\n").encode())


def noted(folder: Path, option: str) -> str | None:
    """Return what was typed for an option: short and printable, for anybody may have written it."""
    from mindist.storage import read_json

    try:
        words = read_json(folder / NOTE)
    except (OSError, ValueError):
        return None
    text = words.get(option) if isinstance(words, dict) else None
    return text[:MAX_TEXT] if isinstance(text, str) and text.isprintable() else None


def open_bank(folder: Path) -> Any:
    if not folder.exists():
        raise UsageError(f"BANK: there is no folder {folder}. `mindist simulate` makes one.")
    if not (folder / "zarr.json").is_file():
        file = " A file of simulated vectors is for --entrywise." if folder.is_file() else ""
        raise UsageError(f"BANK: {folder} is not a bank that `mindist simulate` wrote.{file}")
    bank = mindist.SimulationBank.open(folder)
    if not bank.complete:
        then = "Run the `mindist simulate` that began it again; it goes on where it stopped."
        raise CommandError(f"BANK: {folder} is not complete: {bank.report()} {then}")
    return bank


def load(folder: Path, path: Path, *, seed: int | None = None, **told: Any) -> tuple[Any, Any]:
    """Load a fitted estimator, with another level or seed where given, and data for it."""
    summary, dataset, missing, alpha, columns, key = (told.pop(name) for name in OBSERVED)
    from mindist.storage import read_json

    estimator: Any
    with waiting("Loading"):
        if check_artefact(folder, "MDS", "mindist fit") == "Entrywise":
            why = f"with {folder}, which `mindist fit --entrywise` wrote"
            refuse(why, summary=summary, missing=missing, **told)
            estimator, missing = mindist.Entrywise.load(folder), "keep"
        else:
            name = need(*SUMMARY, summary, noted(folder, "summary"), folder)
            estimator = mindist.MinimumDistance.load(folder, load_user_code(name, "--summary"))
            with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
                # what `mindist fit --selftest` left, if it is there and whole
                estimator.selftest_ = mindist.SelfTest.from_dict(read_json(folder / SELFTEST))
        estimator.alpha = estimator.alpha if alpha is None else alpha
        estimator.seed = estimator.seed if seed is None else seed
        how = {"event_shape": estimator.event_shape, "dataset": dataset}
        return estimator, read_data(path, columns, key, missing=missing or "error", **how)


def read_data(path: Path, columns: str | None, key: str | None, **how: Any) -> Any:
    if not path.exists():
        raise UsageError(f"DATA: there is no file {path}.")
    return mindist.read_observed(path, columns=columns and split(columns), key=key, **how)


def refuse(why: str, **given: Any) -> None:
    """Raise where an option was given that has no use."""
    for name, value in given.items():
        if value is not None and value is not False:
            raise UsageError(f"--{name.replace('_', '-')}: has no use {why}. Leave it out.")


def check_artefact(folder: Path, argument: str, command: str) -> str:
    """Return the kind of what a folder holds; raise where another command wrote it."""
    from mindist.storage import JSON_NAME, read_json

    give = f"Give the folder that `{command}`"
    if not folder.exists():
        raise UsageError(f"{argument}: there is no folder {folder}. `{command}` makes one.")
    if (folder / "zarr.json").is_file():
        raise UsageError(f"{argument}: {folder} is a bank of simulations. {give} made of it.")
    if not (folder / JSON_NAME).is_file():
        raise UsageError(f"{argument}: {folder} is not a folder that `{command}` wrote.")
    header = read_json(folder / JSON_NAME)  # loading the rest finds out whether it is true
    kind = str(header.get("kind")) if isinstance(header, dict) else ""
    if WRITERS.get(kind, command) != command:
        raise UsageError(f"{argument}: {folder} was written by `{WRITERS[kind]}`. {give} wrote.")
    return kind


def need(option: str, what: str, given: str | None, known: str | None = None, of: Any = "") -> str:
    """Return the name of some code, or raise an error that says which the folder was made with."""
    if given is not None:
        return given
    hint = f" {of} was made with --{option} {known}." if known else ""
    raise UsageError(f"Name the {what}: --{option} file.py:name.{hint}")


def load_posterior(posterior: str | None, prior: str | None, *, trust: bool) -> Any:
    """Load a posterior over summaries: a folder (with its prior), Python code, or a pickle."""
    if posterior is None:
        raise UsageError(f"Name the posterior: --posterior, {POSTERIORS}.")
    path = Path(posterior)
    if path.is_dir():
        check_artefact(path, "--posterior", "mindist train")
        known = noted(path, "prior")
        loaded = load_prior(need("prior", "prior of the posterior", prior, known, path))
        with extra("sbi"):
            from mindist.posteriors import sbi_storage
        return sbi_storage.load_posterior(path, loaded)[0]
    if path.suffix == ".py":
        raise UsageError(f"--posterior: name the object in {path}: {path}:NAME.")
    if path.is_file() and not trust:
        raise UsageError(
            f"--posterior: {path} is a pickle, and to load one is to run the program in it: "
            "whoever wrote the file can do with it all that you can do on this machine. If you "
            "made it yourself, or trust whoever did and the way it came, add --trust."
        )
    if path.is_file():
        from mindist.posteriors import load_pickled_posterior

        return load_pickled_posterior(path, trust=True)
    if ":" in posterior:
        return load_user_code(posterior, "--posterior")
    raise UsageError(f"--posterior: expected {POSTERIORS}; there is no {posterior}.")


def load_prior(name: str) -> Any:
    thing = load_user_code(name, "--prior")
    with extra("sbi"):
        from mindist.posteriors.sbi_training import as_distribution
    prior, bounded = as_distribution(thing)
    if not bounded:
        said = "the prior is a function, so posterior samples are not cut off at its bounds"
        say(f"Note: {said}. A torch distribution as the prior would do that.")
    return prior


def load_user_code(name: str, option: str) -> Any:
    """Return the object called so, such as `model.py:task.simulate`; `option` is for messages."""
    where, _, attribute = name.rpartition(":")
    if not (where and attribute):
        raise UsageError(f"{option}: expected module:attribute or file.py:attribute, got {name!r}.")
    path = Path(where).expanduser().resolve()
    if where.endswith(".py") and not path.is_file():
        raise UsageError(f"{option}: there is no file {path}.")
    module = _run(path) if where.endswith(".py") else _import(where, option)
    if getattr(module, "__file__", None):
        USER_FILES.add(Path(str(module.__file__)).resolve())
    try:
        return reduce(getattr, attribute.split("."), module)
    except AttributeError:
        own = [k for k, v in vars(module).items() if k[0] != "_" and not isinstance(v, ModuleType)]
        known = f"It has {', '.join(sorted(own)[:20])}." if own else "It defines nothing."
        raise UsageError(f"{option}: {where} has no {attribute!r}. {known}") from None


@cache  # each is executed once: its parts may belong together
def _run(path: Path) -> ModuleType:
    # Not in sys.modules: its functions are pickled by value. Its neighbours can be imported.
    module = ModuleType(f"{path.stem} (named on the command line)")
    module.__file__ = str(path)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    USER_FILES.add(path)
    exec(compile(path.read_text(encoding="utf-8"), path, "exec"), module.__dict__)
    return module


def _import(name: str, option: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and not f"{name}.".startswith(f"{error.name}."):
            raise  # the module is there, and what it imports is not
        raise UsageError(f"{option}: no module named {name!r}; a file ends in .py.") from None
