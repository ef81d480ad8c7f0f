"""What is kept of compiled loops."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import mindist

OUTER = """
from mindist.compiled import jit
from mindist.inner_loops import inner

@jit
def outer(x):
    return 10 * inner(x)
"""
INNER = """
from mindist.compiled import jit

@jit
def inner(x):
    return x + {}
"""
ASK = """
from mindist.outer_loops import outer

print(outer(1.0), sum(outer.stats.cache_hits.values()))
"""


def test_a_loop_is_compiled_again_when_one_that_it_calls_has_changed(tmp_path):
    """Numba 0.68 by itself would go on with the old one."""
    package = tmp_path / "mindist"
    shutil.copytree(
        Path(mindist.__file__).parent,
        package,
        ignore=shutil.ignore_patterns("__pycache__", "*_loops.py"),
    )
    (package / "outer_loops.py").write_text(OUTER, encoding="utf-8")

    def ask():
        run = [sys.executable, "-c", ASK]
        env = os.environ | {"PYTHONPATH": str(tmp_path)}
        return subprocess.run(run, env=env, capture_output=True, text=True, check=True).stdout

    (package / "inner_loops.py").write_text(INNER.format("1.0"), encoding="utf-8")
    assert ask().split() == ["20.0", "0"]
    assert ask().split() == ["20.0", "1"]
    (package / "inner_loops.py").write_text(INNER.format("4.0"), encoding="utf-8")
    assert ask().split() == ["50.0", "0"]
