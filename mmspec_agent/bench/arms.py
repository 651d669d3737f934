"""The arms of the text benchmark: transformers' ``generate``, with prompt lookup, our loop plain, our engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from mmspec_agent.core.errors import PromptError
from mmspec_agent.engine import Engine
from mmspec_agent.prompts import flatten_text, normalise_messages, render

from .forward_clock import ForwardClock

HF, LOOKUP, PLAIN, OURS = "HF generate", "HF prompt lookup", "plain loop", "ours"
NAMES = (HF, LOOKUP, PLAIN, OURS)
LOOKUP_TOKENS = 10


class Answered(NamedTuple):
    """What an arm gave: the new tokens, and what the target was asked for."""

    tokens: list[int]
    forwards: int
    rows: int
    forward_seconds: float
    tokens_per_step: float | None = None


class TextArms:
    """All arms on one model: same weights, threads and dtype; greedy; each call starts without any KV."""

    def __init__(self, model: PreTrainedModel, tokenizer: Any) -> None:
        self.model = model
        self.tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
        self.ours = Engine(model, tokenizer)
        self.plain = Engine(model, tokenizer, drafters=[], max_nodes=0)

    def encode(self, messages: Sequence[Any]) -> torch.Tensor:
        """[1, length] ids of a conversation through the chat template."""
        text = render(self.tokenizer, flatten_text(normalise_messages(messages)))
        ids = self.tokenizer.encode(text, add_special_tokens=False, return_tensors="pt")
        if ids.numel() == 0:
            raise PromptError("a prompt of the benchmark is empty after the chat template")
        return torch.as_tensor(ids, device=self.model.device)

    def call(self, name: str, ids: torch.Tensor, new_tokens: int) -> Answered:
        """One answer of an arm to ``ids`` [1, length]."""
        options: dict[str, Any] = {
            "attention_mask": torch.ones_like(ids),
            "max_new_tokens": new_tokens,
            "do_sample": False,
        }
        with ForwardClock(self.model) as clock:
            output = self._generate(name, ids, options)
        engine = {PLAIN: self.plain, OURS: self.ours}.get(name)
        stats = engine.last_stats if engine is not None else None
        return Answered(
            output[0, ids.shape[1] :].tolist(),
            clock.forwards,
            clock.rows,
            clock.seconds,
            stats.tokens_per_step if stats is not None else None,
        )

    def calls(self, ids: torch.Tensor, new_tokens: int) -> dict[str, Callable[[], Answered]]:
        """Every arm on one prompt, ready to be timed in turn."""
        return {name: _bound(self, name, ids, new_tokens) for name in NAMES}

    def warm_up(self) -> None:
        """Untimed: the first forwards allocate, and the controller learns the cost of a few row counts."""
        ids = self.encode("Repeat this sentence three times: the quick brown fox jumps over the lazy dog.")
        for name in NAMES:
            self.call(name, ids, 24)

    def _generate(self, name: str, ids: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        if name == PLAIN:
            output = self.plain.generate(ids, **options)
        elif name == OURS:
            output = self.ours.generate(ids, **options)
        else:
            lookup = {"prompt_lookup_num_tokens": LOOKUP_TOKENS} if name == LOOKUP else {}
            output = self.model.generate(ids, **options, **lookup)
        assert isinstance(output, torch.Tensor)
        return output


def _bound(arms: TextArms, name: str, ids: torch.Tensor, new_tokens: int) -> Callable[[], Answered]:
    return lambda: arms.call(name, ids, new_tokens)
