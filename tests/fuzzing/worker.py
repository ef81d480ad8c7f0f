"""Loads mutated files, one after the other, and says before and after each what happens.

    python worker.py FORMAT[,FORMAT...] FOLDER FIRST END SEED

It prints `begin I` and then `end I OUTCOME`. If it dies or falls silent in between, file I did it.
"""

from __future__ import annotations

import random
import resource
import shutil
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzzing.targets import TARGETS, Target

MEMORY = 16 * 2**30  # address space: torch alone reserves several GB, and touches little of it
# What would show that a file runs something: a program, another process, the net, a pickle.
FORBIDDEN = ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.spawn", "os.mkdir")
FORBIDDEN += ("socket.connect", "pickle.find_class", "os.symlink", "webbrowser.open")


class Watch:
    """Notes forbidden actions while a file is loaded."""

    def __init__(self) -> None:
        self.on, self.seen = False, []
        sys.addaudithook(self)

    def __call__(self, event: str, arguments: Any) -> None:
        if self.on and event in FORBIDDEN and not _own(event, arguments):
            self.seen.append(event)


def _own(event: str, arguments: Any) -> bool:
    """What mindist does itself: folders of a results store."""
    return event == "os.mkdir" and Path(str(arguments[0])).name in ("cells", "trained")


def prepare(folder: Path, target: Target, seeds: list[Path], index: int, seed: int) -> Path:
    """The mutated file of this number: the same one each time."""
    rng = random.Random(f"{target.name} {seed} {index}")
    chosen = rng.choice(seeds)
    path = folder / "now" / chosen.name
    shutil.rmtree(path.parent, ignore_errors=True)
    path.parent.mkdir()
    shutil.copytree(chosen, path) if chosen.is_dir() else shutil.copy(chosen, path)
    target.mutate(path, rng, seeds)
    return path


def outcome(target: Target, path: Path, watch: Watch) -> str:
    """What loading a file came to, in one word."""
    watch.on = True
    try:
        target.load(path)
        return "loaded"
    except target.allowed as error:
        return type(error).__name__
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        return f"UNEXPECTED-{type(error).__name__}"
    finally:
        watch.on = False


def main(name: str, folder: Path, first: int, end: int, seed: int, watch: Watch) -> None:
    """Load the mutated files of some numbers."""
    target = TARGETS[name]
    place = folder / "seeds"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    seeds = list(target.seeds(place))
    for path in seeds:  # imports whatever is needed; hostile seeds are refused
        try:
            target.load(path)
        except target.allowed:
            continue
    print("ready", name, flush=True)
    for index in range(first, end):
        path = prepare(folder, target, seeds, index, seed)
        print("begin", index, flush=True)
        result = outcome(target, path, watch)
        if watch.seen or (folder / "trace").exists():
            result = f"EXECUTED-{'-'.join(watch.seen) or 'pickle'}"
            watch.seen.clear()
        print("end", index, result, flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print("peak", peak, flush=True)


if __name__ == "__main__":
    names, folder, *numbers = sys.argv[1:]
    first, end, seed = map(int, numbers)
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    watch = Watch()
    for name in names.split(","):
        main(name, Path(folder), first, end, seed, watch)
