"""Outlines in its default form on the same model: a byte-level index of the call's JSON Schema, for information.

Its mask is another one than ours (other white space, no forced text), so its tokens are not compared.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from transformers import PreTrainedModel

from mmspec_agent.models.progress import Progress
from mmspec_agent.reply import ToolCall

from .call_tasks import CallTask
from .forward_clock import ForwardClock


class OutlinesCall(NamedTuple):
    """One call: ``compile_seconds`` build the index, ``refused`` says why there is no answer."""

    calls: tuple[ToolCall, ...]
    forwards: int
    compile_seconds: float
    seconds: float
    refused: str | None = None


class OutlinesArm:
    """``outlines.from_transformers`` with ``JsonSchema``, greedy."""

    def __init__(self, model: PreTrainedModel, tokenizer: Any, max_new_tokens: int) -> None:
        import outlines

        self._target = model
        self._model: Any = outlines.from_transformers(model, tokenizer)
        self._max_new_tokens = max_new_tokens

    def call(self, task: CallTask, prompt: str) -> OutlinesCall:
        """One call after a rendered prompt."""
        import outlines
        from outlines.types import JsonSchema

        started = time.perf_counter()
        try:
            generator = outlines.Generator(self._model, JsonSchema(json.dumps(call_schema(task))))
        except Exception as error:  # its index and its schema reader raise their own
            return OutlinesCall((), 0, time.perf_counter() - started, 0.0, f"{type(error).__name__}: {error}"[:200])
        compiled = time.perf_counter()
        with ForwardClock(self._target) as clock:
            text = generator(prompt, max_new_tokens=self._max_new_tokens, do_sample=False)
        ended = time.perf_counter()
        return OutlinesCall(read_calls(str(text)), clock.forwards, compiled - started, ended - compiled)


def call_schema(task: CallTask) -> dict[str, Any]:
    """The schema of one call to any of the tools; a list of them where the task asks for several."""
    calls = [_one_call(tool["function"]) for tool in task.tools]
    one: dict[str, Any] = calls[0] if len(calls) == 1 else {"anyOf": calls}
    return {"type": "array", "items": one, "minItems": 1, "maxItems": 8} if task.parallel else one


def _one_call(function: dict[str, Any]) -> dict[str, Any]:
    arguments = {"additionalProperties": False, **function.get("parameters", {"type": "object", "properties": {}})}
    return {
        "type": "object",
        "properties": {"name": {"const": function["name"]}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def read_calls(text: str) -> tuple[ToolCall, ...]:
    """The calls in a JSON text; none if it was cut."""
    try:
        value = json.loads(text)
    except ValueError:
        return ()
    made = value if isinstance(value, list) else [value]
    return tuple(ToolCall(f"call_{i}", one["name"], one["arguments"]) for i, one in enumerate(made))


def measure(arm: OutlinesArm, tasks: Sequence[CallTask], prompts: Sequence[str], progress: Progress) -> dict[str, Any]:
    """The arm on every task, as one row of the report."""
    progress.stage(f"outlines, {len(tasks)} tasks", float(len(tasks)))
    made: list[OutlinesCall] = []
    for task, prompt in zip(tasks, prompts, strict=True):
        made.append(arm.call(task, prompt))
        progress.advance_to(float(len(made)))
    answered = [(task, one) for task, one in zip(tasks, made, strict=True) if one.refused is None]
    count = max(1, len(answered))
    return {
        "tasks": len(tasks),
        "refused": [f"{task.id}: {one.refused}" for task, one in zip(tasks, made, strict=True) if one.refused],
        "forwards": sum(one.forwards for _, one in answered),
        "compile_seconds": sum(one.compile_seconds for one in made),
        "seconds": sum(one.seconds for _, one in answered),
        "valid": sum(task.is_valid(one.calls) for task, one in answered) / count,
        "correct": sum(task.is_correct(one.calls) for task, one in answered) / count,
    }
