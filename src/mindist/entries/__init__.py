"""One observed vector: nearest simulations, each entry given the others, entries filled in.

May import: torch, `mindist.schema`, `mindist.checks`, `mindist.result`, `mindist.protocols`.
"""

from mindist.entries.fitting import Knowledge, learn
from mindist.entries.search import CHAINS, Search, completed

__all__ = ["CHAINS", "Knowledge", "Search", "completed", "learn"]
