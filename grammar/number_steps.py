"""How to finish a number that has to be a multiple of something: by arithmetic, for the states are too many."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .numbers import NumberRange

_STARTS: Final = (*"0123456789", *(f"-{digit}" for digit in "1234567890"))
_PLAIN: Final = re.compile(r"-?(?:[0-9]+(?:\.[0-9]*)?)?")
_MORE_DIGITS: Final = 40


@lru_cache(maxsize=4096)
def by_steps(numbers: NumberRange, begun: str) -> str | None:
    """A short suffix that makes ``begun`` a number in range; None if none was found."""
    return min(_options(numbers, begun), key=len, default=None)


def _options(numbers: NumberRange, begun: str) -> Iterator[str]:
    if not _PLAIN.fullmatch(begun):
        return  # an exponent: no number with a step is written so
    if numbers.admits(begun):
        yield ""
    body = begun.lstrip("-")
    if not body:
        for start in _STARTS:
            if start.startswith(begun):
                yield from (start[len(begun) :] + rest for rest in _options(numbers, start))
        return
    if "." in body:
        whole, fraction = body.split(".")
        yield from _digits(numbers, begun, int(whole + fraction), len(fraction), "")
        return
    if body != "0":
        yield from _digits(numbers, begun, int(body), 0, "")
    if not numbers.integer:
        yield from _digits(numbers, begun, int(body), 0, ".")


def _digits(numbers: NumberRange, begun: str, digits: int, decimals: int, dot: str) -> Iterable[str]:
    """Continuations by k digits: an interval of values, of which the smallest fitting one is taken."""
    fractional = dot or "." in begun
    for more in range(1 if dot else 0, _MORE_DIGITS):
        places = decimals + more if fractional else 0
        first, count = digits * 10**more, 10**more
        for chosen in _multiples(numbers, first, first + count - 1, 10**places, begun.startswith("-")):
            suffix = dot + (str(chosen - first).zfill(more) if more else "")
            if numbers.admits(begun + suffix):
                yield suffix
                return


def _multiples(numbers: NumberRange, first: int, last: int, scale: int, negative: bool) -> Iterator[int]:
    """The smallest few multiples among ``first / scale`` ... ``last / scale`` within the bounds."""
    low, high = numbers.low, numbers.high
    if negative:
        low, high = (None if high is None else -high), (None if low is None else -low)
    if low is not None:
        first = max(first, -(-(low * scale) // 1))
    if high is not None:
        last = min(last, (high * scale) // 1)
    step = ((numbers.step or Fraction(1)) * scale).numerator
    chosen = -(-first // step) * step
    for _ in range(len(numbers.excluded) + 3):
        if chosen <= last:
            yield chosen
        chosen += step
