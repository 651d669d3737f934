"""Tiny random vision-language models of every supported family, and pictures for them as their processors give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from tiny import TEXT, VOCAB
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    InternVLConfig,
    InternVLForConditionalGeneration,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    PreTrainedModel,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)

IMAGE = VOCAB - 1
FAMILIES = (
    "llava",
    "llava_next",
    "llava_onevision",
    "idefics3",
    "smolvlm",
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "gemma3",
    "internvl",
)

_CLIP = {
    "model_type": "clip_vision_model",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
    "projection_dim": 16,
}
_SIGLIP = {**_CLIP, "model_type": "siglip_vision_model", "num_channels": 3, "vision_use_head": False}
_ROPE = {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 10000.0}
_SPECIAL = {
    "image_token_id": IMAGE,
    "video_token_id": VOCAB - 2,
    "vision_start_token_id": VOCAB - 3,
    "vision_end_token_id": VOCAB - 4,
}
_LLAMA = {"model_type": "llama", **TEXT}
_QWEN2 = {"model_type": "qwen2", **TEXT}


def tiny_vlm(name: str, seed: int = 0) -> PreTrainedModel:
    """A random model in fp32; weights are drawn wide, so that greedy answers depend on the pictures."""
    torch.manual_seed(seed)
    model: PreTrainedModel = _BUILDERS[name]()
    return model.eval()


def _llava() -> PreTrainedModel:
    config = LlavaConfig(vision_config=_CLIP, text_config=_LLAMA, image_token_index=IMAGE)
    return LlavaForConditionalGeneration(config)


def _llava_next() -> PreTrainedModel:
    grids = [[28, 56], [56, 28], [56, 56]]
    config = LlavaNextConfig(
        vision_config=_CLIP, text_config=_LLAMA, image_token_index=IMAGE, image_grid_pinpoints=grids
    )
    return LlavaNextForConditionalGeneration(config)


def _llava_onevision() -> PreTrainedModel:
    config = LlavaOnevisionConfig(
        vision_config=_SIGLIP,
        text_config=_QWEN2,
        image_token_index=IMAGE,
        video_token_index=VOCAB - 2,
        image_grid_pinpoints=[[28, 56], [56, 28], [56, 56]],
        vision_feature_layer=-1,
    )
    return LlavaOnevisionForConditionalGeneration(config)


def _idefics3(smol: bool = False) -> PreTrainedModel:
    vision = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 7,
        "initializer_range": 0.3,
    }
    make, config = (
        (SmolVLMForConditionalGeneration, SmolVLMConfig) if smol else (Idefics3ForConditionalGeneration, Idefics3Config)
    )
    return make(config(vision_config=vision, text_config=_LLAMA, image_token_id=IMAGE, scale_factor=2, pad_token_id=0))


def _qwen2_vl() -> PreTrainedModel:
    vision = {"depth": 2, "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "mlp_ratio": 2, "patch_size": 4}
    return Qwen2VLForConditionalGeneration(
        Qwen2VLConfig(text_config={**TEXT, "rope_parameters": _ROPE}, vision_config=vision, **_SPECIAL)
    )


def _qwen2_5_vl() -> PreTrainedModel:
    vision = {
        "depth": 2,
        "hidden_size": 16,
        "num_heads": 2,
        "intermediate_size": 32,
        "out_hidden_size": 32,
        "patch_size": 4,
        "window_size": 16,
        "fullatt_block_indexes": [1],
    }
    return Qwen2_5_VLForConditionalGeneration(
        Qwen2_5_VLConfig(text_config={**TEXT, "rope_parameters": _ROPE}, vision_config=vision, **_SPECIAL)
    )


def _qwen3_vl() -> PreTrainedModel:
    vision = {
        "depth": 3,
        "hidden_size": 16,
        "num_heads": 2,
        "intermediate_size": 32,
        "out_hidden_size": 32,
        "patch_size": 4,
        "num_position_embeddings": 16,
        "deepstack_visual_indexes": [0, 1],
        "initializer_range": 0.3,
    }
    text = {**TEXT, "head_dim": 8, "rope_parameters": {**_ROPE, "mrope_interleaved": True}}
    return Qwen3VLForConditionalGeneration(Qwen3VLConfig(text_config=text, vision_config=vision, **_SPECIAL))


def _gemma3() -> PreTrainedModel:
    layers = ["sliding_attention", "full_attention", "sliding_attention"]
    text = {**TEXT, "head_dim": 8, "sliding_window": 7, "layer_types": layers, "query_pre_attn_scalar": 8}
    config = Gemma3Config(
        text_config=text,
        vision_config={**_SIGLIP, "patch_size": 7},
        mm_tokens_per_image=4,
        image_token_index=IMAGE,
        boi_token_index=VOCAB - 3,
        eoi_token_index=VOCAB - 4,
        initializer_range=0.3,
        tie_word_embeddings=False,
    )
    model = Gemma3ForConditionalGeneration(config)
    # transformers starts it at zero, which would hide the pictures from every comparison.
    torch.nn.init.normal_(model.model.multi_modal_projector.mm_input_projection_weight)
    return model


def _internvl() -> PreTrainedModel:
    vision = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": [28, 28],
        "patch_size": [7, 7],
    }
    return InternVLForConditionalGeneration(
        InternVLConfig(vision_config=vision, text_config=_QWEN2, image_token_id=IMAGE, image_seq_length=4)
    )


_BUILDERS: dict[str, Any] = {
    "llava": _llava,
    "llava_next": _llava_next,
    "llava_onevision": _llava_onevision,
    "idefics3": _idefics3,
    "smolvlm": lambda: _idefics3(smol=True),
    "qwen2_vl": _qwen2_vl,
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen3_vl": _qwen3_vl,
    "gemma3": _gemma3,
    "internvl": _internvl,
}


@dataclass
class Prompt:
    """Ids with placeholders, and the pixel inputs of the whole prompt."""

    ids: list[int]
    inputs: dict[str, torch.Tensor]

    @property
    def generate(self) -> dict[str, Any]:
        """Keyword arguments of transformers' ``generate``."""
        return {"input_ids": torch.tensor([self.ids]), **self.inputs}


