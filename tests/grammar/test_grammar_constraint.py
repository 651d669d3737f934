"""The constraint closes every reply within its budget, and skips only where nothing else was legal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import jsonschema
import numpy as np
import pytest

from mmspec_agent.core.errors import ConstraintError
from mmspec_agent.grammar.constraint import GrammarCursor, GrammarPlan
from mmspec_agent.grammar.plans import json_plan, lark_plan, regex_plan
from mmspec_agent.grammar.schema import normalise
from mmspec_agent.grammar.shape_build import shape_of
from mmspec_agent.grammar.vocabulary import Vocabulary

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2},
        "age": {"type": "integer", "minimum": 18, "maximum": 130},
        "mail": {"type": "string", "format": "email"},
        "role": {"enum": ["admin", "a much longer role with many words in it", "guest"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 4},
    },
    "required": ["name", "age"],
}
SCHEMAS: list[Any] = [
    PERSON,
    {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": ["string", "null"]}}, "required": ["y"]},
    {"$defs": {"t": {"type": "object", "properties": {"v": {"type": "integer"}, "kids": {"type": "array",
     "items": {"$ref": "#/$defs/t"}}}, "required": ["v", "kids"]}}, "$ref": "#/$defs/t"},
    {"type": "array", "items": {"anyOf": [{"type": "integer", "multipleOf": 7}, PERSON]}, "minItems": 2},
    {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "boolean"}}},
    {"type": "string", "pattern": "^(a|b{20})+[0-9]{3}$"},
    {"type": "string", "format": "date-time"},
    {"enum": ["say \"hi\"", "C:\\tmp", "{x}", "line\nbreak", "東京", 12, None, {"a": [1, 2]}]},
    {"type": "number", "minimum": 0.25, "exclusiveMaximum": 0.75},
    {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": PERSON}}}},
    {},
]  # fmt: skip


def spell(cursor: GrammarCursor, text: str) -> bool:
    """Whether ``text`` can be written from here, and whole."""
    here = cursor.fork()
    vocabulary = here.plan.vocabulary
    rest = text.encode()
    while rest:
        ends = range(min(len(rest), vocabulary.longest), 0, -1)
        tokens = [t for end in ends if (t := vocabulary.id_of(rest[:end])) is not None]
        token = next((t for t in tokens if here.mask().allows(t)), None)
        if token is None:
            return False
        here.advance(token)
        rest = rest[len(vocabulary.spelling[token]) :]
    return here.is_complete


def generate(plan: GrammarPlan, budget: int, seed: int, skip: bool = False) -> tuple[list[int], GrammarCursor]:
    """A reply of a target with random weights; ``skip``: forced runs are taken without asking it."""
    rng = np.random.default_rng(seed)
    taste = rng.normal(size=plan.vocabulary.size) * rng.choice([0.0, 1.0, 3.0])
    cursor = plan.open(budget)
    tokens: list[int] = []
    while len(tokens) < budget and not cursor.done:
        if skip:
            for token in cursor.forced_run(budget - len(tokens)):
                cursor.advance(token)
                tokens.append(token)
            if len(tokens) >= budget or cursor.done:
                break
        noise = np.random.default_rng([seed, len(tokens)]).gumbel(size=plan.vocabulary.size)
        legal = cursor.mask().tokens()
        token = int(legal[np.argmax((noise + taste)[legal])])
        cursor.advance(token)
        tokens.append(token)
    return tokens, cursor


def body(plan: GrammarPlan, tokens: Sequence[int]) -> str:
    return plan.vocabulary.decode([t for t in tokens if t not in plan.vocabulary.eos_ids]).decode()


@pytest.mark.parametrize("schema", SCHEMAS)
def test_any_budget_from_the_minimum_closes_and_validates(schema: Any, vocabulary: Vocabulary) -> None:
    plan = json_plan(vocabulary, schema)
    validator = jsonschema.Draft202012Validator(schema)
    for seed in range(12):
        budget = plan.minimum_tokens + (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144)[seed % 12]
        tokens, cursor = generate(plan, budget, seed)
        assert cursor.is_complete
        validator.validate(json.loads(body(plan, tokens)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_thousand_generations_close(seed: int, vocabulary: Vocabulary) -> None:
    rng = np.random.default_rng(seed)
    for run in range(250):
        schema = SCHEMAS[run % len(SCHEMAS)]
        plan = json_plan(vocabulary, schema, separators=("spaced", "compact")[run % 2])
        tokens, cursor = generate(plan, plan.minimum_tokens + int(rng.integers(0, 120)), 1000 * seed + run)
        assert cursor.is_complete
        jsonschema.Draft202012Validator(schema).validate(json.loads(body(plan, tokens)))


@pytest.mark.parametrize("schema", SCHEMAS)
def test_skipping_forced_runs_gives_the_plain_reply(schema: Any, vocabulary: Vocabulary) -> None:
    """Proof 4: every skipped position had one legal token, and the replies are the same."""
    plan = json_plan(vocabulary, schema)
    for seed in range(8):
        budget = plan.minimum_tokens + 12 * seed
        plain, _ = generate(plan, budget, seed)
        skipped, _ = generate(plan, budget, seed, skip=True)
        assert plain == skipped
        cursor, quiet = plan.open(budget), plan.open(budget)
        for token in plain:
            run = cursor.forced_run(8)
            here = quiet.fork()  # shares nothing with the cursor that was asked for the run
            for forced in run:
                assert here.mask().tokens().tolist() == [forced]
                here.advance(forced)
            cursor.advance(token)
            quiet.advance(token)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_the_engines_own_forced_tokens_are_singletons(schema: Any, vocabulary: Vocabulary) -> None:
    plan = json_plan(vocabulary, schema)
    for seed in range(4):
        tokens, _ = generate(plan, plan.minimum_tokens + 30, seed)
        cursor = plan.open(plan.minimum_tokens + 30)
        for token in tokens:
            forced = cursor._at.matcher.compute_ff_tokens()
            run = cursor.forced_run(len(forced))
            assert run == forced[: len(run)]
            assert len(run) == min(len(forced), max(len(run), 0)) or cursor.done
            assert len(run) >= len(forced) or cursor.remaining < len(forced)
            cursor.advance(token)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_reading_a_text_again_is_reading_it_anew(schema: Any, vocabulary: Vocabulary) -> None:
    """The shape remembers what it read; texts that begin alike, such as 12 and 125, are not taken for each other."""
    rng = np.random.default_rng(5)
    ready = normalise(schema)
    used = shape_of(ready)
    texts = {b"1", b"12", b'{"age": 12'}
    for seed in range(4):
        plan = json_plan(vocabulary, schema)
        tokens, _ = generate(plan, plan.minimum_tokens + 40, seed)
        whole = body(plan, tokens).encode()
        starts = [whole[: int(end)] for end in rng.integers(0, len(whole) + 1, 40)]
        texts |= {start + more for start in starts for more in (b"", b"5", b", ", b"}", b'", "')}
    for text in rng.permutation(np.array(sorted(texts), dtype=object)):
        assert used.read(text, 0) == shape_of(ready).read(text, 0), text


def test_a_fork_is_independent_and_costs_the_original_nothing(vocabulary: Vocabulary) -> None:
    cursor = json_plan(vocabulary, PERSON).open(60)
    before = cursor.mask().tokens().tolist()
    fork = cursor.fork()
    for token in fork.forced_run(5):
        fork.advance(token)
    assert cursor.text == b""
    assert cursor.mask().tokens().tolist() == before


def test_the_mask_depends_on_the_tokens_alone(vocabulary: Vocabulary) -> None:
    """Asking for masks, forks or runs on the way changes nothing: plain and drafting loops share one law."""
    plan = json_plan(vocabulary, PERSON)
    tokens, _ = generate(plan, 40, 7)
    asked, quiet = plan.open(40), plan.open(40)
    for token in tokens:
        asked.fork().forced_run(10)
        assert asked.witness is not None
        asked.advance(token)
        quiet.advance(token)
        assert np.array_equal(asked.mask().words, quiet.mask().words)


def test_a_budget_below_the_minimum_is_an_error_before_work(vocabulary: Vocabulary) -> None:
    plan = json_plan(vocabulary, PERSON)
    with pytest.raises(ConstraintError, match=f"{plan.minimum_tokens} tokens"):
        plan.open(plan.minimum_tokens - 1)


def test_after_the_end_only_the_end_token_is_legal(vocabulary: Vocabulary) -> None:
    cursor = json_plan(vocabulary, {"const": {"ok": True}}).open(50)
    run = cursor.forced_run(50)
    assert run[-1] == vocabulary.eos_ids[0]
    for token in run:
        cursor.advance(token)
    with pytest.raises(ConstraintError, match="after the end"):
        cursor.advance(run[0])
    assert cursor.fork().forced_run(5) == []


def test_an_illegal_token_is_an_error_and_leaves_the_cursor_as_it_was(vocabulary: Vocabulary) -> None:
    cursor = json_plan(vocabulary, PERSON).open(60)
    wrong = vocabulary.id_of(b"]")
    assert wrong is not None
    with pytest.raises(ConstraintError, match="not legal"):
        cursor.advance(wrong)
    assert cursor.mask().tokens().size


def test_control_ids_are_masked_inside_strings_but_their_text_is_not(vocabulary: Vocabulary) -> None:
    cursor = json_plan(vocabulary, {"type": "string"}).open(80)
    cursor.advance(next(t for t in cursor.mask().tokens() if vocabulary.spelling[t] == b'"'))
    legal = set(cursor.mask().tokens().tolist())
    assert not legal & (vocabulary.controls - set(vocabulary.eos_ids))
    assert spell(json_plan(vocabulary, {"type": "string"}).open(80), '"<|im_start|>"')


def test_control_text_in_keys_is_written_with_plain_tokens(vocabulary: Vocabulary) -> None:
    schema = {"type": "object", "properties": {"</tool_call>": {"const": 1}}, "required": ["</tool_call>"]}
    run = json_plan(vocabulary, schema).open(60).forced_run(60)
    assert not set(run[:-1]) & vocabulary.controls
    assert json.loads(vocabulary.decode(run[:-1])) == {"</tool_call>": 1}


def test_numbers_are_capped_and_finite(vocabulary: Vocabulary) -> None:
    for schema in ({"type": "integer"}, {"type": "number"}):
        plan = json_plan(vocabulary, schema)
        assert not spell(plan.open(200), "4" + "0" * 40)
        assert not spell(plan.open(200), "1e999")
        assert spell(plan.open(200), "12")
    exact = json_plan(vocabulary, {"const": 10**30})
    assert spell(exact.open(80), str(10**30))


def test_separators_are_fixed_by_name(vocabulary: Vocabulary) -> None:
    schema = {"type": "array", "items": {"type": "integer"}}
    spaced, compact = json_plan(vocabulary, schema), json_plan(vocabulary, schema, separators="compact")
    assert spell(spaced.open(40), "[1, 2]")
    assert not spell(spaced.open(40), "[1,2]")
    assert spell(compact.open(40), "[1,2]")
    assert not spell(compact.open(40), "[1, 2]")


@pytest.mark.parametrize("pattern", ["[0-9]{3}-[a-z]+", "(yes|no)!", "a{2,4}b?"])
def test_regular_expressions_close_too(pattern: str, vocabulary: Vocabulary) -> None:
    import re

    plan = regex_plan(vocabulary, pattern)
    for seed in range(6):
        tokens, cursor = generate(plan, plan.minimum_tokens + seed, seed)
        assert cursor.is_complete
        assert re.fullmatch(pattern, body(plan, tokens))
        assert cursor.state == "TEXT"


def test_lark_grammars_have_a_shortest_reply(vocabulary: Vocabulary) -> None:
    plan = lark_plan(vocabulary, 'start: "(" start ")" | NUM\nNUM: /[0-9]+/')
    tokens, cursor = generate(plan, plan.minimum_tokens, 3)
    assert cursor.is_complete
    assert body(plan, tokens).isdigit()


def test_plans_are_cached_by_schema(vocabulary: Vocabulary) -> None:
    assert json_plan(vocabulary, dict(PERSON)) is json_plan(vocabulary, dict(PERSON))
    assert json_plan(vocabulary, PERSON) is not json_plan(vocabulary, PERSON, separators="compact")


def test_a_schema_of_many_properties_and_choices_stays_cheap(vocabulary: Vocabulary) -> None:
    """Counted in work, not in time: the drawn tokens near the budget's end ask for few completions."""
    properties: dict[str, Any] = {f"key_{i}": {"type": "integer"} for i in range(199)}
    properties["sku"] = {"enum": [f"SKU-{i:05d}" for i in range(5000)]}
    plan = json_plan(vocabulary, {"type": "object", "properties": properties, "required": ["sku"]})
    tokens, cursor = generate(plan, plan.minimum_tokens + 10, 5)
    assert json.loads(body(plan, tokens))["sku"].startswith("SKU-")
    assert cursor.is_complete
