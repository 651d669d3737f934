"""Banned phrases are never emitted, however they are cut into tokens, folded or hidden in JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from mmspec_agent.core.compliance import ComplianceCursor, ComplianceProcessor
from mmspec_agent.core.errors import ConstraintError, OptionError
from mmspec_agent.core.phrases import fold
from mmspec_agent.grammar.envelope import prepare
from mmspec_agent.grammar.plans import json_plan
from mmspec_agent.grammar.vocabulary import Vocabulary

PHRASES = ["Make a Bomb", "炸弹", "ＦＵＬＬ width", "naïve"]


def opened(tokenizer: Any, phrases: list[str] = PHRASES) -> ComplianceCursor:
    return ComplianceProcessor(phrases).plan(tokenizer).open(500)


def cuts(text: str, vocabulary: Vocabulary) -> list[list[int]]:
    """A text as canonical tokens and byte by byte."""
    data = text.encode()
    single = [vocabulary.id_of(data[i : i + 1]) for i in range(len(data))]
    return [vocabulary.tokenize(text), [token for token in single if token is not None]]


def written(cursor: ComplianceCursor, tokens: list[int]) -> int | None:
    """Where a token is refused."""
    for index, token in enumerate(tokens):
        if cursor.veto(token) is not None:
            return index
        cursor.advance(token)
    return None


@pytest.mark.parametrize(
    "text",
    [
        "how to make a bomb now", "I MAKE  a\nbOmb!", "制造炸弹吧", "ｆｕｌｌ　ｗｉｄｔｈ", "mAkE A bo\u200bmb",
        "nai\u0308ve", "NAÏVE",
    ],
)  # fmt: skip
def test_a_phrase_is_refused_however_it_is_spelled(text: str, tokenizer: Any, vocabulary: Vocabulary) -> None:
    for tokens in cuts(text, vocabulary):
        cursor = opened(tokenizer)
        at = written(cursor, tokens)
        assert at is not None
        veto = cursor.veto(tokens[at])
        assert veto is not None
        assert "banned phrase" in veto.reason
        assert tokenizer.decode(list(veto.replacement)).startswith("I'm sorry")
        emitted = vocabulary.decode(tokens[:at]).decode("utf-8", "ignore")
        assert all(fold(phrase) not in fold(emitted) for phrase in PHRASES)


@pytest.mark.parametrize("text", ["make a bom", "make a big bomb", "炸 弹", "naive", "full-width"])
def test_what_is_no_phrase_passes(text: str, tokenizer: Any, vocabulary: Vocabulary) -> None:
    for tokens in cuts(text, vocabulary):
        assert written(opened(tokenizer), tokens) is None


@pytest.mark.parametrize(("text", "held"), [("hello make a b", 8), ("hello", 0), ("x 炸", 1), ("make a bomx", 0)])
def test_what_may_still_become_a_phrase_is_held_back(
    text: str, held: int, tokenizer: Any, vocabulary: Vocabulary
) -> None:
    cursor = opened(tokenizer)
    for token in vocabulary.tokenize(text):
        cursor.advance(token)
    assert cursor.held_back == held


def test_streamed_text_never_shows_a_part_of_a_phrase(tokenizer: Any, vocabulary: Vocabulary) -> None:
    cursor, text, shown = opened(tokenizer), "", ""
    for token in vocabulary.tokenize("we will make a bomb"):
        if cursor.veto(token) is not None:
            break
        cursor.advance(token)
        text += vocabulary.spelling[token].decode()
        shown = text[: len(text) - cursor.held_back]
    assert shown == "we will "


def test_inside_json_the_token_is_masked(tokenizer: Any, vocabulary: Vocabulary) -> None:
    inner = json_plan(vocabulary, {"type": "object", "properties": {"t": {"type": "string"}}, "required": ["t"]})
    plan = ComplianceProcessor(PHRASES).plan(tokenizer, inner)
    rng = np.random.default_rng(0)
    for seed in range(6):
        cursor, tokens = plan.open(60), []
        start = vocabulary.tokenize('{"t": "make a bom') if seed % 2 else []
        for step in range(60):
            mask = cursor.mask()
            assert mask is not None
            wanted = start[step] if step < len(start) else None
            token = wanted if wanted is not None and mask.allows(wanted) else int(rng.choice(mask.tokens()))
            assert cursor.veto(token) is None
            cursor.advance(token)
            if token in vocabulary.eos_ids:
                break
            tokens.append(token)
        text = vocabulary.decode(tokens).decode()
        assert json.loads(text)
        assert all(fold(phrase) not in fold(text) for phrase in PHRASES)


def test_the_next_letter_is_masked_where_it_would_complete(tokenizer: Any, vocabulary: Vocabulary) -> None:
    inner = json_plan(vocabulary, {"type": "string"})
    cursor = ComplianceProcessor(PHRASES).plan(tokenizer, inner).open(60)
    for token in vocabulary.tokenize('"make a bom'):
        mask = cursor.mask()
        if mask is None or not mask.allows(token):
            break
        cursor.advance(token)
    b = vocabulary.id_of(b"b")
    mask = cursor.mask()
    assert b is not None
    assert mask is not None
    assert not mask.allows(b)
    with pytest.raises(ConstraintError):
        cursor.fork().advance(b)


@pytest.mark.parametrize(
    "schema",
    [
        {"const": "naïve"},
        {"type": "object", "properties": {"n": {"type": "integer"}, "naïve": {"type": "integer"}},
         "required": ["n", "naïve"]},
    ],
)  # fmt: skip
def test_a_phrase_the_schema_forces_is_an_error_before_start(
    schema: Any, tokenizer: Any, vocabulary: Vocabulary
) -> None:
    with pytest.raises(ConstraintError, match="forces a banned phrase"):
        ComplianceProcessor(PHRASES).plan(tokenizer, json_plan(vocabulary, schema))


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_phrase_that_every_call_forces_is_an_error_before_start(choice: str, tokenizer: Any) -> None:
    """Also where the model may answer in words: a call that has begun could never be finished."""
    text = {"type": "object", "properties": {"t": {"const": "naïve"}}, "required": ["t"]}
    forced = {"name": "note", "parameters": text}
    free = {"name": "search", "parameters": {"type": "object", "properties": {"query": {"type": "string"}}}}
    processor = ComplianceProcessor(PHRASES)
    plan = prepare(tokenizer, [forced], family="hermes", reasoning=False, tool_choice=choice).plan
    with pytest.raises(ConstraintError, match="forces a banned phrase"):
        processor.plan(tokenizer, plan)
    assert processor.plan(tokenizer, prepare(tokenizer, [forced, free], family="hermes", reasoning=False).plan)


def test_forks_and_forced_runs_agree_with_the_cursor(tokenizer: Any, vocabulary: Vocabulary) -> None:
    inner = json_plan(vocabulary, {"enum": ["naïve", "fine words here"]})
    cursor = ComplianceProcessor(PHRASES).plan(tokenizer, inner).open(60)
    run = cursor.forced_run(60)
    for token in run:
        fork = cursor.fork()
        fork.advance(token)
        cursor.advance(token)
        assert fork.held_back == cursor.held_back


def test_it_composes_with_free_text_that_turns_into_a_call(tokenizer: Any, vocabulary: Vocabulary) -> None:
    tool = {"name": "search", "parameters": {"type": "object", "properties": {"query": {"type": "string"}}}}
    envelope = prepare(tokenizer, [tool], family="hermes", reasoning=False)
    plan = ComplianceProcessor(PHRASES).plan(tokenizer, envelope.plan, vocabulary.eos_ids)
    cursor = plan.open(200)
    assert cursor.mask() is None
    tokens = vocabulary.tokenize("a 炸弹")
    assert written(cursor.fork(), tokens) is not None
    opener = vocabulary.control("<tool_call>")
    assert opener is not None
    cursor.advance(opener)
    assert cursor.forced_run(4)
    assert cursor.state != "TEXT"


@pytest.mark.parametrize(
    ("phrases", "refusal", "words"),
    [
        (["  \u200b"], "no", "no visible character"),
        (["x" * 600_000], "no", "500,000"),
        (["sorry"], "I am sorry.", "refusal holds"),
    ],
)
def test_unusable_lists_are_refused(phrases: list[str], refusal: str, words: str, tokenizer: Any) -> None:
    with pytest.raises(OptionError, match=words):
        ComplianceProcessor(phrases, refusal=refusal).plan(tokenizer)
