"""The command line: parse, call, print, and no mathematics.

May import: everything, but within the functions of commands, so that `mindist --help` is quick.
"""

import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Literal

try:
    import rich  # noqa: F401
    import typer
except ModuleNotFoundError as error:  # the message is all that a user of the command wants to see
    install = "pip install 'mindist[cli]'"
    said = f"The command needs {error.name}, which is not installed. Install it with: {install}"
    raise SystemExit(said) from None

from typer import Argument, Option
from typer.core import TyperGroup

import mindist
from mindist.cli import errors, options, output
from mindist.cli.errors import UsageError, extra
from mindist.cli.options import load, load_posterior, load_user_code, need, refuse
from mindist.cli.output import MAX_LISTED, TABLES, bar, number, on_terminal, say, tell, waiting

DATA, PAPER = "Your model and your data, in this order", "The paper"
FIGURE, VERSION = Path("results/demo/figure1.png"), "Say which, and exit."
ELSEWHERE = ("tasks", "reproduce", "bench")  # the commands of mindist-paper


class Commands(TyperGroup):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse; --debug may stand anywhere, such as at the end of a line that failed."""
        rest = [word for word in args if word != "--debug"]
        return super().parse_args(ctx, ["--debug"] * (len(rest) < len(args)) + rest)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in ELSEWHERE and args[0] not in self.commands:
            install = "pip install -c constraints.txt -e '.[cli,demo]' -e paper"
            said = f"`mindist {args[0]}` belongs to mindist-paper, which is not installed."
            raise UsageError(f"{said} In a clone of the repository: {install}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with errors.spoken(debug=ctx.params.get("debug", False)):
            return super().invoke(ctx)


app = typer.Typer(
    cls=Commands,
    epilog="Status: 0 fine, 1 an error, 2 a mistake in the command line, 3 (check) misspecified.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"mindist {mindist.__version__}")
        raise typer.Exit


@app.callback()
def main(
    debug: Annotated[bool, Option("--debug", help="Show tracebacks of errors.")] = False,
    version: Annotated[bool, Option("--version", help=VERSION, callback=_version)] = False,
) -> None:
    """Minimum-distance summaries: check and repair amortised inference on suspicious data."""


A_SIMULATOR, FAILURES = "One theta to a dataset (N, ...).", "What becomes of draws that fail."
KEEP = "What is kept of the data; `data` is all, and can be large."
BANDWIDTH = "Of the kernel: median, '0.5 median', a number."
REPRESENTATION = "What the kernel sees: auto, raw, standardised, signed-log, ..."
DRY_RUN = "Only say what it takes: time, memory, disk."


def simulate(
    prior: Annotated[
        str, Argument(metavar="PRIOR", help=f"{options.NAME} or module:name. {options.A_PRIOR}")
    ],
    simulator: Annotated[str, Argument(metavar="SIMULATOR", help=f"{options.NAME}. {A_SIMULATOR}")],
    num: Annotated[int, Option(help="How many datasets.", min=1)],
    n_obs: Annotated[int, Option(help="Observations of each.", min=1)],
    summary: options.Summary = None,
    out: Annotated[Path | None, Option(help="Folder of the bank.")] = None,
    workers: Annotated[int, Option(help="Processes.", min=1)] = 1,
    seed: options.Seed = 0,
    keep: Annotated[Literal["embedding", "data"], Option(help=KEEP)] = "embedding",
    bandwidth: Annotated[str, Option(help=BANDWIDTH)] = "median",
    representation: Annotated[str, Option(help=REPRESENTATION)] = "auto",
    chunk: Annotated[int | None, Option(help="Datasets in a chunk.", min=1)] = None,
    time_limit: Annotated[float | None, Option(help="Seconds for a simulation.")] = None,
    failures: Annotated[Literal["redraw", "report", "raise"], Option(help=FAILURES)] = "redraw",
    dry_run: Annotated[bool, Option("--dry-run", help=DRY_RUN)] = False,
    json: options.Json = False,
) -> None:
    """Simulate datasets into a bank on disk, or go on with one. Executes the files it names."""
    if out is None and not dry_run:
        raise UsageError("Say where to: --out FOLDER, or what it takes: --dry-run.")
    function = need(*options.SUMMARY, summary)
    loaded = load_user_code(prior, "PRIOR"), load_user_code(simulator, "SIMULATOR")
    sources = (*loaded, load_user_code(function, "--summary"))
    from mindist.simulation import build

    # The estimator that the bank is for decides how data are embedded.
    width = number_or_word(bandwidth)
    mds = mindist.MinimumDistance(sources[2], bandwidth=width, representation=representation)
    settings: dict[str, Any] = {"n_obs": n_obs, "workers": workers, "seed": seed, "keep": keep}
    settings |= {"failures": failures, "chunk": chunk, "time_limit": time_limit, "mds": mds}
    values: dict[str, Any] = {"dry_run": out is None or dry_run}
    if out is None or dry_run:
        expected = build.estimate(*sources, num, **settings)
        values |= {"datasets": num, "n_obs": n_obs, "chunks": expected.schema.num_chunks}
        values |= {"seconds": expected.seconds, "seconds_each": expected.each}
        values |= {"timed": expected.timed, "memory_bytes": int(expected.memory)}
        tell("simulate", expected, json, **values, disk_bytes=int(expected.disk))
        return
    begin = time.monotonic()
    with errors.interruptible("The same command goes on from here."), extra("bank"):
        bank = build.simulate(*sources, num, out=out, **settings)
    seconds = time.monotonic() - begin
    values |= {"out": out, "datasets": int(bank.valid[:].sum()), "n_obs": bank.num_obs}
    values["shapes"] = {"theta": bank.theta.shape[1:], "s": bank.s.shape[1:]}
    values["failed"] = dict(Counter(failure.kind for failure in bank.failures))
    words = f"{bank.report()} They are in {out} ({seconds:.0f} s)."
    tell("simulate", words, json, **values, seconds=seconds)


def number_or_word(text: str) -> float | str:
    """Return a bandwidth: a number, or a rule in words such as `0.5 median`."""
    with suppress(ValueError):
        return float(text)
    return text


MAX_EPOCHS, ANOTHER = 2**31 - 1, "Another than the bank was simulated with."
PRESET = "The best we know, or the paper to the letter (--keep data)."
ALPHA, SEED = f"{options.LEVEL}0.05 by default.", f"{options.RANDOM}; else as of the bank."
SELFTESTED = "Test it on contaminated simulations; say what it mends."
ESTIMATOR, EPOCHS = "One of sbi's: nsf, maf, mdn, ...", "At most; else until it no longer improves."
ENTRYWISE = "For one vector per object: the summaries of a bank, or a file of simulated vectors."
GROUPS = "Entries that fail together: auto, or the group of each entry, as 0,0,1,..."
EMBEDDING = ("bandwidth", "representation", "num_features", "frequencies", "seed")


@options.takes(options.IN_FILE)
def fit(
    bank: options.BankFolder,
    out: Annotated[Path, Option(help="Folder of the fitted estimator.")],
    summary: options.Summary = None,
    preset: Annotated[Literal["default", "paper"], Option(help=PRESET)] = "default",
    bandwidth: Annotated[str | None, Option(help=ANOTHER)] = None,
    representation: Annotated[str | None, Option(help=ANOTHER)] = None,
    alpha: Annotated[float | None, Option(min=0, max=1, help=ALPHA)] = None,
    seed: Annotated[int | None, Option(min=0, help=SEED)] = None,
    selftest: Annotated[bool, Option("--selftest", help=SELFTESTED)] = False,
    entrywise: Annotated[bool, Option("--entrywise", help=ENTRYWISE)] = False,
    groups: Annotated[str | None, Option(metavar="GROUPS", help=GROUPS)] = None,
    json: options.Json = False,
    **told: Any,
) -> None:
    """Fit an estimator to simulations: it can then check any data."""
    if entrywise:
        of_datasets: Any = {"bandwidth": bandwidth, "representation": representation}
        of_datasets |= {"summary": summary, "preset": preset == "paper", "selftest": selftest}
        refuse("with --entrywise", **of_datasets)
        return fit_entrywise(bank, out, groups, {"alpha": alpha, "seed": seed}, json, told)
    refuse("without --entrywise", groups=groups, **told)
    with waiting("Opening the bank"), extra("bank"):
        simulations = options.open_bank(bank)
    known = simulations.config.get("functions", {}).get("summary")  # its file is not known
    own = f"file.py:{known}" if isinstance(known, str) and known.isidentifier() else None
    name = need(*options.SUMMARY, summary, own, bank)
    function = load_user_code(name, "--summary")
    width = None if bandwidth is None else number_or_word(bandwidth)
    asked = {"bandwidth": width, "representation": representation, "seed": seed, "alpha": alpha}
    given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    if preset == "paper":
        if "representation" in given:
            raise UsageError("--representation: the paper's preset has its own. Leave it out.")
        mds = mindist.MinimumDistance.paper(function, **given)
    else:  # embed as the bank's embeddings were made, unless told not to
        stored = simulations.config.get("embedding", {})
        given = {k: stored[k] for k in EMBEDDING if k in stored} | given
        mds = mindist.MinimumDistance(function, **given)
    begin = time.monotonic()
    if on_terminal():
        say("Fitting: choosing what the kernel sees, reading the bank, calibrating ...")
    mds.fit(simulations, progress=on_terminal())
    mds.save(out)
    options.write_note(out, summary=name, bank=str(bank))
    tested = {}
    if selftest:
        with waiting("Contaminating simulations on purpose"):
            tested["selftest"] = mds.selftest().to_dict()
        options.write_note(out, options.SELFTEST, **tested["selftest"])
    seconds, num, dim = time.monotonic() - begin, len(simulations), simulations.s.shape[1]
    n_obs, shape = mds.fitted_.num_obs, tuple(mds.event_shape)
    width = float(mds.fitted_.embedding.features.bandwidth)
    words = (
        f"Fitted to {num:,} datasets of {n_obs} observations of shape {shape}, with summaries of "
        f"length {dim}; bandwidth {number(width)}. It is in {out} ({seconds:.0f} s)."
    )
    words += f"\n\n{mds.selftest_}" if selftest else ""
    sizes = {"datasets": num, "n_obs": n_obs, "event_shape": shape, "dim_summary": dim}
    level = {"alpha": mds.alpha, "threshold": mds.fitted_.null.threshold(mds.alpha, n_obs)}
    kernel = {"bandwidth": width, "seed": mds.seed}
    tell("fit", words, json, out=out, **sizes, **level, **kernel, seconds=seconds, **tested)


def fit_entrywise(path: Path, out: Path, groups: Any, given: Any, json: bool, told: Any) -> None:
    """Fit to vectors: the summaries of a bank, or what a file holds."""
    import numpy as np

    begin = time.monotonic()
    if path.is_file() or path.suffix == ".zarr":
        x = np.asarray(options.read_data(path, **told, missing="keep").stack())
    else:
        refuse("with a bank", **told)
        bank = options.open_bank(path)
        x = bank.s[:][bank.valid[:]]
    if groups not in (None, "auto"):
        try:
            groups = np.array(options.split(groups), dtype=int).reshape(x.shape[1:])
        except ValueError:
            said = f"'auto', or {x[0].size} numbers separated by commas, one for each entry"
            raise UsageError(f"--groups: expected {said}, got {groups!r}.") from None
    own = {name: value for name, value in given.items() if value is not None}
    with waiting("Fitting"):
        entries = mindist.Entrywise(groups=groups, **own).fit(x)
        entries.save(out)
    options.write_note(out, bank=str(path))
    seconds, num, shape = time.monotonic() - begin, len(x), tuple(entries.event_shape)
    words = f"Fitted to {num:,} vectors of shape {shape}. It is in {out} ({seconds:.0f} s)."
    values: Any = {"vectors": num, "event_shape": shape, "seconds": seconds}
    tell("fit", words, json, out=out, alpha=entries.alpha, seed=entries.seed, **values)


def train(
    bank: options.BankFolder,
    out: Annotated[Path, Option(help="Folder of the posterior.")],
    prior: options.Prior = None,
    density_estimator: Annotated[str, Option(help=ESTIMATOR)] = "nsf",
    max_epochs: Annotated[int | None, Option(help=EPOCHS, min=1)] = None,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Train a neural posterior (sbi's NPE) on the summaries of a bank."""
    prior = need("prior", "prior that the bank was simulated with", prior)
    with waiting("Loading sbi"), extra("cli"):
        from mindist.posteriors.sbi_storage import ESTIMATORS, save_posterior
        from mindist.posteriors.sbi_training import check_prior, train_npe
    errors.check_choice(density_estimator, ESTIMATORS, "density estimator")
    simulations = options.open_bank(bank)
    distribution = options.load_prior(prior)
    check_prior(distribution, simulations.theta.shape[1:], "bank")
    begin = time.monotonic()
    how: Any = {"density_estimator": density_estimator, "seed": seed}
    how |= {"max_num_epochs": max_epochs or MAX_EPOCHS, "show_progress": on_terminal()}
    with redirect_stdout(sys.stderr):  # sbi prints; stdout is for the result
        posterior = train_npe(distribution, simulations, **how)
    save_posterior(out, posterior, density_estimator=density_estimator)
    options.write_note(out, prior=prior, bank=str(bank))
    seconds, num = time.monotonic() - begin, len(simulations)
    dim_theta, dim_s = simulations.theta.shape[1], simulations.s.shape[1]
    words = (
        f"Trained on {num:,} datasets: {dim_theta} parameters given {dim_s} summaries "
        f"({density_estimator}). It is in {out} ({seconds:.0f} s)."
    )
    sizes = {"datasets": num, "dim_theta": dim_theta, "dim_s": dim_s, "seconds": seconds}
    tell("train", words, json, out=out, density_estimator=density_estimator, **sizes)


