"""Mutations of bytes and of JSON values, all drawn from one random source."""

from __future__ import annotations

import copy
import math
import random
import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

INTERESTING = (0, 1, 2, 7, 8, 16, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1)
INTERESTING += (2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
NUMBERS = ("0", "-1", "1e308", "1e999", "nan", "99999999999999999999", "2147483648", "-0", "1e-320")
NASTY: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2**31,
    2**63,
    10**40,
    0.5,
    -1e300,
    1e308,
    math.nan,
    math.inf,
    "",
    "x",
    "pickle",
    "../../../etc/passwd",
    "\ud800",
    "a" * 10_000,
    [],
    {},
    [[]],
    [0],
    [-1],
    [2**40, 2**40],
    ["x"],
    {"id": "pickle"},
    {"name": "pickle"},
)


def mutate_bytes(data: bytes, rng: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """One to four alterations of a file."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        data = rng.choice(MUTATORS)(data, rng, others)
    return data


def _place(data: bytes, rng: random.Random) -> int:
    """Any place, or one near the ends, where headers and footers are."""
    near = min(len(data), 200)
    where = rng.random()
    if where < 0.3:
        return rng.randrange(near or 1)
    if where < 0.5:
        return max(0, len(data) - 1 - rng.randrange(near or 1))
    return rng.randrange(len(data) or 1)


def _put(data: bytes, place: int, new: bytes, over: int | None = None) -> bytes:
    return data[:place] + new + data[place + (len(new) if over is None else over) :]


def _flip(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    place = _place(data, rng)
    return _put(data, place, bytes([data[place] ^ 1 << rng.randrange(8)])) if data else data


def _noise(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    return _put(data, _place(data, rng), rng.randbytes(rng.choice((1, 2, 4, 16, 100))))


def _integer(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """A length field, as it may be."""
    letter = rng.choice("BHIQ")
    size = struct.calcsize(letter)
    value = rng.choice(INTERESTING) % 2 ** (8 * size)
    return _put(data, _place(data, rng), struct.pack(rng.choice("<>") + letter, value))


def _add(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    place = _place(data, rng)
    step = rng.choice((-2, -1, 1, 2, 8, -8))
    return _put(data, place, bytes([(data[place] + step) % 256])) if data else data


def _cut(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    return data[: _place(data, rng)]


def _remove(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    return _put(data, _place(data, rng), b"", rng.choice((1, 4, 8, 100)))


def _insert(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    filler = rng.choice((rng.randbytes(8), bytes(100), b"\xff" * 16))
    return _put(data, _place(data, rng), filler, 0)


def _repeat(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    place = _place(data, rng)
    return _put(data, place, data[place : place + rng.choice((1, 8, 64, 1_000))] * 2)


def _splice(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    other = rng.choice(others) if others else data
    begin = _place(other, rng)
    size = rng.choice((4, 32, 256, len(other)))
    return _put(data, _place(data, rng), other[begin : begin + size], rng.choice((0, size)))


def _digits(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Another number where one is written in words."""
    found = list(re.finditer(rb"[-0-9.]+", data[:100_000]))
    if not found:
        return data
    match = rng.choice(found)
    return data[: match.start()] + rng.choice(NUMBERS).encode() + data[match.end() :]


MUTATORS: tuple[Callable[[bytes, random.Random, Sequence[bytes]], bytes], ...] = (
    _flip,
    _flip,
    _noise,
    _integer,
    _integer,
    _add,
    _cut,
    _remove,
    _insert,
    _repeat,
    _splice,
    _digits,
)


def mutate_json(value: Any, rng: random.Random) -> Any:
    """A JSON value with one to three of its parts replaced, removed, renamed or nested."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = list(_places(value))
        if not places:
            return rng.choice(NASTY)
        parent, key = rng.choice(places)
        action = rng.randrange(10)
        if action < 6:
            parent[key] = copy.deepcopy(rng.choice(NASTY))
        elif action == 6:
            del parent[key]
        elif action == 7 and isinstance(parent, dict):
            parent[key + rng.choice(("_", " ", "\0"))] = parent.pop(key)
        elif action == 8:
            other, elsewhere = rng.choice(places)
            parent[key] = copy.deepcopy(_get(other, elsewhere))
        else:
            parent[key] = _nested(parent[key], rng.choice((1, 3, 30)))
    return value


def _get(parent: Any, key: Any) -> Any:
    try:
        return parent[key]
    except (KeyError, IndexError):
        return None


def _nested(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every part of a JSON value, as its parent and its key there."""
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = [(value, key) for key in value]
    elif isinstance(value, list):
        items = [(value, index) for index in range(len(value))]
    for parent, key in list(items):
        items += _places(parent[key])
    return items
