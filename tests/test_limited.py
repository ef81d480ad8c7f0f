"""A time limit holds, whatever the simulator does."""

import os
import signal
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import bank_cases as cases
from mindist.simulation.calls import GRACE, Call, Data, LimitedCall, pack, seed_globals


@pytest.fixture
def limited():
    made = []

    def make(simulator, limit):
        made.append(LimitedCall(Call(simulator, 3, ()), limit))
        return made[-1]

    yield make
    for caller in made:
        caller.close()


def by_parameter(theta):
    """Fine at 0, and in other ways not at other values."""
    kind = int(theta[0])
    if kind == 1:
        raise KeyError("one")
    if kind == 2:
        while True:
            with suppress(Exception):
                time.sleep(60)
    if kind == 3:
        cases.hang_in_compiled_code()
    if kind == 4:
        os.kill(os.getpid(), signal.SIGSEGV)
    if kind == 5:
        return np.zeros(4)
    return np.random.random(3)  # noqa: NPY002


@pytest.mark.slow
def test_every_kind_of_failure_and_calls_after_it(limited):
    """The same data from the same seed, whatever the process has been through."""
    call = limited(by_parameter, 0.3)
    here = Call(by_parameter, 3, ())(np.zeros(1), 5, None).x
    kinds = {1: "raised", 2: "timed out", 3: "timed out", 4: "raised", 5: "wrong shape"}
    texts = {1: "KeyError: 'one'", 2: "took more than 0.3 s", 3: "took more than 0.3 s"}
    texts |= {
        4: "its process ended: it crashed, or the system ended it",
        5: "expected shape (3,), got (4,)",
    }
    for number in kinds:
        problem = call(np.array([float(number)]), 5, None)
        assert (problem.kind, problem.error) == (kinds[number], texts[number])
        again = call(np.zeros(1), 5, None)
        assert isinstance(again, Data)
        np.testing.assert_array_equal(again.x, here)


def running(pid):
    """Whether a process is there, and not only waiting for somebody to ask how it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_processes_end_with_their_caller(limited):
    call = limited(by_parameter, 0.3)
    assert isinstance(call(np.zeros(1), 1, None), Data)
    child, nursery = call._pid, call._nursery.pid
    assert running(child)
    assert running(nursery)
    call.close()
    deadline = time.perf_counter() + 10
    while running(child) or running(nursery):
        assert time.perf_counter() < deadline
        time.sleep(0.01)


@pytest.mark.slow
def test_a_hanging_process_ends_without_its_caller(limited):
    """As when the caller is killed: nobody is left to end a loop that no signal reaches."""
    call = limited(by_parameter, 0.1)
    call(np.zeros(1), 1, None)
    child = call._pid
    call._pipe.send_bytes(pack((np.array([3.0]), 1, None, 0.1)))
    call._pid = 0
    call.close()
    start = time.perf_counter()
    while running(child):
        assert time.perf_counter() - start < 0.1 + 2 * GRACE + 10
        time.sleep(0.01)


def test_a_function_that_cannot_be_sent(limited):
    lock = threading.Lock()
    with pytest.raises(TypeError, match="expected functions that can be sent"):
        limited(lambda theta: lock, 1.0)(np.zeros(1), 0, None)


@pytest.mark.slow
def test_a_simulator_that_raises_and_hangs(tmp_path):
    """Each failure is of a draw that had to fail that way; a run without interruptions, and one."""
    options = {"chunk": 50, "time_limit": 1.0, "seed": 7}
    bank = cases.simulate(tmp_path / "bank", 500, cases.faulty, **options)
    assert bank.complete
    kinds = {"raised": (0, 0.01), "timed out": (0.01, 0.011)}
    for failure in bank.failures:
        seed_globals(failure.seed)
        low, high = kinds[failure.kind]
        assert low <= np.random.random() < high  # noqa: NPY002
    counts = Counter(failure.kind for failure in bank.failures)
    text = f"{counts['raised']} raised an error, {counts['timed out']} took longer than the time"
    assert text in bank.report()
    assert min(counts.values()) > 0
    assert len(counts) == 2
