"""Shortest completions of a partly written JSON number within bounds (SYSTEM.md G5)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final

NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_STARTS: Final = (
    "0",
    "1",
    "2",
    "3",
    "4",
    "5",
    "6",
    "7",
    "8",
    "9",
    "-1",
    "-2",
    "-3",
    "-4",
    "-5",
    "-6",
    "-7",
    "-8",
    "-9",
    "-0",
)
_MORE_DIGITS: Final = 26


@dataclass(frozen=True)
class NumberRange:
    """What a number may be; open ends are exclusive bounds."""

    integer: bool = False
    low: Fraction | None = None
    high: Fraction | None = None
    low_open: bool = False
    high_open: bool = False
    multiple: Fraction | None = None

    def admits(self, text: str) -> bool:
        """Whether ``text`` is a JSON number inside the range."""
        if not NUMBER.fullmatch(text) or (self.integer and not text.lstrip("-").isdigit()):
            return False
        if "e" in text.lower() and len(text.lower().split("e")[1]) > 4:
            return False
        value = Fraction(text)
        if self.low is not None and (value < self.low or (self.low_open and value == self.low)):
            return False
        if self.high is not None and (value > self.high or (self.high_open and value == self.high)):
            return False
        return self.multiple is None or not (value / self.multiple).denominator > 1

    def finish(self, text: str) -> str | None:
        """A shortest suffix that makes ``text`` a number in range; None if there is none."""
        return _finish(self, text)

    def options(self, text: str) -> Iterable[str]:
        """Suffixes that may complete ``text``, in no order."""
        if self.admits(text):
            yield ""
        body = text.lstrip("-")
        if not body:
            for start in _STARTS:
                if start.startswith(text):
                    yield from (start[len(text) :] + rest for rest in self.options(start))
            return
        if "e" in body or "E" in body:
            yield from (digit for digit in ("0", "1") if self.admits(text + digit))
            return
        if "." in body:
            whole, fraction = body.split(".")
            yield from self._digits(text, int(whole + fraction), len(fraction), "")
            return
        if body != "0":
            yield from self._digits(text, int(body), 0, "")
        if not self.integer:
            yield from self._digits(text, int(body), 0, ".")

    def _digits(self, text: str, digits: int, decimals: int, dot: str) -> Iterable[str]:
        """Continuations by k digits: an interval of values, of which the smallest fitting one is taken."""
        negative = text.startswith("-")
        fractional = dot or "." in text
        for more in range(1 if dot else 0, _MORE_DIGITS):
            places = decimals + more if fractional else 0
            first, count = digits * 10**more, 10**more
            chosen = self._pick(first, first + count - 1, 10**places, negative)
            if chosen is not None:
                suffix = dot + (str(chosen - first).zfill(more) if more else "")
                if self.admits(text + suffix):
                    yield suffix
                    return

    def _pick(self, first: int, last: int, scale: int, negative: bool) -> int | None:
        low, high, low_open, high_open = self.low, self.high, self.low_open, self.high_open
        if negative:
            low, high = (None if high is None else -high), (None if low is None else -low)
            low_open, high_open = high_open, low_open
        if low is not None:
            bound = low * scale
            least = -((-bound.numerator) // bound.denominator)
            first = max(first, least + (1 if low_open and least == bound else 0))
        if high is not None:
            bound = high * scale
            most = bound.numerator // bound.denominator
            last = min(last, most - (1 if high_open and most == bound else 0))
        if self.multiple is not None:
            step = Fraction(self.multiple * scale).numerator
            first = -(-first // step) * step
        return first if first <= last else None


@lru_cache(maxsize=4096)
def _finish(numbers: NumberRange, text: str) -> str | None:
    return min(numbers.options(text), key=len, default=None)


def decimal(value: float | int) -> Fraction:
    """The value a JSON literal spells, not the binary fraction behind it."""
    return Fraction(repr(value)) if isinstance(value, float) else Fraction(value)
