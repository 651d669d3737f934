"""Pictures in messages: the forms of OpenAI, transformers, Anthropic and Ollama, as one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from mmspec_agent.core.errors import PictureError, PromptError

from .picture import Picture, is_picture, load_picture
from .picture_bytes import MAX_PIXELS, PictureRules, bytes_of_base64

PICTURE_PARTS = ("image", "image_url", "input_image")
_SOURCE_KEYS = ("image", "image_url", "url", "path", "base64", "source")
_OTHER_MEDIA = ("audio", "audios", "input_audio", "video", "videos", "file", "files", "image_url", "pictures")
"""Keys of a message under which people hand over what no chat template reads."""


class Extracted(NamedTuple):
    """Messages for a chat template, where each picture part is ``{"type": "image"}``, and the pictures in order."""

    messages: list[dict[str, Any]]
    pictures: tuple[Picture, ...] = ()


def is_picture_part(part: Any) -> bool:
    """Whether a content part of a message is a picture, in OpenAI's, transformers' or Anthropic's form."""
    return isinstance(part, Mapping) and part.get("type") in PICTURE_PARTS


def with_loaded_pictures(messages: list[dict[str, Any]], rules: PictureRules) -> list[dict[str, Any]]:
    """The messages with every picture loaded, as ``{"type": "image", "image": Picture}``; PictureError says where.

    Ollama's key ``images`` becomes parts in front of the text. PromptError for other keys that hold media.
    """
    return [_loaded(index, _with_parts(index, message), rules) for index, message in enumerate(messages)]


def extract(messages: list[dict[str, Any]], rules: PictureRules) -> Extracted:
    """Messages and pictures apart, as templates and processors take them."""
    pictures: list[Picture] = []
    shown = []
    for message in with_loaded_pictures(messages, rules):
        parts = []
        for part in _parts(message):
            if is_picture_part(part):
                pictures.append(part["image"])
                part = {"type": "image"}
            parts.append(part)
        shown.append({**message, "content": parts} if parts else message)
    return Extracted(shown, tuple(pictures))


def _with_parts(index: int, message: dict[str, Any]) -> dict[str, Any]:
    """Pictures of a message's own keys as parts of its content."""
    other = [name for name in _OTHER_MEDIA if _holds(message.get(name))]
    if other:
        raise PromptError(
            f"message {index} has the key {other[0]!r}, which is not read; accepted are pictures as content parts "
            "({'type': 'image', 'image': …}) or as a list under 'images'"
        )
    given = [message[name] for name in ("images", "image") if _holds(message.get(name))]
    rest = {name: value for name, value in message.items() if name not in ("images", "image")}
    if not given:
        content = rest.get("content")
        return {**rest, "content": [content]} if isinstance(content, Mapping) or is_picture(content) else rest
    sources = [one for value in given for one in (value if isinstance(value, (list, tuple)) else [value])]
    content = rest.get("content")
    behind = list(content) if isinstance(content, (list, tuple)) else [content] if content not in (None, "") else []
    return {**rest, "content": [*({"type": "image", "image": source} for source in sources), *behind]}


def _holds(value: Any) -> bool:
    return value is not None and not (isinstance(value, (str, list, tuple, dict)) and not value)


def _parts(message: Mapping[str, Any]) -> list[Any]:
    content = message.get("content")
    return list(content) if isinstance(content, (list, tuple)) else []


def _loaded(index: int, message: dict[str, Any], rules: PictureRules) -> dict[str, Any]:
    parts = [{"type": "image", "image": part} if is_picture(part) else part for part in _parts(message)]
    if not any(is_picture_part(part) for part in parts):
        return message
    loaded: list[Any] = []
    for part in parts:
        if not is_picture_part(part):
            loaded.append(part)
            continue
        try:
            pictures = [load_picture(source, rules) for source in _sources(part)]
        except PictureError as error:
            raise type(error)(f"message {index}: {error}") from error
        loaded += [{"type": "image", "image": picture} for picture in pictures]
    return {**message, "content": loaded}


def _sources(part: Mapping[str, Any]) -> list[Any]:
    """Where a picture part says its picture is; a list holds several."""
    given = [name for name in _SOURCE_KEYS if _holds(part.get(name))]
    if not given:
        raise PictureError(
            f"a part of type {part.get('type')!r} holds no picture; accepted are {{'type': 'image', 'image': …}} and "
            "{'type': 'image_url', 'image_url': {'url': …}}"
        )
    if len(given) > 1:
        raise PictureError(f"a part names its picture twice, by {given[0]!r} and {given[1]!r}; leave one out")
    value = part[given[0]]
    if isinstance(value, (list, tuple)) and not any(isinstance(one, (int, float, list)) for one in value):
        return [_source(given[0], one) for one in value]
    return [_source(given[0], value)]


def _source(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return _nested_source(value)
    return bytes_of_base64(value) if name == "base64" else value


def _nested_source(value: Mapping[str, Any]) -> Any:
    """OpenAI's ``{"url": …}``, and Anthropic's source of type base64 or url."""
    for name in ("url", "path", "bytes"):
        if _holds(value.get(name)):
            return value[name]
    for name in ("data", "base64"):
        if _holds(value.get(name)):
            return bytes_of_base64(value[name])
    kind = f" of type {value['type']!r}" if "type" in value else ""
    raise PictureError(
        f"a picture's source{kind} with the keys {sorted(map(str, value))} cannot be read; accepted are 'url', and "
        "'data' with base64"
    )


__all__ = (
    "MAX_PIXELS",
    "PICTURE_PARTS",
    "Extracted",
    "Picture",
    "PictureRules",
    "extract",
    "is_picture_part",
    "load_picture",
    "with_loaded_pictures",
)
