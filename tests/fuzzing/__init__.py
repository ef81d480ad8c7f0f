"""A deterministic fuzzer of every loader: mutated files in, documented errors out.

`mutate.py` alters bytes and JSON, `targets.py` knows the formats, `worker.py` loads mutated files
in a process of its own, `run.py` watches it and counts: a crash or a hang ends the worker, is
noted, and the next file follows.

    python tests/fuzzing/run.py --num 10000 npy csv

A further format is one more entry of `TARGETS`.
"""
