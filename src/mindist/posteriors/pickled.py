"""Posteriors that sbi's users have saved as pickles: loaded only by those who trust them.

To unpickle is to run whatever program the file holds. This is the only place where mindist does it,
and only with `trust=True`. What `mindist.posteriors.sbi_storage` saves runs nothing.
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import torch

ZIP = b"PK\x03\x04"  # what a file of torch.save begins with


def load_pickled_posterior(path: str | os.PathLike[str], *, trust: bool = False) -> Any:
    """Load a posterior that was saved with `pickle.dump` or `torch.save`.

    Warning:
        With `trust=True` the file runs as a program, with your rights, before anything can be
        checked. Say so only of files that you have made yourself, or got from someone you trust by
        a way that nobody else could write to.

    Arguments:
        path: The file.
        trust: Whether to run it.

    Returns:
        What the file holds; `RobustPosterior` says whether it is a posterior.

    Example:
        >>> load_pickled_posterior("posterior.pkl")
        Traceback (most recent call last):
            ...
        ValueError: trust: posterior.pkl is a pickle, and to load one is to run the program in it...
    """
    file = Path(path)
    if trust is not True:
        raise ValueError(
            f"trust: {file} is a pickle, and to load one is to run the program in it: whoever "
            "wrote the file can do with it all that you can do on this machine. If you made it "
            "yourself, or trust whoever did and the way it came, pass trust=True. Then save it "
            "anew with mindist.posteriors.sbi_storage.save_posterior, whose files run nothing."
        )
    if not file.is_file():
        raise FileNotFoundError(f"path: there is no file {file}.")
    content = file.read_bytes()
    if content.startswith(ZIP):
        return torch.load(file, map_location="cpu", weights_only=False)
    return pickle.loads(content)


__all__ = ["load_pickled_posterior"]
