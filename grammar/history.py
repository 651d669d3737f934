"""Earlier calls and results, as a model family's chat template can render them."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mmspec_agent.core.errors import PromptError

from .families import Family

_SHORT_ID: Final = 9
"""Letters and digits that Mistral's templates want in the id of a call."""


def render_history(messages: Sequence[Mapping[str, Any]], family: Family) -> list[dict[str, Any]]:
    """Copies of ``messages`` in the template's terms: calls with dict arguments or as text, results with names.

    PromptError for a call without a name, and for arguments that are no JSON object where the template would
    write them as another value than they were.
    """
    shown = [copy.deepcopy(dict(message)) for message in messages]
    names: dict[Any, str] = {}
    for index, message in enumerate(shown):
        calls = _calls(index, message)
        names |= {call["id"]: call["function"]["name"] for call in calls if call.get("id") is not None}
        if calls:
            message["tool_calls"] = calls
        if message.get("role") == "tool" and not message.get("name") and message.get("tool_call_id") in names:
            message["name"] = names[message["tool_call_id"]]
    if family.own_prompt:
        return [_as_text(message, family) for message in shown]
    for index, message in enumerate(shown):
        _for_template(index, message, family)
    return shown


def _calls(index: int, message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The calls of a message, each with its body under ``function``."""
    calls = []
    for call in message.get("tool_calls") or ():
        body = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(body, Mapping) or not isinstance(body.get("name"), str):
            raise PromptError(
                f"message {index} has a tool call without a name: {call!r:.120}; accepted is "
                "{'id': …, 'type': 'function', 'function': {'name': …, 'arguments': …}}"
            )
        arguments = body.get("arguments", body.get("parameters"))
        function = {**body, "arguments": {} if arguments is None else arguments}
        given = {key: value for key, value in call.items() if key in ("id", "type")}
        calls.append({"type": "function", **given, "function": function})
    return calls


def _for_template(index: int, message: dict[str, Any], family: Family) -> None:
    """Templates serialise arguments themselves: JSON strings would be quoted twice."""
    for call in message.get("tool_calls") or ():
        body = call["function"]
        body["arguments"] = _object(index, body)
        if family.short_ids and call.get("id") is not None:
            call["id"] = _short(str(call["id"]))
    if family.short_ids and message.get("tool_call_id") is not None:
        message["tool_call_id"] = _short(str(message["tool_call_id"]))


def _object(index: int, body: Mapping[str, Any]) -> dict[str, Any]:
    arguments = body["arguments"]
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError):  # said below, with the text as it stands
            arguments = json.loads(arguments) if arguments.strip() else {}
    if isinstance(arguments, dict):
        return arguments
    raise PromptError(
        f"message {index} calls {body['name']!r} with arguments that are no JSON object: {arguments!r:.120}; the chat "
        "template cannot show them as they were written. Mend them, or leave the call and its result out"
    )


def _short(identifier: str) -> str:
    if len(identifier) == _SHORT_ID and identifier.isalnum():
        return identifier
    return hashlib.sha256(identifier.encode()).hexdigest()[:_SHORT_ID]


def _as_text(message: dict[str, Any], family: Family) -> dict[str, Any]:
    """Calls and results as text, for templates that know neither."""
    if message.get("role") == "tool":
        name = message.get("name")
        head = f"Result{f' of {name}' if name else ''}: "
        if has_pictures(message):
            return {"role": "user", "content": [{"type": "text", "text": head}, *message["content"]]}
        return {"role": "user", "content": f"{head}{text_of(message)}"}
    calls = message.pop("tool_calls", None)
    if calls:
        lines = [_call_text(call["function"], family) for call in calls]
        message["content"] = "\n".join([*filter(None, [text_of(message)]), *lines])
    elif message.get("content") is None:
        message["content"] = ""
    return message


def _call_text(body: Mapping[str, Any], family: Family) -> str:
    """A call as the family writes it; arguments that were text stay as they were written."""
    arguments = body["arguments"]
    text = getattr(arguments, "text", None)
    if text is None:
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return family.call_head(body["name"]) + (text if text.strip() else "{}") + family.tail


def has_pictures(message: Mapping[str, Any]) -> bool:
    """Whether a message has picture parts."""
    content = message.get("content")
    return isinstance(content, list) and any(isinstance(p, Mapping) and p.get("type") == "image" for p in content)


def text_of(message: Mapping[str, Any]) -> str:
    """The text of a message's content."""
    content = message.get("content")
    if isinstance(content, str) or content is None:
        return content or ""
    if isinstance(content, list) and all(isinstance(part, Mapping) and "text" in part for part in content):
        return "".join(part["text"] for part in content)
    return json.dumps(content, ensure_ascii=False)
