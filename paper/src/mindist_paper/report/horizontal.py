"""Where settings stand on a horizontal axis: numbers at their value, words side by side."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.ticker import FixedLocator, NullLocator

from mindist_paper.report.style import text

LOGARITHMIC = ("num_obs", "dim", "bandwidth", "num_simulations", "outlier", "small_epsilon")
"""What the paper spaces by factors."""

SPREAD = 0.5
"""Share of the smallest gap between settings over which the lines are spread, so that error bars
stand side by side."""

CLOSEST_TICKS = 0.115
"""Ticks nearer than this share of the axis are left without a label."""

MOST_LETTERS, SLANTED = 30, {"rotation": 30, "ha": "right"}
"""Words with more letters than fit side by side stand at an angle."""


@dataclass(frozen=True)
class Horizontal:
    """A horizontal axis.

    Arguments:
        places: The settings and where they stand; on a log axis the logarithms of them.
        log: Whether the axis is logarithmic.
    """

    places: dict[Any, float]
    log: bool

    @classmethod
    def of(cls, by: str, settings: Iterable[Any]) -> Horizontal:
        """The axis for the settings of a column."""
        settings = list(dict.fromkeys(settings))
        if not all(is_number(at) for at in settings):
            return cls({at: float(i) for i, at in enumerate(settings)}, log=False)
        settings = sorted(settings)
        if by in LOGARITHMIC and settings and settings[0] > 0:
            return cls({at: math.log(at) for at in settings}, log=True)
        return cls({at: float(at) for at in settings}, log=False)

    @property
    def ordered(self) -> bool:
        """Whether the settings are numbers, so that a line between them means something."""
        return all(is_number(setting) for setting in self.places)

    def at(self, setting: Any, offset: float = 0.0) -> float:
        """The coordinate of a setting, moved sideways."""
        place = self.places[setting] + offset
        return math.exp(place) if self.log else place

    def offsets(self, count: int) -> list[float]:
        """How far to move each of so many lines."""
        gaps = np.diff(sorted(self.places.values()))
        width = SPREAD * float(gaps.min()) if len(gaps) else 0.5
        return [width * ((i + 0.5) / count - 0.5) for i in range(count)]

    def find(self, value: Any) -> Any:
        """The setting that equals a value up to rounding, or None."""
        for setting in self.places:
            if setting == value:
                return setting
            if is_number(setting) and is_number(value) and math.isclose(setting, value):
                return setting
        return None

    def set_ticks(self, axes: Any) -> Any:
        """A tick at each setting, with a label where there is room for it."""
        if self.log:
            axes.set_xscale("log")
        places = sorted(self.places.items(), key=lambda item: item[1])
        span = (places[-1][1] - places[0][1]) or 1.0
        labels: list[str] = []
        last = -math.inf
        for setting, place in places:
            room = (place - last) / span >= CLOSEST_TICKS
            labels.append(text(setting) if room else "")
            last = place if room else last
        axes.xaxis.set_major_locator(FixedLocator([self.at(setting) for setting, _ in places]))
        axes.xaxis.set_minor_locator(NullLocator())
        # A setting that few lines have may stand outside their range.
        low, high = axes.get_xlim()
        axes.set_xlim(min(low, self.at(places[0][0])), max(high, self.at(places[-1][0])))
        crowded = not self.ordered and sum(map(len, labels)) > MOST_LETTERS
        axes.set_xticklabels(labels, **(SLANTED if crowded else {}))
        return axes


def is_number(value: Any) -> bool:
    """A number, and not a truth value."""
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


__all__ = ["Horizontal"]
