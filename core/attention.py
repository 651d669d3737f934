"""Attention for a few query rows over a long cache (§9.1).

Masked SDPA with several query rows first materialises every key and value head once per query head
(``repeat_kv``), over the whole cache, in each layer. Here the query heads of a group are laid along the row axis
instead, so keys and values are read where they lie.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal

import torch
from transformers import PreTrainedConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = "mmspec_grouped"

Attention = Literal["grouped", "eager"]

_HARMLESS = (
    "position_ids",
    "cache_position",
    "cu_seq",
    "max_length",
    "input_ids",
    "token_type",
    "mm_token_type",
    "logits_to_keep",
)
"""Tensors that layers hand on to their attention and that change nothing in it."""


def grouped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Scaled dot-product attention in the form of transformers' attention interface.

    ``query`` [1, heads, q, d], ``key``/``value`` [1, kv_heads, k, d], ``attention_mask`` additive
    [1, 1, q or groups * q, k] or None (everything visible). Returns [1, q, heads, d].
    """
    for name, given in kwargs.items():
        if (name == "softcap" and given is not None) or (torch.is_tensor(given) and not name.startswith(_HARMLESS)):
            raise NotImplementedError(f"attention with {name}")  # eager attention knows what to do with it
    batch, heads, rows, width = query.shape
    kv_heads = key.shape[1]
    groups = heads // kv_heads
    packed = query.reshape(batch, kv_heads, groups * rows, width)
    if attention_mask is not None and attention_mask.shape[2] != groups * rows:
        attention_mask = attention_mask[:, :, :rows].repeat(1, 1, groups, 1)
    output = torch.nn.functional.scaled_dot_product_attention(
        packed, key, value, attn_mask=attention_mask, scale=scaling
    )
    output = output.reshape(batch, heads, rows, value.shape[3])
    return output.transpose(1, 2).contiguous(), None


@contextmanager
def attending(config: PreTrainedConfig, attention: Attention) -> Iterator[None]:
    """Use ``grouped_attention``, or transformers' eager one, in the layers that read ``config`` while the block runs.

    The name is registered and the config changed inside the block only, so nothing stays on the model.
    """
    before = config._attn_implementation
    if attention == "grouped":
        ALL_ATTENTION_FUNCTIONS.register(NAME, grouped_attention)
    config._attn_implementation_internal = NAME if attention == "grouped" else "eager"
    try:
        yield
    finally:
        config._attn_implementation_internal = before


def grouped(config: PreTrainedConfig) -> AbstractContextManager[None]:
    """``attending`` with ``grouped_attention``."""
    return attending(config, "grouped")
