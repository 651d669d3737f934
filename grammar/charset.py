"""Sets of characters as ranges of code points."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

import regex  # type: ignore[import-untyped]

LAST: Final = 0x10FFFF
_SURROGATES: Final = (0xD800, 0xDFFF)
_PREFERRED: Final = "a01A-_ .:/b@,;+x~!#$%&'()*<=>?[]^`{|}é中\"\\\n\t"

Range = tuple[int, int]


@dataclass(frozen=True)
class CharSet:
    """Code points as sorted, disjoint, inclusive ranges; surrogates are never among them."""

    ranges: tuple[Range, ...]

    @classmethod
    def of(cls, ranges: Iterable[Range]) -> CharSet:
        """The set of some ranges in any order, without surrogates."""
        merged: list[Range] = []
        for low, high in sorted(ranges):
            if merged and low <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
            else:
                merged.append((low, high))
        return cls(tuple(part for span in merged for part in _without_surrogates(span)))

    @classmethod
    def only(cls, text: str) -> CharSet:
        """The characters of ``text``."""
        return cls.of((ord(char), ord(char)) for char in text)

    @cached_property
    def _lows(self) -> list[int]:
        return [low for low, _ in self.ranges]

    def __contains__(self, char: str) -> bool:
        code = ord(char)
        at = bisect_right(self._lows, code) - 1
        return at >= 0 and code <= self.ranges[at][1]

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __or__(self, other: CharSet) -> CharSet:
        return CharSet.of((*self.ranges, *other.ranges))

    def __and__(self, other: CharSet) -> CharSet:
        return ~(~self | ~other)

    def __sub__(self, other: CharSet) -> CharSet:
        return self & ~other

    def __invert__(self) -> CharSet:
        spans, low = [], 0
        for first, last in self.ranges:
            if low < first:
                spans.append((low, first - 1))
            low = last + 1
        return CharSet.of([*spans, (low, LAST)] if low <= LAST else spans)

    @cached_property
    def sample(self) -> str | None:
        """A character of the set, one that JSON need not escape if there is one; None of control characters."""
        for char in _PREFERRED:
            if char in self:
                return char
        for low, high in self.ranges:
            for code in range(max(low, 0x20), high + 1):
                if code != 0x7F:
                    return chr(code)
        return None

    @cached_property
    def hash_key(self) -> int:
        """Hash of the ranges, worked out once."""
        return hash(self.ranges)

    def __hash__(self) -> int:
        return self.hash_key


def _without_surrogates(span: Range) -> Iterable[Range]:
    low, high = span
    if low < _SURROGATES[0]:
        yield low, min(high, _SURROGATES[0] - 1)
    if high > _SURROGATES[1]:
        yield max(low, _SURROGATES[1] + 1), high


ALL: Final = CharSet.of([(0, LAST)])
DIGITS: Final = CharSet.only("0123456789")
WORD: Final = CharSet.of([(48, 57), (65, 90), (95, 95), (97, 122)])
LINE_ENDS: Final = CharSet.only("\n\r\u2028\u2029")
SPACES: Final = CharSet.of(
    [(9, 13), (32, 32), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F),
     (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)]
)  # fmt: skip
"""White space and line ends of ECMA-262."""

_CATEGORIES: Final = {
    "L": "Letter", "Lu": "Uppercase_Letter", "Ll": "Lowercase_Letter", "Lt": "Titlecase_Letter",
    "LC": "Cased_Letter", "Lm": "Modifier_Letter", "Lo": "Other_Letter", "M": "Mark", "Mn": "Nonspacing_Mark",
    "Mc": "Spacing_Mark", "Me": "Enclosing_Mark", "N": "Number", "Nd": "Decimal_Number", "Nl": "Letter_Number",
    "No": "Other_Number", "P": "Punctuation", "Pc": "Connector_Punctuation", "Pd": "Dash_Punctuation",
    "Ps": "Open_Punctuation", "Pe": "Close_Punctuation", "Pi": "Initial_Punctuation", "Pf": "Final_Punctuation",
    "Po": "Other_Punctuation", "S": "Symbol", "Sm": "Math_Symbol", "Sc": "Currency_Symbol",
    "Sk": "Modifier_Symbol", "So": "Other_Symbol", "Z": "Separator", "Zs": "Space_Separator",
    "Zl": "Line_Separator", "Zp": "Paragraph_Separator", "C": "Other", "Cc": "Control", "Cf": "Format",
    "Co": "Private_Use", "Cn": "Unassigned",
}  # fmt: skip
_LONG_CATEGORIES: Final = {
    **{long: short for short, long in _CATEGORIES.items()},
    "Combining_Mark": "M", "digit": "Nd", "punct": "P", "cntrl": "Cc",
}  # fmt: skip
_BINARY: Final = frozenset(
    ("Alphabetic", "Alpha", "Lowercase", "Lower", "Uppercase", "Upper", "White_Space", "space", "ID_Start", "IDS",
     "ID_Continue", "IDC", "XID_Start", "XIDS", "XID_Continue", "XIDC", "Hex_Digit", "Hex", "ASCII_Hex_Digit", "AHex",
     "Dash", "Ideographic", "Ideo", "Math", "Cased", "Emoji", "Emoji_Presentation", "Extended_Pictographic",
     "Diacritic", "Dia", "Quotation_Mark", "QMark")
)  # fmt: skip


@lru_cache(maxsize=64)
def unicode_property(name: str) -> CharSet | None:
    """The characters of ``\\p{name}`` by the names of ECMA-262; None for a name it does not know."""
    key, _, value = name.partition("=")
    if key in ("General_Category", "gc") and value:
        name, value = value, ""
    if value:
        known = key in ("Script", "sc", "Script_Extensions", "scx") and value[:1].isupper()
        return _searched(f"{'Script_Extensions' if 'x' in key.lower() else 'Script'}={value}") if known else None
    if name in ("Any", "Assigned", "ASCII"):
        return {"Any": ALL, "ASCII": CharSet.of([(0, 127)])}.get(name) or ~(_searched("Cn") or ALL)
    if name in _CATEGORIES or name in _LONG_CATEGORIES:
        return _searched(_LONG_CATEGORIES.get(name, name))
    return _searched(name) if name in _BINARY else None


def _searched(name: str) -> CharSet | None:
    try:
        expression = regex.compile(rf"\p{{{name}}}+")
    except regex.error:
        return None
    every = "".join(map(chr, range(LAST + 1)))
    return CharSet.of((found.start(), found.end() - 1) for found in expression.finditer(every))
