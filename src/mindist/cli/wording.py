"""The package's messages speak of Python arguments; on the command line they have other names."""

from __future__ import annotations

import re

# The argument at the head of a message, and what a command calls it; "" where the sentence that
# follows says it all.
HEADS = {
    "path": "",
    "missing": "",
    "columns": "--columns: ",
    "dataset": "--dataset-column: ",
    "key": "--key: ",
    "out": "--out: ",
    "summary": "--summary: ",
    "posterior": "--posterior: ",
    "prior": "PRIOR: ",
    "simulator": "SIMULATOR: ",
    "trust": "",
    "x": "",
    "alpha": "--alpha: ",
    "bandwidth": "--bandwidth: ",
    "representation": "--representation: ",
    "theta_names": "--names: ",
    "names": "--names: ",
}
PHRASES = {
    "Pass missing='drop' to leave": "Use --missing drop to leave",
    "Choose them with columns=[...]": "Choose them with --columns NAME,NAME",
    "Choose it with columns=[...]": "Choose it with --columns NAME",
    "; say which of the two it takes by vectorised=True or False": "",
    "Choose its columns with columns=[...]": "Choose its columns with --columns NAME,NAME",
    "pass a larger max_bytes": "read it in Python with a larger max_bytes",
    "Name one, key=": "Name one with --key ",
    "pass trust=True": "add --trust",
    "or raise alpha": "or raise --alpha",
    "prior: expected one of parameters": "--prior: expected one of parameters",
    "keep='data'": "--keep data",
    "time_limit": "--time-limit",
    "The same call": "The same command",
    "the same call": "the same command",
    "Call mindist.simulate again with the same arguments: it continues": (
        "Run the `mindist simulate` that began it again: it continues"
    ),
    "The call of mindist.simulate that wrote it": "The `mindist simulate` that wrote it",
}


def in_words_of_the_command(text: str) -> str:
    """A message of the package, as it reads on the command line.

    Example:
        >>> in_words_of_the_command("missing: 1 of 9 is NaN. Pass missing='drop' to leave it out.")
        '1 of 9 is NaN. Use --missing drop to leave it out.'
    """
    for phrase, words in PHRASES.items():
        text = text.replace(phrase, words)
    head = re.match(r"(\w+): ", text)
    if head is not None and head[1] in HEADS:
        text = HEADS[head[1]] + text[head.end() :]
    return text


__all__ = ["in_words_of_the_command"]
