"""The one serialiser: dataclasses to settings and tensors, and back, checked by their annotations.

A tensor has named axes, `Annotated[Tensor, "M d"]`: a name stands for one size within an object,
and for that of the whole file where it is given. Its numbers are finite floats unless `"int"` or
`"any"` comes first. A setting is a number, a word, a tuple of them, or a shape;
`Annotated[int, range(1, 10)]` narrows it. An object within an object has its own table of settings
and its name before those of its tensors, unless `INLINE`. `UNSTORED` fields are the user's: neither
stored nor moved. Nothing is built before everything it is built of is checked. (msgspec and
pydantic know neither tensors nor sizes that have to agree, and name no file.)
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor, nn

from mindist import storage
from mindist.protocols import State

FLOATS = (torch.float32, torch.float64)
MAX_ELEMENTS = 2**31  # of an observation or a dataset
MAX_ITEMS = 1_000  # of a list of settings
INLINE = "inline"
UNSTORED = "unstored"
T = TypeVar("T")


def _stored(kind: Any) -> Iterator[tuple[Field[Any], Any, Any]]:
    """Yield each field that is stored, its type, and what its annotation says beside it."""
    hints = get_type_hints(kind, include_extras=True)
    for entry in fields(kind):
        hint, extra = hints[entry.name], None
        if get_origin(hint) is Annotated:
            hint, extra = get_args(hint)[:2]
        if get_origin(hint) in (Union, UnionType):
            hint = next(arg for arg in get_args(hint) if arg is not type(None))
        if extra != UNSTORED:
            yield entry, hint, extra


def pack(value: Any) -> State:
    """Return the settings and the tensors of a dataclass, ready for `storage.write_artefact`."""
    config: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    for entry, _, extra in _stored(type(value)):
        name, own = entry.name, getattr(value, entry.name)
        if isinstance(own, Tensor):
            tensors[name] = own
        elif isinstance(own, nn.Module):
            tensors |= prefixed(name, own.state_dict())
        elif is_dataclass(own):
            part = pack(own)
            config |= part[0] if extra == INLINE else {name: part[0]}
            tensors |= part[1] if extra == INLINE else prefixed(name, part[1])
        elif own is not None:
            config[name] = plain(own)
    return config, tensors


def prefixed(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{name}.{key}": value for key, value in tensors.items()}


def plain(value: Any) -> Any:
    """Return a setting as JSON has it: `(np.int64(3), True)` is `[3, True]`."""
    if isinstance(value, Mapping):
        return {key: plain(own) for key, own in value.items()}
    if isinstance(value, list | tuple):
        return [plain(own) for own in value]
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, np.generic | Tensor):
        value = value.item()
    return value if isinstance(value, int) else float(value)


def moved(value: T, device: torch.device) -> T:
    """Return a copy with every tensor within it on a device; the original stays where it is."""
    if isinstance(value, nn.Module):
        return copy.deepcopy(value).to(device)
    if isinstance(value, Tensor):
        return value.to(device)  # type: ignore[return-value]
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(moved(own, device) for own in value)  # type: ignore[return-value]
    if isinstance(value, type) or not (is_dataclass(value) or hasattr(value, "to")):
        return value
    new: Any = copy.copy(value)
    if not is_dataclass(value):
        return new.to(device)  # type: ignore[no-any-return]
    known = {entry.name for entry in fields(value)}
    kept = {entry.name for entry, *_ in _stored(type(value))}
    for name, own in vars(value).items():
        if isinstance(getattr(type(value), name, None), cached_property):
            del new.__dict__[name]
        elif name in kept or name not in known:
            new.__dict__[name] = moved(own, device)
    return new  # type: ignore[no-any-return]


@dataclass
class Record:
    """Settings and tensors of a file, checked as they are read."""

    file: Path
    values: Any
    where: str = ""  # the place of the settings in the file, for messages
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    prefix: str = ""  # the beginning of the names of tensors that belong to these settings
    axes: dict[str, int] = field(default_factory=dict)  # sizes that are known already

    def __post_init__(self) -> None:
        if not isinstance(self.values, dict):
            said = f"{self.where or 'config'!r} is no table of settings"
            raise storage.damaged(self.file, said)

    @classmethod
    def open(cls, path: Path, config: Any, tensors: Mapping[str, Tensor]) -> "Record":
        return cls(path / storage.JSON_NAME, config, tensors=tensors)

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def part(self, name: str, tensors: str | None = None, **axes: int) -> "Record":
        """Return the record of a part, its settings in the table `name` ("" for no own)."""
        values, where = self.get(name) if name else self.values, f"{name}." if name else ""
        own = (self.tensors, f"{self.prefix}{name if tensors is None else tensors}.")
        return Record(self.file, values, f"{self.where}{where}", *own, self.axes | axes)

    def read(self, kind: type[T]) -> T:
        """Return an object of a dataclass whose annotations say what has to be here."""
        known, given, later = dict(self.axes), dict[str, Any](), dict[str, Any]()
        for entry, own, extra in _stored(kind):
            missing = entry.name not in self.values and entry.default is not MISSING
            if own is nn.Module or (missing and own is not Tensor):
                continue  # whoever builds a network loads its weights
            group = given if entry.init else later
            group[entry.name] = self._field(entry.name, own, extra, known)
        with self.naming():
            made = kind(**given)
        for name, value in later.items():
            object.__setattr__(made, name, value)
        return made

    def _field(self, name: str, kind: Any, extra: Any, known: dict[str, int]) -> Any:
        if kind is Tensor:
            return self.tensor(name, extra, known)
        if kind is int:
            bounds = range(MAX_ELEMENTS + 1) if extra is None else extra
            return self.whole(name, bounds.start, bounds.stop - 1)
        if kind is float:
            return self.number(name, infinite=extra == "any")
        if kind in _READERS:
            return _READERS[kind](self, name)
        return (self if extra == INLINE else self.part(name)).read(kind)

    def tensor(self, name: str, axes: str, known: dict[str, int] | None = None) -> Tensor:
        """Return a tensor whose axes, such as `"M d"`, have known sizes; add those of new names."""
        full, known = self.prefix + name, self.axes if known is None else known
        artefact = self.file.name == storage.JSON_NAME
        file = self.file.with_name(storage.TENSORS_NAME) if artefact else self.file
        if full not in self.tensors:
            raise storage.damaged(file, f"it lacks the tensor {full!r}")
        tensor, names = self.tensors[full], axes.split()
        kind = names.pop(0) if names[:1] in (["int"], ["any"]) else ""
        fits = tensor.dim() == len(names) and 0 not in tensor.shape
        if fits:
            for axis, size in zip(names, tensor.shape, strict=True):
                fits &= size == (int(axis) if axis.isdigit() else known.setdefault(axis, size))
        if not fits:
            axes = ", ".join(f"{a} = {known[a]}" if a in known else a for a in names)
            got = f"the tensor {full!r} has shape {tuple(tensor.shape)}"
            raise storage.damaged(file, f"{got}, expected ({axes})")
        if tensor.dtype not in ((torch.int64,) if kind == "int" else FLOATS):
            raise storage.damaged(file, f"the tensor {full!r} has type {tensor.dtype}")
        if not kind and not torch.isfinite(tensor).all():
            raise storage.damaged(file, f"the tensor {full!r} has NaN or infinite values")
        return tensor

    def under(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors whose names begin like this, unchecked, by the rest of their names."""
        whole = self.prefix + prefix
        return {k.removeprefix(whole): v for k, v in self.tensors.items() if k.startswith(whole)}

    def whole(self, name: str, least: int = 0, most: int = MAX_ELEMENTS) -> int:
        said = f"a whole number from {least} to {most}"
        return int(self.checked(name, said, lambda v: type(v) is int and least <= v <= most))

    def number(self, name: str, *, positive: bool = False, infinite: bool = False) -> float:
        if infinite and self.get(name) == math.inf:
            return math.inf
        said = "a positive number" if positive else "a number" if infinite else "a finite number"
        return float(self.checked(name, said, lambda v: _finite(v) and (v > 0 or not positive)))

    def items(self, name: str, expected: str, fits: Callable[[Any], bool]) -> tuple[Any, ...]:
        def all_fit(value: Any) -> bool:
            return isinstance(value, list) and 0 < len(value) <= MAX_ITEMS and all(map(fits, value))

        return tuple(self.checked(name, f"a list of {expected}", all_fit))

    def flag(self, name: str) -> bool:
        return bool(self.checked(name, "true or false", lambda v: isinstance(v, bool)))

    def word(self, name: str, allowed: Sequence[str] | None = None) -> str:
        if allowed is None:
            return str(self.checked(name, "a text", lambda v: isinstance(v, str)))
        return str(self.checked(name, f"one of {', '.join(allowed)}", lambda v: v in allowed))

    def shape(self, name: str) -> torch.Size:
        """Return the shape of an observation or a dataset: not too large."""
        value, most = self.get(name), MAX_ELEMENTS
        sizes = value if isinstance(value, list) and len(value) <= 32 else [0]
        whole = all(type(size) is int and 0 < size <= most for size in sizes)
        fits = whole and math.prod(sizes) <= most
        return torch.Size(self.checked(name, "the shape of an observation", lambda _: fits))

    def only(self, names: Sequence[str]) -> None:
        if unknown := sorted(set(self.values) - set(names)):
            raise storage.damaged(self.file, f"it has an unknown setting {unknown[0][:80]!r}")

    def refuse(self, name: str, expected: str) -> ValueError:
        got = repr(self.values.get(name))[:80]
        return storage.damaged(self.file, f"{self.where + name!r} is {got}, expected {expected}")

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Name the file in what the constructors called inside say of their arguments."""
        try:
            yield
        except (TypeError, ValueError) as error:
            raise storage.damaged(self.file, f"{self.where}{str(error).rstrip('.')}") from error

    def checked(self, name: str, expected: str, fits: Callable[[Any], bool]) -> Any:
        """Return a setting for which a condition holds, which `expected` says in words."""
        if not fits(value := self.get(name)):
            raise self.refuse(name, expected)
        return value

    def get(self, name: str) -> Any:
        if name not in self.values:
            raise storage.damaged(self.file, f"it lacks the setting {self.where + name!r}")
        return self.values[name]


_READERS: dict[Any, Callable[[Record, str], Any]] = {
    bool: Record.flag,
    str: Record.word,
    torch.Size: Record.shape,
    tuple[float, ...]: lambda self, name: self.items(name, "finite numbers", _finite),
    tuple[str, ...]: lambda self, name: self.items(name, "texts", lambda v: type(v) is str),
}


def _finite(value: Any) -> bool:
    # No int that is too large for a float, of which math.isfinite makes an OverflowError.
    return type(value) in (int, float) and abs(value) < 1e300
