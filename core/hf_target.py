"""Hugging Face transformers as the target (SYSTEM.md C1, C2)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedModel

from .attention import Attention, attending
from .cache import Arena, KVRows, layer_types
from .config_facts import PLACEHOLDER_NAMES, decoder_config_of, is_mrope, needs_eager, query_groups_of, window_of
from .errors import ContextOverflow, UnsupportedModel
from .masks import IntArray, Rows, additive, full_mask, sliding_mask
from .positions import Positions
from .rotary import LengthRule, fresh_frequencies
from .target import StepResult
from .tree import EMPTY, DraftTree


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
        self.window: int | None = window_of(self.text_config, self.layer_types)
        self.rope_axes = 3 if is_mrope(self.text_config) else 1
        self._mask_by_type = len(set(self.layer_types)) > 1
        self.query_groups = query_groups_of(self.text_config)
        self.attention: Attention = "grouped"
        """How forwards attend; the check at an engine's creation settles it."""
        self.length_rule = LengthRule.of(model)
        self._decoder_config = decoder_config_of(model, self.text_config)

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
    def attention_choices(self) -> tuple[Attention, ...]:
        """Ways to attend, quickest first; the last is transformers' own eager attention."""
        return ("eager",) if needs_eager(self.text_config) else ("grouped", "eager")

    @property
    def context_limit(self) -> int | None:
        if self.length_rule is not None and self.length_rule.grows:
            return None
        for name in ("max_position_embeddings", "n_positions"):
            limit = getattr(self.text_config, name, None)
            if isinstance(limit, int) and limit > 0:
                return limit
        return None

    @property
    def placeholder_ids(self) -> frozenset[int]:
        found = (getattr(self.model.config, name, None) for name in PLACEHOLDER_NAMES)
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
        regime: int = 0,
    ) -> Any:
        """One forward over new rows [q] behind the arena's committed ones; ``keep`` selects logit rows.

        ``regime``: the length whose rotary frequencies it has to use, where they depend on it (0: no matter).
        """
        if regime and self.length_rule is not None and self.length_rule.regime(int(positions.max()) + 1) != regime:
            # A row that nobody sees, at the position that makes the model choose these frequencies.
            tokens, rows = [*tokens, tokens[-1]], rows.with_unseen()
            keep = torch.arange(len(tokens) - 1 - keep, len(tokens) - 1) if isinstance(keep, int) else keep
            positions = np.concatenate([positions, np.full((len(positions), 1), regime - 1)], axis=1)
        arena.reserve(len(tokens))
        ids = torch.tensor([list(tokens)], device=self.device)
        position_ids = torch.from_numpy(positions).to(self.device)
        position_ids = position_ids[:, None] if self.rope_axes > 1 else position_ids
        extra = dict(extra)
        if need_hidden:
            extra["output_hidden_states"] = True
        with self._steady(), attending(self._decoder_config, self.attention):
            return self._call(
                input_ids=ids,
                attention_mask=self._masks(rows, arena.length, cached_order),
                position_ids=position_ids,
                cache=arena.cache,
                use_cache=True,
                logits_to_keep=keep,
                return_dict=True,
                **extra,
            )

    @torch.inference_mode()
    def plain(self, tokens: Sequence[int]) -> torch.Tensor:
        """[n, V] logits of a plain forward of transformers, without cache, mask or attention of ours."""
        ids = torch.tensor([list(tokens)], device=self.device)
        with self._steady():
            logits: torch.Tensor = self._call(input_ids=ids, use_cache=False, return_dict=True).logits
        return logits[0]

    def _steady(self) -> AbstractContextManager[None]:
        grows = self.length_rule is not None and self.length_rule.grows
        return fresh_frequencies(self.model) if grows else contextlib.nullcontext()

    def _call(self, **inputs: Any) -> Any:
        # model.compile() puts a compiled call in front, for which every new tree size is a new graph.
        compiled = getattr(self.model, "_compiled_call_impl", None) is not None
        return self.model._call_impl(**inputs) if compiled else self.model(**inputs)

    def _masks(self, rows: Rows, cached: int, cached_order: IntArray) -> Any:
        groups = self.query_groups if self.attention == "grouped" else 1
        by_type: dict[str, torch.Tensor | None] = {}
        for kind in dict.fromkeys(self.layer_types):
            if kind == "full_attention" or self.window is None:
                mask = full_mask(cached, rows)
            else:
                mask = sliding_mask(cached_order, rows, self.window, chunked=kind == "chunked_attention")
            # A plain step sees everything: no mask is quicker than one that hides nothing.
            hides_nothing = self.attention == "grouped" and len(mask) == 1 and bool(mask.all())
            by_type[kind] = None if hides_nothing else additive(mask, groups, self.dtype, self.device)
        return by_type if self._mask_by_type else next(iter(by_type.values()))