SUMMARIES, VECTORS = ("s_obs", "s_star"), ("vector", "outliers", "missing", "status")
ADAPTED = ("dataset", "contaminated share", "outliers", "observed summary", "used summary")
FORCE = "Adapt every dataset, misspecified or not."
OUT = "Table of datasets: .csv or .parquet; a row for each."
OBSERVATIONS = "Table of observations: .csv or .parquet; weight and outlier score."


def _each(observed: Any, ask: Any) -> Iterator[tuple[int, Any]]:
    """Yield the number of each dataset and what an estimator says of it, batch by batch."""
    for batch in observed.batches():
        yield from zip(batch.index, ask(batch.x), strict=True)


@options.takes(options.OBSERVED)
def check(
    mds: options.MdsFolder, data: options.DataFile, json: options.Json = False, **told: Any
) -> None:
    """Test observed data against the simulations. Status 0: none misspecified; 3: some are."""
    estimator, observed = load(mds, data, **told)
    rows: list[Any] = [None] * len(observed)
    with bar(len(observed), "Checking") as shown:
        for index, detection in _each(observed, estimator.detect):
            rows[index] = output.detection_values(observed, index, detection)
            shown.update()
    found = any(row["misspecified"] for row in rows)
    output.tell_rows("check", rows, estimator.alpha, observed.what, json, misspecified=found)
    if found:
        raise typer.Exit(errors.MISSPECIFIED)


