"""Small copies of a configuration: the same class and layers, a few thousand weights, every border near.

What a model does with masks, positions and caches follows from its class and its configuration, not from its weights
or widths. So a copy of a few layers, drawn at random, shows in milliseconds what happens beyond a window that the model
itself reaches after thousands of tokens.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

VOCAB = 97
HIDDEN = 32
HEADS = 4
KV_HEADS = 2
HEAD_WIDTH = 8
MAX_LAYERS = 8
CONTEXT = 512
BORDER = 12
"""Where the nearest border of a copy lies; others follow in steps."""

_EXACT: dict[str, int] = {
    "vocab_size": VOCAB,
    "head_dim": HEAD_WIDTH,
    "attention_head_dim": HEAD_WIDTH,
    "global_head_dim": HEAD_WIDTH,
    "swa_head_dim": HEAD_WIDTH,
    "d_kv": HEAD_WIDTH,
    "rotary_dim": HEAD_WIDTH,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_nope_head_dim": HEAD_WIDTH,
    "qk_rope_head_dim": HEAD_WIDTH,
    "qk_head_dim": 2 * HEAD_WIDTH,
    "v_head_dim": HEAD_WIDTH,
    "index_head_dim": 2 * HEAD_WIDTH,
    "index_n_heads": 2,
    "num_key_value_groups": HEADS // KV_HEADS,
    "n_group": 1,
    "topk_group": 1,
    "n_groups": 1,
    "vocab_size_per_layer_input": VOCAB,
    "hidden_size_per_layer_input": 16,
    "laurel_rank": 8,
}

_WHERE_NONE = {"head_dim": HEAD_WIDTH, "num_key_value_heads": HEADS}

_PATTERNS: tuple[tuple[str, int], ...] = (
    (r"(hidden_size|n_embd|d_model|embed_dim|embedding_size|word_embed_proj_dim|dim_model|^dim)$", HIDDEN),
    (r"(intermediate|ffn|d_ff|n_inner|ffn_hidden|mlp_hidden|mlp_dim|expert_dim|inner_dim)", 2 * HIDDEN),
    (r"(key_value_heads|kv_heads|num_kv)", KV_HEADS),
    (r"(attention_heads|n_heads?$|num_heads|query_heads|q_heads)", HEADS),
    (r"(experts_per_tok|top_?k_experts|moe_topk|moe_top_k|num_selected_experts|moe_k|^top_k)", 2),
    (r"(shared_experts?$|n_shared|num_shared)", 1),
    (r"(num.*experts?$|n_routed|experts_num|moe_num)", 4),
)

_TOKEN_ID = re.compile(r"(token_id|_token_index|_token|_id)s?$")
_LAYER_COUNT = re.compile(r"^(num_hidden_layers|n_layers?|num_layers|num_decoder_layers|num_blocks)$")
_CONTEXT = re.compile(
    r"^(max_position_embeddings|n_positions|max_sequence_length|max_seq_len|max_seq_length|seq_length|n_ctx|context_length)$"
)
_LAYER_INDEX = re.compile(r"(layer|interval|pattern|replace|_every|freq|depth|period|offset|stride|step|skip)")
_NO_BORDER = re.compile(
    r"(version|seed|pretraining_tp|num_labels|chunk_size_feed_forward|nextn|mtp|init|bits|group_size|rank|kernel|conv|ssm"
    r"|codebook|channels|patch|image|theta|^base$|rate|width|factor|limit)"
)


def borders(config: PreTrainedConfig) -> dict[str, int]:
    """Integers of a text configuration that may say from which position on something changes.

    Found by what is left over: not a width, a count, an id or the context's end. Names within dictionaries (rules of
    rotary positions) are joined by a point.
    """
    found = {}
    for name, value in _integers(config.to_dict()):
        last = name.rsplit(".", 1)[-1]
        if value <= 4 or _sized(last) is not None or _LAYER_COUNT.search(last) or _CONTEXT.search(last):
            continue
        if _TOKEN_ID.search(last) or _LAYER_INDEX.search(last) or _NO_BORDER.search(last) or "config" in name:
            continue
        found[name] = value
    return found


def small_config(config: PreTrainedConfig, near: bool = True, keep: Sequence[str] = ()) -> PreTrainedConfig:
    """A copy of few, narrow layers of every kind; ``near`` brings the borders to a dozen tokens.

    Fields named in ``keep`` stay as they are. Errors of the configuration's own checks are passed on.
    """
    values = _shrunk(config, near, keep)
    names = {*config.to_dict()} - {"model_type", "transformers_version", "architectures", "dtype", "torch_dtype"}
    result = type(config)(**{name: value for name, value in values.items() if name in names})
    if getattr(config, "_attn_implementation", None) == "eager":
        result._attn_implementation = "eager"
    return result


def small_model(model_class: type[PreTrainedModel], config: PreTrainedConfig, seed: int = 0) -> PreTrainedModel:
    """A model of a small configuration, in fp32 on the CPU, whose weights are drawn wide enough for answers to vary.

    The caller's random state is left alone.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = copy.deepcopy(config)
        for part in _parts(config):
            part.dtype = torch.float32
            for name in ("initializer_range", "init_std", "initializer_factor"):
                if isinstance(getattr(part, name, None), (int, float)):
                    setattr(part, name, 0.3)
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)
        try:
            model = model_class._from_config(config) if hasattr(model_class, "_from_config") else model_class(config)
        finally:
            torch.set_default_dtype(before)
        _widen(model)
    return model.float().eval()


