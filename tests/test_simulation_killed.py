"""A run that is killed at random moments ends with the bytes of one that was not."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_killed_at_random_moments_and_started_again(tmp_path):
    """4 kills of 40 chunks, some of them no pilot; by hand 20 of 200: docs/simulations.md."""
    script = Path(__file__).with_name("killing.py")
    command = [sys.executable, script, tmp_path, "40", "4", "1", "40"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "same bytes: True; simulated again: 0" in done.stdout