@options.takes(options.OBSERVED)
def adapt(
    mds: options.MdsFolder,
    data: options.DataFile,
    force: Annotated[bool, Option("--force", help=FORCE)] = False,
    out: Annotated[Path | None, Option(help=OUT)] = None,
    observations: Annotated[Path | None, Option(help=OBSERVATIONS)] = None,
    seed: Annotated[int | None, Option(help="Of the search; else as fitted.", min=0)] = None,
    json: options.Json = False,
    **told: Any,
) -> None:
    """Find which observations, or entries of a vector, are wrong; what to ask a posterior at."""
    output.check_suffix(out, "--out", TABLES)
    output.check_suffix(observations, "--observations", TABLES)
    estimator, observed = load(mds, data, **told, seed=seed, force=force)
    streamed = not observed.vectors
    stream: Any = estimator.adapt_stream(observed, force=force) if streamed else None
    rows: dict[int, dict[str, Any]] = {}
    columns_of: dict[str, list[Any]] = {}  # the table of observations, where it was asked for
    with bar(len(observed), "Adapting") as shown:
        for index, result in stream or _each(observed, estimator.adapt):
            rows[index] = output.adaptation_values(observed, index, result)
            which = {"dataset": [observed.names[index]] * observed.lengths[index]}
            which |= output.parts_of(result)
            for key, column in which.items() if observations is not None else ():
                columns_of.setdefault(key, []).extend(column)
            shown.update()
    failed = stream.report.failures if streamed else ()
    left = [failure for failure in failed if failure.index not in rows]
    failures = [{"dataset": observed.names[f.index], "message": f.message} for f in left]
    found = list(rows.values())
    if out is not None:
        output.write_table(out, [_flat(row) for row in found])
    if observations is not None:
        output.write_table(observations, columns_of)
    output.tell_rows("adapt", found, estimator.alpha, observed.what, json, failures=failures)
    if not json:
        if len(found) == 1:
            _print_one(found[0], result)
        elif many := [_adapted(row) for row in found if row["adapted"]]:
            title = f", the first {MAX_LISTED}" if len(many) > MAX_LISTED else ""
            names = VECTORS if observed.vectors else ADAPTED
            output.print_table(names, many[:MAX_LISTED], f"Adapted{title}:")
        for failure in failures:
            say(f"Error: dataset {failure['dataset']}: {failure['message']}")
        output.print_written(out, observations)
    if failures:
        raise typer.Exit(errors.FAILURE)


