"""Inputs that come with pictures and that nothing here reads: they say nothing, or they are refused by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..errors import OptionError, PictureInputError

KIND_ARGUMENTS = ("token_type_ids", "mm_token_type_ids")
"""Arguments that say which tokens are pictures; we find them by their ids, and check that both agree."""

_VIDEO = ("video", "second_per_grid")
_AUDIO = ("audio", "input_features", "feature_attention_mask", "input_values")
_PICTURE = ("pixel", "image", "patch", "vision", "tile", "spatial_shapes", "cross_attention_mask")
_MEDIA = (*_VIDEO, *_AUDIO, *_PICTURE)


def is_neutral(name: str, value: Any) -> bool:
    """Whether an input provably changes nothing: a mask that hides nothing, or an empty collection."""
    if value is None or (isinstance(value, (dict, list, tuple)) and not value):
        return True
    return name.endswith("mask") and isinstance(value, torch.Tensor) and bool((value == 1).all())


def media_among(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Of keyword arguments of ``generate``, those that by their names are pictures, videos or sound."""
    return {name: value for name, value in inputs.items() if is_media(name)}


def is_media(name: str) -> bool:
    """Whether an input is by its name a picture, a video, sound, or says something of one."""
    return any(part in name for part in _MEDIA)


def refuse_unread(model_type: str, inputs: Mapping[str, Any]) -> None:
    """PictureInputError for what cannot reach the model, OptionError for names that no picture has."""
    unread = sorted(n for n, value in inputs.items() if n not in KIND_ARGUMENTS and not is_neutral(n, value))
    for name in unread:
        if any(part in name for part in _VIDEO):
            raise PictureInputError(
                f"input {name!r}: videos as one input are not supported; pass their frames as pictures, or use "
                "engine.watch"
            )
        if any(part in name for part in _AUDIO):
            raise PictureInputError(f"input {name!r}: sound is not supported; accepted are text and pictures")
    pictures = [name for name in unread if any(part in name for part in (*_PICTURE, "mask"))]
    if pictures:
        raise PictureInputError(
            f"input {pictures[0]!r} is read by nothing that {model_type} is served with, and it is not known to change "
            "nothing; leave it out, or use the model's own generate"
        )
    if unread:
        raise OptionError(f"generate got inputs it does not know: {', '.join(unread)}")


def check_kinds(name: str, kinds: Any, rows: Sequence[Sequence[int]], image_token_id: int) -> None:
    """PictureInputError unless ``kinds`` [rows, n] marks exactly the pictures' placeholders of (unpadded) ``rows``."""
    marked = torch.as_tensor(kinds)
    if marked.ndim != 2 or marked.shape[0] == 0 or len(rows) % marked.shape[0]:
        raise PictureInputError(
            f"{name} of shape {tuple(marked.shape)} for {len(rows)} rows; pass it as the processor returned it"
        )
    times = len(rows) // marked.shape[0]
    for index, ids in enumerate(rows):
        own = marked[index // times].tolist()[-len(ids) :]
        if len(own) != len(ids) or any((kind != 0) != (token == image_token_id) for kind, token in zip(own, ids)):
            raise PictureInputError(
                f"{name} marks other tokens than the placeholders of the pictures in row {index}; pass it as the "
                "processor returned it"
            )
