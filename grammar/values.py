"""Where a value could come from: numbers, names and spans of the conversation (SYSTEM.md G3)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

from .hints import Hint

_NUMBER: Final = re.compile(r"(?<![A-Za-z0-9_.])-?\d+(?:,\d{3})*(?:\.\d+)?")
_COUNT_WORDS: Final = {
    word: str(value)
    for value, word in enumerate(
        ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
    )
}
_COUNTED: Final = re.compile(r"\b(" + "|".join(_COUNT_WORDS) + r")\b", re.I)
_QUOTED: Final = re.compile(r"'((?:[^'\n]|(?<=\w)'(?=\w)){1,120})'(?!\w)|\"([^\"\n]{1,120})\"|[“‘]([^”’\n]{1,120})[”’]")
_NAME: Final = re.compile(r"[A-Z][\w&'’.-]*(?:\s+(?:(?:of|the|de|la)\s+)?[A-Z0-9][\w&'’.-]*)*")
_PRECISE: Final[dict[str, re.Pattern[str]]] = {
    "email": re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"),
    "uri": re.compile(r"https?://[^\s\"'<>)]+[^\s\"'<>).,;!?]"),
    "date": re.compile(r"\b\d{4}-\d{2}-\d{2}\b"),
    "time": re.compile(r"\b\d{1,2}:\d{2}(?::\d{2})?\b"),
    "uuid": re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"),
    "id": re.compile(r"\b(?=\w*\d)(?=\w*[A-Za-z])[\w-]{3,40}\b"),
    "path": re.compile(r"(?<!\w)(?:[~.]?/[\w./-]+|[\w-]+\.(?:py|txt|md|json|csv|log|pdf|png|jpg|db))\b"),
}
_STOPS: Final = re.compile(r"[\"\n]|[.,;:!?)\]}](?=\s|$)")
_CAMEL_END: Final = 80
_SENTENCE_STARTS: Final = frozenset(
    [
        "a",
        "an",
        "the",
        "what",
        "how",
        "find",
        "calculate",
        "get",
        "i",
        "is",
        "can",
        "could",
        "please",
        "create",
        "for",
        "from",
        "in",
        "on",
        "of",
        "at",
        "determine",
        "compute",
        "show",
        "tell",
        "give",
        "which",
        "who",
        "when",
        "where",
        "why",
        "do",
        "does",
        "need",
        "want",
        "would",
        "me",
        "my",
        "you",
        "help",
        "list",
        "search",
        "if",
        "to",
        "write",
        "convert",
        "estimate",
        "identify",
        "retrieve",
        "generate",
        "play",
    ]
)


class Place(NamedTuple):
    """A value found in text: ``segment`` 0 is the latest message; ``near``: words just before and after it."""

    text: str
    segment: int
    at: int
    near: frozenset[str]
    kind: str


@dataclass
class Conversation:
    """Messages, latest first, and what can be copied from them."""

    segments: Sequence[str]
    _spans: dict[str, list[Place]] = field(default_factory=dict)

    @cached_property
    def numbers(self) -> list[Place]:
        """Numbers in order of segments, then of text."""
        found = []
        for index, text in enumerate(self.segments[:8]):
            here = [(m.start(), m[0].replace(",", "")) for m in _NUMBER.finditer(text)]
            here += [(m.start(), _COUNT_WORDS[m[1].lower()]) for m in _COUNTED.finditer(text)]
            found += [Place(t, index, at, _near(text, at, len(t)), "number") for at, t in sorted(here)[:200]]
        return found

    @cached_property
    def spans(self) -> list[Place]:
        """Strings that stand out, in order of segments, then of text."""
        found: list[Place] = []
        for index, text in enumerate(self.segments[:8]):
            here: dict[str, Place] = {}
            for kind, at, span in sorted(_standing_out(text[:20000]), key=lambda item: item[1]):
                here.setdefault(span, Place(span, index, at, _near(text, at, len(span)), kind))
            found += list(here.values())[:200]
        return found

    def numbers_for(self, hint: Hint, used: Sequence[str]) -> list[str]:
        """Numbers that may fill a value, likeliest first."""
        ranked: dict[str, float] = {}
        order = 0
        for place in self.numbers:
            score = -place.segment * 3.0
            if place.text in used:
                score -= 2.5
            else:
                score -= 0.3 * order
                order += 1
            score += 1.6 * min(2, _matches(hint.words, place.near))
            if "." in place.text and hint.types == ("integer",):
                score -= 6
            ranked[place.text] = max(ranked.get(place.text, -99.0), score)
        return sorted(ranked, key=lambda text: -ranked[text])[:6]

    def strings_for(self, hint: Hint, used: Sequence[str]) -> list[str]:
        """Strings that may fill a value, likeliest first."""
        ranked: dict[str, float] = {}
        order = 0
        for place in self.spans:
            score = -place.segment * 2.0 + _KIND_BONUS.get(place.kind, 0.0)
            if place.text in used:
                score -= 2.0
            else:
                score -= 0.25 * order
                order += 1
            score += 1.2 * min(2, _matches(hint.words, place.near))
            if hint.format is not None:
                score += 3.0 if place.kind == hint.format else -3.0
            ranked[place.text] = max(ranked.get(place.text, -99.0), score)
        return sorted(ranked, key=lambda text: -ranked[text])[:6]

    def after(self, begun: str, limit: int = 3) -> list[str]:
        """How the conversation goes on where ``begun``, or its last words, stand in it; up to a natural stop."""
        found: dict[str, None] = {}
        for piece in _suffixes(begun):
            for text in self.segments:
                for at in _occurrences(text, piece):
                    rest = text[at : at + _CAMEL_END]
                    stop = _STOPS.search(rest)
                    found.setdefault(rest[: stop.start()] if stop else rest, None)
                    if len(found) >= limit:
                        return list(found)
            if found:
                break
        return list(found)

    def mentions(self, words: frozenset[str]) -> int:
        """How many of ``words`` the latest message has."""
        return _matches(words, self._latest_words)

    @cached_property
    def _latest_words(self) -> frozenset[str]:
        return frozenset(re.findall(r"[a-z]+", (self.segments[0] if self.segments else "").lower()))


_KIND_BONUS: Final = {"quoted": 1.0, "email": 0.6, "uri": 0.6, "date": 0.4, "path": 0.4, "name": 0.3, "id": 0.2}


def _standing_out(text: str) -> Iterator[tuple[str, int, str]]:
    for match in _QUOTED.finditer(text):
        yield "quoted", match.start() + 1, next(filter(None, match.groups()))
    for kind, pattern in _PRECISE.items():
        yield from ((kind, m.start(), m[0]) for m in pattern.finditer(text))
    for match in _NAME.finditer(text):
        span, at = match[0].rstrip(".'’-"), match.start()
        first = span.split()[0]
        if first.lower() in _SENTENCE_STARTS:
            at += len(first) + 1
            span = span[len(first) + 1 :]
        if len(span) > 1:
            yield "name", at, re.sub(r"['’]s$", "", span)


def _near(text: str, at: int, length: int) -> frozenset[str]:
    before = re.findall(r"[a-z]+", text[max(0, at - 40) : at].lower())[-5:]
    after = re.findall(r"[a-z]+", text[at + length : at + length + 20].lower())[:1]
    return frozenset(before + after)


@lru_cache(maxsize=4096)
def _matches(words: frozenset[str], near: frozenset[str]) -> int:
    return sum(1 for word in words if any(_alike(word, other) for other in near))


def _alike(a: str, b: str) -> bool:
    return a == b or (min(len(a), len(b)) >= 4 and (a.startswith(b[:5]) or b.startswith(a[:5])))


def _suffixes(begun: str) -> Iterator[str]:
    """The begun text, then ever fewer of its last words."""
    if begun.strip():
        yield begun
    words = [m.start() for m in re.finditer(r"(?<=\W)\w", begun)]
    for start in words[-3:]:
        if start > 0 and len(begun) - start >= 3:
            yield begun[start:]


def _occurrences(text: str, piece: str) -> Iterator[int]:
    at = text.find(piece)
    while at >= 0:
        if at == 0 or not (text[at - 1].isalnum() and piece[0].isalnum()):
            yield at + len(piece)
        at = text.find(piece, at + 1)
