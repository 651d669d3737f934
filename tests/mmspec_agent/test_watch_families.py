"""``engine.watch`` over other families' own processors: a window equals transformers on one prompt of its frames."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image
from test_vlm_look import later_ones_are_other, plant, several_are_other
from tiny_chat import TEMPLATE, expected_ids, tiny_chat_vlm, tiny_tokenizer, user
from tiny_visual import tiny_vlm
from transformers import Idefics3Processor, PreTrainedModel, Qwen2_5_VLProcessor
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from mmspec_agent.core.errors import UnsupportedModel
from mmspec_agent.engine import Engine
from mmspec_agent.models.processors import without_video

ASK, NEW = "what now?", 8


def qwen() -> tuple[PreTrainedModel, Any]:
    model = tiny_vlm("qwen2_5_vl")
    images = Qwen2VLImageProcessorPil(
        patch_size=4, merge_size=2, temporal_patch_size=2, size={"shortest_edge": 256, "longest_edge": 1024}
    )
    template = TEMPLATE.replace("<image>", "-<image>_")
    processor = without_video(Qwen2_5_VLProcessor)(images, tiny_tokenizer(), chat_template=template)
    return model, processor


def idefics() -> tuple[PreTrainedModel, Any]:
    model = tiny_vlm("idefics3")
    images = Idefics3ImageProcessorPil(
        size={"longest_edge": 28}, max_image_size={"longest_edge": 28}, do_image_splitting=False
    )
    tokenizer = tiny_tokenizer("<fake_token_around_image>", "<global-img>", "<end_of_utterance>")
    return model, Idefics3Processor(images, tokenizer, image_seq_len=4, chat_template=TEMPLATE)


@pytest.mark.parametrize("make", [qwen, idefics])
def test_a_window_equals_transformers_on_all_its_frames(make: Any) -> None:
    model, processor = make()
    model.generation_config.eos_token_id = 2
    engine = Engine(model, processor)
    rng = np.random.default_rng(1)
    pictures = [rng.integers(0, 256, (48, 56, 3), dtype=np.uint8) for _ in range(3)]
    with engine.watch(pictures, ASK, window=3, max_new_tokens=NEW, time_stamps=False) as watch:
        answers = list(watch)
    for count, answer in enumerate(answers, start=1):
        if count == 1 and make is qwen:
            continue  # one picture alone and one of several are the same here, but are resized apart elsewhere
        messages = [user(ASK, *map(Image.fromarray, pictures[:count]))]
        assert list(answer.token_ids) == expected_ids(model, processor, messages, NEW)
    assert [a.seen.vision_passes for a in answers] == [1, 1, 1]
    plain = Engine(model, processor, drafters=[], max_nodes=0)
    with plain.watch(pictures, ASK, window=2, max_new_tokens=NEW) as watch:
        without = [a.token_ids for a in watch]
    with engine.watch(pictures, ASK, window=2, max_new_tokens=NEW) as watch:
        assert [a.token_ids for a in watch] == without
    assert torch.is_grad_enabled()


def noise(count: int, *sizes: tuple[int, int]) -> list[Any]:
    rng = np.random.default_rng(2)
    return [rng.integers(0, 256, (*sizes[i % len(sizes)], 3), dtype=np.uint8) for i in range(count)]


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(
    ("change", "good"), [(several_are_other, 1), (later_ones_are_other, 2), (lambda rows, *_: rows, 4)]
)
def test_another_rule_of_an_unlisted_family_is_found_by_watching(change: Any, good: int, kept: bool) -> None:
    """The answers before the rule shows are given; the frame that brings it is refused, and no later one is served."""
    model, processor = tiny_chat_vlm()
    model.config.model_type = "newcomer"
    plant(model, change)
    engine = Engine(model, processor)
    answers: list[Any] = []
    with engine.watch(noise(4, (40, 40)), ASK, window=4, max_new_tokens=2, keep_answers=kept) as watch:
        if good < 4:
            with pytest.raises(UnsupportedModel, match="newcomer give other logits"):
                answers += watch
        answers += watch
    assert len(answers) == good


def test_every_new_shape_is_looked_at_once_and_a_covered_family_never() -> None:
    for name, looks in (("newcomer", 4), ("llava", 0)):
        model, processor = tiny_chat_vlm()
        model.config.model_type = name
        engine = Engine(model, processor)
        look = Mock(wraps=engine.vision.look)
        engine.vision.look = look  # type: ignore[method-assign]
        frames = [*noise(4, (40, 40)), *noise(3, (30, 60))]
        with engine.watch(frames, ASK, window=2, max_new_tokens=1) as watch:
            assert len(list(watch)) == 7
        square, wide = (40, 40), (60, 30)
        shapes = [[one.size for one in call.args[1]] for call in look.call_args_list]
        assert shapes == [[square], [square] * 2, [square, wide], [wide] * 2][:looks]