def _widen(model: PreTrainedModel) -> None:
    """Give weights that were drawn narrowly, whatever the class does to draw them, a spread of 0.3."""
    with torch.no_grad():
        for parameter in model.parameters():
            narrow = parameter.dim() >= 2 and float(parameter.std()) < 0.2
            if parameter.is_floating_point() and (narrow or not bool(torch.isfinite(parameter).all())):
                parameter.normal_(0.0, 0.3)


def _shrunk(config: PreTrainedConfig, near: bool, keep: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = copy.deepcopy(config.to_dict())
    layers = next((int(v) for n, v in values.items() if _LAYER_COUNT.search(n) and isinstance(v, int)), 2)
    chosen = _chosen_layers(values, layers)
    near_borders = _near(borders(config)) if near else {}
    heads = next((v for n, v in values.items() if re.search(r"(attention_heads|n_heads?$|num_heads)", n) and v), HEADS)
    for name, value in list(values.items()):
        if value is None and name in _WHERE_NONE:
            values[name] = _WHERE_NONE[name]
        if name in keep or isinstance(value, bool) or value is None:
            continue
        if name == "per_layer_config":
            own = {int(index): rules for index, rules in dict(value).items()}
            values[name] = {place: own[index] for place, index in enumerate(chosen) if index in own}
            continue
        if isinstance(value, int):
            values[name] = near_borders.get(name, _small(name, value, len(chosen), layers, heads))
        elif isinstance(value, list) and len(value) == layers:
            values[name] = [value[index] for index in chosen]
            if all(isinstance(one, int) and not isinstance(one, bool) for one in values[name]):
                values[name] = [_small(name, one, len(chosen), layers, heads) for one in values[name]]
        elif isinstance(value, dict) and isinstance(getattr(config, name, None), PreTrainedConfig):
            values[name] = _shrunk(getattr(config, name), near, keep)
        elif isinstance(value, dict):
            values[name] = _small_rules(name, value, near_borders)
        elif isinstance(value, list) and value and isinstance(value[0], int) and _TOKEN_ID.search(name):
            values[name] = [2]
    return values


def _small(name: str, value: int, layers: int, all_layers: int, heads: int) -> int:
    if _LAYER_COUNT.search(name):
        return layers
    if _CONTEXT.search(name):
        return CONTEXT
    if _TOKEN_ID.search(name):
        return {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}.get(name, min(value, VOCAB - 1))
    sized = _sized(name)
    if sized is not None:
        if sized == KV_HEADS:
            return HEADS if value == heads else min(value, KV_HEADS)
        return sized if value else value
    if _LAYER_INDEX.search(name) and value >= layers:
        return max(1, layers * value // max(all_layers, 1)) if value <= all_layers else value
    return value


def _sized(name: str) -> int | None:
    if name in _EXACT:
        return _EXACT[name]
    return next((size for pattern, size in _PATTERNS if re.search(pattern, name)), None)


def _near(found: Mapping[str, int]) -> dict[str, int]:
    """The same order of borders, a few tokens apart; equal ones stay equal, near ones stay where they are."""
    distinct = sorted(set(found.values()))
    places = {value: min(value, BORDER + 4 * index) for index, value in enumerate(distinct)}
    return {name: places[value] for name, value in found.items()}


def _small_rules(name: str, rules: dict[str, Any], near: Mapping[str, int]) -> dict[str, Any]:
    """Rules of rotary positions (one set, or one for each kind of layer) for narrow heads and near borders."""
    small = dict(rules)
    for key, value in rules.items():
        if isinstance(value, dict):
            inner = {name.removeprefix(f"{key}."): at for name, at in near.items()}
            small[key] = _small_rules(name, value, {**near, **inner})
        elif key in ("short_factor", "long_factor") and isinstance(value, (list, tuple)):
            width = int(HEAD_WIDTH * rules.get("partial_rotary_factor", 1.0)) // 2
            small[key] = list(value[: max(1, width)])
        elif key == "mrope_section" and isinstance(value, (list, tuple)):
            small[key] = [2, 1, 1]
        elif isinstance(value, int) and not isinstance(value, bool):
            small[key] = next((at for full, at in near.items() if full.endswith(f"{name}.{key}")), value)
    return small


def _chosen_layers(values: Mapping[str, Any], layers: int) -> list[int]:
    """Layers of every kind, twice where there are that many, in their order."""
    lists = [value for value in values.values() if isinstance(value, list) and len(value) == layers]
    kinds = [repr([one[index] for one in lists]) for index in range(layers)]
    kept: list[int] = []
    for index, kind in enumerate(kinds):
        if sum(kinds[other] == kind for other in kept) < 2 and len(kept) < MAX_LAYERS:
            kept.append(index)
    shared = values.get("num_kv_shared_layers") or 0
    if shared:  # the layers that share come last, one of each kind, and find theirs among the first
        own = [index for index in kept if index < layers - shared]
        borrowed = [next((i for i in range(layers - shared, layers) if kinds[i] == kinds[j]), -1) for j in own]
        kept = sorted({*own, *(index for index in borrowed if index >= 0)})
    return kept or [0]


def _integers(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, int]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _integers(value, f"{prefix}{name}.")
        elif isinstance(value, int) and not isinstance(value, bool):
            yield f"{prefix}{name}", value


def _parts(config: PreTrainedConfig) -> Iterator[PreTrainedConfig]:
    yield config
    for value in vars(config).values():
        if isinstance(value, PreTrainedConfig):
            yield from _parts(value)
