"""Kill a run at random moments until it is done; what was complete must not be simulated again.

The full size, by hand: `python tests/killing.py FOLDER 200 20 WORKERS 10` builds a bank of 200
chunks of 10 datasets with 20 SIGKILLs and compares it with one that nobody interrupted.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import bank_cases as cases


def complete(path):
    return {int(p.parent.name) for p in Path(path).glob("chunks/[0-9]*/zarr.json")}


def start(path, chunks, workers, rows, log):
    pid = os.fork()
    if not pid:
        os.environ["LOG"] = str(log)
        os.environ["SLEEP"] = "0.001"
        cases.simulate(path, rows * chunks, cases.logged, chunk=rows, workers=workers)
        os._exit(0)
    return pid


def run(folder, chunks, kills, workers, rows):
    """Kill, start again; the logs and the chunks that were complete after each run."""
    path, source, history = folder / "bank", random.Random(0), []
    for number in range(kills + 1):
        log = folder / f"log-{number}"
        log.touch()
        pid, began = start(path, chunks, workers, rows, log), time.perf_counter()
        if number < kills:
            left = (chunks - len(complete(path))) / (kills - number + 1)
            goal = len(complete(path)) + source.uniform(0, 1.5) * left
            while len(complete(path)) < goal and time.perf_counter() - began < 60:
                time.sleep(0.002)
            time.sleep(source.uniform(0, 0.03))
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        history.append((log, complete(path)))
    return history


def simulated_again(path, history, rows):
    """Rows that a run simulated although their chunk was complete before it."""
    theta = cases.mindist.SimulationBank.open(path).theta[:]
    chunk_of = {row.tobytes().hex(): i // rows for i, row in enumerate(theta)}
    again, done = [], set()
    for log, now in history:
        again += [line for line in log.read_text().split() if chunk_of.get(line) in done]
        done = now
    return again


def main(folder, chunks, kills, workers, rows):
    cases.torch.set_num_threads(1)
    history = run(folder, chunks, kills, workers, rows)
    print("complete after each run:", *(len(done) for _, done in history), flush=True)
    again = simulated_again(folder / "bank", history, rows)
    os.environ["LOG"] = str(folder / "log-whole")
    cases.simulate(folder / "whole", rows * chunks, cases.logged, chunk=rows)
    calls = sum(len(log.read_text().split()) for log, _ in history)
    whole = len((folder / "log-whole").read_text().split())
    same = cases.contents(folder / "bank") == cases.contents(folder / "whole")
    print(
        f"same bytes: {same}; simulated again: {len(again)}; calls: {calls}, {whole} of a whole run"
    )
    return 0 if same and not again and len(history[-1][1]) == chunks else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *map(int, sys.argv[2:6])))
