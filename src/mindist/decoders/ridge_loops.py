"""The compiled loops of `mindist.decoders.ridge`."""

from __future__ import annotations

from typing import Any

from mindist.compiled import jit_reordered
from mindist.features.waves import wave


@jit_reordered
def cosines_at(waves: Any, s: Any, out: Any) -> None:
    """The cosines `(P,)` of `Waves` at one point `(d,)`."""
    out[:] = waves.phase
    for j in range(len(s)):
        row, at = waves.frequency[j], (s[j] - waves.centre[j]) / waves.scale[j]
        for p in range(len(out)):
            out[p] += at * row[p]
    for p in range(len(out)):
        out[p], _ = wave(out[p])