class HFSequence:
    """One sequence of an ``HFTarget``: its KV arena and the positions of its rows."""

    def __init__(self, target: HFTarget, capacity: int) -> None:
        self.target = target
        self._capacity = capacity
        self.ahead = 0
        """Tokens by which the longest row of a batch is longer: rotary frequencies follow that row's length."""
        self._start()

    def _start(self) -> None:
        self.epoch = self.target.epoch
        self.arena = Arena(len(self.target.layer_types), self._capacity, self.target.max_bytes)
        self.positions = Positions(self.target.rope_axes)
        self._verified: tuple[IntArray, IntArray] | None = None
        self._staged: tuple[Visual, int] | None = None
        self._regimes: list[int] = []
        self._floor = 0
        self._seen_pictures = False

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

    def begin(self, prompt: int) -> None:
        """A request whose prompt has ``prompt`` tokens: rows that plain decoding would compute otherwise are dropped.

        Where rotary frequencies depend on the length, those of a prompt's rows depend on all of it.
        """
        self._floor = prompt + self.ahead
        rule = self.target.length_rule
        if rule is not None:
            wanted = rule.regime(self._floor)
            strange = (at for at, regime in enumerate(self._regimes[: self.length]) if regime != wanted)
            self.truncate(next(strange, self.length))

    def settle(self, total: int) -> None:
        """Drop every row if a text of ``total`` tokens is one that ``generate`` would read again from its start."""
        rule = self.target.length_rule
        if rule is not None and rule.recomputes:
            self._floor = max(self._floor, total + self.ahead)
            if any(regime != rule.regime(self._floor) for regime in self._regimes[: self.length]):
                self._forbid_pictures()
                self.truncate(0)

    def span(self, count: int) -> int:
        """How many of the next ``count`` tokens may share a forward; at least one."""
        rule, start = self.target.length_rule, self._next
        if rule is None or start + count <= self._floor:
            return count
        if start < self._floor:
            first = rule.regime(self._floor)
            together = self._floor - start
        else:
            first, together = rule.regime(start + 1), 1
        while together < count and rule.regime(start + together + 1) == first:
            together += 1
        return together

    def draft_room(self, pending: int) -> int:
        """How deep a draft tree behind ``pending`` tokens may be."""
        rule = self.target.length_rule
        if rule is None:
            return 1 << 30
        length = self._next + pending
        if rule.regime(max(self._floor, length)):
            return 0 if rule.grows else 1 << 30
        return rule.border - length

    @property
    def _next(self) -> int:
        return self.positions.next_position(self.length) + self.ahead

    def _regime(self, count: int) -> int:
        """Of a forward that brings ``count`` tokens behind the cached ones."""
        rule = self.target.length_rule
        return 0 if rule is None else rule.regime(max(self._floor, self._next + count))

    def _forbid_pictures(self) -> None:
        if self._seen_pictures:
            rule = self.target.length_rule
            raise ContextOverflow(
                f"beyond {rule.border if rule else 0} tokens this model's positions change and everything is read "
                "again, which is not supported with pictures in the text; shorten the prompt"
            )

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
        regime = self._regime(len(tokens))
        output = self.target.forward(tokens, rows, positions, self.arena, order, keep, visual.inputs, regime=regime)
        self._record(len(tokens), rows.order, following, regime)
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
        regime, inputs = self._regime(len(pending)), visual.inputs
        output = self.target.forward(
            [*pending, *tree.tokens], rows, positions, self.arena, order, keep, inputs, need_hidden, regime
        )
        self._verified = (rows.order, following)
        last = len(pending) + len(tree)
        hidden = output.hidden_states[-1][0, len(pending) - 1 : last] if need_hidden else None
        return StepResult(output.logits[0], hidden)

    @torch.inference_mode()
    def commit(self, pending: int, path: Sequence[int]) -> None:
        """Keep ``pending`` rows and those of ``path`` (node indices) of the last ``verify``."""
        assert self._verified is not None, "commit without verify"
        kept = [*range(pending), *(pending + node for node in path)]
        order, following = self._verified
        self._record(len(kept), order[kept], following[kept], self._regime(pending))
        self.arena.commit(kept)
        self._verified = self._staged = None

    def _record(self, count: int, order: IntArray, following: IntArray, regime: int) -> None:
        self.positions.append(self.length, order, following)
        self._regimes[self.length :] = [regime] * count

    def _place(self, pending: int, tree: DraftTree, visual: Visual) -> tuple[Rows, IntArray, IntArray]:
        """New rows, their rotary positions [axes, q], and the position that follows each [q].

        ContextOverflow if the model has no positions left for the pending ones.
        """
        self._check_room(pending if visual.positions is None else int(visual.positions.max()) + 1)
        order = self.positions.order(self.length)
        rows = Rows.tree(int(order[-1]) + 1 if len(order) else 0, pending, tree)
        if visual.inputs or visual.positions is not None:
            self._seen_pictures = True
            if self._regime(pending):
                self._forbid_pictures()
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
    def restore(self, rows: KVRows, order: IntArray, following: IntArray, regimes: Sequence[int] | None = None) -> None:
        """Append stored rows with the order, following positions and regimes (0 if None) they were stored with."""
        self.positions.append(self.length, order, following)
        self._regimes[self.length :] = list(regimes) if regimes is not None else [0] * rows.length
        self.arena.append(rows)

    @property
    def regimes(self) -> list[int]:
        """For each row the length whose rotary frequencies it has; 0 up to the border."""
        return self._regimes[: self.length]

    def truncate(self, length: int) -> None:
        """Forget everything behind ``length`` tokens."""
        self.arena.truncate(length)
        self._seen_pictures = self._seen_pictures and length > 0
        self._verified = self._staged = None

    @torch.inference_mode()
    def drop(self, start: int, end: int) -> None:
        """Evict the rows start … end-1; those behind keep the positions they were computed with (SYSTEM.md V7)."""
        self.positions.drop(start, end, self.length)
        del self._regimes[start:end]
        self.arena.drop(start, end)
        self._verified = None

    def _check_room(self, count: int) -> None:
        if count > self.max_rows:
            limit = self.target.context_limit
            raise ContextOverflow(
                f"{count} more tokens behind {self.length} exceed the model's context of {limit}; shorten the "
                "prompt or the history"
            )
