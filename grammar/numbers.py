"""Numbers within exact bounds, as the texts that spell them.

Bounds are fractions of any size; a text is admitted if and only if the number it spells is in the range. Where a
number has bounds or a step it is written without an exponent.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from math import gcd, lcm
from typing import Final

from .charset import DIGITS, CharSet
from .number_steps import by_steps
from .regex import Automaton
from .regular import EMPTY, NOTHING, Regular, both, chars, either, multiple, never, repeat, text, then

NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
MAX_PLACES: Final = 1000
"""Digits of a bound or step at most, before and after the point."""

_TRIED: Final = 1000
"""Multiples looked at to see whether a range with steps and exceptions holds any number."""

_DIGIT: Final = chars(DIGITS)
_NONZERO: Final = chars(CharSet.only("123456789"))
_ZEROS: Final = repeat(text("0"))
_ANY_DIGITS: Final = repeat(_DIGIT)
_POINT: Final = text(".")
_FRACTION: Final = either(EMPTY, then(_POINT, repeat(_DIGIT, 1)))
_WHOLE: Final = either(text("0"), then(_NONZERO, _ANY_DIGITS))
_EXPONENT: Final = then(chars(CharSet.only("eE")), either(EMPTY, chars(CharSet.only("+-"))), repeat(_DIGIT, 1))


class NumberError(ValueError):
    """A bound or step that cannot be written as decimal digits, or needs too many."""


@dataclass(frozen=True)
class NumberRange:
    """What a number may be; open ends are exclusive bounds.

    ``multiples``: steps all of which divide it; ``excluded``: values it may not have; ``fractional``: no integer;
    ``nonmultiples``: steps none of which divides it.
    """

    integer: bool = False
    low: Fraction | None = None
    high: Fraction | None = None
    low_open: bool = False
    high_open: bool = False
    multiples: tuple[Fraction, ...] = ()
    excluded: tuple[Fraction, ...] = ()
    fractional: bool = False
    nonmultiples: tuple[Fraction, ...] = ()

    def above(self, bound: Fraction, is_open: bool) -> NumberRange:
        """This range with a lower bound more."""
        if self.low is None or (bound, is_open) > (self.low, self.low_open):
            return replace(self, low=bound, low_open=is_open)
        return self

    def below(self, bound: Fraction, is_open: bool) -> NumberRange:
        """This range with an upper bound more."""
        if self.high is None or (-bound, is_open) > (-self.high, self.high_open):
            return replace(self, high=bound, high_open=is_open)
        return self

    def holds(self, value: Fraction) -> bool:
        """Whether a value is in the range."""
        if (self.integer and value.denominator > 1) or (self.fractional and value.denominator == 1):
            return False
        if self.low is not None and (value < self.low or (self.low_open and value == self.low)):
            return False
        if self.high is not None and (value > self.high or (self.high_open and value == self.high)):
            return False
        if any((value / step).denominator > 1 for step in self.multiples) or value in self.excluded:
            return False
        return all((value / step).denominator > 1 for step in self.nonmultiples)

    def admits(self, spelled: str) -> bool:
        """Whether a text is a JSON number inside the range, spelled as it may be here."""
        return self.automaton.matches(spelled)

    def finish(self, begun: str) -> str | None:
        """A shortest suffix that makes ``begun`` a number in range; None if there is none."""
        return by_steps(self, begun) if self.step is not None else self.automaton.finish(begun)

    @cached_property
    def automaton(self) -> Automaton:
        """The texts of the range."""
        return Automaton(self.texts)

    @cached_property
    def step(self) -> Fraction | None:
        """What all steps together allow: their least common multiple."""
        if not self.multiples:
            return None
        steps = (*self.multiples, *((Fraction(1),) if self.integer else ()))
        return Fraction(lcm(*(s.numerator for s in steps)), gcd(*(s.denominator for s in steps)))

    @cached_property
    def is_empty(self) -> bool:
        """Whether no number is in the range."""
        low, high = self.low, self.high
        if low is not None and high is not None and (low > high or (low == high and (self.low_open or self.high_open))):
            return True
        step = Fraction(1) if self.integer and self.step is None else self.step
        if step is None:
            return low is not None and low == high and not self.holds(low)
        down = low is None and high is not None
        start = high if down else low
        first = 0 if start is None else start // step if down else -(-start // step)
        tried = (step * (first - k if down else first + k) for k in range(_TRIED + len(self.excluded)))
        for value in tried:
            if high is not None and value > high:
                return True
            if self.holds(value):
                return False
        return True

    @cached_property
    def texts(self) -> Regular:
        """All texts that spell a number in the range. NumberError if a bound has no finite decimal form."""
        low, high = self.low, self.high
        positive = self._side(low, high, self.low_open, self.high_open)
        negative = self._side(
            None if high is None else -high, None if low is None else -low, self.high_open, self.low_open
        )
        if self.integer and low == 0:
            negative = NOTHING  # no integer is written as -0 where it may not be negative
        signed = either(positive, then(text("-"), negative))
        if not self.integer and low is None and high is None and not self._is_picky:
            signed = then(signed, either(EMPTY, _EXPONENT))
        rules = [_multiples_text(step) for step in self.multiples]
        rules += [never(_multiples_text(step)) for step in self.nonmultiples]
        rules += [never(_spellings(value)) for value in self.excluded]
        if self.fractional:
            rules.append(never(then(either(EMPTY, text("-")), _ANY_DIGITS, either(EMPTY, then(_POINT, _ZEROS)))))
        return both(signed, *rules)

    @property
    def _is_picky(self) -> bool:
        return bool(self.multiples or self.excluded or self.fractional or self.nonmultiples)

    def _side(self, low: Fraction | None, high: Fraction | None, low_open: bool, high_open: bool) -> Regular:
        """Texts without a sign between two bounds."""
        if high is not None and (high < 0 or (high == 0 and high_open)):
            return NOTHING
        tail = EMPTY if self.integer else _FRACTION
        parts = [then(_WHOLE, tail)]
        if low is not None and (low > 0 or (low == 0 and low_open)):
            parts.append(_at_least(*_digits(low), low_open, self.integer))
        if high is not None:
            parts.append(_at_most(*_digits(high), high_open, self.integer))
        return both(*parts)


def decimal(value: float | int | Decimal) -> Fraction:
    """The value a JSON literal spells, not the binary fraction behind it."""
    if isinstance(value, Decimal) and abs(value.adjusted()) > MAX_PLACES:
        raise NumberError(f"{value} has more than {MAX_PLACES} digits")
    return Fraction(repr(value)) if isinstance(value, float) else Fraction(value)


def _digits(value: Fraction) -> tuple[str, str]:
    """Digits before and after the point, without superfluous zeros."""
    scale, power = value.denominator, 0
    while scale % 10 == 0:
        scale, power = scale // 10, power + 1
    for prime in (2, 5):
        while scale % prime == 0:
            scale, power = scale // prime, power + 1
    if scale != 1 or power > MAX_PLACES:
        raise NumberError(f"{value} has no decimal form of up to {MAX_PLACES} digits")
    shifted = value.numerator * 10**power // value.denominator
    whole, rest = divmod(shifted, 10**power)
    if whole >= 10**MAX_PLACES:
        raise NumberError(f"a number of more than {MAX_PLACES} digits")
    return str(whole), (str(rest).zfill(power) if power else "").rstrip("0")


def _span(first: int, last: int) -> Regular:
    return chars(CharSet.only("0123456789"[first : last + 1])) if first <= last else NOTHING


def _at_least(whole: str, rest: str, is_open: bool, integer: bool) -> Regular:
    """Numbers from ``whole.rest`` upwards."""
    tail = EMPTY if integer else _FRACTION
    size = len(whole)
    options = [then(_NONZERO, repeat(_DIGIT, size, None), tail)]
    for at, digit in enumerate(whole):
        more = _span(int(digit) + 1, 9)
        options.append(then(text(whole[:at]), more, repeat(_DIGIT, size - at - 1, size - at - 1), tail))
    if not rest:
        positive = then(_POINT, _ANY_DIGITS, _NONZERO, _ANY_DIGITS)
        same = tail if not is_open else NOTHING if integer else positive
        return either(*options, then(text(whole), same))
    if integer:
        return either(*options)
    for at, digit in enumerate(rest):
        options.append(then(text(f"{whole}.{rest[:at]}"), _span(int(digit) + 1, 9), _ANY_DIGITS))
    last = then(_ANY_DIGITS, _NONZERO, _ANY_DIGITS) if is_open else _ANY_DIGITS
    return either(*options, then(text(f"{whole}.{rest}"), last))


def _at_most(whole: str, rest: str, is_open: bool, integer: bool) -> Regular:
    """Numbers from 0 up to ``whole.rest``."""
    tail = EMPTY if integer else _FRACTION
    size = len(whole)
    options = [text("0"), then(_NONZERO, repeat(_DIGIT, 0, size - 2))] if size > 1 else []
    options = [then(option, tail) for option in options]
    for at, digit in enumerate(whole):
        less = _span(1 if at == 0 and size > 1 else 0, int(digit) - 1)
        options.append(then(text(whole[:at]), less, repeat(_DIGIT, size - at - 1, size - at - 1), tail))
    if not rest:
        zeros = EMPTY if integer else either(EMPTY, then(_POINT, repeat(text("0"), 1)))
        return either(*options, *([] if is_open else [then(text(whole), zeros)]))
    options.append(text(whole))
    if integer:
        return either(*options)
    for at, digit in enumerate(rest):
        options.append(then(text(f"{whole}.{rest[:at]}"), _span(0, int(digit) - 1), _ANY_DIGITS))
        if at:
            options.append(text(f"{whole}.{rest[:at]}"))
    if not is_open:
        options.append(then(text(f"{whole}.{rest}"), _ZEROS))
    return either(*options)


def _spellings(value: Fraction) -> Regular:
    """All texts without an exponent that spell one value."""
    whole, rest = _digits(abs(value))
    zeros = then(text(f".{rest}"), _ZEROS) if rest else either(EMPTY, then(_POINT, _ZEROS))
    sign = text("-") if value < 0 else either(EMPTY, text("-")) if value == 0 else EMPTY
    return then(sign, text(whole), zeros)


def _multiples_text(step: Fraction) -> Regular:
    """Texts without an exponent of the multiples of ``step``."""
    whole, fraction = _digits(abs(step))
    places = len(fraction)
    zeros = len(whole) - len(whole.rstrip("0"))
    if not places and zeros > 2:  # a power of ten shows by its zeros: no remainders have to be kept
        rest = both(_ANY_DIGITS, multiple(int(whole[:-zeros]), 0))
        digits = either(text("0"), then(rest, text("0" * zeros)))
        return then(either(EMPTY, text("-")), digits, either(EMPTY, then(_POINT, _ZEROS)))
    return then(either(EMPTY, text("-")), multiple(int(abs(step) * 10**places), places))
