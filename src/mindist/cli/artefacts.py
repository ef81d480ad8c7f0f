"""The folders that commands hand to each other: banks, estimators, posteriors.

Beside an artefact a command leaves a note, `command.json`, of what the user typed. It is text for
messages such as "it was fitted with --summary model.py:summary": nothing in it is ever executed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mindist.cli.status import CommandError, UsageError
from mindist.cli.user_code import load_user_code

NOTE = "command.json"
WRITERS = {"MinimumDistance": "mindist fit", "NeuralPosterior": "mindist train"}
MAX_TEXT = 200  # characters of a note that are shown


def write_note(folder: Path, **words: str | None) -> None:
    """Leave what the user typed beside an artefact."""
    from mindist.storage import write_whole

    write_whole(folder / NOTE, (json.dumps(words, indent=2) + "\n").encode())


def noted(folder: Path, option: str) -> str | None:
    """What was typed for an option; printable, short, and from a file that anybody may have made.

    Arguments:
        folder: The artefact.
        option: Such as `"summary"`.
    """
    from mindist.storage import read_json

    try:
        words = read_json(folder / NOTE)
    except (OSError, ValueError):
        return None
    text = words.get(option) if isinstance(words, dict) else None
    if not isinstance(text, str) or not text.isprintable():
        return None
    return text[:MAX_TEXT]


def open_bank(folder: Path) -> Any:
    """A complete bank, or an error that says what to do."""
    from mindist.simulation.bank import SimulationBank

    if not folder.exists():
        raise UsageError(f"BANK: there is no folder {folder}. `mindist simulate` makes one.")
    if not (folder / "zarr.json").is_file():
        raise UsageError(f"BANK: {folder} is not a bank that `mindist simulate` wrote.")
    bank = SimulationBank.open(folder)
    if not bank.complete:
        raise CommandError(
            f"BANK: {folder} is not complete: {bank.report()} Run the `mindist simulate` that "
            "began it again; it goes on where it stopped."
        )
    return bank


def load_estimator(
    folder: Path, summary: str | None, *, alpha: float | None = None, seed: int | None = None
) -> Any:
    """The fitted `MinimumDistance` in a folder.

    Arguments:
        folder: What `mindist fit` wrote.
        summary: Name of the summary function.
        alpha: Another level than it was fitted with.
        seed: Another seed.
    """
    check_artefact(folder, "MDS", "mindist fit")
    function = load_user_code(need_summary(summary, noted(folder, "summary"), folder), "--summary")
    from mindist.minimum_distance import MinimumDistance

    mds = MinimumDistance.load(folder, function)
    if alpha is not None:
        mds.alpha = alpha
    if seed is not None:
        mds.seed = seed
    return mds


def check_artefact(folder: Path, argument: str, command: str) -> None:
    """Say what a folder is, if it is not what it should be."""
    if not folder.exists():
        raise UsageError(f"{argument}: there is no folder {folder}. `{command}` makes one.")
    if (folder / "zarr.json").is_file():
        raise UsageError(
            f"{argument}: {folder} is a bank of simulations. Give the folder that `{command}` "
            "made of it."
        )
    found = _kind(folder / "mindist.json")
    if found is None:
        raise UsageError(f"{argument}: {folder} is not a folder that `{command}` wrote.")
    if found in WRITERS and WRITERS[found] != command:
        raise UsageError(
            f"{argument}: {folder} was written by `{WRITERS[found]}`. Give the folder that "
            f"`{command}` wrote."
        )


def _kind(file: Path) -> str | None:
    """What an artefact says that it is; whether that is true is found out when it is loaded."""
    from mindist.storage import read_json

    if not file.is_file():
        return None
    header = read_json(file)
    return str(header.get("kind")) if isinstance(header, dict) else ""


def need_summary(summary: str | None, known: str | None = None, folder: Path | None = None) -> str:
    """The name of the summary function, or an error that says which it was."""
    if summary is not None:
        return summary
    hint = f" {folder} was made with --summary {known}." if known else ""
    raise UsageError(f"Name the summary function: --summary file.py:name.{hint}")


__all__ = [
    "check_artefact",
    "load_estimator",
    "need_summary",
    "noted",
    "open_bank",
    "write_note",
]
