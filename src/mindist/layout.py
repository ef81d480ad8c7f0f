"""What the settings and tensors of an artefact must look like before an object is made of them.

A table says for each tensor its axes by name, such as `"M d"`; a name stands for the same size
wherever it occurs. Numbers are finite floats, unless `"int"` or `"any"` comes first. Settings are
read through `Settings`, which knows their types and ranges. What does not fit is an error that
names the file and the value, so that whoever rebuilds an object meets no missing key, no wrong
type, no size that disagrees with another (compiled loops read past the end of an array that is too
short), and no number that would ask for more memory than the file has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mindist import storage

FLOATS = (torch.float32, torch.float64)
KINDS = (["int"], ["any"])  # whole numbers; numbers that may be NaN or infinite
MAX_ELEMENTS = 2**31  # of an observation or a dataset


class Sizes:
    """Sizes of named axes, learned from the tensors that have them.

    Arguments:
        file: The file that the tensors are from.
        tensors: All of its tensors.
        known: Sizes that are known already.

    Example:
        >>> sizes = Sizes(Path("f"), {"a": torch.zeros(2, 3), "b": torch.zeros(4)}, d=3)
        >>> sizes.check("a", {"": "M d"})
        >>> sizes["M"]
        2
        >>> sizes.check("b", {"": "d"})
        Traceback (most recent call last):
            ...
        ValueError: path: f is damaged: the tensor 'b' has shape (4,), expected (d = 3). ...
    """

    def __init__(self, file: Path, tensors: Mapping[str, Tensor], **known: int) -> None:
        self.file, self.tensors, self.known = file, tensors, known

    def __getitem__(self, axis: str) -> int:
        """The size of an axis; an axis that is a number has that size."""
        return int(axis) if axis.isdigit() else self.known[axis]

    def check(
        self,
        prefix: str,
        table: Mapping[str, str],
        *,
        exact: bool = True,
        **own: int | None,
    ) -> None:
        """Check the tensors whose names begin with `prefix`.

        Arguments:
            prefix: Such as `"bank."`.
            table: Their axes by the rest of their names.
            exact: Whether there may be no others.
            own: Sizes of axes that hold for these tensors only; None to learn them.
        """
        outer = {name: self.known[name] for name in own if name in self.known}
        for name, size in own.items():
            self.known.pop(name, None)
            if size is not None:
                self.known[name] = size
        for name, axes in table.items():
            self._check_one(prefix + name, axes.split())
        for name in own:
            self.known.pop(name, None)
        self.known |= outer
        extra = [n for n in self.tensors if n.startswith(prefix)] if exact else []
        unknown = {name.removeprefix(prefix) for name in extra} - set(table)
        if unknown:
            raise storage.damaged(
                self.file, f"it has an unknown tensor {prefix + min(unknown)[:80]!r}"
            )

    def equal(self, what: str, got: int, expected: int) -> None:
        """Check a size that is a function of others."""
        if got != expected:
            raise storage.damaged(self.file, f"{what} is {got}, expected {expected}")

    def _check_one(self, name: str, axes: Sequence[str]) -> None:
        if name not in self.tensors:
            raise storage.damaged(self.file, f"it lacks the tensor {name!r}")
        tensor, kind = self.tensors[name], axes[0] if axes[:1] in KINDS else ""
        axes = axes[1:] if kind else axes
        fits = tensor.dim() == len(axes) and 0 not in tensor.shape
        if fits:
            for axis, size in zip(axes, tensor.shape, strict=True):
                fits &= size == (int(axis) if axis.isdigit() else self.known.setdefault(axis, size))
        if not fits:
            expected = ", ".join(f"{a} = {self.known[a]}" if a in self.known else a for a in axes)
            raise storage.damaged(
                self.file,
                f"the tensor {name!r} has shape {tuple(tensor.shape)}, expected ({expected})",
            )
        if tensor.dtype not in ((torch.int64,) if kind == "int" else FLOATS):
            raise storage.damaged(self.file, f"the tensor {name!r} has type {tensor.dtype}")
        if not kind and not torch.isfinite(tensor).all():
            raise storage.damaged(self.file, f"the tensor {name!r} has NaN or infinite values")


class Settings:
    """Settings of an artefact, checked as they are read.

    Arguments:
        file: The file that they are from.
        values: The settings.
        where: What they belong to, for messages.

    Example:
        >>> settings = Settings(Path("f"), {"num_obs": 10, "error": float("nan")})
        >>> settings.whole("num_obs", least=2)
        10
        >>> settings.number("error")
        Traceback (most recent call last):
            ...
        ValueError: path: f is damaged: 'error' is nan, expected a finite number. ...
    """

    def __init__(self, file: Path, values: Any, where: str = "") -> None:
        self.file, self.values, self.where = file, values, where
        if not isinstance(values, dict):
            raise storage.damaged(file, f"{where or 'config'!r} is no table of settings")

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def part(self, name: str) -> Settings:
        """Settings within settings."""
        return Settings(self.file, self._get(name), f"{self.where}{name}.")

    def whole(self, name: str, least: int = 0, most: int = MAX_ELEMENTS) -> int:
        """A whole number in a range."""
        said = f"a whole number from {least} to {most}"
        return int(self._checked(name, said, lambda v: type(v) is int and least <= v <= most))

    def number(self, name: str, *, positive: bool = False) -> float:
        """A finite number."""
        said = "a positive number" if positive else "a finite number"
        return float(self._checked(name, said, lambda v: _finite(v) and (v > 0 or not positive)))

    def numbers(self, name: str) -> list[float]:
        """A list of finite numbers, not empty."""
        said = "a list of finite numbers"
        return list(self._checked(name, said, lambda v: bool(_items(v)) and all(map(_finite, v))))

    def flag(self, name: str) -> bool:
        """True or false."""
        return bool(self._checked(name, "true or false", lambda v: isinstance(v, bool)))

    def word(self, name: str, allowed: Sequence[str] | None = None) -> str:
        """A text, one of a few."""
        said = "a text" if allowed is None else f"one of {', '.join(allowed)}"
        return str(
            self._checked(
                name, said, lambda v: isinstance(v, str) and (allowed is None or v in allowed)
            )
        )

    def words(self, name: str) -> list[str]:
        """A list of texts."""
        return list(
            self._checked(
                name,
                "a list of texts",
                lambda v: bool(_items(v)) and all(isinstance(i, str) for i in v),
            )
        )

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of an observation or a dataset: not too large."""

        def fits(value: Any) -> bool:
            return (
                isinstance(value, list)
                and len(value) <= 32
                and all(type(size) is int and 0 < size <= MAX_ELEMENTS for size in value)
                and math.prod(value) <= MAX_ELEMENTS
            )

        return tuple(self._checked(name, "the shape of an observation", fits))

    def only(self, names: Sequence[str]) -> None:
        """No other settings than these."""
        unknown = sorted(set(self.values) - set(names))
        if unknown:
            raise storage.damaged(self.file, f"it has an unknown setting {unknown[0][:80]!r}")

    def refuse(self, name: str, expected: str) -> ValueError:
        """The error for a setting that is not what was expected."""
        got = repr(self.values.get(name))[:80]
        return storage.damaged(self.file, f"{self.where + name!r} is {got}, expected {expected}")

    def _get(self, name: str) -> Any:
        if name not in self.values:
            raise storage.damaged(self.file, f"it lacks the setting {self.where + name!r}")
        return self.values[name]

    def _checked(self, name: str, expected: str, fits: Callable[[Any], bool]) -> Any:
        value = self._get(name)
        if not fits(value):
            raise self.refuse(name, expected)
        return value


def _finite(value: Any) -> bool:
    # No int that is too large for a float, of which math.isfinite makes an OverflowError.
    return type(value) in (int, float) and abs(value) < 1e300


def _items(value: Any) -> bool:
    return isinstance(value, list) and 0 < len(value) <= 1_000


__all__ = ["MAX_ELEMENTS", "Settings", "Sizes"]
