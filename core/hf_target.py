"""Hugging Face transformers as the target (SYSTEM.md C1, C2)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedModel

from .attention import grouped
from .cache import Arena, KVRows, layer_types
from .errors import ContextOverflow, UnsupportedModel
from .masks import IntArray, Rows, additive, full_mask, sliding_mask
from .positions import Positions
from .target import StepResult
from .tree import EMPTY, DraftTree

_PLACEHOLDER_NAMES = (
    "image_token_id",
    "image_token_index",
    "video_token_id",
    "video_token_index",
    "audio_token_id",
    "boi_token_index",
    "eoi_token_index",
    "vision_start_token_id",
)


@dataclass(frozen=True)
class Visual:
    """What a prefill needs beside ids when they hold pictures.

    ``inputs``: keyword arguments of the model's forward (``mm_encoder_outputs``, say). ``positions`` [axes, n]:
    rotary positions of the tokens, relative to the first, or None for consecutive ones. ``blocks`` [n]: picture
    index of each token, -1 for text, for models whose pictures attend in both directions.
    """

    inputs: Mapping[str, Any] = field(default_factory=dict)
    positions: IntArray | None = None
    blocks: IntArray | None = None


class HFTarget:
    """A decoder (or vision-language) model of transformers, used as it is: no weights are copied or changed."""

    def __init__(self, model: PreTrainedModel, max_bytes: int | None = None) -> None:
        self.model = model
        self.max_bytes = max_bytes
        self.epoch = 0
        """Counts how often the model changed; rows of an earlier epoch belong to other weights."""
        self.read_config()

    def read_config(self) -> None:
        """What forwards depend on, from the model's configuration; again whenever that changes."""
        model, config = self.model, self.model.config
        if getattr(config, "is_encoder_decoder", False):
            raise UnsupportedModel(
                f"{type(model).__name__} is an encoder-decoder; accepted are decoder-only language models and "
                "vision-language models built on one"
            )
        self.text_config: PreTrainedConfig = config.get_text_config(decoder=True)
        self.layer_types = layer_types(self.text_config)
        self.window: int | None = _window(self.text_config, self.layer_types)
        self.rope_axes = 3 if _is_mrope(self.text_config) else 1
        self._mask_by_type = len(set(self.layer_types)) > 1
        self.query_groups = _query_groups(self.text_config)
        self._use_grouped = not _needs_eager(self.text_config)
        self._decoder_config = _decoder_config(model, self.text_config)

    @property
    def vocab_size(self) -> int:
        return int(self.text_config.vocab_size)

    @property
    def device(self) -> torch.device:
        """Where input ids have to be."""
        return torch.device(self.model.device)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the hidden states."""
        dtype = self.model.dtype
        assert isinstance(dtype, torch.dtype)
        return dtype

    @property
    def context_limit(self) -> int | None:
        for name in ("max_position_embeddings", "n_positions"):
            limit = getattr(self.text_config, name, None)
            if isinstance(limit, int) and limit > 0:
                return limit
        return None

    @property
    def placeholder_ids(self) -> frozenset[int]:
        found = (getattr(self.model.config, name, None) for name in _PLACEHOLDER_NAMES)
        return frozenset(value for value in found if isinstance(value, int))

    def open(self, capacity: int = 256) -> HFSequence:
        return HFSequence(self, capacity)

    def forget(self) -> None:
        """Every row computed so far is void: the model is no longer what it was."""
        self.epoch += 1

    def forward(
        self,
        tokens: Sequence[int],
        rows: Rows,
        positions: IntArray,
        arena: Arena,
        cached_order: IntArray,
        keep: int | torch.Tensor,
        extra: Mapping[str, Any],
        need_hidden: bool = False,
    ) -> Any:
        """One forward over new rows [q] behind the arena's committed ones; ``keep`` selects logit rows."""
        arena.reserve(len(tokens))
        ids = torch.tensor([list(tokens)], device=self.device)
        position_ids = torch.from_numpy(positions).to(self.device)
        position_ids = position_ids[:, None] if self.rope_axes > 1 else position_ids
        extra = dict(extra)
        if need_hidden:
            extra["output_hidden_states"] = True
        with grouped(self._decoder_config) if self._use_grouped else contextlib.nullcontext():
            return self.model(
                input_ids=ids,
                attention_mask=self._masks(rows, arena.length, cached_order),
                position_ids=position_ids,
                cache=arena.cache,
                use_cache=True,
                logits_to_keep=keep,
                return_dict=True,
                **extra,
            )

    def _masks(self, rows: Rows, cached: int, cached_order: IntArray) -> Any:
        groups = self.query_groups if self._use_grouped else 1
        by_type: dict[str, torch.Tensor | None] = {}
        for kind in dict.fromkeys(self.layer_types):
            if kind == "full_attention" or self.window is None:
                mask = full_mask(cached, rows)
            else:
                mask = sliding_mask(cached_order, rows, self.window, chunked=kind == "chunked_attention")
            # A plain step sees everything: no mask is quicker than one that hides nothing.
            hides_nothing = self._use_grouped and len(mask) == 1 and bool(mask.all())
            by_type[kind] = None if hides_nothing else additive(mask, groups, self.dtype, self.device)
        return by_type if self._mask_by_type else next(iter(by_type.values()))


