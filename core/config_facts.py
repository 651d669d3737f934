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
    heads = number(config, "num_attention_heads", "n_head") or 1
    kv_heads = number(config, "num_key_value_heads") or heads
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


def number(config: PreTrainedConfig, *names: str) -> int | None:
    """The first of ``names`` that a configuration gives a number for; the largest where layers differ in it."""
    for name in names:
        try:
            values = [getattr(config, name, None)]
        except Exception:  # transformers refuses to name one value where layers have several
            layers = getattr(config, "per_layer_config", None) or {}
            several = layers.values() if isinstance(layers, dict) else layers
            values = [vars(config).get(name), *(vars(one).get(name) for one in several if hasattr(one, "__dict__"))]
        found = [value for value in values if isinstance(value, int) and value > 0]
        if found:
            return max(found)
    return None
