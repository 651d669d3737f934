"""Tiny random models of every architecture the proofs name, in fp32."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCAB = 97
TEXT: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.3,
}

ARCHITECTURES = ("llama", "qwen3", "gemma3", "gpt2", "mistral", "phi3", "llava", "qwen2_5_vl")


def _llava() -> PreTrainedModel:
    vision = {
        "model_type": "clip_vision_model",
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
        "projection_dim": 16,
    }
    config = LlavaConfig(vision_config=vision, text_config={"model_type": "llama", **TEXT}, image_token_index=VOCAB - 1)
    return LlavaForConditionalGeneration(config)


def _qwen2_5_vl() -> PreTrainedModel:
    rope = {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 10000.0}
    config = Qwen2_5_VLConfig(
        text_config={**TEXT, "rope_parameters": rope},
        vision_config={
            "depth": 2,
            "hidden_size": 16,
            "num_heads": 2,
            "intermediate_size": 32,
            "out_hidden_size": 32,
            "patch_size": 14,
            "fullatt_block_indexes": [1],
        },
        image_token_id=VOCAB - 1,
        video_token_id=VOCAB - 2,
        vision_start_token_id=VOCAB - 3,
        vision_end_token_id=VOCAB - 4,
    )
    return Qwen2_5_VLForConditionalGeneration(config)


def tiny_model(name: str, seed: int = 0) -> PreTrainedModel:
    """A random model of the architecture; greedy answers vary because weights are drawn wide."""
    torch.manual_seed(seed)
    if name == "llama":
        model: PreTrainedModel = LlamaForCausalLM(LlamaConfig(**TEXT))
    elif name == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**TEXT, head_dim=8))
    elif name == "gemma3":
        layers = ["sliding_attention", "full_attention", "sliding_attention"]
        model = Gemma3ForCausalLM(Gemma3TextConfig(**TEXT, head_dim=8, sliding_window=16, layer_types=layers))
    elif name == "gpt2":
        config = GPT2Config(vocab_size=VOCAB, n_positions=256, n_embd=32, n_layer=3, n_head=4, initializer_range=0.3)
        config.eos_token_id, config.bos_token_id, config.pad_token_id = 2, 1, 0
        model = GPT2LMHeadModel(config)
    elif name == "mistral":
        model = MistralForCausalLM(MistralConfig(**TEXT, sliding_window=24))
    elif name == "phi3":
        model = Phi3ForCausalLM(Phi3Config(**TEXT))
    elif name == "llava":
        model = _llava()
    else:
        model = _qwen2_5_vl()
    return model.eval()
