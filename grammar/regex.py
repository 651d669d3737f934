"""Shortest completions of a partly written text under a regular expression.

llguidance decides what matches; this automaton only proposes how to finish (SYSTEM.md G5), so an expression it
cannot read is answered with None, never with a wrong acceptance.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Final

from re import _constants as op  # type: ignore[attr-defined]  # isort: skip
from re import _parser as sre  # type: ignore[attr-defined]  # isort: skip

_MAX_STATES: Final = 4000
_PREFERRED: Final = "a1A-_ .0:/b@,;+x~!#$%&'()*<=>?[]^`{|}é中\"\\\n\t"
_INFINITE: Final = 1 << 30


@dataclass(frozen=True)
class CharClass:
    """A set of characters as ranges of code points, possibly inverted."""

    ranges: tuple[tuple[int, int], ...]
    inverted: bool = False

    def __contains__(self, char: str) -> bool:
        code = ord(char)
        return any(low <= code <= high for low, high in self.ranges) is not self.inverted

    @cached_property
    def sample(self) -> str | None:
        """A character of the set, one that JSON need not escape if there is one."""
        for char in _PREFERRED:
            if char in self:
                return char
        spans = [(0x21, 0x10FFFF)] if self.inverted else self.ranges
        for low, high in spans:
            for code in range(max(low, 0x20), min(high, max(low, 0x20) + 400) + 1):
                if not 0xD800 <= code <= 0xDFFF and chr(code) in self:
                    return chr(code)
        return None


_DIGIT: Final = ((48, 57),)
_WORD: Final = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE: Final = ((9, 13), (32, 32))
_ANY: Final = CharClass((), inverted=True)
_CATEGORIES: Final = {
    op.CATEGORY_DIGIT: CharClass(_DIGIT), op.CATEGORY_NOT_DIGIT: CharClass(_DIGIT, True),
    op.CATEGORY_WORD: CharClass(_WORD), op.CATEGORY_NOT_WORD: CharClass(_WORD, True),
    op.CATEGORY_SPACE: CharClass(_SPACE), op.CATEGORY_NOT_SPACE: CharClass(_SPACE, True),
}  # fmt: skip


@dataclass
class _Builder:
    """Thompson construction: per state silent edges and at most one character edge."""

    silent: list[list[int]] = field(default_factory=list)
    char: list[tuple[CharClass, int] | None] = field(default_factory=list)
    begins: set[int] = field(default_factory=set)
    ends: set[int] = field(default_factory=set)

    def state(self) -> int:
        if len(self.silent) > _MAX_STATES:
            raise OverflowError
        self.silent.append([])
        self.char.append(None)
        return len(self.silent) - 1

    def sequence(self, items: Any, at: int) -> int:
        for code, argument in items:
            at = self.item(code, argument, at)
        return at

    def item(self, code: Any, argument: Any, at: int) -> int:
        if code in (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN):
            return self.step(_char_class(code, argument), at)
        if code is op.SUBPATTERN:
            return self.sequence(argument[-1], at)
        if code is op.BRANCH:
            done = self.state()
            for option in argument[1]:
                start = self.state()
                self.silent[at].append(start)
                self.silent[self.sequence(option, start)].append(done)
            return done
        if code in (op.MAX_REPEAT, op.MIN_REPEAT, getattr(op, "POSSESSIVE_REPEAT", None)):
            least, most, items = argument
            return self.repeat(least, most, items, at)
        if code is op.AT:
            return self.anchor(argument, at)
        raise ValueError(f"{code} has no automaton")

    def step(self, chars: CharClass, at: int) -> int:
        if self.char[at] is not None:
            middle = self.state()
            self.silent[at].append(middle)
            at = middle
        after = self.state()
        self.char[at] = (chars, after)
        return after

    def repeat(self, least: int, most: Any, items: Any, at: int) -> int:
        for _ in range(least):
            at = self.sequence(items, at)
        if most is op.MAXREPEAT:
            loop, done = self.state(), self.state()
            self.silent[at].append(loop)
            self.silent[loop].append(done)
            start = self.state()
            self.silent[loop].append(start)
            self.silent[self.sequence(items, start)].append(loop)
            return done
        done = self.state()
        for _ in range(most - least):
            self.silent[at].append(done)
            start = self.state()
            self.silent[at].append(start)
            at = self.sequence(items, start)
        self.silent[at].append(done)
        return done

    def anchor(self, where: Any, at: int) -> int:
        after = self.state()
        self.silent[at].append(after)
        if where in (op.AT_BEGINNING, op.AT_BEGINNING_STRING):
            self.begins.add(after)
        elif where in (op.AT_END, op.AT_END_STRING):
            self.ends.add(after)
        else:
            raise ValueError("word boundaries have no automaton")
        return after


def _char_class(code: Any, argument: Any) -> CharClass:
    if code is op.LITERAL:
        return CharClass(((argument, argument),))
    if code is op.NOT_LITERAL:
        return CharClass(((argument, argument),), True)
    if code is op.ANY:
        return CharClass(((10, 10),), True)
    ranges: list[tuple[int, int]] = []
    inverted = False
    for kind, value in argument:
        if kind is op.NEGATE:
            inverted = True
        elif kind is op.LITERAL:
            ranges.append((value, value))
        elif kind is op.RANGE:
            ranges.append(value)
        elif kind is op.CATEGORY:
            ranges.extend(_spans(_CATEGORIES[value]))
        else:
            raise ValueError(f"{kind} has no automaton")
    return CharClass(tuple(ranges), inverted)


def _spans(chars: CharClass) -> list[tuple[int, int]]:
    if not chars.inverted:
        return list(chars.ranges)
    spans, low = [], 0
    for first, last in sorted(chars.ranges):
        spans.append((low, first - 1))
        low = last + 1
    return [*spans, (low, 0x10FFFF)]


@dataclass(frozen=True)
class Automaton:
    """A regular expression as states; ``search`` expressions may match anywhere in the text."""

    silent: tuple[tuple[int, ...], ...]
    char: tuple[tuple[CharClass, int] | None, ...]
    begins: frozenset[int]
    ends: frozenset[int]
    start: int
    accept: int

    @classmethod
    @lru_cache(maxsize=512)
    def of(cls, pattern: str, search: bool = False) -> Automaton | None:
        """The automaton of a pattern; None where the pattern is beyond this construction."""
        try:
            parsed = sre.parse(re.sub(r"\(\?<(?![=!])", "(?P<", pattern))
            builder = _Builder()
            at = start = builder.state()
            if search:
                at = builder.repeat(0, op.MAXREPEAT, [(op.IN, [(op.NEGATE, None)])], at)
            at = builder.sequence(parsed, at)
            if search:
                at = builder.repeat(0, op.MAXREPEAT, [(op.IN, [(op.NEGATE, None)])], at)
        except (re.error, ValueError, OverflowError, RecursionError, KeyError):
            return None
        silent = tuple(map(tuple, builder.silent))
        return cls(silent, tuple(builder.char), frozenset(builder.begins), frozenset(builder.ends), start, at)

    def closure(self, states: set[int], first: bool) -> set[int]:
        """All states reached without a character; anchors are heeded."""
        seen, todo = set(), list(states)
        while todo:
            state = todo.pop()
            if state in seen or (state in self.begins and not first):
                continue
            seen.add(state)
            todo.extend(self.silent[state])
        return seen

    def after(self, text: str) -> set[int]:
        """States after ``text``; empty if no match can begin so."""
        states = self.closure({self.start}, True)
        for char in text:
            moved = set()
            for state in states:
                edge = self.char[state]
                if edge is not None and char in edge[0]:
                    moved.add(edge[1])
            states = self.closure(moved, False)
        return states

    @cached_property
    def distance(self) -> tuple[int, ...]:
        """Fewest characters from each state to acceptance; past an end anchor nothing may be written."""
        back: list[list[tuple[int, int]]] = [[] for _ in self.silent]
        for state, targets in enumerate(self.silent):
            for target in targets:
                back[target].append((state, 0))
            edge = self.char[state]
            if edge is not None and edge[0].sample is not None:
                back[edge[1]].append((state, 1))
        far = [_INFINITE] * len(self.silent)
        far[self.accept] = 0
        queue = deque([self.accept])
        while queue:
            state = queue.popleft()
            if state in self.begins:  # entered at the very beginning only, where ``after`` has gone through it
                continue
            for before, cost in back[state]:
                if state in self.ends and far[state] > 0:
                    continue
                if far[state] + cost < far[before]:
                    far[before] = far[state] + cost
                    (queue.append if cost else queue.appendleft)(before)
        return tuple(far)

    @property
    def farthest(self) -> int:
        """Most characters any reachable position may still need."""
        return max((d for d in self.distance if d < _INFINITE), default=0)

    def finish(self, text: str, at_least: int = 0) -> str | None:
        """A shortest text of ``at_least`` characters or more that completes ``text``; None if there is none."""
        states = self.after(text)
        written: list[str] = []
        for left in range(at_least, 0, -1):
            step = self._step(states, left)
            if step is None:
                return None
            char, states = step
            written.append(char)
            states = self.closure(states, False)
        while states:
            best = min(states, key=lambda s: self.distance[s])
            if self.distance[best] == 0:
                return "".join(written)
            if self.distance[best] >= _INFINITE:
                return None
            edge = self._edge_towards(best, not text and not written)
            if edge is None:
                return None
            written.append(edge[0])
            states = self.closure({edge[1]}, False)
        return None

    def _edge_towards(self, state: int, first: bool) -> tuple[str, int] | None:
        want = self.distance[state] - 1
        for near in self.closure({state}, first):
            edge = self.char[near]
            if edge is not None and edge[0].sample is not None and self.distance[edge[1]] == want:
                return edge[0].sample, edge[1]
        return None

    def _step(self, states: set[int], left: int) -> tuple[str, set[int]] | None:
        """One character that keeps the most ways open, for texts longer than the shortest match."""
        options: dict[str, set[int]] = {}
        for state in states:
            edge = self.char[state]
            if edge is not None and edge[0].sample is not None and self.distance[edge[1]] < _INFINITE:
                options.setdefault(edge[0].sample, set()).add(edge[1])
        if not options:
            return None
        lasting = {c: t for c, t in options.items() if self._lasts(t, left - 1)} or options
        char = min(lasting, key=lambda c: min(self.distance[t] for t in lasting[c]))
        reached = {edge[1] for s in states if (edge := self.char[s]) is not None and char in edge[0]}
        return char, reached

    def _lasts(self, states: set[int], steps: int) -> bool:
        """Whether ``steps`` more characters can be written; loops are found within as many rounds as states."""
        seen: set[frozenset[int]] = set()
        for _ in range(min(steps, 400)):
            states = self.closure(states, False)
            key = frozenset(states)
            if key in seen:
                return True
            seen.add(key)
            states = {e[1] for s in states if (e := self.char[s]) is not None and self.distance[e[1]] < _INFINITE}
            if not states:
                return False
        return True
