"""What a request returns, whole or as a stream of events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mmspec_agent.core.stats import DecodeStats


class ToolCall(NamedTuple):
    """A call the model made: ``arguments`` is a dict, ``id`` is unique in the reply."""

    id: str
    name: str
    arguments: dict[str, Any]


class TokenInfo(NamedTuple):
    """One token of a reply: who paid for it (target, forced, or a drafter's name), the state it was written in."""

    id: int
    source: str
    state: str
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Reply:
    """A finished reply.

    ``text`` is without stop strings and special tokens; ``finish_reason`` is stop, length, tool_calls or
    content_filter; ``parsed`` is the validated object when a ``response_format`` was given. ``top_logprobs``: for each
    token the likeliest ones with their log-probabilities, best first. ``continued``: the text of the last message
    that this reply goes on with. ``reasoning``: what the model thought before an answer in a form (tool calls, a
    response format).
    """

    text: str
    token_ids: list[int]
    finish_reason: str
    stats: DecodeStats
    tokens: tuple[TokenInfo, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    parsed: Any = None
    logprobs: tuple[float, ...] | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] | None = None
    continued: str = ""
    reasoning: str = ""

    @property
    def usage(self) -> dict[str, Any]:
        """Tokens as the OpenAI API counts them; of a prediction, those taken and those that were offered in vain."""
        prompt, completion = self.stats.prompt_tokens, len(self.token_ids)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": self.stats.reused_tokens},
            "completion_tokens_details": {
                "accepted_prediction_tokens": self.stats.prediction_accepted,
                "rejected_prediction_tokens": self.stats.prediction_rejected,
            },
        }

    @property
    def message(self) -> dict[str, Any]:
        """The reply as an assistant message for the history, with what it continued."""
        message: dict[str, Any] = {"role": "assistant", "content": self.continued + self.text}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                for c in self.tool_calls
            ]
        return message


class TextPiece(NamedTuple):
    """Whole characters of the answer that will not be taken back."""

    text: str


class ReasoningPiece(NamedTuple):
    """A piece of the reasoning section before an answer in a form (tool calls, a response format)."""

    text: str


@dataclass(frozen=True)
class ToolCallPiece:
    """A piece of a tool call: ``name`` comes with the first one, ``arguments`` is JSON text to be appended."""

    index: int
    id: str
    name: str | None
    arguments: str


class StepPiece(NamedTuple):
    """What one forward brought: the tokens, and the step's trace record."""

    tokens: tuple[TokenInfo, ...]
    record: dict[str, Any]


class Done(NamedTuple):
    """The last event of a stream."""

    reply: Reply


Event = TextPiece | ReasoningPiece | ToolCallPiece | StepPiece | Done
