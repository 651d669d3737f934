"""A tiny random vision-language model that chats: one character a token, 28 × 28 pixels, 4 visual tokens."""

from __future__ import annotations

import string
from typing import Any

import numpy as np
import torch
from PIL import Image
from tiny import VOCAB
from tiny_visual import tiny_vlm
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlavaProcessor, PreTrainedModel, PreTrainedTokenizerFast
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from mmspec_agent.pictures import load_picture

TEMPLATE = (
    "{% for m in messages %}[{{ m['role'][0] }}"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for p in m['content'] %}{% if p['type'] == 'image' %}<image>{% else %}{{ p['text'] }}{% endif %}{% endfor %}"
    "{% endif %}]{% endfor %}{% if add_generation_prompt %}[a{% endif %}"
)


def tiny_tokenizer(*special: str, **named: str) -> PreTrainedTokenizerFast:
    """Characters as tokens; the last id is the picture's placeholder. ``named`` special tokens become attributes."""
    letters = (string.ascii_letters + string.digits + " .,?![]-_:;/")[: VOCAB - 5]
    vocab = {"<pad>": 0, "<s>": 1, "</s>": 2, **{c: 3 + i for i, c in enumerate(letters)}}
    extra = ["<pad>", "<s>", "</s>", "<image>", *special, *named.values()]
    for token in extra:
        if token != "<image>":
            vocab.setdefault(token, len(vocab))
    vocab |= {f"<u{i}>": i for i in range(len(vocab), VOCAB - 1)}
    vocab["<image>"] = VOCAB - 1
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in extra if len(token) > 1])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        extra_special_tokens={"image_token": "<image>", **named},
    )


def tiny_chat_vlm(seed: int = 0) -> tuple[PreTrainedModel, Any]:
    """Model in fp32 and its LlavaProcessor, which works on Pillow alone."""
    model = tiny_vlm("llava", seed)
    model.generation_config.eos_token_id = 2
    processor = LlavaProcessor(
        SiglipImageProcessorPil(size={"height": 28, "width": 28}),
        tiny_tokenizer(),
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        image_token="<image>",
        chat_template=TEMPLATE,
    )
    return model, processor


def noise_picture(seed: int, size: int = 40) -> Image.Image:
    """Random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def user(text: str, *pictures: Any) -> dict[str, Any]:
    """A user message, pictures first."""
    return {
        "role": "user",
        "content": [*({"type": "image", "image": p} for p in pictures), {"type": "text", "text": text}],
    }


def expected_ids(model: PreTrainedModel, processor: Any, messages: list[dict[str, Any]], new: int) -> list[int]:
    """Greedy reply of transformers: its processor, its template, its generate."""
    shown, pictures = [], []
    for message in messages:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        pictures += [load_picture(p["image"]).image for p in parts if p["type"] == "image"]
        shown.append({**message, "content": [{"type": "image"} if p["type"] == "image" else p for p in parts]})
    text = processor.apply_chat_template(shown, tokenize=False, add_generation_prompt=True)
    inputs = processor(text=text, images=pictures or None, return_tensors="pt")
    with torch.inference_mode():
        out = model.generate(**inputs, do_sample=False, max_new_tokens=new)
    ids: list[int] = out[0, inputs["input_ids"].shape[1] :].tolist()
    return ids
