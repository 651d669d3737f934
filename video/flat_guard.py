"""Pictures that are none: the same bytes again and again, and flat colours behind a failure."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

_SPREAD = 3
"""Levels by which the pixels of a flat picture may differ within a channel."""
_FAILURES, _OF_LAST = 5, 8
_MIN_REPEATS = 5


class FlatGuard:
    """Holds back flat pictures that repeat behind a failure, until a picture differs or ``patience_s`` is over.

    ``hopeless``: of the last 8 failures 5 were followed by nothing but such pictures.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience = patience_s
        self._armed = False
        self._first: npt.NDArray[Any] | None = None
        self._since = 0.0
        self._outcomes: deque[bool] = deque(maxlen=_OF_LAST)
        self._given = False

    def failed(self) -> None:
        """A read failed, or the connection did."""
        if self._first is not None or self._given:
            self._outcomes.append(self._given)
        self._armed, self._first, self._given = True, None, False

    @property
    def hopeless(self) -> bool:
        """Whether failing again and again has become this source's way."""
        return self._outcomes.count(False) >= _FAILURES

    def withholds(self, picture: Any, now: float) -> bool:
        """Whether ``picture`` is to be held back."""
        if self._armed:
            array = np.asarray(picture)
            if self._repeats(array) and now - self._since <= self._patience:
                return True
            self._armed, self._first = False, None
        self._given = True
        return False

    def start(self, now: float) -> None:
        """The patience counts from the first picture behind a failure."""
        if self._first is None:
            self._since = now

    def _repeats(self, array: npt.NDArray[Any]) -> bool:
        if self._first is not None:
            return array.shape == self._first.shape and bool(np.array_equal(array, self._first))
        if not _is_flat(array):
            return False
        self._first = array
        return True


def _is_flat(array: npt.NDArray[Any]) -> bool:
    if array.ndim not in (2, 3) or array.size == 0:
        return False
    for part in (array[::8, ::8], array):
        if float((part.max(axis=(0, 1)) - part.min(axis=(0, 1)).astype(np.float64)).max()) > _SPREAD:
            return False
    return True


class Repeats:
    """Notices byte-identical pictures over time, across reconnects too."""

    def __init__(self, limit: float | None) -> None:
        self._limit = limit
        self._last: npt.NDArray[Any] | None = None
        self._since = 0.0
        self._count = 0

    def frozen(self, picture: Any, now: float) -> bool:
        """Whether the source has now repeated itself for too long."""
        if self._limit is None:
            return False
        array = np.asarray(picture)
        if not self._same(array):
            self._last, self._since, self._count = array, now, 0
            return False
        self._count += 1
        return self._count >= _MIN_REPEATS and now - self._since > self._limit

    @property
    def repeating(self) -> bool:
        """Whether the last picture equalled the one before."""
        return self._count > 0

    def _same(self, array: npt.NDArray[Any]) -> bool:
        last = self._last
        if last is None or last.shape != array.shape or last.dtype != array.dtype:
            return False
        # A sixteenth of the rows settles nearly every case; noise alone makes real frames differ.
        return bool(np.array_equal(last[::16], array[::16]) and np.array_equal(last, array))
