"""Placeholders that stand in texts: what the model or a tool wrote is text, and is read as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmspec_agent.core.errors import PictureInputError

_JOINER = "\u2060"
"""Has no width and no meaning, and keeps the tokenizer from reading a placeholder."""

_WRITTEN_BY_OTHERS = ("assistant", "tool")


def escaped(messages: list[dict[str, Any]], placeholders: Sequence[str]) -> list[dict[str, Any]]:
    """``messages`` without a placeholder in any text. PictureInputError if a user or the system wrote one."""
    return [_escaped_message(index, message, placeholders) for index, message in enumerate(messages)]


def _escaped_message(index: int, message: dict[str, Any], placeholders: Sequence[str]) -> dict[str, Any]:
    found = next((token for token in placeholders if _holds(message, token)), None)
    if found is None:
        return message
    if message.get("role") not in _WRITTEN_BY_OTHERS:
        raise PictureInputError(
            f"message {index} holds the text {found!r}, the placeholder that stands for a picture; leave it out, and "
            "hand pictures over as parts"
        )
    for token in placeholders:
        message = {name: _escaped(value, token) for name, value in message.items()}
    return message


def _holds(value: Any, token: str) -> bool:
    if isinstance(value, str):
        return token in value
    if isinstance(value, Mapping):
        return any(_holds(key, token) or _holds(held, token) for key, held in value.items())
    return isinstance(value, (list, tuple)) and any(_holds(held, token) for held in value)


def _escaped(value: Any, token: str) -> Any:
    if isinstance(value, str):
        return value.replace(token, token[:1] + _JOINER + token[1:])
    if isinstance(value, Mapping):
        plain = {_escaped(key, token): _escaped(held, token) for key, held in value.items()}
        return _like(value, plain, token)
    return [_escaped(held, token) for held in value] if isinstance(value, (list, tuple)) else value


def _like(value: Mapping[str, Any], plain: dict[str, Any], token: str) -> Mapping[str, Any]:
    """Arguments of a call remember how they were written."""
    text = getattr(value, "text", None)
    of = getattr(type(value), "of", None)
    return of(plain, _escaped(text, token)) if isinstance(text, str) and of is not None else plain
