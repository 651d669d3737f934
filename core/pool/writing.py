"""A model writes dialogues by itself: the user's turns too, since no data set is needed then.

Every slot of a batch is a text of its own: a rendered prompt up to where the user speaks, an opening
(perhaps none), the model's continuation as the user, the template's turn to the assistant, the answer.
A finished slot begins the next text at once, so that no row of a forward is wasted.

Source: Xu et al., "Magpie: alignment data synthesis from scratch by prompting aligned LLMs with
nothing" (ICLR 2025), section 2, for the user's turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..attention import grouped
from ..hf_target import HFTarget
from .dialogues import Dialogue
from .slots import Slots

LOOP_NGRAM = 8
"""An answer ends where an n-gram of this many tokens comes a second time: it went into a loop."""

MIN_ANSWER = 8
MIN_QUESTION = 4
MAX_QUESTION = 96


@dataclass(frozen=True)
class TurnIds:
    """The chat template around a user's text: ids before it, ids between it and the answer, end ids."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    ends: frozenset[int]


@dataclass(frozen=True)
class Opening:
    """How a user's turn begins: ``ids``, gone on with by the model unless ``complete``."""

    ids: tuple[int, ...] = ()
    complete: bool = False
    kind: str = "free"


@dataclass
class _Text:
    """The text being written in one slot."""

    opening: Opening
    temperature: float
    forced: list[int]
    question: list[int] = field(default_factory=list)
    answer: list[int] = field(default_factory=list)
    answering: bool = False
    seen: set[tuple[int, ...]] = field(default_factory=set)


def turn_ids(tokenizer: Any, eos_ids: Sequence[int]) -> TurnIds:
    """What a tokenizer's chat template puts around a user's text."""
    mark = "\u241e"
    shown = tokenizer.apply_chat_template(
        [{"role": "user", "content": mark}], tokenize=False, add_generation_prompt=True
    )
    before, between = shown.split(mark, 1)
    encode = tokenizer.encode
    return TurnIds(
        tuple(encode(before, add_special_tokens=False)),
        tuple(encode(between, add_special_tokens=False)),
        frozenset([*eos_ids, *tokenizer.all_special_ids]),
    )


class Writer:
    """Writes dialogues with ``rows`` slots of at most ``max_tokens`` tokens each.

    ``openings`` is asked for the next user's turn; answers alternate between greedy and ``temperature``.
    The user's turns are drawn at temperature 1. ``top_k`` bounds all draws.
    """

    def __init__(
        self,
        target: HFTarget,
        turn: TurnIds,
        openings: Iterator[Opening],
        *,
        rows: int = 64,
        max_tokens: int = 448,
        max_answer: int = 256,
        temperature: float = 0.8,
        top_k: int = 64,
        seed: int = 0,
    ) -> None:
        self._target, self._turn, self._openings = target, turn, openings
        self._max_tokens, self._max_answer = max_tokens, max_answer
        self._temperature, self._top_k = temperature, top_k
        self._slots = Slots(len(target.layer_types), rows, max_tokens)
        self._generator = torch.Generator().manual_seed(seed)
        self._count = 0
        self._texts = [self._begin() for _ in range(rows)]
        self._next = torch.tensor([text.forced.pop(0) for text in self._texts])
        self.forwards = 0

    def dialogues(self) -> Iterator[Dialogue]:
        """Dialogues as they end, without limit."""
        while True:
            logits = self._forward()
            drawn = self._draw(logits)
            for slot, text in enumerate(self._texts):
                token = text.forced.pop(0) if text.forced else self._take(text, int(drawn[slot]))
                if token is None or int(self._slots.lengths[slot]) >= self._max_tokens - 1:
                    dialogue = self._finish(text)
                    token = self._restart(slot)
                    if dialogue is not None:
                        yield dialogue
                self._next[slot] = token

    def _begin(self) -> _Text:
        opening = next(self._openings)
        self._count += 1
        forced = [*self._turn.before, *opening.ids]
        text = _Text(opening, 0.0 if self._count % 2 else self._temperature, forced)
        text.question = list(opening.ids)
        if opening.complete:
            forced.extend(self._turn.between)
            text.answering = True
        return text

    def _restart(self, slot: int) -> int:
        """A new text in ``slot``; the template's first rows are there already."""
        text = self._texts[slot] = self._begin()
        kept = len(self._turn.before) - 1
        del text.forced[:kept]
        self._slots.lengths[slot] = kept
        return text.forced.pop(0)

    def _take(self, text: _Text, token: int) -> int | None:
        """The token that follows in ``text`` now that the model said ``token``; None when it is done."""
        if not text.answering:
            if token in self._turn.ends or len(text.question) >= MAX_QUESTION:
                if len(text.question) < MIN_QUESTION or token not in self._turn.ends:
                    return None
                text.answering = True
                text.forced = list(self._turn.between)
                return text.forced.pop(0)
            text.question.append(token)
            return token
        text.answer.append(token)
        if token in self._turn.ends or len(text.answer) >= self._max_answer:
            return None
        return None if self._loops(text) else token

    def _loops(self, text: _Text) -> bool:
        last = tuple(text.answer[-LOOP_NGRAM:])
        if len(last) == LOOP_NGRAM and last in text.seen:
            del text.answer[-LOOP_NGRAM:]
            return True
        text.seen.add(last)
        return False

    def _finish(self, text: _Text) -> Dialogue | None:
        if not text.answering or len(text.answer) < MIN_ANSWER:
            return None
        prompt = (*self._turn.before, *text.question, *self._turn.between)
        return Dialogue(prompt, tuple(text.answer), text.temperature, text.opening.kind)

    @torch.inference_mode()
    def _forward(self) -> torch.Tensor:
        """One row per slot; logits [rows, V]."""
        slots, target = self._slots, self._target
        masks = {kind: self._mask(kind) for kind in dict.fromkeys(target.layer_types)}
        with grouped(target._decoder_config):
            output = target.model(
                input_ids=self._next[:, None],
                attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
                position_ids=slots.lengths[:, None].clone(),
                cache=slots.cache,
                use_cache=True,
                return_dict=True,
            )
        slots.lengths += 1
        self.forwards += 1
        return torch.as_tensor(output.logits[:, -1])

    def _mask(self, kind: str) -> torch.Tensor:
        target = self._target
        seen = self._slots.mask(target.window if kind != "full_attention" else None)
        mask = torch.zeros(seen.shape, dtype=target.dtype).masked_fill_(~seen, float("-inf"))
        return mask.expand(-1, -1, target.query_groups, -1)

    def _draw(self, logits: torch.Tensor) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The next token of each slot: greedy, or drawn among the ``top_k`` likeliest."""
        temperatures = torch.tensor([t.temperature if t.answering else 1.0 for t in self._texts])[:, None]
        values, ids = logits.float().topk(self._top_k, dim=-1)
        uniform = torch.rand(values.shape, generator=self._generator).clamp_min(1e-20)
        noise = -torch.log(-torch.log(uniform))
        best = (values + temperatures * noise).argmax(-1, keepdim=True)
        return np.asarray(ids.gather(1, best)[:, 0].numpy())
