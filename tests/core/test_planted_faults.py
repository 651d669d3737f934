"""The check at an engine's creation is itself checked: models with a fault are refused, or served right."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from fake import FakeDrafter
from test_rotary import Eager, Oracle
from tiny import TEXT, VOCAB
from transformers import (
    Gemma3nForCausalLM,
    Gemma3nTextConfig,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    RwkvConfig,
    RwkvForCausalLM,
)
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

from mmspec_agent import Engine
from mmspec_agent.core.errors import ModelWarning, UnsupportedModel

Plant = Callable[[Any, dict[str, Any]], None]
"""Changes what an attention layer is given: the layer and the arguments of its forward."""

LATE = 60


def _mask(given: dict[str, Any]) -> tuple[torch.Tensor, int, int]:
    """The additive mask [.., q, k] of a forward, made where there is none; new rows q, all rows k."""
    rows = given["hidden_states"].shape[1]
    cache = given.get("cache")
    past = cache.get_seq_length() if cache is not None else 0
    mask = given["attention_mask"]
    if mask is None:
        mask = torch.full((rows, past + rows), float("-inf")).triu(past + 1)[None, None]
    return mask.clone(), rows, past + rows


def _late_window(layer: Any, given: dict[str, Any]) -> None:
    """By index, as windows of models are, and only in texts of some length."""
    mask, rows, keys = _mask(given)
    if keys > LATE:
        at = torch.arange(mask.shape[-2]) % rows + keys - rows
        mask[..., torch.arange(keys)[None] <= at[:, None] - 20] = float("-inf")
        given["attention_mask"] = mask


def _sees_its_sibling(layer: Any, given: dict[str, Any]) -> None:
    mask, rows, keys = _mask(given)
    if layer.layer_idx == 1:
        for row in range(mask.shape[-2]):
            if row % rows:
                mask[..., row, keys - rows + row % rows - 1] = 0.0
        given["attention_mask"] = mask


def _ignores_the_mask_of_new_rows(layer: Any, given: dict[str, Any]) -> None:
    mask, rows, keys = _mask(given)
    if layer.layer_idx == 2:
        at = torch.arange(mask.shape[-2]) % rows + keys - rows
        mask[..., torch.arange(keys)[None] <= at[:, None]] = 0.0
        given["attention_mask"] = mask


def _positions_by_index(layer: Any, given: dict[str, Any]) -> None:
    """Explicit positions are followed only in the first tokens."""
    _, rows, keys = _mask(given)
    if keys > LATE:
        rotary = LlamaRotaryEmbedding(layer.config)
        at = torch.arange(keys - rows, keys)[None]
        given["position_embeddings"] = rotary(given["hidden_states"], at)


def _offset(layer: Any, given: dict[str, Any]) -> None:
    """Tokens behind the first ones are further away: the same for every way of computing them."""
    cos, sin = given["position_embeddings"]
    late = given["position_ids"][0] >= LATE if given.get("position_ids") is not None else None
    if late is not None:
        cos[:, late] = -cos[:, late]
        sin[:, late] = -sin[:, late]


def _frequencies_switch(layer: Any, given: dict[str, Any]) -> None:
    _, _rows, keys = _mask(given)
    if keys > LATE:
        cos, sin = given["position_embeddings"]
        given["position_embeddings"] = (cos * 0.5, sin * 0.5)


def _rows_mix(layer: Any, given: dict[str, Any]) -> None:
    hidden = given["hidden_states"]
    given["hidden_states"] = hidden + 0.05 * hidden.mean(dim=1, keepdim=True)


def _rounds_by_the_largest_row(layer: Any, given: dict[str, Any]) -> None:
    """As dynamic quantisation of activations does, with one scale for all rows."""
    hidden = given["hidden_states"]
    scale = hidden.abs().max() / 7
    given["hidden_states"] = (hidden / scale).round() * scale


def _counts_rows(layer: Any, given: dict[str, Any]) -> None:
    """Heads are scaled by how many keys there are in storage."""
    _, _, keys = _mask(given)
    cos, sin = given["position_embeddings"]
    given["position_embeddings"] = (cos * (1 + keys / 500), sin)


FAULTS: list[Plant] = [
    _late_window,
    _sees_its_sibling,
    _ignores_the_mask_of_new_rows,
    _positions_by_index,
    _offset,
    _frequencies_switch,
    _rows_mix,
    _rounds_by_the_largest_row,
    _counts_rows,
]


def _planted(plant: Plant) -> PreTrainedModel:
    class Attention(LlamaAttention):  # type: ignore[misc]
        def forward(self, *args: Any, **given: Any) -> Any:
            if args:
                given["hidden_states"] = args[0]
            plant(self, given)
            return super().forward(**given)

    class Planted(LlamaForCausalLM):  # type: ignore[misc]
        def __init__(self, config: LlamaConfig) -> None:
            super().__init__(config)
            for index, layer in enumerate(self.model.layers):
                layer.self_attn = Attention(config, index)
            self.post_init()

    torch.manual_seed(0)
    config = LlamaConfig(**{**TEXT, "eos_token_id": None, "pad_token_id": None}, attn_implementation="eager")
    return Planted(config).eval()


def _refused_or_right(model: PreTrainedModel) -> bool:
    """Whether the model is served; AssertionError if it is, with other tokens than its own."""
    oracle = Oracle()
    try:
        engine = Engine(model, drafters=[FakeDrafter(oracle)])
    except UnsupportedModel:
        return False
    engine.controller = Eager()
    rng = np.random.default_rng(3)
    for length in (9, 50, 120):
        ids = torch.from_numpy(rng.integers(3, VOCAB, (1, length)))
        oracle.truth = model.generate(ids, max_new_tokens=24, do_sample=False)[0].tolist()
        assert engine.generate(ids, max_new_tokens=24, do_sample=False)[0].tolist() == oracle.truth
        more = torch.tensor([oracle.truth[: length + 9]])
        oracle.truth = model.generate(more, max_new_tokens=24, do_sample=False)[0].tolist()
        assert engine.generate(more, max_new_tokens=24, do_sample=False)[0].tolist() == oracle.truth
    return True


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__.strip("_"))
def test_a_planted_fault_is_refused_or_served_right(plant: Plant) -> None:
    served = _refused_or_right(_planted(plant))
    assert served is (plant is _offset)


def test_a_model_without_a_fault_is_served() -> None:
    assert _refused_or_right(_planted(lambda layer, given: None))


def _gpt_neo(window: int, kinds: list[str], **wide: int) -> PreTrainedModel:
    torch.manual_seed(0)
    values = {"vocab_size": VOCAB, "hidden_size": 32, "num_layers": 4, "num_heads": 4, "max_position_embeddings": 512}
    config = GPTNeoConfig(
        **{**values, **wide}, attention_types=[[kinds, 4 // len(kinds)]], window_size=window, initializer_range=0.3
    )
    config.eos_token_id = config.bos_token_id = config.pad_token_id = None
    return GPTNeoForCausalLM(config).eval()


@pytest.mark.parametrize("window", [12, 40, 256])
def test_a_window_of_the_models_own_is_seen_however_late_it_begins(window: int) -> None:
    with pytest.raises(UnsupportedModel, match="plain forward by"):
        Engine(_gpt_neo(window, ["global", "local"]))


def test_a_window_that_no_layer_uses_is_no_reason() -> None:
    assert _refused_or_right(_gpt_neo(12, ["global"]))


def test_a_far_window_of_a_large_model_is_found_in_a_small_copy() -> None:
    wide = {"vocab_size": 9000, "hidden_size": 256, "max_position_embeddings": 2048}
    model = _gpt_neo(900, ["global", "local"], **wide)
    assert sum(parameter.numel() for parameter in model.parameters()) > 3_000_000
    with pytest.raises(UnsupportedModel, match="in a small copy of its configuration"):
        Engine(model)


def _without_small_copies(window: int, kinds: list[str]) -> PreTrainedModel:
    """More than 3 million weights, of a class that is only built wide."""

    class Wide(GPTNeoForCausalLM):  # type: ignore[misc]
        def __init__(self, config: GPTNeoConfig) -> None:
            if config.hidden_size < 200:
                raise ValueError("too narrow")
            super().__init__(config)

    model = _gpt_neo(window, kinds, vocab_size=9000, hidden_size=256, max_position_embeddings=2048)
    model.__class__ = Wide
    with torch.no_grad():  # so narrow that attention spreads, and its far end is felt
        for parameter in model.parameters():
            parameter.mul_(0.2 if parameter.dim() > 1 else 1.0)
    return model


def test_a_border_is_looked_beyond_in_the_model_itself_where_no_copy_can_be_built() -> None:
    with pytest.raises(UnsupportedModel, match="beyond window_size=300"):
        Engine(_without_small_copies(300, ["global", "local"]))
    with warnings.catch_warnings():
        warnings.simplefilter("error", ModelWarning)
        Engine(_without_small_copies(300, ["global"]))


def test_a_border_that_nobody_looked_beyond_is_named() -> None:
    with pytest.warns(ModelWarning, match="window_size=900"):
        Engine(_without_small_copies(900, ["global"]))


def test_a_recurrent_model_that_ignores_the_cache_is_refused() -> None:
    torch.manual_seed(0)
    config = RwkvConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, context_length=64)
    with pytest.raises(UnsupportedModel, match="no keys and values"):
        Engine(RwkvForCausalLM(config).eval())


def test_layers_that_share_rows_are_served_saved_and_moved() -> None:
    layers = ["sliding_attention", "sliding_attention", "full_attention"] * 2
    config = Gemma3nTextConfig(
        **{**TEXT, "num_hidden_layers": 6, "intermediate_size": [64] * 6, "eos_token_id": None, "pad_token_id": None},
        head_dim=8,
        num_kv_shared_layers=2,
        layer_types=layers,
        sliding_window=16,
        vocab_size_per_layer_input=VOCAB,
        hidden_size_per_layer_input=8,
        laurel_rank=4,
        altup_num_inputs=2,
        activation_sparsity_pattern=[0.0] * 6,
    )
    torch.manual_seed(0)
    model = Gemma3nForCausalLM(config).eval()
    assert _refused_or_right(model)
    sequence = Engine(model).target.open(64)
    sequence.prefill([5, 6, 7, 8, 9])
    rows, order = sequence.arena.read(0, 5), sequence.positions.snapshot(5)
    again = Engine(model).target.open(64)
    again.restore(rows, *order)
    again.drop(1, 2)
    sequence.drop(1, 2)
    torch.testing.assert_close(again.verify([4]).row(-1), sequence.verify([4]).row(-1))
    again.truncate(2)
    assert again.length == 2
