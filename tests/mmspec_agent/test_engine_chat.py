"""Chat and stream: the same answer whatever drafts, streamed whole, with its statistics."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fake import random_drafter
from texts import byte_tokenizer, chat_model

from mmspec_agent import Engine, Reply
from mmspec_agent.reply import Done, StepPiece, TextPiece

TOKENIZER = byte_tokenizer()
NEW = 40


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(chat_model(eos=None), TOKENIZER)


def prompt_ids(text: str) -> torch.Tensor:
    rendered = TOKENIZER.apply_chat_template(
        [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
    )
    return torch.tensor([TOKENIZER.encode(rendered, add_special_tokens=False)])


@pytest.mark.parametrize("text", ["one", "repeat repeat repeat repeat"])
def test_a_greedy_chat_is_transformers_generate(engine: Engine, text: str) -> None:
    ids = prompt_ids(text)
    theirs = engine.model.generate(ids, max_new_tokens=NEW, do_sample=False)[0, ids.shape[1] :].tolist()
    for speculate in (True, False):
        assert engine.chat(text, max_new_tokens=NEW, speculate=speculate).token_ids == theirs


@pytest.mark.parametrize("options", [{}, {"temperature": 0.7, "top_p": 0.9}, {"temperature": 1.3, "top_k": 20}])
def test_same_seed_same_answer_with_any_drafter(engine: Engine, options: dict[str, Any]) -> None:
    options = {"max_new_tokens": NEW, "seed": 3, **options}
    plain = engine.chat("one", speculate=False, **options)
    wild = Engine(engine.model, TOKENIZER, drafters=[random_drafter(1, 259)])
    for reply in (engine.chat("one", **options), wild.chat("one", **options)):
        assert reply.token_ids == plain.token_ids
        assert reply.text == plain.text
    if "temperature" in options:
        assert engine.chat("one", **{**options, "seed": 4}).token_ids != plain.token_ids


def test_a_stream_adds_up_to_the_reply(engine: Engine) -> None:
    events = list(engine.stream("one two", max_new_tokens=NEW))
    done = events[-1]
    assert isinstance(done, Done)
    reply = done.reply
    assert "".join(e.text for e in events if isinstance(e, TextPiece)) == reply.text
    steps = [e for e in events if isinstance(e, StepPiece)]
    assert len(steps) == reply.stats.forwards
    assert [t.id for e in steps for t in e.tokens] == reply.token_ids
    assert reply.stats.emitted == len(reply.token_ids) == NEW
    assert reply.finish_reason == "length"
    assert sum(reply.stats.sources.values()) == NEW
    assert reply.stats.as_dict()["tokens_per_step"] >= 1.0


def _stopped(engine: Engine, stop: Any, **options: Any) -> Reply:
    return engine.chat("one two", max_new_tokens=NEW, stop=stop, **options)


def test_stop_strings_end_the_same_answer_with_and_without_drafts(engine: Engine) -> None:
    free = engine.chat("one two", max_new_tokens=NEW).text
    for start in (2, 7, 13):
        stop = free[start : start + 2]
        with_drafts, without = (_stopped(engine, stop, speculate=s) for s in (True, False))
        assert with_drafts.text == without.text == free[: free.index(stop)]
        assert with_drafts.token_ids == without.token_ids
        assert with_drafts.finish_reason == "stop"
        assert with_drafts.stats.emitted == len(with_drafts.token_ids)
    both = _stopped(engine, [free[9:11], free[4:6]])
    assert both.text == free[: min(free.index(free[9:11]), free.index(free[4:6]))]


def test_end_of_sequence_ends_the_reply_and_is_not_shown(engine: Engine) -> None:
    answer = engine.chat("one two", max_new_tokens=NEW).token_ids
    eos = answer[8]
    reply = engine.chat("one two", max_new_tokens=NEW, eos_token_id=[eos, 258])
    assert reply.token_ids == answer[: answer.index(eos) + 1]
    assert reply.finish_reason == "stop"


@pytest.mark.parametrize("mode", ["coupled", "rejection"])
def test_logprobs_are_those_of_the_processed_distribution(engine: Engine, mode: str) -> None:
    reply = engine.chat("one two", max_new_tokens=12, logprobs=True, temperature=0.9, top_k=30, mode=mode)
    ids = prompt_ids("one two")[0].tolist()
    assert reply.logprobs is not None
    for at, logprob in enumerate(reply.logprobs):
        with torch.inference_mode():
            row = engine.model(input_ids=torch.tensor([ids + reply.token_ids[:at]])).logits[0, -1] / 0.9
        kept = torch.full_like(row, float("-inf")).scatter(0, row.topk(30).indices, row.topk(30).values)
        assert logprob == pytest.approx(float(kept.log_softmax(-1)[reply.token_ids[at]]), abs=1e-3)


def test_lossy_is_never_silent(engine: Engine) -> None:
    assert engine.chat("one", max_new_tokens=4).stats.lossy == []
    reply = engine.chat("one", max_new_tokens=4, mode="rejection", temperature=1.0, lossy_gamma=1.5)
    assert reply.stats.lossy == ["lossy_gamma=1.5"]


def test_replies_end_at_the_context(engine: Engine) -> None:
    small = Engine(chat_model(context=64, eos=None), TOKENIZER)
    length = prompt_ids("one").shape[1]
    reply = small.chat("one", max_new_tokens=500)
    assert len(reply.token_ids) == 64 - length
    assert reply.finish_reason == "length"


def test_names_of_the_openai_api_mean_the_same(engine: Engine) -> None:
    a = engine.chat("one", max_tokens=7)
    b = engine.chat([{"role": "user", "content": [{"type": "text", "text": "one"}]}], max_completion_tokens=7)
    assert a.token_ids == b.token_ids
    assert len(a.token_ids) == 7