class HFSequence:
    """One sequence of an ``HFTarget``: its KV arena and the positions of its rows."""

    def __init__(self, target: HFTarget, capacity: int) -> None:
        self.target = target
        self._capacity = capacity
        self._start()

    def _start(self) -> None:
        self.epoch = self.target.epoch
        self.arena = Arena(len(self.target.layer_types), self._capacity, self.target.max_bytes)
        self.positions = Positions(self.target.rope_axes)
        self._verified: tuple[IntArray, IntArray] | None = None
        self._staged: tuple[Visual, int] | None = None

    @property
    def is_void(self) -> bool:
        """Whether the rows belong to weights that the model no longer has."""
        return self.epoch != self.target.epoch

    def renew(self) -> None:
        """Drop everything if the model has changed since the rows were computed."""
        if self.is_void:
            self._start()

    @property
    def length(self) -> int:
        return self.arena.length

    @property
    def max_rows(self) -> int:
        limit = self.target.context_limit
        return 1 << 30 if limit is None else max(0, limit - self.positions.next_position(self.length))

    @torch.inference_mode()
    def prefill(self, tokens: Sequence[int], visual: Visual | None = None) -> None:
        """Append ``tokens`` [n] (with the pictures of ``visual`` among them) to the cache.

        ContextOverflow if the model has no positions left for them.
        """
        self.prefill_logits(tokens, visual, 1)

    @torch.inference_mode()
    def prefill_logits(self, tokens: Sequence[int], visual: Visual | None, keep: int) -> torch.Tensor:
        """``prefill`` that returns the logits [keep, V] behind the last ``keep`` tokens."""
        visual = visual or Visual()
        rows, positions, following = self._place(len(tokens), EMPTY, visual)
        order = self.positions.order(self.length)
        output = self.target.forward(tokens, rows, positions, self.arena, order, keep, visual.inputs)
        self.positions.append(self.length, rows.order, following)
        self.arena.commit(range(len(tokens)))
        self._staged = None
        logits: torch.Tensor = output.logits[0]
        return logits

    def stage(self, visual: Visual, count: int) -> None:
        """The next ``verify`` brings ``count`` pending tokens with the pictures of ``visual`` among them.

        So the prompt's last pictures share a forward with the text behind them and the first drafts.
        """
        self._staged = (visual, count)

    @torch.inference_mode()
    def verify(self, pending: Sequence[int], tree: DraftTree = EMPTY, need_hidden: bool = False) -> StepResult:
        """Logits at the last pending token and at every node of ``tree``; nothing is committed."""
        visual, staged = self._staged or (Visual(), len(pending))
        assert staged == len(pending), "pending tokens are not those that were staged"
        rows, positions, following = self._place(len(pending), tree, visual)
        order = self.positions.order(self.length)
        keep = torch.arange(len(pending) - 1, len(pending) + len(tree), device=self.target.device)
        output = self.target.forward(
            [*pending, *tree.tokens], rows, positions, self.arena, order, keep, visual.inputs, need_hidden
        )
        self._verified = (rows.order, following)
        hidden = output.hidden_states[-1][0, len(pending) - 1 :] if need_hidden else None
        return StepResult(output.logits[0], hidden)

    @torch.inference_mode()
    def commit(self, pending: int, path: Sequence[int]) -> None:
        """Keep ``pending`` rows and those of ``path`` (node indices) of the last ``verify``."""
        assert self._verified is not None, "commit without verify"
        kept = [*range(pending), *(pending + node for node in path)]
        order, following = self._verified
        self.positions.append(self.length, order[kept], following[kept])
        self.arena.commit(kept)
        self._verified = self._staged = None

    def _place(self, pending: int, tree: DraftTree, visual: Visual) -> tuple[Rows, IntArray, IntArray]:
        """New rows, their rotary positions [axes, q], and the position that follows each [q].

        ContextOverflow if the model has no positions left for the pending ones.
        """
        self._check_room(pending if visual.positions is None else int(visual.positions.max()) + 1)
        rows = Rows.tree(self._next_order(self.positions.order(self.length)), pending, tree)
        if visual.blocks is not None:
            rows = rows.with_blocks(visual.blocks)
        positions = self.positions.of_rows(self.length, rows.order)
        if visual.positions is None:
            return rows, positions, positions[0] + 1
        first = visual.positions + self.positions.next_position(self.length)
        following = np.maximum.accumulate(first.max(axis=0)) + 1
        behind = rows.order[pending:] - rows.order[pending - 1] + following[-1] - 1
        positions[:, :pending], positions[:, pending:] = first, behind
        return rows, positions, np.concatenate([following, behind + 1])

    @torch.inference_mode()
    def restore(self, rows: KVRows, order: IntArray, following: IntArray) -> None:
        """Append stored rows with the order and following positions they were stored with."""
        self.positions.append(self.length, order, following)
        self.arena.append(rows)

    def truncate(self, length: int) -> None:
        """Forget everything behind ``length`` tokens."""
        self.arena.truncate(length)
        self._verified = self._staged = None

    @torch.inference_mode()
    def drop(self, start: int, end: int) -> None:
        """Evict the rows start … end-1; those behind keep the positions they were computed with (SYSTEM.md V7)."""
        self.positions.drop(start, end, self.length)
        self.arena.drop(start, end)
        self._verified = None

    def _next_order(self, order: IntArray) -> int:
        return int(order[-1]) + 1 if len(order) else 0

    def _check_room(self, count: int) -> None:
        if count > self.max_rows:
            limit = self.target.context_limit
            raise ContextOverflow(
                f"{count} more tokens behind {self.length} exceed the model's context of {limit}; shorten the "
                "prompt or the history"
            )


