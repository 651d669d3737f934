"""Acceptance estimates that follow what is observed, so that scores of different drafters compare."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping


class Calibration:
    """Beta estimates of a hit rate per class, where classes are ordered numbers (a match length, say).

    ``priors`` maps the lowest number of each class to its prior rate, which weighs as ``weight`` observations;
    at most ``memory`` observations are remembered, older ones fade.
    """

    def __init__(self, priors: Mapping[int, float], weight: float = 4.0, memory: float = 60.0) -> None:
        self._edges = sorted(priors)
        self._hits = [priors[edge] * weight for edge in self._edges]
        self._trials = [weight] * len(self._edges)
        self._memory = memory

    def estimate(self, value: int) -> float:
        """Estimated rate for the class of ``value``."""
        at = self._class(value)
        return self._hits[at] / self._trials[at]

    def record(self, value: int, hit: bool) -> None:
        """One observation."""
        at = self._class(value)
        self._hits[at] += hit
        self._trials[at] += 1
        if self._trials[at] > self._memory:
            fade = self._memory / self._trials[at]
            self._hits[at] *= fade
            self._trials[at] *= fade

    def _class(self, value: int) -> int:
        return max(0, bisect_right(self._edges, value) - 1)
