"""Some mutated files of every format; docs/files.md has the counts of 10,000 each."""

import random
import subprocess
import sys
from collections import Counter

import pytest

from fuzzing.mutate import mutate_bytes, mutate_json
from fuzzing.run import WORKER, Count
from fuzzing.targets import TARGETS

QUICK = ("npy", "npz", "csv", "parquet", "zarr", "hdf5")
TRAINED = ("estimator", "posterior", "bank")
FINE = {"loaded", "ValueError", "FileNotFoundError"}


def run(names, num, folder):
    """Outcomes by format, of a worker whose end is looked at: a crash would be one."""
    command = [sys.executable, str(WORKER), ",".join(names), str(folder), "0", str(num), "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, (done.returncode, done.stdout[-200:], done.stderr[-3_000:])
    outcomes = {name: Counter() for name in names}
    for line in done.stdout.splitlines():
        word, *rest = line.split()
        if word == "ready":
            name = rest[0]
        elif word == "end":
            outcomes[name][rest[1]] += 1
    return outcomes, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("names", "num"), [(QUICK, 100), (TRAINED, 50)])
def test_mutated_files_give_documented_errors(names, num, tmp_path):
    outcomes, errors = run(names, num, tmp_path)
    for name, counts in outcomes.items():
        assert sum(counts.values()) == num
        assert set(counts) <= FINE, (name, counts, errors[-3_000:])
        assert counts["ValueError"] > num // 4  # the mutations do something,
        assert counts["loaded"] > 0  # and not always too much


def test_every_format_is_fuzzed():
    assert {*QUICK, *TRAINED} == set(TARGETS)


def test_mutations_are_deterministic_and_alter():
    data = bytes(range(256)) * 4
    first = [mutate_bytes(data, random.Random(i), [b"other" * 20]) for i in range(200)]
    again = [mutate_bytes(data, random.Random(i), [b"other" * 20]) for i in range(200)]
    assert first == again
    assert sum(value != data for value in first) > 180
    value = {"a": [1, {"b": 2.5}], "c": "text"}
    nested = [mutate_json(value, random.Random(i)) for i in range(200)]
    assert sum(repr(changed) != repr(value) for changed in nested) > 180
    assert value == {"a": [1, {"b": 2.5}], "c": "text"}


def test_crashes_and_surprises_are_counted_as_bad():
    count = Count()
    for index, outcome in enumerate(("loaded", "ValueError", "HANG", "CRASH--11", "EXECUTED-x")):
        count.add(index, outcome)
    assert sorted(count.bad) == [2, 3, 4]