def pictures(name: str, count: int, seed: int) -> tuple[dict[str, torch.Tensor], list[int]]:
    """Pixel inputs of ``count`` random pictures, and how many placeholders each takes."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    if name in ("llava", "gemma3", "internvl"):
        return {"pixel_values": noise(count, 3, 28, 28)}, [4] * count
    if name in ("idefics3", "smolvlm"):
        pixels = noise(1, count, 3, 28, 28)
        return {"pixel_values": pixels, "pixel_attention_mask": torch.ones(1, count, 28, 28, dtype=torch.bool)}, [
            4
        ] * count
    if name == "llava_next":
        sizes = torch.tensor([[28, 56], [56, 50]])[torch.arange(count) % 2]
        return {"pixel_values": noise(count, 5, 3, 28, 28), "image_sizes": sizes}, [
            [14, 24][i % 2] for i in range(count)
        ]
    if name == "llava_onevision":
        sizes = torch.tensor([[28, 56]] * count)
        counts = [4 + 2 * 4 + 2] if count == 1 else [4 + 1] * count
        return {
            "pixel_values": noise(count, 3, 3, 28, 28),
            "image_sizes": sizes,
            "batch_num_images": torch.tensor([count]),
        }, counts
    grids = torch.tensor([[1, 4, 6], [1, 8, 4], [1, 4, 4]])[torch.arange(count) % 3]
    patches = int(grids.prod(-1).sum())
    return {"pixel_values": noise(patches, 3 * 2 * 4 * 4), "image_grid_thw": grids}, (grids.prod(-1) // 4).tolist()


def prompt(name: str, count: int, seed: int, before: int = 5, after: int = 7) -> Prompt:
    """Text, then pictures with text between them, then text."""
    generator = torch.Generator().manual_seed(1000 + seed)

    def text(n: int) -> list[int]:
        return torch.randint(3, VOCAB - 4, (n,), generator=generator).tolist()

    inputs, counts = pictures(name, count, seed)
    ids = text(before)
    for slots in counts:
        ids += [*([IMAGE] * slots), *text(3)]
    ids += text(after)
    kinds = torch.tensor([[int(token == IMAGE) for token in ids]])
    if name == "gemma3":
        inputs["token_type_ids"] = kinds
    if name.startswith("qwen"):
        inputs["mm_token_type_ids"] = kinds
    return Prompt(ids, inputs)
