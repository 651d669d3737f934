"""Results of tools as the model is shown them: text as it is, pictures as pictures, everything else as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image
from pydantic_core import PydanticSerializationError, to_jsonable_python

from mmspec_agent.core.errors import PromptError

from .picture import Picture
from .pictures import is_picture_part

_TEXT_PARTS = ("text", "input_text", "output_text")


def tool_result(index: int, content: Any) -> Any:
    """The content of tool message ``index``: a text, or content parts where it holds some.

    Numbers, lists, dicts, dataclasses, pydantic models, None, … become JSON, never Python's own notation.
    PromptError for what JSON cannot hold.
    """
    if isinstance(content, str):
        return content
    if _is_pixels(content):
        return [{"type": "image", "image": content}]
    if isinstance(content, (list, tuple)) and any(_is_pixels(one) or _is_part(one) for one in content):
        return [_as_part(index, one) for one in content]
    return _json(index, content)


def _as_part(index: int, value: Any) -> Any:
    if _is_pixels(value):
        return {"type": "image", "image": value}
    if isinstance(value, str) or _is_part(value):
        return value
    return {"type": "text", "text": _json(index, value)}


def _is_part(value: Any) -> bool:
    text = isinstance(value, Mapping) and value.get("type") in _TEXT_PARTS and isinstance(value.get("text"), str)
    return text or (is_picture_part(value) and len(value) > 1)


def _is_pixels(value: Any) -> bool:
    """Whether a value is a picture; arrays are, as far as they cannot be a table of numbers."""
    if isinstance(value, (Picture, Image.Image)):
        return True
    pixels = isinstance(value, np.ndarray) and value.dtype == np.uint8
    pixels = pixels or (isinstance(value, torch.Tensor) and value.dtype == torch.uint8)
    return pixels and value.ndim == 3


def _json(index: int, value: Any) -> str:
    try:
        plain = to_jsonable_python(value, fallback=_plain)
        return json.dumps(plain, ensure_ascii=False, allow_nan=False)
    except (PydanticSerializationError, TypeError, ValueError, RecursionError) as error:
        raise PromptError(
            f"message {index} has a tool's result that is a {type(value).__name__} and cannot be shown as JSON "
            f"({error}); pass a text, or what JSON can hold"
        ) from error


def _plain(value: Any) -> Any:
    """Arrays and numbers of numpy and torch, which pydantic does not know."""
    if callable(getattr(value, "tolist", None)):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} has no JSON form")
