"""Processors work without torchvision: Pillow for the pixels, no part for videos."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_chat import TEMPLATE, noise_picture, tiny_tokenizer, user
from tiny_visual import IMAGE, tiny_vlm
from transformers import PreTrainedModel

from mmspec_agent import Engine
from mmspec_agent.models.processors import load_processor

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "smolvlm", "idefics3", "llava_onevision", "internvl", "gemma3")
SPECIAL: dict[str, dict[str, str]] = {
    "internvl": {
        "start_image_token": "[",
        "end_image_token": "]",
        "context_image_token": "<image>",
        "video_token": "<video>",
    },
    "gemma3": {"boi_token": "<boi>", "eoi_token": "<eoi>"},
    "smolvlm": {"fake_image_token": "<fake_token_around_image>", "global_image_token": "<global-img>"},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "smolvlm": {"image_seq_len": 4},
    "idefics3": {"image_seq_len": 4},
    "llava_onevision": {"num_image_tokens": 4, "vision_feature_select_strategy": "full"},
    "internvl": {"image_seq_length": 4},
    "gemma3": {"image_seq_length": 4},
}
SQUARE = {"height": 28, "width": 28}
TILED = {"size": {"longest_edge": 56}, "max_image_size": {"longest_edge": 28}}
IMAGE_PROCESSORS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "qwen": ("qwen2_vl", "Qwen2VLImageProcessorPil", {"patch_size": 4, "min_pixels": 64, "max_pixels": 64 * 16}),
    "smolvlm": ("smolvlm", "SmolVLMImageProcessorPil", TILED),
    "idefics3": ("idefics3", "Idefics3ImageProcessorPil", TILED),
    "llava_onevision": (
        "llava_onevision",
        "LlavaOnevisionImageProcessorPil",
        {"size": SQUARE, "image_grid_pinpoints": [[28, 56], [56, 28], [56, 56]]},
    ),
    "internvl": ("got_ocr2", "GotOcr2ImageProcessorPil", {"size": SQUARE, "max_patches": 4}),
    "gemma3": ("gemma3", "Gemma3ImageProcessorPil", {"size": SQUARE}),
}


def saved(name: str, folder: Path) -> PreTrainedModel:
    """A folder as the Hub has them: config, tokenizer, preprocessor, processor settings, chat template."""
    model = tiny_vlm(name)
    model.config.save_pretrained(folder)
    named = SPECIAL.get(name, {})
    tiny_tokenizer("<fake_token_around_image>", "<end_of_utterance>", **named).save_pretrained(folder)
    module, kind, options = IMAGE_PROCESSORS["qwen" if name.startswith("qwen") else name]
    found = importlib.import_module(f"transformers.models.{module}.image_processing_pil_{module}")
    getattr(found, kind)(**options).save_pretrained(folder)
    (folder / "processor_config.json").write_text(json.dumps(SETTINGS.get(name, {})))
    # Between two pictures real templates of these families have tokens of their own.
    place = f":{named.get('boi_token', '<image>')};"
    (folder / "chat_template.jinja").write_text(TEMPLATE.replace("<image>", place))
    return model


@pytest.mark.parametrize("name", FAMILIES)
def test_chat_through_the_saved_processor(name: str, tmp_path: Path) -> None:
    model = saved(name, tmp_path)
    processor = load_processor(str(tmp_path), model.config)
    engine = Engine(model, processor)
    messages = [user("what?", noise_picture(1, 44), noise_picture(2, 30)), {"role": "assistant", "content": "so"}]
    messages.append(user("and?"))
    reply = engine.chat(messages, max_new_tokens=10)
    shown = [{"type": "image"}, {"type": "image"}, {"type": "text", "text": "what?"}]
    text = processor.apply_chat_template(
        [
            {"role": "user", "content": shown},
            {"role": "assistant", "content": [{"type": "text", "text": "so"}]},
            {"role": "user", "content": [{"type": "text", "text": "and?"}]},
        ],
        tokenize=False,
        add_generation_prompt=True,
    )
    inputs = processor(text=[text], images=[[noise_picture(1, 44), noise_picture(2, 30)]], return_tensors="pt")
    assert int((inputs["input_ids"] == IMAGE).sum()) > 2
    with torch.inference_mode():
        wanted = model.generate(**inputs, do_sample=False, max_new_tokens=10)[0, inputs["input_ids"].shape[1] :]
    assert reply.token_ids == wanted.tolist()
    assert reply.stats.vision_passes == 2
