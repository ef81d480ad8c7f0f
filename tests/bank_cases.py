"""Simulators that the tests of banks share: well-behaved, failing, hanging, and one that logs."""

import ctypes
import os
import time
from pathlib import Path

import numpy as np
import torch

import mindist

PRIOR = torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2))


def one_by_one(theta, n_obs):
    return theta + torch.randn(n_obs, 2)


def vectorised(theta, n_obs):
    return theta[:, None] + torch.randn(len(theta), n_obs, 2)


def logged(theta, n_obs):
    """Writes the bytes of theta, a line for each call, to the file that LOG names."""
    line = theta.numpy().tobytes().hex() + "\n"
    handle = os.open(os.environ["LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, line.encode())  # one call: lines of several processes do not mix
    os.close(handle)
    time.sleep(float(os.environ.get("SLEEP", 0)))
    return theta + torch.randn(n_obs, 2)


def raising(theta, n_obs):
    """Raises in about 1 of 10 draws."""
    if theta[0] > 1.28:
        raise ValueError("theta is too large")
    return theta + torch.randn(n_obs, 2)


def faulty(theta, n_obs):
    """Raises in 1% and hangs in 0.1% of the draws, every other time in compiled code."""
    u = np.random.random()  # noqa: NPY002
    if u < 0.01:
        raise ArithmeticError("it diverged")
    if u < 0.0105:
        time.sleep(3_600)
    if u < 0.011:
        hang_in_compiled_code()
    return theta + torch.randn(n_obs, 2)


def hang_in_compiled_code():
    """The C library's `pause` with signals blocked and Python's lock held: no alarm ends it."""
    every = ctypes.create_string_buffer(b"\xff" * 128, 128)
    ctypes.PyDLL(None).sigprocmask(0, every, None)
    ctypes.PyDLL(None).sleep(3_600)


def mean(x):
    return x.mean(1)


def estimator():
    """A small embedding, quickly chosen."""
    return mindist.MinimumDistance(mean, num_features=16, representation="raw")


def simulate(out, num=60, simulator=one_by_one, **options):
    """A bank in chunks of ten."""
    options = {"n_obs": 5, "chunk": 10, "mds": estimator(), **options}
    return mindist.simulate(PRIOR, simulator, mean, num, out=out, **options)


def contents(path):
    """The bytes of every file of the arrays, without the dated records."""
    root = Path(path)
    files = sorted(
        p for p in root.glob("*/**/*") if p.is_file() and root / "chunks" not in p.parents
    )
    return {str(p.relative_to(root)): p.read_bytes() for p in files}
