"""Pictures in chats and sessions: same tokens as transformers, nothing computed twice, and exact counts of it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_chat import expected_ids, noise_picture, tiny_chat_vlm, user

from mmspec_agent import Engine
from mmspec_agent.core.errors import Cancelled, OptionError, PictureError, PictureInputError
from mmspec_agent.pictures import Picture, PictureRules, extract, load_picture

SLOTS = 4
"""Visual tokens of one picture."""


@pytest.fixture
def engine() -> Engine:
    return Engine(*tiny_chat_vlm())


def ask(engine: Engine, messages: list[dict[str, Any]], new: int = 16) -> Any:
    return engine.chat(messages, max_new_tokens=new)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_chat_gives_the_tokens_of_transformers(engine: Engine, count: int) -> None:
    messages = [
        {"role": "system", "content": "be brief"},
        user("what is it?", *[noise_picture(i) for i in range(count)]),
    ]
    reply = ask(engine, messages)
    assert reply.token_ids == expected_ids(engine.model, engine.processor, messages, 16)
    assert reply.stats.vision_passes == count


def test_a_follow_up_reads_new_text_only(engine: Engine) -> None:
    session = engine.session(max_new_tokens=12)
    first = session.send(user("one?", noise_picture(1)))
    assert first.stats.vision_passes == 1
    held = session.cached_tokens
    second = session.send("two?")
    new_text = len("[utwo?][a")
    assert second.stats.vision_passes == 0
    assert second.stats.reused_tokens == held
    # Behind what is cached: the last token drawn, the closing bracket, the new turn.
    assert second.stats.prefilled_tokens == second.stats.prompt_tokens - held
    assert second.stats.prefilled_tokens <= new_text + 2
    conversation = session._conversation
    assert [one.start for one in conversation.pictures] == [len("[u")]
    # The random model wrote special tokens, so the reference starts from the very ids.
    ids = torch.tensor([conversation.tokens[: second.stats.prompt_tokens]])
    processor: Any = engine.processor
    pixels = processor.image_processor(noise_picture(1), return_tensors="pt")["pixel_values"]
    with torch.inference_mode():
        wanted = engine.model.generate(ids, pixel_values=pixels, do_sample=False, max_new_tokens=12)
    assert second.token_ids == wanted[0, ids.shape[1] :].tolist()


def test_another_session_copies_the_stored_prefix(engine: Engine) -> None:
    picture = noise_picture(2)
    first = engine.session(max_new_tokens=8, system="look")
    one = first.send(user("left?", picture))
    other = engine.session(max_new_tokens=8, system="look")
    two = other.send(user("right?", picture))
    prefix = len("[slook][u") + SLOTS
    assert one.stats.vision_passes == 1
    assert two.stats.vision_passes == 0
    assert two.stats.reused_tokens == prefix
    assert two.stats.prefilled_tokens == two.stats.prompt_tokens - prefix
    assert two.notes["visual"]["restored_tokens"] == prefix
    wanted = expected_ids(engine.model, engine.processor, other.messages[:-1], 8)
    assert two.token_ids == wanted


def test_the_same_picture_elsewhere_runs_no_tower(engine: Engine) -> None:
    picture = noise_picture(3)
    ask(engine, [user("a", picture)])
    reply = engine.session().send(user("in the middle", noise_picture(4), picture), max_new_tokens=8)
    assert reply.stats.vision_passes == 1
    assert reply.notes["visual"]["restored_tokens"] == 0


def test_another_picture_of_the_same_size_is_not_confused(engine: Engine) -> None:
    """The ids of both prompts are equal; only the hash of the pixels tells them apart."""
    asked = [user("what?", noise_picture(5))]
    first = ask(engine, asked)
    changed = [user("what?", noise_picture(6))]
    second = ask(engine, changed)
    assert second.stats.vision_passes == 1
    assert second.stats.reused_tokens == len("[u")
    assert second.token_ids == expected_ids(engine.model, engine.processor, changed, 16)
    assert first.token_ids != second.token_ids


def test_an_edit_behind_a_picture_keeps_it_and_one_before_it_does_not(engine: Engine) -> None:
    session = engine.session(max_new_tokens=6, system="aa")
    session.send(user("one?", noise_picture(7)))
    session.messages[1]["content"][1]["text"] = "other?"
    del session.messages[2]
    behind = session.send("so?")
    assert behind.stats.vision_passes == 0
    session.messages[0]["content"] = "bb"
    before = session.send("and?")
    assert before.stats.vision_passes == 0
    assert before.stats.reused_tokens == len("[s")


@pytest.mark.slow
def test_two_hundred_pictures_within_a_budget() -> None:
    model, processor = tiny_chat_vlm()
    engine = Engine(model, processor, visual_budget=40_000)
    plain = Engine(model, processor)
    passes = 0
    for seed in [*range(200), 0, 199]:
        messages = [user("what?", noise_picture(seed))]
        reply = ask(engine, messages, 4)
        passes += reply.stats.vision_passes
        assert engine.vision.memory.bytes <= 40_000
        if seed % 20 == 0:
            assert reply.token_ids == ask(plain, messages, 4).token_ids
    counts = engine.vision.memory.counts
    assert passes == 201, "picture 0 was evicted, picture 199 still held"
    assert counts.evictions > 100
    assert counts.hits >= 1


def test_int8_segments_are_smaller_and_reported() -> None:
    model, processor = tiny_chat_vlm()
    exact = Engine(model, processor)
    small = Engine(model, processor, lossy_int8_segments=True)
    asked = [user("what?", noise_picture(8))]
    sizes = []
    for engine in (exact, small):
        engine.session().send(asked, max_new_tokens=4)
        reply = engine.session().send(asked, max_new_tokens=4)
        assert reply.notes["visual"]["restored_tokens"] > 0
        assert reply.stats.lossy == (["lossy_int8_segments"] if engine is small else [])
        sizes.append(engine.vision.memory.bytes)
    assert sizes[1] < sizes[0]


def test_a_saved_session_goes_on_with_its_pictures(engine: Engine, tmp_path: Path) -> None:
    session = engine.session(max_new_tokens=8)
    session.send(user("one?", noise_picture(9)))
    session.save(tmp_path / "s")
    resumed = Engine(engine.model, engine.processor).resume(tmp_path / "s")
    assert isinstance(resumed.messages[0]["content"][0]["image"], Picture)
    after = resumed.send("two?", max_new_tokens=8)
    assert after.stats.vision_passes == 0
    assert after.token_ids == session.send("two?").token_ids


def test_what_cannot_be_is_refused_by_name(engine: Engine) -> None:
    with pytest.raises(PictureInputError, match="<image>"):
        ask(engine, [user("is <image> here?", noise_picture(1))])
    with pytest.raises(PictureInputError, match="placeholder"):
        ask(engine, [user("is <image> here?")])
    with pytest.raises(PictureError, match="message 0"):
        ask(engine, [user("what?", "/no/such/file.png")])
    with pytest.raises(PictureError, match="processor"):
        Engine(engine.model, engine.tokenizer).vision.prepare(Picture(noise_picture(1), "x"))
    with pytest.raises(Cancelled):
        engine.chat([user("what?", noise_picture(11))], cancelled=lambda: True)
    assert ask(engine, [user("what?", noise_picture(1))]).token_ids


def test_frames_can_be_appended_and_dropped(engine: Engine) -> None:
    """The seam of frozen per-frame KV: appended segments cost themselves only, dropped ones leave positions."""
    conversation = engine.open_conversation()
    vision = engine.vision
    slot = vision.family.image_token_id
    for seed in range(3):
        prepared = vision.prepare(load_picture(noise_picture(seed)))
        conversation.append_segment(vision, [5, *([slot] * SLOTS), 6], [prepared.picture])
    assert conversation.sequence.length == 18
    assert vision.encoder.passes == 3
    conversation.drop_segment(6, 12)
    assert [one.start for one in conversation.pictures] == [1, 7]
    assert conversation.sequence.positions.next_position(12) == 18
    with pytest.raises(ValueError, match="cannot drop"):
        conversation.drop_segment(0, 3)


def test_lossy_compression_is_opt_in_and_reported(engine: Engine) -> None:
    asked = [user("what?", noise_picture(12))]
    exact = ask(engine, asked)
    small = engine.chat(asked, max_new_tokens=16, lossy_visual_tokens=2)
    assert small.stats.lossy == ["lossy_visual_tokens=2"]
    assert small.stats.prompt_tokens == exact.stats.prompt_tokens - 2
    assert small.stats.vision_passes == 0, "the features were held"
    whole = engine.chat(asked, max_new_tokens=16, lossy_visual_tokens=SLOTS)
    assert whole.token_ids == exact.token_ids
    with pytest.raises(OptionError, match="lossy_visual_tokens"):
        engine.chat(asked, lossy_visual_tokens=0)


@pytest.mark.slow
def test_edited_conversations_in_a_small_memory() -> None:
    """Three sessions of one engine, edited at random, in a memory too small for their pictures."""
    model, processor = tiny_chat_vlm(3)
    engine = Engine(model, processor, visual_budget=30_000)
    rng = random.Random(0)
    pictures = [noise_picture(seed) for seed in range(4)]
    sessions = [engine.session() for _ in range(3)]
    for turn in range(60):
        session = rng.choice(sessions)
        _edit(session.messages, rng, pictures)
        asked = user(f"q{turn % 5}?", *[rng.choice(pictures) for _ in range(rng.choice([0, 0, 1, 2]))])
        reply = session.send(asked, max_new_tokens=rng.choice([1, 3, 8]))
        ids = torch.tensor([session._conversation.tokens[: reply.stats.prompt_tokens]])
        shown = extract(session.messages, PictureRules()).pictures
        inputs = {} if not shown else dict(processor.image_processor([p.image for p in shown], return_tensors="pt"))
        with torch.inference_mode():
            wanted = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=len(reply.token_ids),
                **inputs,
            )
        assert reply.token_ids == wanted[0, ids.shape[1] :].tolist(), f"turn {turn}"
        if ids.shape[1] > 300:
            session.messages.clear()
    assert engine.vision.memory.bytes <= 30_000


def _edit(messages: list[dict[str, Any]], rng: random.Random, pictures: list[Any]) -> None:
    """Now and then forget all, the first turn or the last, or put other words and pictures in its place."""
    chance = rng.random()
    if chance < 0.1:
        messages.clear()
    elif chance < 0.2:
        del messages[:2]
    elif chance < 0.3:
        del messages[-2:]
    elif chance < 0.4 and messages:
        messages[-2] = user("other", *rng.sample(pictures, rng.randint(0, 2)))
