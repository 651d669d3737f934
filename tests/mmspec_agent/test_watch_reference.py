"""The reference VLM on filmed scenes: frozen KV equals one full pass, drafts pay, and the answer changes in time."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from PIL import Image
from unhurried import OnPaper

from mmspec_agent.bench.video_scenes import DESCRIBE, film
from mmspec_agent.core.tree import ROOT
from mmspec_agent.engine import Engine
from mmspec_agent.models import catalog
from mmspec_agent.video.watch import WatchAnswer
from mmspec_agent.watching import FrameViewer

NAME = "reference-vlm"


def _is_here() -> bool:
    model = catalog.offline_model(NAME)
    return model is not None and model.is_ready()


pytestmark = [
    pytest.mark.slow,
    pytest.mark.reference,
    pytest.mark.skipif(not _is_here(), reason=f"{NAME} is not here: mmspec models get {NAME}"),
]


@cache
def engine() -> Engine:
    return Engine.from_pretrained(NAME, dtype="fp32")


def answers(kind: str, question: str, frames: int = 4, **options: Any) -> list[WatchAnswer]:
    shots = film(kind, frames).shots
    engine().controller = OnPaper()
    with engine().watch([(s.time_s, s.image) for s in shots], question, max_new_tokens=30, **options) as watch:
        return list(watch)


def test_appended_frames_equal_one_full_pass() -> None:
    images = [shot.image for shot in film("cut", 4).shots]
    made = engine()
    with made.watch(images, DESCRIBE, window=4, max_new_tokens=1) as watch:
        for _ in zip(range(4), watch):
            pass
        viewer = watch._viewer
        assert isinstance(viewer, FrameViewer)
        window = viewer.window
        assert window is not None
        tokens = window.ask(viewer._prompt.question_ids(DESCRIBE))
        ours = window.sequence.verify(tokens[window.sequence.length :]).row(ROOT)[0]
    assert made.processor is not None
    pixels = made.processor.image_processor([Image.fromarray(i) for i in images], return_tensors="pt")["pixel_values"]
    with torch.inference_mode():
        plain = made.model(input_ids=torch.tensor([tokens]), pixel_values=pixels, use_cache=False).logits[0, -1]
    torch.testing.assert_close(ours, plain, atol=1e-3, rtol=1e-4)
    assert (ours - plain).abs().max() < 1e-4 * max(1.0, float(plain.abs().max()))


@pytest.mark.parametrize("kind", ["static_noise", "slow_change"])
def test_drafts_pay_and_change_nothing(kind: str) -> None:
    ours = answers(kind, DESCRIBE)
    plain = answers(kind, DESCRIBE, speculate=False)
    assert [a.token_ids for a in ours] == [a.token_ids for a in plain]
    later = ours[2:]
    per_forward = sum(a.stats.emitted for a in later) / sum(a.stats.forwards for a in later)
    assert per_forward >= (6.0 if kind == "static_noise" else 2.5)
    assert all(a.seen.vision_passes == 1 for a in ours)


@pytest.mark.parametrize("kind", ["lamp", "equal_luma", "cut"])
def test_an_answer_changes_exactly_where_the_plain_one_does(kind: str) -> None:
    """Cases ssim-blind-led and scene-cut: the gate may be blind to a change, the answer is not."""
    fact = film(kind, 4).shots[0].fact
    assert fact is not None
    ours, plain = answers(kind, fact.text), answers(kind, fact.text, speculate=False)
    assert [a.token_ids for a in ours] == [a.token_ids for a in plain]
    assert [a.changed for a in ours] == [a.changed for a in plain]


def test_a_response_format_shapes_every_answer() -> None:
    schema = {"type": "object", "properties": {"objects": {"type": "integer"}}, "required": ["objects"]}
    found = answers("static_noise", "How many objects are there?", frames=4, response_format=schema)
    assert all(isinstance(a.parsed["objects"], int) for a in found)
