"""The prompt of ``generate``: what is accepted as ids, mask and positions, and rows without their padding."""

from __future__ import annotations

from typing import Any

import torch

from mmspec_agent.core.errors import ContextOverflow, PromptError

from .option_table import unsupported


def checked_ids(ids: Any, vocab_size: int, context_limit: int | None) -> torch.Tensor:
    """``ids`` if they are a tensor [rows, tokens] of ids the model has. PromptError otherwise."""
    accepted = "accepted is an integer tensor [rows, tokens], as tokenizer(text, return_tensors='pt').input_ids is"
    if ids is None:
        raise PromptError(f"generate got no input_ids; {accepted}")
    if not isinstance(ids, torch.Tensor):
        hint = "; hand its entries on by name: generate(**inputs)" if hasattr(ids, "keys") else ""
        raise PromptError(f"input_ids are a {type(ids).__name__}; {accepted}{hint}")
    if ids.dtype not in (torch.int32, torch.int64):
        raise PromptError(f"input_ids are of dtype {ids.dtype}; {accepted}")
    if ids.dim() != 2:
        raise PromptError(f"input_ids have the shape {tuple(ids.shape)}; {accepted}")
    if ids.device.type == "meta" or ids.layout is not torch.strided:
        raise PromptError(f"input_ids are on {ids.device} with layout {ids.layout}, without values; {accepted}")
    if ids.numel() == 0:
        raise PromptError("input_ids are empty: at least one token is needed (the tokenizer's bos, say)")
    if context_limit is not None and ids.shape[-1] > context_limit:
        raise ContextOverflow(
            f"the prompt has {ids.shape[-1]} tokens, the model's context is {context_limit}; shorten the prompt"
        )
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocab_size:
        raise PromptError(
            f"input_ids hold {low if low < 0 else high}; accepted are ids from 0 to {vocab_size - 1}, the model's rows"
        )
    return ids


def check_mask(mask: Any, ids: torch.Tensor) -> None:
    """PromptError unless ``mask`` is None or a tensor of zeros and ones of the shape of ``ids``."""
    if mask is None:
        return
    if not isinstance(mask, torch.Tensor) or mask.shape != ids.shape or mask.device.type == "meta":
        got = f"of shape {tuple(mask.shape)}" if isinstance(mask, torch.Tensor) else f"a {type(mask).__name__}"
        raise PromptError(f"attention_mask is {got}; accepted is a tensor of the shape of input_ids {tuple(ids.shape)}")
    if not bool(((mask == 0) | (mask == 1)).all()):
        raise PromptError("attention_mask holds other values than 0 (padding) and 1 (a token)")


def unpadded(ids: torch.Tensor, mask: torch.Tensor | None) -> list[list[int]]:
    """The ids of each row without its left padding. PromptError for other masks."""
    if mask is None:
        return [[int(i) for i in row] for row in ids.tolist()]
    return [_unpadded_row(row, kept) for row, kept in zip(ids, mask)]


def _unpadded_row(ids: torch.Tensor, mask: torch.Tensor) -> list[int]:
    kept = torch.nonzero(mask).reshape(-1)
    if not len(kept):
        raise PromptError("a row of attention_mask is all zeros: nothing to decode from")
    if int(kept[-1]) + 1 != len(ids) or int(kept[-1]) - int(kept[0]) + 1 != len(kept):
        raise PromptError("attention_mask has gaps or right padding; accepted is left padding (padding_side='left')")
    return [int(i) for i in ids[kept[0] :].tolist()]


def check_positions(positions: Any, ids: torch.Tensor, mask: torch.Tensor | None) -> None:
    """UnsupportedOption for position_ids of a text prompt other than those that its mask implies."""
    if positions is None:
        return
    tokens = torch.ones_like(ids) if mask is None else mask.long().to(ids.device)
    implied = tokens.cumsum(-1) - 1
    if isinstance(positions, torch.Tensor) and 1 <= positions.dim() <= 3 and positions.shape[-1] == ids.shape[-1]:
        given = positions.to(ids.device)
        try:
            given = given.expand(*given.shape[:-2], *ids.shape) if given.dim() > 1 else given.expand_as(ids)
        except RuntimeError:  # another number of rows
            given = torch.full_like(ids, -1)
        if bool(((given == implied) | (tokens == 0)).all()):
            return
    raise unsupported(
        "position_ids",
        "a draft tree numbers its rows from the attention mask; leave them out, or give those that it implies",
    )
