"""The arms of the calls benchmark: the same constraint in transformers' generate, our plain loop, Rule A, all."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from transformers import LogitsProcessorList, PreTrainedModel

from mmspec_agent.chat import ChatRun
from mmspec_agent.core.constraint import Constraint, ConstraintPlan
from mmspec_agent.engine import Engine
from mmspec_agent.options import ChatOptions
from mmspec_agent.prompts import Prompt
from mmspec_agent.reply import Done, Reply, ToolCall

from .call_tasks import CallTask
from .forward_clock import ForwardClock

HF, PLAIN, RULE_A, ALL = "HF generate", "plain loop", "Rule A", "all"
NAMES = (HF, PLAIN, RULE_A, ALL)
_OPTIONS: dict[str, dict[str, Any]] = {
    PLAIN: {"speculate": False, "skip_forced": False},
    RULE_A: {"speculate": False},
    ALL: {},
}


class Called(NamedTuple):
    """What an arm gave. The first forward, which also prefills, took ``prefill_seconds`` and is not in ``rows``;
    ``decode_seconds`` are those after it."""

    tokens: list[int]
    calls: tuple[ToolCall, ...]
    finish: str
    forwards: int
    rows: int
    forward_seconds: float
    prefill_seconds: float
    decode_seconds: float
    seconds: float
    reused: int
    forced: int


class ConstraintProcessor:
    """Our constraint as a logits processor of transformers: for its own loop, one row, one call per token."""

    def __init__(self, plan: ConstraintPlan, max_new_tokens: int) -> None:
        self._cursor: Constraint = plan.open(max_new_tokens)
        self._seen: int | None = None
        self.first_logits = 0.0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if self._seen is None:
            self.first_logits = time.perf_counter()
        else:
            for token in input_ids[0, self._seen :].tolist():
                self._cursor.advance(token)
        self._seen = input_ids.shape[1]
        mask = self._cursor.mask()
        return scores if mask is None else mask.apply(scores)


class CallArms:
    """All arms on one model; same weights, dtype, threads and constraint."""

    def __init__(self, model: PreTrainedModel, tokenizer: Any, max_new_tokens: int) -> None:
        self.model = model
        self.engine = Engine(model, tokenizer)
        self.max_new_tokens = max_new_tokens
        eos = model.generation_config.eos_token_id
        self._eos_ids = frozenset(eos if isinstance(eos, list) else [eos])

    def options(self, task: CallTask, **more: Any) -> ChatOptions:
        """A forced call, one or several as the task asks."""
        return ChatOptions.of(
            tools=list(task.tools),
            tool_choice="required",
            parallel_tool_calls=task.parallel,
            max_new_tokens=self.max_new_tokens,
            **more,
        )

    def call(self, name: str, task: CallTask) -> Called:
        """One call of an arm without any KV held before."""
        self.engine.close()
        return self._hf(task) if name == HF else self._ours(name, task)

    def call_in_session(self, task: CallTask) -> Called:
        """All drafts, in a session that already holds the tools' part of the prompt from an earlier question."""
        self.engine.close()
        conversation = self.engine.open_conversation()
        earlier = [{"role": "user", "content": "Hello, which functions can you call?"}]
        prompt = ChatRun(self.engine, conversation, earlier, self.options(task)).prompt
        ids = conversation.encode(self.engine.tokenizer, prompt.text)
        conversation.sequence.prefill(ids)
        conversation.tokens = ids
        return self._run(ALL, task, conversation)

    def prompt(self, task: CallTask) -> Prompt:
        """The rendered prompt of a task, with its constraint and its reader."""
        return ChatRun(self.engine, self.engine.open_conversation(), list(task.messages), self.options(task)).prompt

    def calls(self, task: CallTask) -> dict[str, Callable[[], Called]]:
        """Every arm on one task, ready to be timed in turn."""
        return {name: _bound(self, name, task) for name in NAMES}

    def _hf(self, task: CallTask) -> Called:
        prompt = self.prompt(task)
        assert prompt.plan is not None
        processor = ConstraintProcessor(prompt.plan, self.max_new_tokens)
        ids = torch.tensor([self.engine.tokenizer.encode(prompt.text, add_special_tokens=False)])
        started = time.perf_counter()
        with ForwardClock(self.model) as clock:
            output = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=self.max_new_tokens,
                do_sample=False,
                logits_processor=LogitsProcessorList([processor]),
            )
        ended = time.perf_counter()
        tokens = output[0, ids.shape[1] :].tolist()
        text = self.engine.tokenizer.decode([t for t in tokens if t not in self._eos_ids])
        assert prompt.reader is not None
        prompt.reader.feed(text)
        return Called(
            tokens,
            prompt.reader.finish(text, "stop").tool_calls,
            "stop" if tokens[-1] in self._eos_ids else "length",
            clock.forwards,
            len(tokens) - 1,
            clock.seconds,
            processor.first_logits - started,
            ended - processor.first_logits,
            ended - started,
            0,
            0,
        )

    def _ours(self, name: str, task: CallTask) -> Called:
        return self._run(name, task, self.engine.open_conversation())

    def _run(self, name: str, task: CallTask, conversation: Any) -> Called:
        options = self.options(task, **_OPTIONS[name])
        started = time.perf_counter()
        reply: Reply | None = None
        with ForwardClock(self.model) as clock:
            for event in self.engine.run(conversation, list(task.messages), options):
                if isinstance(event, Done):
                    reply = event.reply
        seconds = time.perf_counter() - started
        assert reply is not None
        stats = reply.stats
        return Called(
            reply.token_ids,
            reply.tool_calls,
            reply.finish_reason,
            stats.forwards,
            stats.decode_rows,
            clock.seconds,
            stats.prefill_seconds,
            stats.decode_seconds,
            seconds,
            stats.reused_tokens,
            stats.forced,
        )


def _bound(arms: CallArms, name: str, task: CallTask) -> Callable[[], Called]:
    return lambda: arms.call(name, task)
