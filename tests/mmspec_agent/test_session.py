"""Sessions: what is reused, what survives an edit, a save, an interruption."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from texts import byte_tokenizer, chat_model

from mmspec_agent import Engine
from mmspec_agent.core.errors import OptionError, SessionError

TOKENIZER = byte_tokenizer()


def fresh(seed: int = 0, **options: Any) -> Engine:
    return Engine(chat_model(seed, eos=None), TOKENIZER, **options)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return fresh()


def answer(messages: Any, **options: Any) -> str:
    """What an engine that remembers nothing says."""
    text: str = fresh().chat(messages, max_new_tokens=16, **options).text
    return text


def test_a_turn_prefills_only_what_is_new(engine: Engine) -> None:
    session = engine.session(system="Be brief. " * 20, max_new_tokens=16)
    first = session.send("one")
    held = session.cached_tokens
    second = session.send("two")
    assert first.stats.reused_tokens == 0
    assert second.stats.reused_tokens >= held - 1
    assert second.stats.prefilled_tokens < 60
    assert [m["role"] for m in session.messages] == ["system", "user", "assistant", "user", "assistant"]


def test_the_second_answer_equals_a_fresh_engines_over_the_same_ids(engine: Engine) -> None:
    session = engine.session(max_new_tokens=16)
    session.send("one")
    reply = session.send("two")
    ids = session._conversation.tokens[: -len(reply.token_ids)]
    import torch

    plain = fresh().generate(torch.tensor([ids]), max_new_tokens=16, do_sample=False)
    assert plain[0, len(ids) :].tolist() == reply.token_ids


def test_an_edit_in_the_middle_keeps_what_comes_before_it(engine: Engine) -> None:
    session = engine.session(system="Be brief. " * 20, max_new_tokens=16)
    session.send("one")
    session.send("two")
    session.messages[2] = {"role": "assistant", "content": "edited"}
    expected = answer([*session.messages, {"role": "user", "content": "three"}])
    reply = session.send("three")
    assert reply.text == expected
    assert reply.stats.reused_tokens > 200
    del session.messages[1:3]
    expected = answer([*session.messages, {"role": "user", "content": "four"}])
    assert session.send("four").text == expected


def test_after_a_stop_string_the_history_says_what_the_text_says(engine: Engine) -> None:
    free = answer("one")
    stop = free[4:6]
    session = engine.session(max_new_tokens=16)
    first = session.send("one", stop=stop)
    assert first.text == free[: free.index(stop)]
    assert first.finish_reason == "stop"
    messages = [*session.messages, {"role": "user", "content": "two"}]
    assert session.send("two").text == answer(messages)


def test_save_and_resume_give_the_same_next_tokens(engine: Engine, tmp_path: Path) -> None:
    session = engine.session(system="Be brief.", max_new_tokens=24, temperature=0.8, seed=4)
    session.send("one")
    session.save(tmp_path / "talk")
    expected = session.send("two", logprobs=True)
    again = fresh().resume(tmp_path / "talk")
    assert again.cached_tokens > 20
    reply = again.send("two", logprobs=True, max_new_tokens=24, temperature=0.8, seed=4)
    assert reply.token_ids == expected.token_ids
    assert reply.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    assert reply.stats.reused_tokens == expected.stats.reused_tokens
    assert again.messages == session.messages


def test_an_empty_session_can_be_saved(engine: Engine, tmp_path: Path) -> None:
    engine.session(system="s").save(tmp_path)
    assert engine.resume(tmp_path).send("one", max_new_tokens=4).text


def _saved(engine: Engine, path: Path) -> Path:
    session = engine.session(max_new_tokens=8)
    session.send("one")
    session.save(path)
    return path


def _truncate(path: Path, name: str) -> None:
    data = (path / name).read_bytes()
    (path / name).write_bytes(data[: len(data) // 2])


def _without(path: Path, key: str) -> None:
    state = json.loads((path / "session.json").read_text())
    del state[key]
    (path / "session.json").write_text(json.dumps(state))


DAMAGE: dict[str, Any] = {
    "no json": lambda p: (p / "session.json").unlink(),
    "no rows": lambda p: (p / "kv.safetensors").unlink(),
    "half a json": lambda p: _truncate(p, "session.json"),
    "half the rows": lambda p: _truncate(p, "kv.safetensors"),
    "garbage": lambda p: (p / "kv.safetensors").write_bytes(b"x" * 100),
    "a list": lambda p: (p / "session.json").write_text("[]"),
    "no tokens": lambda p: _without(p, "tokens"),
    "no messages": lambda p: _without(p, "messages"),
    "no length": lambda p: _without(p, "length"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_sessions_are_refused(engine: Engine, tmp_path: Path, name: str) -> None:
    path = _saved(engine, tmp_path)
    DAMAGE[name](path)
    with pytest.raises(SessionError):
        engine.resume(path)


def test_files_of_two_saves_are_not_mixed(engine: Engine, tmp_path: Path) -> None:
    _saved(engine, tmp_path / "a")
    other = engine.session(max_new_tokens=8)
    other.send("quite another question")
    other.save(tmp_path / "b")
    (tmp_path / "a" / "kv.safetensors").write_bytes((tmp_path / "b" / "kv.safetensors").read_bytes())
    with pytest.raises(SessionError):
        engine.resume(tmp_path / "a")


def test_sessions_of_another_model_are_refused(engine: Engine, tmp_path: Path) -> None:
    path = _saved(engine, tmp_path)
    with pytest.raises(SessionError, match="another model"):
        fresh(seed=1).resume(path)


def test_unknown_defaults_are_refused_at_once(engine: Engine) -> None:
    with pytest.raises(OptionError, match="max_new_tokens"):
        engine.session(max_new_tokenz=3)


def test_sessions_do_not_see_each_other(engine: Engine) -> None:
    one, two = engine.session(max_new_tokens=12), engine.session(max_new_tokens=12)
    texts = [one.send("one").text, two.send("two").text, one.send("three").text]
    alone = engine.session(max_new_tokens=12)
    assert [alone.send("one").text, alone.send("three").text] == [texts[0], texts[2]]


def test_an_interrupted_turn_does_not_enter_the_history(engine: Engine) -> None:
    session = engine.session(max_new_tokens=16)
    session.send("one")
    before = list(session.messages)
    events = session.stream("two")
    next(events)
    events.close()  # type: ignore[attr-defined]
    assert session.messages == before
    expected = answer([*before, {"role": "user", "content": "three"}])
    assert session.send("three").text == expected
