"""What a benchmark ran on: versions, processor, memory, date."""

from __future__ import annotations

import os
import platform
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

import mindist
from mindist_paper.benchmark.timing import all_threads

PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "sbi")


def versions() -> dict[str, str]:
    """Of Python, mindist and what the contenders are made of."""
    found = {"python": platform.python_version(), "mindist": mindist.__version__}
    return found | {name: metadata.version(name) for name in PACKAGES}


def machine() -> dict[str, str | int | float]:
    """Processor, cores and memory."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cores": all_threads(),
        "memory_gb": memory(),
    }


def processor() -> str:
    """The name of the processor, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def memory() -> float:
    """Gigabytes of memory; 0 where the system does not tell."""
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, OSError, ValueError):
        return 0.0


def now() -> str:
    """The date and time, UTC, to the minute."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


__all__ = ["machine", "now", "versions"]
