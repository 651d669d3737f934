"""Frozen KV of frames: appending equals one full pass; eviction equals a masked one; rebasing turns keys once."""

from __future__ import annotations

import dataclasses
import resource
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tiny import tiny_model
from tiny_visual import FAMILIES, IMAGE, pictures, tiny_vlm

from mmspec_agent.core.errors import ContextOverflow, MemoryBudgetExceeded
from mmspec_agent.core.hf_target import HFTarget
from mmspec_agent.core.tree import ROOT, DraftTree
from mmspec_agent.core.visual.families import Family, PictureInput
from mmspec_agent.core.visual.features import Encoder, as_model_output
from mmspec_agent.core.visual.memory import ByteStore
from mmspec_agent.core.visual.placing import place, visual_inputs
from mmspec_agent.video.rebase import KeyRotation
from mmspec_agent.video.window import FrameWindow

PREFIX = [11, 12, 13]
QUESTION = [21, 22, 23, 24]
MASKED = ("llava", "idefics3", "smolvlm", "qwen2_vl", "qwen2_5_vl", "qwen3_vl")
"""Families whose models take a 4-D mask as it is."""


class Stream:
    """A tiny model, ``count`` pictures with their segments, and a window of ``frames``."""

    def __init__(
        self,
        name: str,
        count: int,
        frames: int,
        prefix: list[int] | None = None,
        limit: int | None = None,
        budget: int | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.model = tiny_vlm(name).to(dtype)
        if limit is not None:
            self.model.config.get_text_config(decoder=True).max_position_embeddings = limit
        family = Family.of(self.model)
        assert family is not None
        self.family = family
        self.prefix = PREFIX if prefix is None else prefix
        self.inputs, self.slots = pictures(name, count, 3)
        self.pictures = [
            dataclasses.replace(picture, count=slots)
            for picture, slots in zip(family.split(self._apart(count)), self.slots, strict=True)
        ]
        self.encoder = Encoder(self.model, family, ByteStore(1 << 20))
        self.target = HFTarget(self.model, budget)
        self.window = FrameWindow(self.target.open(64), family, self.encoder.encode, self.prefix, frames, reserve=16)

    def _apart(self, count: int) -> dict[str, torch.Tensor]:
        """The pictures as if each had been preprocessed alone: a row counts as one picture in nested families."""
        if self.family.model_type not in ("idefics3", "smolvlm"):
            return self.inputs
        return {name: value.reshape(count, 1, *value.shape[2:]) for name, value in self.inputs.items()}

    def segment(self, index: int) -> list[int]:
        """Start token, time stamp, placeholders, end token."""
        return [30, 40 + index % 20, *[IMAGE] * self.slots[index], 31]

    def append(self, index: int) -> None:
        self.window.append(self.segment(index), self.pictures[index], float(index))

    def asked(self, question: list[int] = QUESTION) -> torch.Tensor:
        """Logits behind the question, and the cache as ``ask`` leaves it."""
        tokens = self.window.ask(question)
        result = self.window.sequence.verify(tokens[self.window.sequence.length :])
        self.window.sequence.commit(len(question), [])
        return result.row(ROOT)[0]

    def ids(self, frames: range) -> list[int]:
        return [*self.prefix, *(token for index in frames for token in self.segment(index))]


def full_pass(stream: Stream, count: int, question: list[int]) -> torch.Tensor:
    """The model's own forward over pixel values, without cache."""
    ids = torch.tensor([[*stream.ids(range(count)), *question]])
    inputs = dict(stream.inputs)
    if stream.family.model_type == "gemma3":
        inputs["token_type_ids"] = (ids == IMAGE).long()
    if stream.family.model_type.startswith("qwen"):
        inputs["mm_token_type_ids"] = (ids == IMAGE).long()
    with torch.inference_mode():
        logits: torch.Tensor = stream.model(input_ids=ids, use_cache=False, **inputs).logits[0, -1]
    return logits


@pytest.mark.parametrize("name", FAMILIES)
def test_appended_frames_equal_one_full_pass(name: str) -> None:
    stream = Stream(name, 3, frames=3)
    for index in range(3):
        stream.append(index)
    torch.testing.assert_close(stream.asked(), full_pass(stream, 3, QUESTION), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["llava", "idefics3", "qwen2_5_vl", "qwen3_vl"])
def test_questions_between_frames_leave_no_trace(name: str) -> None:
    """Question and answer are cropped before the next frame, and after a second question on the same one."""
    stream = Stream(name, 3, frames=3)
    for index in range(3):
        stream.append(index)
        stream.asked([50, 51])
        stream.asked([52])
    torch.testing.assert_close(stream.asked(), full_pass(stream, 3, QUESTION), atol=1e-4, rtol=1e-4)
    assert stream.window.counts.prefilled_tokens == len(stream.ids(range(3))) - len(PREFIX)
    assert stream.encoder.passes == 3


def masked_pass(stream: Stream, count: int, frames: int) -> torch.Tensor:
    """A full pass in which every row sees only the frames that were in the window when it was computed."""
    ids = [*stream.ids(range(count)), *QUESTION]
    owner = [-1] * len(stream.prefix)
    for index in range(count):
        owner += [index] * len(stream.segment(index))
    owner += [count - 1] * len(QUESTION)
    owners = np.array(owner)
    position = np.arange(len(ids))
    seen = (position[:, None] >= position[None, :]) & (
        (owners[None, :] < 0) | (owners[None, :] > owners[:, None] - frames)
    )
    mask = torch.zeros(seen.shape).masked_fill(torch.from_numpy(~seen), float("-inf"))[None, None]
    sequence = stream.target.open(8)
    placed = place(ids, IMAGE, stream.pictures[:count])
    visual = visual_inputs(stream.family, ids, placed, 0, len(ids), sequence.positions, stream.encoder.encode)
    positions = sequence.positions.chain(0, len(ids)) if visual.positions is None else visual.positions
    position_ids = torch.from_numpy(positions)[:, None] if sequence.positions.axes > 1 else torch.from_numpy(positions)
    features = as_model_output([stream.encoder.encode(picture) for picture in stream.pictures[:count]])
    with torch.inference_mode():
        logits: torch.Tensor = stream.model(
            input_ids=torch.tensor([ids]),
            attention_mask=mask,
            position_ids=position_ids,
            mm_encoder_outputs={"image": features},
            use_cache=False,
        ).logits[0, -1]
    return logits


@pytest.mark.parametrize("frames", [1, 2, 3])
@pytest.mark.parametrize("name", MASKED)
def test_eviction_equals_a_masked_full_pass(name: str, frames: int) -> None:
    """Case rekv-positions: kept rows with kept positions, M-RoPE included."""
    stream = Stream(name, 5, frames)
    for index in range(5):
        stream.append(index)
    if frames == 1:  # nothing is left that saw an older frame, so positions start anew: a fresh pass
        fresh = Stream(name, 5, frames)
        fresh.append(4)
        expected = fresh.asked()
    else:
        expected = masked_pass(stream, 5, frames)
    torch.testing.assert_close(stream.asked(), expected, atol=1e-4, rtol=1e-4)


def test_eviction_is_not_the_same_as_never_having_seen_the_frame() -> None:
    stream, fresh = Stream("llava", 4, 2), Stream("llava", 4, 2)
    for index in range(4):
        stream.append(index)
    for index in (2, 3):
        fresh.append(index)
    assert (stream.asked() - fresh.asked()).abs().max() > 1e-3


def test_frames_are_evicted_whole_and_the_prefix_stays() -> None:
    """Case vispeak-no-evict."""
    stream = Stream("qwen2_5_vl", 4, 2)
    for index in range(4):
        stream.append(index)
    assert stream.window.tokens == [*PREFIX, *stream.segment(2), *stream.segment(3)]
    assert stream.window.sequence.length == len(stream.window.tokens)
    assert stream.window.counts.evicted == 2
    stream.window.sequence.arena.check_integrity()


def test_the_next_position_follows_the_largest_extent_of_a_picture() -> None:
    """Case mrope-need-full-ids: base p, next = p + max(h, w) / merge, text counted one by one."""
    stream = Stream("qwen2_5_vl", 1, 2)
    stream.append(0)
    grid = stream.pictures[0].grid
    assert grid is not None
    sequence = stream.window.sequence
    assert sequence.positions.next_position(sequence.length) == len(PREFIX) + 3 + max(grid)


def test_rejected_drafts_leave_nothing_behind() -> None:
    """Case crop-sign: three rejected tokens are rolled back and the question can be asked again."""
    stream = Stream("llava", 1, 1)
    stream.append(0)
    expected = stream.asked()
    tokens = stream.window.ask(QUESTION)
    sequence = stream.window.sequence
    sequence.verify(tokens[sequence.length :], DraftTree.chain([7, 8, 9], "wrong"))
    sequence.commit(len(QUESTION), [])
    assert sequence.length == stream.window.length + len(QUESTION)
    torch.testing.assert_close(stream.asked(), expected)


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl", "qwen3_vl"])
def test_kept_turns_stay_and_go_with_their_frame(name: str) -> None:
    stream, plain = Stream(name, 2, 1), Stream(name, 2, 2)
    stream.append(0)
    tokens = stream.window.ask(QUESTION)
    sequence = stream.window.sequence
    sequence.verify(tokens[sequence.length :])
    sequence.commit(len(QUESTION), [])
    stream.window.keep([*tokens, 60, 61], closing=[62])
    assert stream.window.tokens == [*stream.ids(range(1)), *QUESTION, 60, 61, 62]
    again = stream.asked([50])
    plain.append(0)
    expected = plain.asked([*QUESTION, 60, 61, 62, 50])
    torch.testing.assert_close(again, expected, atol=1e-4, rtol=1e-4)
    stream.append(1)
    assert stream.window.tokens == [*PREFIX, *stream.segment(1)]


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3", "mistral", "phi3", "llava", "qwen2_5_vl"])
def test_rotations_are_found_and_proven_on_the_model(name: str) -> None:
    target = HFTarget(tiny_model(name))
    rotation = KeyRotation.of(target)
    assert rotation is not None
    assert len(rotation.layers) == len(target.layer_types)


def test_learned_positions_do_not_rotate() -> None:
    assert KeyRotation.of(HFTarget(tiny_model("gpt2"))) is None


@pytest.mark.parametrize("name", ["llava", "idefics3", "qwen2_5_vl", "qwen3_vl"])
def test_rebasing_everything_changes_nothing(name: str) -> None:
    """Without a prefix all positions move alike, and attention knows distances only."""
    stream = Stream(name, 4, 2, prefix=[])
    for index in range(4):
        stream.append(index)
    before = stream.asked()
    first = stream.window.segments[0].first
    assert first > 0
    stream.window.rebase()
    assert stream.window.segments[0].first == 0
    assert stream.window.counts.rebased == 1
    torch.testing.assert_close(stream.asked(), before, atol=1e-4, rtol=1e-4)


def test_keys_are_turned_once_however_often_the_window_moves() -> None:
    """Case of research note §3.19: in bf16 a thousand turns in place are noise, one from a copy is not."""
    stream = Stream("llava", 2, 2, prefix=[], dtype=torch.bfloat16)
    for index in range(2):
        stream.append(index)
    window, arena = stream.window, stream.window.sequence.arena
    stored = arena.read_keys(0, window.length)
    window._rotation = rotation = KeyRotation.of(stream.target)
    window._rotation_known = True
    assert rotation is not None
    for _ in range(200):
        for segment in window.segments:  # as if 37 positions further on
            segment.first, segment.next = segment.first + 37, segment.next + 37
        window.rebase()
    for kept, original in zip(arena.read_keys(0, window.length), stored):
        assert torch.equal(kept, original)
    worn = stored[0]
    for _ in range(200):
        worn = rotation.layers[0].turned(rotation.layers[0].turned(worn, 37), -37)
    assert not torch.equal(worn, stored[0])
    assert window.bytes == arena.bytes + sum(keys.nbytes for keys in stored)


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl"])
def test_positions_stay_inside_the_models_range(name: str) -> None:
    stream = Stream(name, 6, 3, limit=96)
    sequence = stream.window.sequence
    for turn in range(60):
        stream.append(turn % 6)
        assert torch.isfinite(stream.asked()).all()
        assert sequence.positions.next_position(sequence.length) <= 96
        assert stream.window.held == min(turn + 1, 3)
    assert stream.window.counts.rebased > 2
    assert stream.window.counts.restarted == 0


def test_a_frame_after_a_rebase_sees_the_moved_rows() -> None:
    """Layer 0 keys depend on token and position alone, so they tell where every row now lies."""
    stream, fresh = Stream("llava", 4, 2), Stream("llava", 4, 2)
    for index in range(4):
        stream.append(index)
    stream.window.rebase()
    for index in (2, 3):
        fresh.append(index)
    moved = stream.window.sequence.arena.read_keys(0, stream.window.length)[0]
    expected = fresh.window.sequence.arena.read_keys(0, fresh.window.length)[0]
    torch.testing.assert_close(moved, expected, atol=1e-5, rtol=1e-4)


def test_too_long_a_frame_is_refused_with_the_numbers() -> None:
    stream = Stream("llava", 1, 1, limit=24)
    with pytest.raises(ContextOverflow, match="24"):
        stream.append(0)
    assert stream.window.tokens == PREFIX
    assert stream.encoder.passes == 0


def test_a_window_over_the_budget_is_refused_before_the_tower_runs() -> None:
    """Case oom-30s-video: the bytes are predicted, copies of keys included."""
    stream = Stream("llava", 1, 16, budget=200_000)
    with pytest.raises(MemoryBudgetExceeded, match="window of 16 frames of 256 tokens"):
        stream.window.check_budget(256)
    per_token = 2 * 3 * 2 * 8 * 4
    rows = len(PREFIX) + 16 * 256 + 16
    assert stream.window.bytes_needed(256) == rows * per_token + 16 * 256 * per_token // 2
    assert stream.encoder.passes == 0


def test_a_failing_encoder_leaves_the_window_as_it_was() -> None:
    stream = Stream("llava", 2, 2)
    stream.append(0)
    expected = stream.asked()

    def broken(picture: PictureInput) -> None:
        raise RuntimeError("tower")

    stream.window._encode, whole = broken, stream.window._encode  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="tower"):
        stream.append(1)
    stream.window._encode = whole
    torch.testing.assert_close(stream.asked(), expected)


