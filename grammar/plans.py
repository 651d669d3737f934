"""Compiled grammars, cached by what they were compiled from."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from llguidance import LLMatcher

from .constraint import GrammarPlan
from .regex import Automaton
from .schema import JsonSchema, Separators, Unsupported, normalise
from .shape import Pattern, settle
from .shape_build import shape_of
from .vocabulary import Vocabulary

_MOST_PLANS: Final = 256
_LOCK = threading.Lock()
_PLANS: OrderedDict[tuple[int, str], tuple[Vocabulary, GrammarPlan]] = OrderedDict()


def cached(vocabulary: Vocabulary, key: str, build: Callable[[], GrammarPlan]) -> GrammarPlan:
    """The plan kept under ``key`` for this vocabulary, built if new; the least used go first."""
    place = (id(vocabulary), key)
    with _LOCK:
        found = _PLANS.get(place)
        if found is not None and found[0] is vocabulary:
            _PLANS.move_to_end(place)
            return found[1]
    plan = build()
    with _LOCK:
        _PLANS[place] = (vocabulary, plan)
        while len(_PLANS) > _MOST_PLANS:
            _PLANS.popitem(last=False)
    return plan


def json_plan(
    vocabulary: Vocabulary,
    schema: Any,
    *,
    separators: Separators = "spaced",
    unsupported: Unsupported = "refuse",
    close_objects: bool = True,
) -> GrammarPlan:
    """The plan of replies that are one JSON document of ``schema``; errors as of ``normalise``."""
    ready = normalise(schema, separators=separators, unsupported=unsupported, close_objects=close_objects)
    return schema_plan(vocabulary, ready)


def schema_plan(vocabulary: Vocabulary, schema: JsonSchema) -> GrammarPlan:
    """The plan of a schema that is normalised already."""

    def build() -> GrammarPlan:
        grammar = LLMatcher.grammar_from_lark(schema.rules("start"))
        return GrammarPlan.compile(
            vocabulary, grammar, shape_of(schema), unenforced=schema.unenforced, hints={"": schema.schema}
        )

    return cached(vocabulary, "json" + repr(schema.unenforced) + schema.text, build)


def regex_plan(vocabulary: Vocabulary, pattern: str) -> GrammarPlan:
    """The plan of replies that match a regular expression as a whole."""

    def build() -> GrammarPlan:
        automaton = Automaton.of(pattern)
        shape = None if automaton is None else Pattern(automaton)
        if shape is not None:
            settle(shape)
        return GrammarPlan.compile(vocabulary, LLMatcher.grammar_from_regex(pattern), shape, is_json=False)

    return cached(vocabulary, "regex" + pattern, build)


def lark_plan(vocabulary: Vocabulary, grammar: str) -> GrammarPlan:
    """The plan of replies that a Lark grammar (llguidance's dialect, rule ``start``) generates."""

    def build() -> GrammarPlan:
        return GrammarPlan.compile(vocabulary, LLMatcher.grammar_from_lark(grammar), None, is_json=False)

    return cached(vocabulary, "lark" + grammar, build)
