"""The reference vision-language model through the engine: same tokens, nothing read twice, examples that run."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from mmspec_agent import Engine
from mmspec_agent.bench.image_arms import HF, OURS, ImageArms
from mmspec_agent.bench.image_memory import int8_table
from mmspec_agent.models import catalog
from mmspec_agent.models.reference_vlm import load_reference_vlm
from mmspec_agent.models.scenes import random_scene

NAME = "reference-vlm"
EXAMPLES = Path(__file__).parents[2] / "examples"


def _missing() -> bool:
    model = catalog.offline_model(NAME)
    return model is None or not model.is_ready()


pytestmark = [
    pytest.mark.reference,
    pytest.mark.slow,
    pytest.mark.skipif(_missing(), reason=f"{NAME} is not on this machine: mmspec models get {NAME}"),
]


@pytest.fixture(scope="module")
def engine() -> Engine:
    torch.set_num_threads(1)
    return Engine(*load_reference_vlm(torch.float32))


def picture(seed: int) -> Image.Image:
    return Image.fromarray(random_scene(940_000_000 + seed, "objects").render())


def test_a_conversation_has_the_tokens_of_transformers(engine: Engine) -> None:
    arms = ImageArms(engine)
    session = engine.session()
    first: dict[str, Any] = {
        "role": "user",
        "content": [
            {"type": "image", "image": picture(1)},
            {"type": "text", "text": "How many things are in the picture?"},
        ],
    }
    turns = [first, *({"role": "user", "content": text} for text in ("What is the background?", "Describe it."))]
    for index, message in enumerate(turns):
        answers = arms.turn(session, message, 48, hf_first=bool(index % 2))
        assert answers[OURS].tokens == answers[HF].tokens
        assert answers[OURS].vision_passes == (index == 0)
        if index:
            assert answers[OURS].prefilled == answers[OURS].new_text


def test_int8_segments_keep_the_next_token(engine: Engine) -> None:
    table = int8_table(engine, [picture(2), picture(3)], "Describe the picture in detail.", 80)
    assert table["argmax_agreement"] >= 0.97, "a few hundred tokens: the bar itself is measured by the benchmark"
    assert table["share_of_bytes"] < 0.3


@pytest.mark.parametrize("name", ["ask_picture.py", "picture_conversation.py"])
def test_examples_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    shown = capsys.readouterr().out
    assert "vision tower" in shown
