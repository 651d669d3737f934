"""Whether a chat template writes a place for every picture, and which role has none if it does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mmspec_agent.core.errors import PictureInputError, PromptError

from .pictures import is_picture_part

Template = Callable[[list[dict[str, Any]]], str]


def text_with_places(template: Template, messages: list[dict[str, Any]], count: int, image_token: str) -> str:
    """The template's text with ``count`` places. PictureInputError says which role shows no pictures."""
    failure: PromptError | None = None
    text = ""
    try:
        text = template(messages)
    except PromptError as error:
        failure = error
    found = text.count(image_token)
    if failure is None and found == count:
        return text
    role = _role_without(template, messages, None if failure is not None else found, image_token)
    if role is not None:
        raise PictureInputError(
            f"the model's chat template shows no pictures in messages of role {role!r}; hand the picture over in a "
            "message of role 'user'"
        )
    if failure is not None:
        raise failure
    raise PictureInputError(
        f"the chat template leaves {found} places {image_token!r} for {count} pictures; use a template that writes "
        "every picture once"
    )


def _role_without(
    template: Template, messages: list[dict[str, Any]], found: int | None, image_token: str
) -> str | None:
    """The role whose pictures, taken out, change nothing; or whose pictures make the template fail."""
    for role in dict.fromkeys(m["role"] for m in messages if _pictures_in(m)):
        others = [_without_pictures(m) if m["role"] == role else m for m in messages]
        mine = sum(_pictures_in(m) for m in messages if m["role"] == role)
        try:
            rest = template(others).count(image_token)
        except PromptError:
            continue
        if found is None or found - rest != mine:
            return str(role)
    return None


def _pictures_in(message: Mapping[str, Any]) -> int:
    content = message.get("content")
    return sum(is_picture_part(part) for part in content) if isinstance(content, list) else 0


def _without_pictures(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": "".join(part["text"] for part in content if not is_picture_part(part)) or "-"}
