"""Shortest completions of a partly written text under a regular expression.

What is found is exact: a text is a completion if and only if the expression admits the whole. Expressions with
intersections or complements may have very many states; the search is bounded by work and says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

from mmspec_agent.core.errors import SchemaError

from .charset import CharSet
from .ecma import PatternError
from .pattern import searched, whole_match
from .regular import NOTHING, Regular, classes, derivative

MAX_STATES: Final = 4000
"""States visited in one search for a completion; expressions that need more are refused."""

_MOST_KNOWN: Final = 1 << 14


class TooIntricate(SchemaError):
    """An expression whose shortest text is not found within the bound on states."""


@dataclass(frozen=True)
class Automaton:
    """A regular language as states that are made when they are met."""

    start: Regular

    @classmethod
    @lru_cache(maxsize=512)
    def of(cls, pattern: str, search: bool = False) -> Automaton | None:
        """The automaton of a pattern (``search``: found anywhere in the text); None where it has none."""
        try:
            return cls(searched(pattern) if search else whole_match(pattern))
        except PatternError:
            return None

    @cached_property
    def _edges(self) -> dict[Regular, list[tuple[CharSet, Regular]]]:
        return {}

    @cached_property
    def _after(self) -> dict[str, Regular]:
        return {"": self.start}

    @cached_property
    def _tails(self) -> dict[tuple[Regular, int, int | None], str | None]:
        return {}

    def edges(self, state: Regular) -> list[tuple[CharSet, Regular]]:
        """Per class of characters the state after it; dead ends that show are left out."""
        found = self._edges.get(state)
        if found is None:
            found = []
            for cell in classes(state):
                sample = cell.sample
                if sample is None:
                    continue
                after = derivative(state, sample)
                if after is not NOTHING:
                    found.append((cell, after))
            if len(self._edges) > _MOST_KNOWN:
                self._edges.clear()
            self._edges[state] = found
        return found

    def after(self, text: str) -> Regular:
        """The state after ``text``."""
        known = self._after
        at = next((n for n in range(len(text), max(-1, len(text) - 64), -1) if text[:n] in known), 0)
        state = known[text[:at]]
        for index in range(at, len(text)):
            state = derivative(state, text[index])
            if len(known) > _MOST_KNOWN:
                known.clear()
                known[""] = self.start
            known[text[: index + 1]] = state
        return state

    def matches(self, text: str) -> bool:
        """Whether the language holds ``text``."""
        return self.after(text).nullable

    def finish(self, text: str, at_least: int = 0, at_most: int | None = None) -> str | None:
        """A shortest text of ``at_least`` to ``at_most`` characters that completes ``text``; None if there is none."""
        key = (self.after(text), max(at_least, 0), at_most)
        if key not in self._tails:
            if len(self._tails) > _MOST_KNOWN:
                self._tails.clear()
            self._tails[key] = self._search(*key)
        return self._tails[key]

    def _search(self, state: Regular, at_least: int, at_most: int | None) -> str | None:
        """Breadth first; before ``at_least`` characters a state may be met again, after them once."""
        if state.nullable and at_least == 0:
            return ""
        layers: list[dict[Regular, tuple[Regular, str]]] = [{state: (state, "")}]
        seen: set[Regular] = set()
        visited = 0
        while layers[-1] and (at_most is None or len(layers) <= at_most):
            layer: dict[Regular, tuple[Regular, str]] = {}
            for here in layers[-1]:
                for cell, after in self.edges(here):
                    if after not in layer and (len(layers) < at_least or after not in seen):
                        layer[after] = (here, cell.sample or "")
            layers.append(layer)
            visited += len(layer)
            if len(layers) > at_least:
                seen.update(layer)
                found = next((here for here in layer if here.nullable), None)
                if found is not None:
                    return _written(layers, found)
            if visited > MAX_STATES + at_least:
                raise TooIntricate(f"no text was found within {MAX_STATES} states")
        return None

    @cached_property
    def farthest(self) -> int:
        """Most characters a reachable position may still need, as far as a bounded look finds."""
        seen, todo, most = {self.start}, [self.start], 0
        while todo and len(seen) < 400:
            state = todo.pop()
            for _, after in self.edges(state):
                if after not in seen:
                    seen.add(after)
                    todo.append(after)
        for state in list(seen)[:400]:
            tail = self._search(state, 0, None)
            most = max(most, len(tail or ""))
        return most


def _written(layers: list[dict[Regular, tuple[Regular, str]]], state: Regular) -> str:
    letters = []
    for layer in reversed(layers[1:]):
        state, char = layer[state]
        letters.append(char)
    return "".join(reversed(letters))
