"""ECMA-262 regular expressions, the dialect of JSON Schema's ``pattern``, as regular languages.

Syntax is read as with the ``u`` flag and, where that is an error, as browsers read it (annex B of ECMA-262);
a character is a code point in both. What is no regular language (backreferences) or is not supported is a
PatternError that says what it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from .charset import ALL, DIGITS, LINE_ENDS, SPACES, WORD, CharSet, unicode_property

Syntax = tuple[Any, ...]
"""A parsed pattern: (kind, ...) with kinds set, cat, alt, rep, begin, end, word, look."""

_SYNTAX_CHARS: Final = "^$\\.*+?()[]{}|/"
_CONTROLS: Final = {"n": "\n", "r": "\r", "t": "\t", "v": "\v", "f": "\f", "0": "\0"}
_CLASSES: Final = {"d": DIGITS, "w": WORD, "s": SPACES, "D": ~DIGITS, "W": ~WORD, "S": ~SPACES}
MAX_COUNT: Final = 100_000


class PatternError(ValueError):
    """A pattern that is no regular expression, or none that can be enforced."""


class _SyntaxError(PatternError):
    """A pattern that the ``u`` flag does not admit."""


def parse(pattern: str) -> Syntax:
    """The parsed pattern. Raises PatternError."""
    try:
        return _Parser(pattern, strict=True).whole()
    except _SyntaxError as error:
        if "\\p" in pattern.replace("\\\\", "") or "\\P" in pattern.replace("\\\\", ""):
            raise PatternError(str(error)) from None
        return _Parser(pattern, strict=False).whole()


@dataclass
class _Parser:
    """Recursive descent over a pattern."""

    pattern: str
    strict: bool
    at: int = 0

    def whole(self) -> Syntax:
        self.groups, self.names = _groups(self.pattern)
        found = self.disjunction()
        if self.at < len(self.pattern):
            raise _SyntaxError(f"unmatched {self.pattern[self.at]!r} at {self.at}")
        return found

    def peek(self, word: str) -> bool:
        return self.pattern.startswith(word, self.at)

    def take(self, word: str) -> bool:
        found = self.peek(word)
        self.at += len(word) if found else 0
        return found

    def next(self) -> str:
        if self.at >= len(self.pattern):
            raise _SyntaxError("the pattern ends too early")
        self.at += 1
        return self.pattern[self.at - 1]

    def disjunction(self) -> Syntax:
        options = [self.alternative()]
        while self.take("|"):
            options.append(self.alternative())
        return options[0] if len(options) == 1 else ("alt", tuple(options))

    def alternative(self) -> Syntax:
        terms: list[Syntax] = []
        while self.at < len(self.pattern) and not self.peek("|") and not self.peek(")"):
            terms.append(self.term())
        return ("cat", tuple(terms))

    def term(self) -> Syntax:
        atom = self.atom()
        counts = self.quantifier()
        if counts is None:
            return atom
        if atom[0] in ("begin", "end", "word") or (atom[0] == "look" and self.strict):
            raise _SyntaxError("nothing to repeat")
        least, most = counts
        if most is not None and least > most:
            raise PatternError(f"the counts of {{{least},{most}}} are out of order")
        if max(least, most or 0) > MAX_COUNT:
            raise PatternError(f"a count above {MAX_COUNT} is not supported")
        return ("rep", atom, least, most)

    def quantifier(self) -> tuple[int, int | None] | None:
        simple: tuple[tuple[str, tuple[int, int | None]], ...] = (("*", (0, None)), ("+", (1, None)), ("?", (0, 1)))
        for mark, counts in simple:
            if self.take(mark):
                self.take("?")
                return counts
        found = self.braces() if self.peek("{") else None
        if found is not None:
            self.take("?")
        return found

    def braces(self) -> tuple[int, int | None] | None:
        end = self.pattern.find("}", self.at)
        body = self.pattern[self.at + 1 : end] if end > 0 else ""
        low, comma, high = body.partition(",")
        if not _is_number(low) or (high and not _is_number(high)):
            if self.strict:
                raise _SyntaxError("a lone '{'")
            return None
        self.at = end + 1
        least = _count(low)
        return least, (least if not comma else _count(high) if high else None)

    def atom(self) -> Syntax:
        char = self.next()
        if char == "^":
            return ("begin",)
        if char == "$":
            return ("end",)
        if char == ".":
            return ("set", ~LINE_ENDS)
        if char == "(":
            return self.group()
        if char == "[":
            return ("set", self.bracket())
        if char == "\\":
            return self.escape()
        if char in "*+?" or (char == "{" and not self.literal_brace()):
            raise _SyntaxError(f"nothing to repeat at {self.at - 1}")
        if char in "}]{" and self.strict:
            raise _SyntaxError(f"a lone {char!r} at {self.at - 1}")
        return ("set", CharSet.only(char))

    def literal_brace(self) -> bool:
        self.at -= 1
        found = None if self.strict else self.braces()
        self.at += 1
        return found is None

    def group(self) -> Syntax:
        for mark, ahead, negative in (("?=", True, False), ("?!", True, True), ("?<=", False, False),
                                      ("?<!", False, True)):  # fmt: skip
            if self.take(mark):
                if not ahead:
                    raise PatternError("look-behind is not supported")
                inner = self.closed()
                return ("look", negative, inner)
        if self.take("?<"):
            name = self.pattern[self.at : self.pattern.find(">", self.at)]
            if not name.replace("$", "_").isidentifier():
                raise PatternError(f"{name!r} is no group name")
            self.at += len(name) + 1
        elif self.peek("?") and not self.take("?:"):
            raise PatternError(f"'({self.pattern[self.at : self.at + 2]}' is no group of ECMA-262")
        return self.closed()

    def closed(self) -> Syntax:
        found = self.disjunction()
        if not self.take(")"):
            raise PatternError("a group is not closed")
        return found

    def escape(self) -> Syntax:
        char = self.next()
        if char in "bB":
            return ("word", char == "B")
        if char == "k" and (self.strict or self.names):
            raise PatternError("backreferences are not supported")
        if char in "123456789" and self.reference(char):
            raise PatternError("backreferences are not supported")
        return ("set", self.class_escape(char, in_class=False))

    def reference(self, char: str) -> bool:
        digits = char
        for more in self.pattern[self.at :]:
            if more not in "0123456789":
                break
            digits += more
        return int(digits) <= self.groups

    def class_escape(self, char: str, in_class: bool) -> CharSet:
        if char in _CLASSES:
            return _CLASSES[char]
        if char in "pP" and self.strict:
            return self.property(char == "P")
        if char == "0" and self.pattern[self.at : self.at + 1] in tuple("0123456789"):
            return self.octal(char)
        if char in _CONTROLS:
            return CharSet.only(_CONTROLS[char])
        if char in "123456789":
            return self.octal(char)
        code = self.coded(char, in_class)
        if code is not None:
            return CharSet.of([(code, code)])
        if self.strict and char not in _SYNTAX_CHARS and not (in_class and char == "-"):
            raise _SyntaxError(f"'\\{char}' is no escape")
        return CharSet.only(char)

    def octal(self, char: str) -> CharSet:
        if self.strict:
            raise _SyntaxError("an octal escape")
        if char in "89":
            return CharSet.only(char)
        digits = char
        while len(digits) < (3 if char in "0123" else 2) and self.pattern[self.at : self.at + 1] in tuple("01234567"):
            digits += self.next()
        return CharSet.of([(int(digits, 8), int(digits, 8))])

    def coded(self, char: str, in_class: bool) -> int | None:
        """The code of \\cX, \\xHH, \\uHHHH, \\u{H...}; None if it is none of them."""
        if char == "c":
            letter = self.pattern[self.at : self.at + 1]
            legal = letter.isascii() and (letter.isalpha() or (in_class and not self.strict and letter.isalnum()))
            if letter and (legal or (letter == "_" and in_class and not self.strict)):
                return ord(self.next()) % 32
            if self.strict:
                raise _SyntaxError("'\\c' without a letter")
            self.at -= 1
            return ord("\\")
        if char == "x":
            return self.hexadecimal(2)
        if char != "u":
            return None
        if self.strict and self.take("{"):
            digits = self.pattern[self.at : max(self.at, self.pattern.find("}", self.at))]
            if not _is_hex(digits) or int(digits, 16) > 0x10FFFF:
                raise _SyntaxError("'\\u{' without a code point")
            self.at += len(digits) + 1
            return int(digits, 16)
        high = self.hexadecimal(4)
        if high is not None and 0xD800 <= high < 0xDC00 and self.peek("\\u"):
            back = self.at
            self.at += 2
            low = self.hexadecimal(4)
            if low is not None and 0xDC00 <= low < 0xE000:
                return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00)
            self.at = back
        return high

    def hexadecimal(self, size: int) -> int | None:
        digits = self.pattern[self.at : self.at + size]
        if len(digits) < size or not _is_hex(digits):
            if self.strict:
                raise _SyntaxError("an escape without its digits")
            return None
        self.at += size
        return int(digits, 16)

    def property(self, inverted: bool) -> CharSet:
        end = self.pattern.find("}", self.at)
        if not self.take("{") or end < 0:
            raise _SyntaxError("'\\p' without {name}")
        name = self.pattern[self.at : end]
        self.at = end + 1
        found = unicode_property(name)
        if found is None:
            raise PatternError(f"'\\p{{{name}}}' is no property that is known here")
        return ~found if inverted else found

    def bracket(self) -> CharSet:
        inverted = self.take("^")
        members = CharSet(())
        while not self.take("]"):
            start, single = self.class_atom()
            if not (self.peek("-") and not self.peek("-]")):
                members |= start
                continue
            self.take("-")
            end, last = self.class_atom()
            if single is None or last is None:
                if self.strict:
                    raise _SyntaxError("a class in a range")
                members = members | start | end | CharSet.only("-")
            elif single > last:
                raise PatternError("a range out of order")
            else:
                members |= CharSet.of([(single, last)])
        return ~members if inverted else members

    def class_atom(self) -> tuple[CharSet, int | None]:
        char = self.next()
        if char != "\\":
            return CharSet.only(char), ord(char)
        char = self.next()
        if char == "b":
            return CharSet.only("\b"), 8
        found = self.class_escape(char, in_class=True)
        whole_class = char in _CLASSES or (char in "pP" and self.strict)
        if whole_class or len(found.ranges) != 1 or found.ranges[0][0] != found.ranges[0][1]:
            return found, None
        return found, found.ranges[0][0]


def _groups(pattern: str) -> tuple[int, bool]:
    """How many groups capture, and whether one has a name."""
    count, names, at, in_class = 0, False, 0, False
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 2
            continue
        in_class = (char == "[" or in_class) and char != "]"
        if char == "(" and not in_class:
            named = pattern.startswith("(?<", at) and pattern[at + 3 : at + 4] not in ("=", "!")
            names = names or named
            count += named or not pattern.startswith("(?", at)
        at += 1
    return count, names


def _is_number(digits: str) -> bool:
    return digits.isascii() and digits.isdigit()


def _is_hex(digits: str) -> bool:
    return bool(digits) and all(digit in "0123456789abcdefABCDEF" for digit in digits)


def _count(digits: str) -> int:
    return int(digits[:12])


def anything() -> Syntax:
    """Any text."""
    return ("rep", ("set", ALL), 0, None)
