"""What a configuration says about attention and positions, under the names that models use for it."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedConfig, PreTrainedModel

PLACEHOLDER_NAMES = (
    "image_token_id",
    "image_token_index",
    "video_token_id",
    "video_token_index",
    "audio_token_id",
    "boi_token_index",
    "eoi_token_index",
    "vision_start_token_id",
)


def window_of(config: PreTrainedConfig, types: Sequence[str]) -> int | None:
    """Tokens of the sliding window, or of a chunk; None where layers see everything."""
    if "chunked_attention" in types:
        return int(config.attention_chunk_size)
    if "sliding_attention" in types:
        return int(config.sliding_window)
    return None


def is_mrope(config: PreTrainedConfig) -> bool:
    """Whether rotary positions have three axes."""
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    return isinstance(parameters, dict) and "mrope_section" in parameters


def query_groups_of(config: PreTrainedConfig) -> int:
    """Query heads that share a head of keys and values."""
    heads: int = getattr(config, "num_attention_heads", None) or getattr(config, "n_head", None) or 1
    kv_heads: int = getattr(config, "num_key_value_heads", None) or heads
    return max(1, heads // kv_heads)


def needs_eager(config: PreTrainedConfig) -> bool:
    """Soft-capped logits and attention sinks are not expressed by SDPA."""
    return getattr(config, "attn_logit_softcapping", None) is not None or config.model_type == "gpt_oss"


def decoder_config_of(model: PreTrainedModel, text_config: PreTrainedConfig) -> PreTrainedConfig:
    """The config object that the decoder's attention layers read."""
    for module in model.modules():
        config = getattr(module, "config", None)
        if not hasattr(module, "layer_idx") or not isinstance(config, PreTrainedConfig):
            continue
        if config is not model.config and config.model_type == text_config.model_type:
            return config
    return text_config
