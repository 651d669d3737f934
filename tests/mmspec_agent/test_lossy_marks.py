"""Rows that a lossy option made stay marked wherever they go: later turns, other sessions, files, dropped frames."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_chat import expected_ids, noise_picture, tiny_chat_vlm, user

from mmspec_agent import Engine, Session
from mmspec_agent.core.errors import OptionError
from mmspec_agent.core.visual.segments import Segment
from mmspec_agent.pictures import PictureRules, extract, load_picture

INT8 = "lossy_int8_segments"


def int8_engine() -> Engine:
    return Engine(*tiny_chat_vlm(), lossy_int8_segments=True)


def restored_session(engine: Engine, picture: Any) -> Session:
    """A session whose first turn copies an INT8 segment that another one left."""
    asked = user("one?", picture)
    first = engine.session(max_new_tokens=6).send(asked)
    assert first.stats.lossy == [], "these rows were computed, not restored"
    session = engine.session(max_new_tokens=6)
    assert session.send(asked).stats.lossy == [INT8]
    return session


def test_later_turns_say_so_as_long_as_the_rows_are_held() -> None:
    session = restored_session(int8_engine(), noise_picture(1))
    for text in ("two?", "three?"):
        assert session.send(text).stats.lossy == [INT8]
    session.messages.clear()
    anew = session.send("anew")
    assert anew.stats.reused_tokens == len("[u")
    assert anew.stats.lossy == [INT8], "the first rows are still those that were restored"
    session._conversation.keep_tokens(0)
    assert session.send("anew").stats.lossy == []


def test_a_saved_session_keeps_its_marks_and_an_exact_engine_computes_anew(tmp_path: Path) -> None:
    engine = int8_engine()
    session = restored_session(engine, noise_picture(2))
    session.save(tmp_path / "s")
    again = Engine(engine.model, engine.processor, lossy_int8_segments=True).resume(tmp_path / "s")
    assert again.cached_tokens == session.cached_tokens
    assert again.send("two?", max_new_tokens=6).stats.lossy == [INT8]

    exact = Engine(engine.model, engine.processor)
    resumed = exact.resume(tmp_path / "s")
    assert resumed.cached_tokens == 0
    reply = resumed.send("two?", max_new_tokens=6)
    assert reply.stats.lossy == []
    assert reply.stats.vision_passes == 1
    other = exact.session(max_new_tokens=6)
    copied = other.send(user("other?", noise_picture(2)))
    assert copied.notes["visual"]["restored_tokens"] > 0
    assert copied.stats.lossy == []
    assert copied.token_ids == expected_ids(exact.model, exact.processor, other.messages[:-1], 6)


def test_exact_rows_in_front_of_marked_ones_are_kept(tmp_path: Path) -> None:
    engine = int8_engine()
    pictures = [noise_picture(3), noise_picture(4)]
    engine.session(max_new_tokens=3, system="abc").send([user("x", pictures[0]), user("y", pictures[1])])
    session = engine.session(max_new_tokens=3, system="abc")
    session.send("plain text first")
    session.messages.pop()
    session.messages.pop()
    session.send([user("x", pictures[0]), user("y", pictures[1])])
    session.save(tmp_path / "s")
    first = session._conversation.lossy[INT8]
    assert first == len("[sabc][u")
    assert Engine(engine.model, engine.processor).resume(tmp_path / "s").cached_tokens == first


def test_an_int8_segment_is_never_copied_by_an_exact_store() -> None:
    engine = int8_engine()
    restored_session(engine, noise_picture(5))
    engine.vision.segments.int8 = False
    reply = engine.session(max_new_tokens=6).send(user("one?", noise_picture(5)))
    assert reply.notes["visual"]["restored_tokens"] == 0
    assert reply.stats.lossy == []


def test_segments_behind_marked_rows_are_stored_with_the_mark() -> None:
    """A picture computed behind restored rows is as inexact as they are, in whatever form it is stored."""
    engine = int8_engine()
    session = restored_session(engine, noise_picture(6))
    session.send(user("and this?", noise_picture(7)))
    held = [value for value, _ in engine.vision.memory._held.values() if isinstance(value, Segment)]
    assert len(held) == 2
    assert all(INT8 in segment.lossy for segment in held)


def test_marks_survive_dropped_frames() -> None:
    engine = int8_engine()
    vision = engine.vision
    slot = vision.family.image_token_id
    conversation = restored_session(engine, noise_picture(8))._conversation
    first = conversation.lossy[INT8]
    conversation.keep_tokens(conversation.sequence.length)
    start = conversation.sequence.length
    prepared = vision.prepare(load_picture(noise_picture(9)))
    conversation.append_segment(vision, [5, *([slot] * 4), 6], [prepared.picture])
    conversation.drop_segment(start, start + 6)
    assert conversation.lossy == {INT8: first}
    picture = conversation.pictures[0]
    conversation.drop_segment(0, picture.end)
    assert conversation.lossy == {INT8: 0}, "rows behind the dropped ones had attended to them"
    conversation.keep_tokens(0)
    assert conversation.lossy == {}


def test_compressed_pictures_are_marked_too(tmp_path: Path) -> None:
    engine = Engine(*tiny_chat_vlm())
    session = engine.session(max_new_tokens=5)
    assert session.send(user("one?", noise_picture(10)), lossy_visual_tokens=2).stats.lossy == ["lossy_visual_tokens=2"]
    assert session._conversation.lossy == {"lossy_visual_tokens": len("[u")}
    assert session.send("two?", lossy_visual_tokens=2).stats.lossy == ["lossy_visual_tokens=2"]
    session.save(tmp_path / "s")
    resumed = engine.resume(tmp_path / "s")
    assert resumed._conversation.lossy == {"lossy_visual_tokens": len("[u")}
    exact = resumed.send("three?", max_new_tokens=5)
    assert exact.stats.lossy == []
    assert resumed._conversation.lossy == {}


@pytest.mark.parametrize("budget", [0, "0", "0 MiB"])
def test_a_budget_of_nothing_keeps_nothing(budget: Any) -> None:
    model, processor = tiny_chat_vlm()
    engine = Engine(model, processor, visual_budget=budget)
    messages = [user("what?", noise_picture(11), noise_picture(12))]
    for _ in range(2):
        session = engine.session(max_new_tokens=5)
        assert session.send(messages).token_ids == expected_ids(model, processor, messages, 5)
        assert session.send("and?").stats.vision_passes == 0
    assert engine.vision.memory.bytes == 0
    with pytest.raises(OptionError, match="memory budget"):
        Engine(model, processor, visual_budget=-1)


@pytest.mark.slow
def test_edits_at_random_leave_no_unmarked_row() -> None:
    """Whenever a reply is not marked, it is that of transformers with the same history."""
    model, processor = tiny_chat_vlm(2)
    engine = Engine(model, processor, lossy_int8_segments=True)
    rng = random.Random(0)
    pictures = [noise_picture(seed) for seed in range(3)]
    sessions = [engine.session(max_new_tokens=3) for _ in range(2)]
    marked = []
    for turn in range(40):
        session = rng.choice(sessions)
        if rng.random() < 0.4:
            del session.messages[rng.choice([0, len(session.messages) // 2 * 2]) :]
            session._conversation.keep_tokens(rng.choice([0, 1, session.cached_tokens]))
        reply = session.send(user(f"q{turn % 3}", *rng.sample(pictures, rng.choice([0, 0, 1]))))
        marked.append(bool(reply.stats.lossy))
        if not reply.stats.lossy:
            assert reply.token_ids == _plain_reply(model, processor, session, reply)
    assert {True, False} == set(marked)


def _plain_reply(model: Any, processor: Any, session: Session, reply: Any) -> list[int]:
    ids = torch.tensor([session._conversation.tokens[: reply.stats.prompt_tokens]])
    shown = extract(session.messages, PictureRules()).pictures
    inputs = {} if not shown else dict(processor.image_processor([p.image for p in shown], return_tensors="pt"))
    options = {"do_sample": False, "max_new_tokens": len(reply.token_ids), "attention_mask": torch.ones_like(ids)}
    with torch.inference_mode():
        out = model.generate(ids, **options, **inputs)
    tokens: list[int] = out[0, ids.shape[1] :].tolist()
    return tokens