def _adapted(row: dict[str, Any]) -> tuple[str, ...]:
    name, outliers = str(row["dataset"]), str(len(row["outliers"]))
    if "s_star" not in row:
        return name, outliers, str(len(row["missing"])), row["status"]
    summaries = (f"[{', '.join(map(number, row[key]))}]" for key in SUMMARIES)
    return name, number(row["epsilon"]), outliers, *summaries


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with a column for each number of a list, and how many outliers there are."""
    wide = [name for name in (*SUMMARIES, *output.COMPLETED) if name in row]
    counts = {name: len(row[name]) for name in ("outliers", "missing") if name in row}
    flat = {key: value for key, value in row.items() if key not in wide} | counts
    return flat | {f"{name}_{i}": v for name in wide for i, v in enumerate(row[name])}


def _print_one(values: dict[str, Any], result: Any) -> None:
    """Say what was done about one dataset, with observations counted from 0 as in Python."""
    print(f"{values['message'][:1].upper()}{values['message'][1:]}.")
    if "s_star" in values:
        total, what, columns = values["n_obs"], "observations", ["", "observed", "used"]
        pairs = zip(values["s_obs"], values["s_star"], strict=True)
        rows = [[f"s_{i}", number(a), number(b)] for i, (a, b) in enumerate(pairs)]
        rows.append(["distance", number(values["distance_obs"]), number(values["distance_star"])])
    else:
        total, what, parts = values["n_entries"], "entries", output.parts_of(result)
        columns, every = list(parts)[:-2], zip(*parts.values(), strict=True)
        odd = [entry[:-2] for entry in every if any(entry[-2:])]  # missing, or an outlier
        rows = [[str(place), *map(number, facts)] for place, *facts in odd[:MAX_LISTED]]
    if rows:
        output.print_table(columns, rows)
    if values["adapted"] and "epsilon" in values:
        epsilon, error = number(values["epsilon"]), number(values["epsilon_error"])
        print(f"Contaminated share: {epsilon} (standard error {error}).")
    for name in ("outliers", "missing"):
        if found := values.get(name):
            listed = output.listed(found, MAX_LISTED)
            print(f"{name.capitalize()}: {len(found)} of {total} {what}, counted from 0: {listed}.")
    if not values["outliers"]:
        print(f"None of the {total} {what} is an outlier.")


NETCDF, NUMPY, DRAWN = ".nc", ".npy", "File of samples: .nc (ArviZ), .csv, .parquet or .npy."
FORMATS, QUANTILES = (NETCDF, *TABLES, NUMPY), (0.05, 0.5, 0.95)
STATISTICS = ("mean", "sd", "q05", "q50", "q95")


@options.takes(options.ASKED | options.OBSERVED)
def sample(
    mds: options.MdsFolder,
    data: options.DataFile,
    num: Annotated[int, Option(help="Samples for each dataset.", min=1)] = 1_000,
    out: Annotated[Path | None, Option(help=DRAWN)] = None,
    seed: options.Seed = 0,
    json: options.Json = False,
    **told: Any,
) -> None:
    """Draw from the robust posterior: given the data as observed, or as adapted if need be."""
    output.check_suffix(out, "--out", FORMATS)
    posterior, prior, trust, names = (told.pop(name) for name in options.ASKED)
    estimator, observed = load(mds, data, **told)
    with waiting("Loading the posterior"):
        import numpy as np

        robust = mindist.RobustPosterior(load_posterior(posterior, prior, trust=trust), estimator)
    ending = None if out is None else out.suffix.lower()
    if ending in (NETCDF, NUMPY) and len(observed) > 1:
        said = f"a {ending} file holds the samples of one dataset, and {data} has {len(observed)}."
        raise UsageError(f"--out: {said} Write a .csv or .parquet, which has a column `dataset`.")
    drawn, rows = [], []
    with bar(len(observed), "Sampling") as shown:
        for index, x in enumerate(observed):  # each from a seed of its own
            drawn.append(robust.sample((num,), x=x, seed=seed + index).cpu())
            rows.append(output.adaptation_values(observed, index, robust.adapt(x)))  # remembered
            shown.update()
    dim = drawn[0].shape[1]
    labels = [f"theta_{i}" for i in range(dim)] if names is None else options.split(names)
    if len(labels) != dim or len(set(labels)) != dim:
        said = f"{dim} different names, separated by commas"
        raise UsageError(f"--names: expected {said}, got {names!r}.")
    if ending == NETCDF:
        with extra("arviz"):
            stored = robust.to_arviz(observed[0], num_samples=num, names=labels, seed=seed)
        stored.to_netcdf(str(out))
    elif ending == NUMPY:
        np.save(str(out), drawn[0].numpy())
    elif out is not None:
        table = dict(zip(labels, np.concatenate(drawn).astype(float).T, strict=True))
        which = np.repeat(observed.names, [len(samples) for samples in drawn])
        output.write_table(out, {"dataset": which} | table if len(drawn) > 1 else table)
    for row, samples in zip(rows, drawn, strict=True):
        row |= {"num_samples": len(samples), "posterior": _statistics(samples, labels)}
    asked: dict[str, Any] = {"parameters": labels, "out": out}
    output.tell_rows("sample", rows, estimator.alpha, observed.what, json, **asked)
    if json:
        return
    adapted, kept = "at the adapted summary", "at the observed summary"
    if observed.vectors:
        adapted, kept = "averaged over completed vectors", "at the observed vector"
    if len(rows) == 1:
        how = adapted if rows[0]["adapted"] else kept
        title = f"Posterior {how}, {rows[0]['num_samples']:,} samples:"
        columns = ["", "mean", "sd", "5%", "50%", "95%"]
        cells = [[p["name"], *(number(p[key]) for key in STATISTICS)] for p in rows[0]["posterior"]]
    else:
        some = f"{sum(row['adapted'] for row in rows)} of {len(rows)}"
        few = f" of the first {MAX_LISTED}" if len(rows) > MAX_LISTED else ""
        how = adapted.replace("the", "an")
        title = f"Posterior means and standard deviations{few}, for {some} {how}:"
        columns, cells = [observed.what, *labels], []
        for row in [row for row in rows if row["posterior"]][:MAX_LISTED]:
            each = (f"{number(p['mean'])} ({number(p['sd'])})" for p in row["posterior"])
            cells.append([str(row["dataset"]), *each])
    if cells:
        output.print_table(columns, cells, title)
    output.print_written(out)


def _statistics(samples: Any, names: list[str]) -> list[dict[str, Any]]:
    """Return mean, standard deviation and quantiles of each parameter; none of no samples."""
    if len(samples) < 2:
        return []
    values = samples.double()
    rows = [values.mean(0), values.std(0), *(values.quantile(level, 0) for level in QUANTILES)]
    columns = zip(names, *(row.tolist() for row in rows), strict=True)
    return [dict(zip(("name", *STATISTICS), column, strict=True)) for column in columns]


PREDICTIVE = "The simulator, for a posterior-predictive check."


@options.takes(options.ASKED | options.OBSERVED)
def report(
    mds: options.MdsFolder,
    data: options.DataFile,
    out: Annotated[Path, Option(help="The page, a file that ends in .html.")],
    simulator: Annotated[str | None, Option(metavar=options.NAME, help=PREDICTIVE)] = None,
    dataset: Annotated[str | None, Option(help="Which dataset, where there are several.")] = None,
    seed: options.Seed = 0,
    json: options.Json = False,
    **told: Any,
) -> None:
    """Write one self-contained HTML page about a dataset: what is wrong, and what follows."""
    output.check_suffix(out, "--out", (".html",))
    posterior, prior, trust, names = (told.pop(name) for name in options.ASKED)
    estimator, observed = load(mds, data, **told, simulator=simulator)
    known = [str(name) for name in observed.names]
    if dataset is None and len(known) > 1:
        said = f"A report is about one {observed.what}. Name it with --dataset"
        raise UsageError(f"{said}: {output.listed(known, MAX_LISTED)}.")
    if dataset not in (None, *known):
        there = output.listed(known, MAX_LISTED)
        raise UsageError(f"--dataset: there is no {dataset!r}. There are {there}.")
    index = 0 if dataset is None else known.index(dataset)
    given: dict[str, Any] = {"x": observed[observed.names[index]], "seed": seed}
    if not observed.vectors:  # as `adapt` calls them, and its tables
        num = estimator.fitted_.wide.bank.s.shape[1]
        given["summary_names"] = [f"s_{i}" for i in range(num)]
    given["posterior"] = posterior and load_posterior(posterior, prior, trust=trust)
    given["simulator"] = simulator and load_user_code(simulator, "--simulator")
    given["theta_names"] = names and options.split(names)
    with extra("report"):
        from mindist.report import write_report
    with waiting("Writing the report"):
        result = estimator.adapt(given["x"])
        write_report(out, result=result, mds=estimator, **given)
    rows = [output.adaptation_values(observed, index, result)]
    output.tell_rows("report", rows, estimator.alpha, observed.what, json, out=out)
    if not json:
        output.print_written(out)


def demo(
    out: Annotated[Path, Option(help="The figure: .png, .svg or .pdf.")] = FIGURE,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Show a contaminated dataset, a wrong posterior, and the right one, in a minute."""
    with extra("demo"):
        from mindist.cli.demo import run
    result = run(seed=seed, figure=out, tell=say if json else print)
    if json:
        output.print_json("demo", **result)


for function in (simulate, fit, train, check, adapt, sample, report, demo):
    app.command(rich_help_panel=PAPER if function is demo else DATA)(function)
for name in ELSEWHERE:
    for entry in entry_points(group="mindist.commands", name=name):
        app.command(name, rich_help_panel=PAPER)(entry.load())

__all__ = ["app"]
