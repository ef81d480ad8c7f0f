"""What a file format has to give, and the errors that all formats share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

MAX_BYTES = 2**32


class Source(Protocol):
    """Datasets in a file."""

    @property
    def names(self) -> Sequence[Any]:
        """What each dataset is called: its number, its key, or its value in a column."""

    @property
    def event_shape(self) -> tuple[int, ...]:
        """The shape of one observation."""

    def __iter__(self) -> Iterator[NDArray[Any]]:
        """The datasets `(N_i, *event)` in order, each read when it is asked for."""


@dataclass(frozen=True)
class Request:
    """What the user said about a file.

    Arguments:
        path: The file or, for Zarr, the folder.
        event_shape: The shape of one observation, if it is known.
        key: Which array, or arrays, of a file with several.
        columns: Which columns of a table are the observation.
        dataset: Which column of a table says to which dataset a row belongs.
        max_bytes: How much the data may take when they are read.
    """

    path: Path
    event_shape: tuple[int, ...] | None = None
    key: str | Sequence[str] | None = None
    columns: Sequence[str] | None = None
    dataset: str | None = None
    max_bytes: int = MAX_BYTES

    def unreadable(self, kind: str, error: BaseException | str) -> ValueError:
        """The error for a file that its library cannot read."""
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        why = (text.splitlines() or [""])[0][:200]
        return ValueError(
            f"path: {self.path} cannot be read as {kind} ({why}). It may be damaged, or of another "
            "format than its name says."
        )

    @contextmanager
    def reading(self, kind: str, broken: tuple[type[BaseException], ...]) -> Iterator[None]:
        """Turn what a library says of a broken file into one kind of error, which names the file.

        Arguments:
            kind: The format.
            broken: Exceptions that its library has for a broken file.
        """
        try:
            yield
        except broken as error:
            if isinstance(error, ValueError) and str(error).startswith(("path: ", "columns: ")):
                raise  # said already
            raise self.unreadable(kind, error) from error

    def check_size(self, size: int) -> None:
        """Refuse what would take too much memory or disk once it is decompressed."""
        if size > self.max_bytes:
            raise ValueError(
                f"path: {self.path} says that it holds {size:,} bytes of data, more than max_bytes "
                f"= {self.max_bytes:,}. A small file that says so may be meant to fill your "
                "memory. If you trust it, pass a larger max_bytes."
            )


def needs(library: str, kind: str) -> ImportError:
    """The error for a library that is not installed."""
    return ImportError(f"{kind} files need {library}. Install it: pip install 'mindist[files]'")


def not_numbers(where: str, what: object) -> ValueError:
    """The error for text, dates, objects or complex numbers."""
    return ValueError(
        f"{where}: expected real numbers, got {what}. Objects are not read, because that would run "
        "what the file says; save plain numbers, for example with array.astype('float64')."
    )


__all__ = ["MAX_BYTES", "Request", "Source", "needs", "not_numbers"]
