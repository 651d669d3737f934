"""Whatever is legal can be finished in time: random walks over random schemas, and work counted near the end."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from mmspec_agent.bench.wild_schemas import wild_schema
from mmspec_agent.core.errors import MMSpecError
from mmspec_agent.grammar import closing
from mmspec_agent.grammar.constraint import GrammarCursor, GrammarPlan
from mmspec_agent.grammar.envelope import prepare
from mmspec_agent.grammar.families import FAMILIES
from mmspec_agent.grammar.plans import json_plan
from mmspec_agent.grammar.vocabulary import Vocabulary

from .walks import byte_tokenizer, check, drawn, tastes, walk

STRING: dict[str, Any] = {"type": "string"}


def an_object(properties: dict[str, Any], required: list[str], free: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": free}


FIELDS = ["name", *(f"field_{i}" for i in range(8))]
RIVALS = {
    "anyOf": [
        an_object({"a": STRING, "name": STRING}, ["a", "name"], STRING),
        an_object(dict.fromkeys(FIELDS, STRING), FIELDS, False),
    ]
}
HARD: list[Any] = [
    RIVALS,
    {"type": "array", "items": RIVALS, "minItems": 1},
    an_object({"x": RIVALS, "y": RIVALS}, ["y"], RIVALS),
    {"allOf": [RIVALS, an_object({"name": {"enum": ["a", "bb"]}}, ["name", "z"], True)]},
    {
        "$defs": {"d": {"anyOf": [
            an_object({"a": {"anyOf": [{"$ref": "#/$defs/d"}, {"type": "integer"}]}}, ["a"], False),
            an_object({"a": {"anyOf": [{"$ref": "#/$defs/d"}, STRING]}, **dict.fromkeys(FIELDS, STRING)},
                      ["a", *FIELDS], False),
        ]}},
        "$ref": "#/$defs/d",
    },
    an_object({}, ["late"], {"anyOf": [{"const": "a"}, an_object({"k": STRING}, ["k"], False)]}),
    {"type": "object", "patternProperties": {"^x-[0-9]{6}$": {"type": "integer"}}, "additionalProperties": STRING},
    {"enum": ["city", "a", "unit", "days and nights"]},
    {"type": "string", "pattern": "^(ab?c){3,9}$"},
]  # fmt: skip


@pytest.fixture(scope="module")
def vocabularies(tokenizer: Any) -> list[Vocabulary]:
    return [Vocabulary.of(tokenizer), Vocabulary.of(byte_tokenizer())]


def closes(plan: GrammarPlan, schema: Any, draw: random.Random, walks: int) -> None:
    likes = tastes(plan.vocabulary)
    for _ in range(walks):
        chooser, spare, seed = drawn(draw, likes)
        budget = plan.minimum_tokens + spare
        cursor = plan.open(budget)
        walk(cursor, likes[chooser], budget, seed)
        assert cursor.is_complete, f"open: {schema} {chooser} {budget} {seed}: {cursor.text!r}"
        check(schema, cursor.text)


@pytest.mark.parametrize("schema", HARD)
def test_unions_whose_required_names_differ_close(schema: Any, vocabularies: list[Vocabulary]) -> None:
    draw = random.Random(7)
    for vocabulary in vocabularies:
        closes(json_plan(vocabulary, schema, close_objects=False), schema, draw, 5)


def test_random_schemas_close(vocabularies: list[Vocabulary]) -> None:
    walk_schemas(vocabularies, seed=0, schemas=12, walks=2)


LETTERS = {"type": "string", "pattern": "^[a-f]+$"}
RULED_OUT: list[Any] = [
    # A value that has ended rules out the branch that needs less behind it.
    {"anyOf": [an_object({"a": little}, ["a"], STRING), an_object({"a": much, "b": STRING}, ["a", "b"], STRING)]}
    for little, much in [
        ({"type": "integer", "maximum": 50}, {"type": "integer"}),
        ({"type": "number", "minimum": -1.5, "maximum": 2.5}, {"type": "number"}),
        ({"type": "integer", "multipleOf": 7}, {"type": "number"}),
        (LETTERS, STRING),
        ({**LETTERS, "maxLength": 3}, LETTERS),
        ({"type": "string", "minLength": 4}, STRING),
        ({"enum": ["a", 1, 20]}, {"type": ["string", "number"]}),
        ({"type": "array", "maxItems": 1}, {"type": "array"}),
        ({"type": "array", "items": {"type": "integer", "minimum": 0}}, {}),
    ]
]  # fmt: skip
FREE: list[Any] = [
    {},
    {"type": "array"},
    an_object({}, ["value"], True),
    {"anyOf": [{"multipleOf": 10}, {"type": "number"}]},
]


@pytest.mark.parametrize("separators", ["spaced", "compact"])
@pytest.mark.parametrize("schema", [*RULED_OUT, *FREE])
def test_the_way_to_the_end_is_legal_everywhere(schema: Any, separators: Any, vocabularies: list[Vocabulary]) -> None:
    draw = random.Random(11)
    for vocabulary in vocabularies:
        likes = tastes(vocabulary)
        plan = json_plan(vocabulary, schema, close_objects=False, separators=separators)
        for chooser in ("uniform", "brief"):
            ends_are_legal(plan.open(plan.minimum_tokens + 30), likes[chooser], draw.getrandbits(31))


def ends_are_legal(cursor: GrammarCursor, taste: Any, seed: int) -> None:
    """A random walk after each token of which the engine takes what the shape says for a way to the end."""
    plan, rng = cursor.plan, np.random.default_rng(seed)
    while not cursor.done and cursor.remaining:
        tail = plan.tail(cursor.text)
        assert tail is not None, cursor.text
        way = [*plan.vocabulary.tokenize(tail), plan.vocabulary.eos_ids[0]]
        if not (cursor.is_complete and tail == b""):
            assert cursor._at.matcher.validate_tokens(way) == len(way), (cursor.text, tail)
        legal = cursor.mask().tokens()
        cursor.advance(int(legal[np.argmax(rng.gumbel(size=len(legal)) + taste[legal])]))
    assert cursor.is_complete, cursor.text


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 11))
def test_twenty_thousand_walks_close(seed: int, vocabularies: list[Vocabulary]) -> None:
    walk_schemas(vocabularies, seed, schemas=100, walks=20)


def walk_schemas(vocabularies: list[Vocabulary], seed: int, schemas: int, walks: int) -> None:
    draw, done = random.Random(seed), 0
    while done < schemas:
        schema = wild_schema(draw)
        vocabulary = vocabularies[draw.randrange(3) // 2]
        try:
            plan = json_plan(vocabulary, schema, close_objects=False)
        except MMSpecError:
            continue  # impossible, or refused by name: the generator does not look
        closes(plan, schema, draw, walks)
        done += 1


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_calls_close(choice: str, tokenizer: Any) -> None:
    vocabulary = Vocabulary.of(tokenizer)
    draw, likes, done = random.Random(3), tastes(vocabulary), 0
    while done < 40:
        schema = {**wild_schema(draw), "type": "object"} if draw.random() < 0.5 else RIVALS
        tools = [{"type": "function", "function": {"name": f"tool_{i}", "parameters": an_object(
            {"a": schema, "b": STRING}, ["a"], False)}} for i in range(draw.randrange(1, 3))]  # fmt: skip
        family = draw.choice(list(FAMILIES))
        try:
            plan = prepare(tokenizer, tools, tool_choice=choice, family=family).plan
        except MMSpecError:
            continue
        assert plan is not None
        for _ in range(5):
            chooser, spare, seed = drawn(draw, likes)
            least = max([plan.minimum_tokens, *(p.minimum_tokens for p in getattr(plan, "sections", ()))])
            cursor = plan.open(least + spare)
            walk(cursor, likes[chooser], least + spare, seed)
            assert cursor.is_complete, f"open: {tools} {family} {chooser} {spare} {seed}: {cursor.text!r}"  # type: ignore[attr-defined]
        done += 1


def test_work_near_the_end_is_bounded(vocabularies: list[Vocabulary], monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"tried": 0, "checked": 0, "spelled": 0}
    fits, spells = closing._Candidates._fits, closing._Candidates._spells_out

    def counted(self: Any, token: int) -> bool:
        before, counts["tried"] = self.checked, counts["tried"] + 1
        found = fits(self, token)
        counts["checked"] += before - self.checked
        return found

    def spelled(self: Any, token: int) -> bool:
        before = self.spelled
        found = spells(self, token)
        counts["spelled"] += min(before - self.spelled, before)
        return found

    monkeypatch.setattr(closing._Candidates, "_fits", counted)
    monkeypatch.setattr(closing._Candidates, "_spells_out", spelled)
    patterns = ["^(ab?c){3,9}$", "^.*[0-9]{30}$", "^([a-z]{1,9} ){4,20}end$", "^[^x]{40,90}$", "^(a|aa)+b{60}$"]
    for vocabulary in vocabularies:
        for pattern in patterns:
            plan = json_plan(vocabulary, an_object({"p": {"type": "string", "pattern": pattern}}, ["p"], False))
            cursor = plan.open(plan.minimum_tokens + 12)
            while not cursor.done and cursor.remaining:
                counts.update(dict.fromkeys(counts, 0))
                token = int(cursor.mask().tokens()[-1])
                assert counts["tried"] <= 128 + closing.MAX_CANDIDATES, pattern
                assert counts["checked"] <= closing.MAX_CHECKED_TOKENS + 16, pattern
                assert counts["spelled"] <= closing.MAX_SPELLED_TOKENS, pattern
                cursor.advance(token)
            assert cursor.is_complete, pattern