def test_500_frames_take_flat_memory_and_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case kv-growth-hours, the short form: 10,000 frames are ``mmspec bench video --full``. Work is counted in
    pairs of a new row and a row it may look at, and in rows moved: seconds belong to the benchmark."""
    stream = Stream("llava", 8, 8, limit=160)
    stream.encoder = Encoder(stream.model, stream.family, ByteStore(1 << 16))
    stream.window._encode = stream.encoder.encode
    pairs = 0
    forward = HFTarget.forward

    def counted(
        self: HFTarget, tokens: Sequence[int], rows: Any, positions: Any, arena: Any, *rest: Any, **more: Any
    ) -> Any:
        nonlocal pairs
        pairs += len(tokens) * (arena.length + len(tokens))
        return forward(self, tokens, rows, positions, arena, *rest, **more)

    monkeypatch.setattr(HFTarget, "forward", counted)
    work: list[int] = []
    high: list[int] = []
    for turn in range(500):
        before = pairs + stream.window.sequence.arena.rows_moved
        stream.append(turn % 8)
        stream.asked()
        work.append(pairs + stream.window.sequence.arena.rows_moved - before)
        high.append(stream.window.bytes)
        if turn == 200:
            resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert max(high[100:300]) == max(high[300:])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss <= resident + 8 * 1024
    assert max(work[300:]) <= max(work[50:250])
    assert sum(work[300:500]) <= 1.01 * sum(work[50:250])
    assert stream.window.counts.evicted == 492
    assert stream.window.counts.rebased > 10
