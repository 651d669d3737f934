"""The grammar of a reply that is one or more tool calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from llguidance import LLMatcher

from .constraint import GrammarPlan
from .families import Family
from .plans import cached
from .shape import Choice, Literal, Node, Repeat, Sequence_, settle
from .shape_build import shape_of
from .tools import Tool
from .vocabulary import Vocabulary

MAX_PARALLEL: Final = 8
"""Calls in one reply at most, so that a reply always ends."""


def calls_plan(
    vocabulary: Vocabulary, tools: Sequence[Tool], family: Family, most: int, skip: str = "", prefix: str = ""
) -> GrammarPlan:
    """The plan of a reply of 1 to ``most`` calls.

    ``skip``: the beginning of the reply that is written already when the grammar starts (the trigger under
    ``auto``); ``prefix``: fixed text before everything (an empty reasoning section, say).
    """
    key = json.dumps(["calls", family.name, most, skip, prefix, [[t.name, t.arguments.text] for t in tools]])
    unenforced = tuple((f"{t.name}:{u.pointer}", u.keyword) for t in tools for u in t.arguments.unenforced)

    def build() -> GrammarPlan:
        writer = _Writer(vocabulary, family)
        grammar = LLMatcher.grammar_from_lark(writer.lark(tools, most, skip, prefix))
        shape = _shape(tools, family, most, skip, prefix)
        return GrammarPlan.compile(
            vocabulary,
            grammar,
            shape,
            wrapped=True,
            controls=tuple(sorted(writer.used)),
            seed=_json_part(skip, family),
            unenforced=unenforced,
            hints={tool.name: tool.arguments.schema for tool in tools},
        )

    return cached(vocabulary, key + repr(unenforced), build)


class _Writer:
    """Writes Lark; control tokens by id where the tokenizer has them, else as text."""

    def __init__(self, vocabulary: Vocabulary, family: Family) -> None:
        self.vocabulary = vocabulary
        self.family = family
        self.used: set[int] = set()

    def lark(self, tools: Sequence[Tool], most: int, skip: str, prefix: str) -> str:
        family = self.family
        repeat = f" (between call){{0,{most - 1}}}" if most > 1 else ""
        opening, first = _cut(prefix + family.opener, skip)
        rules = [f"start: {self.text(opening)} {'first' if first else 'call'}{repeat} {self.text(family.closer)}"]
        if first:
            rules.append("first: " + " | ".join(self._call(t, i, first) for i, t in enumerate(tools)))
        if not first or most > 1:
            rules.append("call: " + " | ".join(self._call(tool, i, "") for i, tool in enumerate(tools)))
        if most > 1:
            rules.append(f"between: {self.text(family.between)}")
        rules += [tool.arguments.rules(f"args{i}") for i, tool in enumerate(tools)]
        return "\n".join(rules) + "\n"

    def _call(self, tool: Tool, index: int, written: str) -> str:
        head = self.family.call_head(tool.name)[len(written) :]
        return f"{self.text(head)} args{index} {self.text(self.family.tail)}"

    def text(self, text: str) -> str:
        parts = []
        for plain, control in _split(text, self.family.controls):
            if plain:
                parts.append(json.dumps(plain, ensure_ascii=False))
            if control:
                token = self.vocabulary.control(control)
                if token is None:
                    parts.append(json.dumps(control))
                else:
                    self.used.add(token)
                    parts.append(f"<[{token}]>")
        return " ".join(parts) if parts else '""'


def _cut(opener: str, skip: str) -> tuple[str, str]:
    """What is left of the opener after ``skip``, and what of the first call is written already."""
    if len(skip) <= len(opener):
        return opener[len(skip) :], ""
    return "", skip[len(opener) :]


def _json_part(skip: str, family: Family) -> bytes:
    """What of the trigger is JSON: it names where the grammar starts."""
    for control in family.controls:
        skip = skip.replace(control, "")
    return skip.encode()


def _split(text: str, controls: Sequence[str]) -> list[tuple[str, str]]:
    """(plain, control) pairs whose concatenation is ``text``."""
    parts: list[tuple[str, str]] = []
    while text:
        found = [(text.find(c), c) for c in controls if c in text]
        if not found:
            return [*parts, (text, "")]
        at, control = min(found)
        parts.append((text[:at], control))
        text = text[at + len(control) :]
    return parts


def _shape(tools: Sequence[Tool], family: Family, most: int, skip: str, prefix: str) -> Node:
    opening, written = _cut(prefix + family.opener, skip)
    arguments = [shape_of(tool.arguments) for tool in tools]

    def call(written: str) -> Node:
        heads = [family.call_head(tool.name)[len(written) :].encode() for tool in tools]
        tail = Literal(family.tail.encode())
        return Choice(tuple(Sequence_((Literal(h), a, tail)) for h, a in zip(heads, arguments, strict=True)))

    first = call(written)
    parts: list[Node] = [Literal(opening.encode())]
    if most > 1:
        more = Sequence_((Literal(family.between.encode()), call("")))
        parts += [first, Repeat(more, b"", 0, most - 1)]
    else:
        parts.append(first)
    root = Sequence_((*parts, Literal(family.closer.encode())))
    settle(root)
    return root
