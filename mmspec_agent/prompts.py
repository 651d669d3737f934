"""Messages to a prompt: validation, chat template, and what a request asks of the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from mmspec_agent.core.constraint import ConstraintPlan
from mmspec_agent.core.errors import PromptError
from mmspec_agent.core.visual.families import PictureInput

from .picture import is_picture
from .reply import ReasoningPiece, TextPiece, ToolCall, ToolCallPiece
from .text_checks import check_strings
from .tool_results import tool_result

ROLES = ("system", "developer", "user", "assistant", "tool")


class Answer(NamedTuple):
    """A finished answer, read: what remains as text, the calls in it, the object it parses to."""

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    parsed: Any = None
    notes: Mapping[str, Any] = {}
    reasoning: str = ""


class AnswerReader(Protocol):
    """Reads an answer that was asked for in a form (tool calls, a response format)."""

    def feed(self, text: str) -> Sequence[ToolCallPiece | TextPiece | ReasoningPiece]:
        """Whole characters as they are decided: pieces for the stream."""
        ...

    def finish(self, text: str, finish: str) -> Answer:
        """The whole answer; ``finish`` says whether it was cut (length)."""
        ...


@dataclass(frozen=True)
class Prompt:
    """A rendered prompt: ``text`` through the chat template, ending where the answer begins.

    ``plan`` constrains the answer and ``reader`` reads it, when a form was asked for; ``pictures`` are in the
    order of their placeholders in the text.
    """

    text: str
    messages: list[dict[str, Any]]
    plan: ConstraintPlan | None = None
    reader: AnswerReader | None = None
    pictures: tuple[PictureInput, ...] = ()


def normalise_messages(messages: Sequence[Any] | str) -> list[dict[str, Any]]:
    """Messages as dicts; PromptError says which one is wrong and how."""
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if isinstance(messages, Mapping):
        messages = [messages]
    if not isinstance(messages, (list, tuple)) and messages is not None:
        raise PromptError(
            f"messages are a {type(messages).__name__}; accepted is a text or a list of {{'role': …, 'content': …}}"
        )
    if not messages:
        raise PromptError("no messages: pass a text or a list of {'role': …, 'content': …}")
    return [_normalise(index, message) for index, message in enumerate(messages)]


def _normalise(index: int, message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise PromptError(f"message {index} is a {type(message).__name__}; accepted is {{'role': …, 'content': …}}")
    role = message.get("role")
    if role not in ROLES:
        raise PromptError(f"message {index} has role {role!r}; accepted are {', '.join(ROLES)}")
    if role == "tool":
        message = {**message, "content": tool_result(index, message.get("content"))}
    shown = message.get("tool_calls") or message.get("images") is not None
    if message.get("content") is None and not shown:
        raise PromptError(f"message {index} has no content; accepted is a text or content parts")
    content = message.get("content")
    if not isinstance(content, (str, list, tuple, type(None))) and not is_picture(content):
        kind = type(message["content"]).__name__
        raise PromptError(f"message {index} has a {kind} as its content; accepted is a text or content parts")
    check_strings(message, f"message {index}", PromptError)
    return dict(message)


def render(tokenizer: Any, messages: list[dict[str, Any]], **template_options: Any) -> str:
    """The prompt text; PromptError if the tokenizer has no chat template or the template refuses the messages."""
    if tokenizer is None:
        raise PromptError("chat needs a tokenizer: build the engine with Engine(model, tokenizer)")
    if not getattr(tokenizer, "chat_template", None):
        raise PromptError("the tokenizer has no chat template; use engine.generate with input ids, or set one")
    try:
        options = {"add_generation_prompt": True, **template_options}
        text = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    except Exception as error:  # templates raise whatever their authors chose
        raise PromptError(f"the chat template refuses these messages: {error}") from error
    return str(text)


def flatten_text(messages: list[dict[str, Any]], keep_pictures: bool = False) -> list[dict[str, Any]]:
    """Content parts of type text joined to plain text, for templates of text-only models.

    ``keep_pictures``: the model takes pictures, and messages with picture parts stay lists of parts.
    """
    flat = []
    for index, message in enumerate(messages):
        content = message.get("content")
        if keep_pictures and isinstance(content, list) and any(_is_image(part) for part in content):
            content = [
                part if _is_image(part) else {"type": "text", "text": _text_part(index, part, True)} for part in content
            ]
        elif isinstance(content, Sequence) and not isinstance(content, str):
            content = "".join(_text_part(index, part, keep_pictures) for part in content)
        flat.append({**message, "content": content if content is not None else ""})
    return flat


def _is_image(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "image"


def _text_part(index: int, part: Any, pictures: bool) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if isinstance(part, Mapping) and kind in ("text", "input_text", "output_text"):
        text = part.get("text", "")
        if not isinstance(text, str):
            raise PromptError(f"message {index} has a part of type {kind!r} whose text is a {type(text).__name__}")
        return text
    accepted = (
        "accepted are text ('text') and pictures ('image', 'image_url', 'input_image')"
        if pictures
        else "this model takes text only"
    )
    raise PromptError(f"message {index} has a part of type {kind!r}; {accepted}")
