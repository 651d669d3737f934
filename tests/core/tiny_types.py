"""Every vision-language type of the installed transformers, shrunk by the names of its settings, and fed pictures."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from mmspec_agent.core.visual.families import encoder_arguments, encoder_of

TYPES: tuple[str, ...] = tuple(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
IMAGE = 98
MAX_PARAMETERS = 3_000_000

_BY_SIZE = {
    99: "vocab_size vocab_size_per_layer_input",
    512: "max_position_embeddings",
    64: "num_position_embeddings",
    48: "intermediate_size ffn_dim",
    32: "hidden_size d_model embed_dim out_hidden_size projection_dim mm_hidden_size text_hidden_size",
    28: "image_size",
    24: "moe_intermediate_size shared_expert_intermediate_size",
    16: "sliding_window kv_lora_rank q_lora_rank",
    14: "patch_size",
    8: "head_dim hidden_size_per_layer_input qk_nope_head_dim qk_rope_head_dim v_head_dim",
    4: "num_attention_heads num_heads encoder_attention_heads num_experts n_routed_experts num_local_experts "
    "moe_num_experts num_image_tokens mm_tokens_per_image",
    2: "num_hidden_layers depth num_layers n_layers encoder_layers decoder_layers num_key_value_heads "
    "num_experts_per_tok mlp_ratio eos_token_id",
    1: "n_group topk_group first_k_dense_replace bos_token_id",
    0: "pad_token_id num_nextn_predict_layers",
}
_SMALL: dict[str, Any] = {name: size for size, names in _BY_SIZE.items() for name in names.split()}
_SMALL["initializer_range"] = 0.3
_SPECIAL: dict[str, Any] = {
    "image_grid_pinpoints": [[28, 56], [56, 28], [56, 56]],
    "projector_patch_to_query_dict": {4: 2},
    "deepstack_visual_indexes": [0],
    "vision_feature_layers": [-1, -2],
}
_LISTS_BY_LAYER = ("layer_types", "mlp_layer_types", "attn_layer_types")
_SECTIONS = {"glm4v_moe": [1, 1, 0]}


def tiny_type(name: str) -> PreTrainedModel | None:
    """A random model of a type in fp32, None if its settings cannot be shrunk by name alone."""
    try:
        config = CONFIG_MAPPING[name]()
        _shrink(config)
        kind = AutoModelForImageTextToText._model_mapping[type(config)]
        _place_tokens(config)
        if "mm_token_type_ids" in inspect.signature(kind.forward).parameters:
            _set_sections(config.get_text_config(), _SECTIONS.get(name, [2, 1, 1]))
        with torch.device("meta"):
            if sum(one.numel() for one in kind(config).parameters()) > MAX_PARAMETERS:
                return None
        torch.manual_seed(0)
        model: PreTrainedModel = kind(config).eval().float()
    except Exception:  # each configuration checks its own settings in its own way
        return None
    generation: Any = getattr(model, "generation_config", None)
    if generation is not None:
        generation.eos_token_id, generation.pad_token_id = None, 0
    if name in ("gemma3", "shieldgemma2"):
        core: Any = model.model
        torch.nn.init.normal_(core.multi_modal_projector.mm_input_projection_weight)
    return model


def _shrink(config: Any) -> None:
    for name, value in list(vars(config).items()):
        if hasattr(value, "model_type"):
            _shrink(value)
        elif name in _SPECIAL and value is not None:
            setattr(config, name, _SPECIAL[name])
        elif name == "vision_feature_layer" and isinstance(value, (list, tuple)):
            setattr(config, name, [-1, -2])
        elif name in _SMALL and value is not None:
            small = _SMALL[name]
            setattr(config, name, [small] * len(value) if isinstance(value, (list, tuple)) else small)
    layers = getattr(config, "num_hidden_layers", None)
    for name in _LISTS_BY_LAYER:
        if isinstance(getattr(config, name, None), list) and isinstance(layers, int):
            setattr(config, name, getattr(config, name)[:layers])


def _place_tokens(config: Any) -> None:
    """The picture's placeholder is the last id, other special tokens stand before it."""
    free = IMAGE - 1
    for name in list(vars(config)):
        if not name.endswith(("_token_id", "_token_index")) or not isinstance(getattr(config, name), int):
            continue
        if "image_token" in name:
            setattr(config, name, IMAGE)
        elif name not in ("pad_token_id", "bos_token_id", "eos_token_id"):
            setattr(config, name, free)
            free -= 1


def _set_sections(text: Any, sections: list[int]) -> None:
    rope = getattr(text, "rope_parameters", None)
    if isinstance(rope, dict) and "full_attention" not in rope:
        text.rope_parameters = {**rope, "mrope_section": sections}


class Fed(NamedTuple):
    """Pixel inputs that a type's tower takes, and the placeholders of each picture."""

    inputs: dict[str, Any]
    slots: list[int]


def fed(model: PreTrainedModel, count: int, size: int, seed: int) -> Fed | None:
    """``count`` random pictures of one of two sizes in the form that the tower takes; None if none of ours fits."""
    encoder = encoder_of(model)
    assert encoder is not None
    for inputs in _forms(model, count, size, torch.Generator().manual_seed(seed)):
        try:
            with torch.inference_mode():
                rows = encoder(**inputs, return_dict=True).pooler_output
            return Fed(inputs, [one.flatten(0, -2).shape[0] for one in rows])
        except Exception:  # another form, then
            continue
    return None


def _forms(model: PreTrainedModel, count: int, size: int, random: torch.Generator) -> Iterator[dict[str, Any]]:
    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random)

    reads = encoder_arguments(model)
    if "image_grid_thw" in reads:
        patch = getattr(model.config.vision_config, "patch_size", 14)
        grids = torch.tensor([[[1, 4, 4], [1, 8, 4]][(size + index) % 2] for index in range(count)])
        total = int(grids.prod(-1).sum())
        for shape in ((3 * patch * patch,), (6 * patch * patch,), (3, patch, patch)):
            yield {"pixel_values": noise(total, *shape), "image_grid_thw": grids}
        return
    if "image_sizes" in reads:
        yield {"pixel_values": noise(count, 3, 28, 28), "image_sizes": torch.tensor([[28, 28]] * count)}
        sizes = [[[28, 56], [56, 28]][size % 2]] * count
        yield {"pixel_values": noise(count, 3, 3, 28, 28), "image_sizes": torch.tensor(sizes)}
        yield {"pixel_values": noise(count, 5, 3, 28, 28), "image_sizes": torch.tensor(sizes)}
    if "pixel_attention_mask" in reads:
        yield {"pixel_values": noise(1, count, 3, 28, 28)}
    yield {"pixel_values": noise(count, 3, 28, 28)}