def _window(config: PreTrainedConfig, types: Sequence[str]) -> int | None:
    if "chunked_attention" in types:
        return int(config.attention_chunk_size)
    if "sliding_attention" in types:
        return int(config.sliding_window)
    return None


def _is_mrope(config: PreTrainedConfig) -> bool:
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    return isinstance(parameters, dict) and "mrope_section" in parameters


def _query_groups(config: PreTrainedConfig) -> int:
    heads: int = getattr(config, "num_attention_heads", None) or getattr(config, "n_head", None) or 1
    kv_heads: int = getattr(config, "num_key_value_heads", None) or heads
    return max(1, heads // kv_heads)


def _needs_eager(config: PreTrainedConfig) -> bool:
    """Soft-capped logits and attention sinks are not expressed by SDPA."""
    return getattr(config, "attn_logit_softcapping", None) is not None or config.model_type == "gpt_oss"


def _decoder_config(model: PreTrainedModel, text_config: PreTrainedConfig) -> PreTrainedConfig:
    """The config object that the decoder's attention layers read."""
    for module in model.modules():
        config = getattr(module, "config", None)
        if not hasattr(module, "layer_idx") or not isinstance(config, PreTrainedConfig):
            continue
        if config is not model.config and config.model_type == text_config.model_type:
            return config
    return text_config
