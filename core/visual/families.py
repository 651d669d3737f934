"""How each family of vision-language models takes its pictures.

All of them hand features over as ``mm_encoder_outputs={"image": …}``; they differ in how a batch of pixel inputs
falls apart into pictures, in rotary positions, and in whether a picture's tokens see each other both ways.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from ..errors import PictureInputError, UnsupportedModel
from .picture_input import PictureInput, digest
from .unread import KIND_ARGUMENTS, is_media, is_neutral, refuse_unread

PIXEL_ARGUMENTS = (
    "pixel_values",
    "image_grid_thw",
    "image_sizes",
    "pixel_attention_mask",
    "pixel_mask",
    "batch_num_images",
    "vision_feature_layer",
    "vision_feature_select_strategy",
    "vision_aspect_ratio",
)
"""Arguments of the vision tower in the families that are listed; others say theirs by their signature."""

PROVEN = frozenset(
    {
        "llava",
        "llava_next",
        "llava_onevision",
        "idefics3",
        "smolvlm",
        "qwen2_vl",
        "qwen2_5_vl",
        "qwen3_vl",
        "gemma3",
        "internvl",
    }
)
"""Model types whose answers about pictures are proven equal to transformers' by tests."""

_BIDIRECTIONAL = frozenset({"gemma3"})
_CROSS_ATTENTION = ("cross_attention_states", "cross_attention_mask", "image_attention_mask", "perceiver_embeddings")
_TEXT_ONLY_WORKS = "text-only requests work; for pictures use the model's own generate"


def encoder_of(model: PreTrainedModel) -> Callable[..., Any] | None:
    """The method that turns pixel inputs into features: the one that transformers' ``generate`` calls, if any."""
    for owner in (getattr(model, "base_model", None), getattr(model, "model", None), model):
        method = getattr(owner, "get_image_features", None)
        if callable(method):
            encoder: Callable[..., Any] = method
            return encoder
    return None


def encoder_arguments(model: PreTrainedModel) -> frozenset[str]:
    """What that method reads; empty if there is none."""
    method = encoder_of(model)
    if method is None:
        return frozenset()
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    found = {name for name, one in inspect.signature(method).parameters.items() if one.kind not in kinds}
    return frozenset(found - {"self", "kwargs", "return_dict"})


_TOLD = ("num_patches", "num_image_tokens", "num_tiles")
"""What processors tell their callers of a picture's pieces, under names that sound like pictures."""


def _forward_names(model: PreTrainedModel) -> frozenset[str]:
    forwards = (model.forward, getattr(model, "base_model", model).forward)
    return frozenset(name for forward in forwards for name in inspect.signature(forward).parameters)


def takes_pictures(model: PreTrainedModel) -> bool:
    """Whether a model is one of vision and language, served here or not."""
    return (
        encoder_of(model) is not None
        or getattr(model.config, "vision_config", None) is not None
        or "image" in (getattr(model, "input_modalities", None) or ())
    )


@dataclass(frozen=True)
class Family:
    """What is particular to the pictures of one model.

    ``reads``: arguments of its vision tower; whatever else comes with pictures is refused unless it says nothing.
    ``is_own``: whether the model is transformers' own class, not one built on it elsewhere.
    ``forward_names``: arguments of its forward, outer and inner.
    """

    model_type: str
    image_token_id: int
    merge: int | None = None
    reads: frozenset[str] = frozenset(PIXEL_ARGUMENTS)
    is_own: bool = True
    forward_names: frozenset[str] = frozenset()

    @classmethod
    def of(cls, model: PreTrainedModel) -> Family | None:
        """The family of a model, None if it takes no pictures.

        UnsupportedModel says why a model that takes pictures cannot be served with them. A family that is not
        ``proven`` has to be looked at with ``proof.prove`` before its first answer.
        """
        if not takes_pictures(model):
            return None
        config = model.config
        kind = str(config.model_type)
        token = _image_token(config)
        reason = _why_not(model, token)
        if reason is not None or token is None:
            raise UnsupportedModel(f"pictures with {kind} are not supported: {reason}; {_TEXT_ONLY_WORKS}")
        merge = getattr(getattr(config, "vision_config", None), "spatial_merge_size", None)
        is_own = type(model).__module__.startswith("transformers.models.")
        merge = merge if isinstance(merge, int) else None
        return cls(kind, token, merge, encoder_arguments(model), is_own, _forward_names(model))

    @property
    def proven(self) -> bool:
        """Whether tests cover it."""
        return self.model_type in PROVEN and self.is_own

    @property
    def bidirectional(self) -> bool:
        """Whether the tokens of a picture see each other in both directions."""
        return self.model_type in _BIDIRECTIONAL

    def split(self, inputs: Mapping[str, Any]) -> list[PictureInput]:
        """The pictures in a processor's output (or in ``generate``'s arguments), in order.

        PictureInputError or OptionError for inputs that neither the vision tower nor the positions read.
        """
        given = self._read(inputs)
        pixels = given.get("pixel_values")
        if pixels is None:
            if given:
                raise PictureInputError(f"{', '.join(sorted(given))} without pixel_values; pass both, or neither")
            return []
        if given.get("image_grid_thw") is not None:
            return self._split_grid(given)
        if "pixel_attention_mask" in self.reads and getattr(pixels, "ndim", 0) == 5:
            return self._split_rows(given)
        return self._split_first_axis(given)

    def whole(self, inputs: Mapping[str, Any], count: int) -> PictureInput:
        """A processor's output for one picture, tiles and crops included, as one of ``count`` placeholders.

        What the model's forward has no name for is told to the caller (rows of tiles, say), not to the model.
        """
        told = {name for name in inputs.keys() - self.reads - self.forward_names if name in _TOLD or not is_media(name)}
        given = self._read({name: value for name, value in inputs.items() if name not in told})
        grid = self._grid(torch.as_tensor(given["image_grid_thw"])[0]) if "image_grid_thw" in given else None
        return self._picture(given, grid, count)

    def _read(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """What the vision tower reads of ``inputs``; all else says nothing, or is refused by name."""
        given = {name: value for name, value in inputs.items() if value is not None}
        refuse_unread(self.model_type, {k: v for k, v in given.items() if k not in self.reads})
        return {name: value for name, value in given.items() if name in self.reads}

    def _grid(self, thw: torch.Tensor) -> tuple[int, int, int]:
        """Grid of visual tokens from a grid of patches."""
        time, height, width = (int(n) for n in thw)
        merge = self.merge or 1
        return (time, height // merge, width // merge)

    def _split_grid(self, given: dict[str, Any]) -> list[PictureInput]:
        """Patches of all pictures lie in one row; the grids say where each ends."""
        grids = torch.as_tensor(given["image_grid_thw"])
        patches = grids.prod(dim=-1).tolist()
        if sum(patches) != given["pixel_values"].shape[0]:
            raise PictureInputError(
                f"image_grid_thw counts {sum(patches)} patches, pixel_values has {given['pixel_values'].shape[0]} "
                "rows; pass both as the processor returned them"
            )
        parts = torch.split(given["pixel_values"], patches)
        rest = {name: value for name, value in given.items() if name not in ("pixel_values", "image_grid_thw")}
        pictures = []
        for index, part in enumerate(parts):
            grid = self._grid(grids[index])
            arguments = {"pixel_values": part, "image_grid_thw": grids[index : index + 1]}
            arguments |= {name: _part(name, value, index, len(parts)) for name, value in rest.items()}
            pictures.append(self._picture(arguments, grid, grid[0] * grid[1] * grid[2]))
        return pictures

    def _split_rows(self, given: dict[str, Any]) -> list[PictureInput]:
        """[rows, tiles, 3, H, W]: the tiles of a row, padding tiles left out, count as one picture."""
        rows = given["pixel_values"].shape[0]
        pictures = []
        for row in range(rows):
            real = given["pixel_values"][row].flatten(1).any(dim=1)
            if not bool(real.any()):
                continue
            arguments = {name: _part(name, value, row, rows) for name, value in given.items()}
            for name in ("pixel_values", "pixel_attention_mask"):
                if name in given:
                    arguments[name] = given[name][row][real][None]
            pictures.append(self._picture(arguments))
        return pictures

    def _split_first_axis(self, given: dict[str, Any]) -> list[PictureInput]:
        count = len(given["pixel_values"])
        several = _several(given, count)
        pictures = []
        for index in range(count):
            arguments = {
                name: _part(name, value, index, count) for name, value in given.items() if name != "batch_num_images"
            }
            if "batch_num_images" in given:
                # Among several pictures OneVision takes the base patch alone; a count other than 1 says so.
                arguments["batch_num_images"] = torch.tensor([2 if several[index] else 1])
            pictures.append(self._picture(arguments))
        return pictures

    def _picture(
        self, arguments: dict[str, Any], grid: tuple[int, int, int] | None = None, count: int | None = None
    ) -> PictureInput:
        return PictureInput(digest(arguments), lambda: arguments, grid, count)


def _part(name: str, value: Any, index: int, count: int) -> Any:
    """What belongs to one of ``count`` pictures; settings without a length belong to all of them."""
    if not isinstance(value, (torch.Tensor, list, tuple)) or (isinstance(value, torch.Tensor) and value.ndim == 0):
        return value
    if name.startswith("vision_feature"):
        return value
    if len(value) != count:
        raise PictureInputError(
            f"input {name!r} has {len(value)} entries for {count} pictures; pass it as the processor returned it"
        )
    return value[index : index + 1]


def _several(given: Mapping[str, Any], count: int) -> list[bool]:
    numbers = given.get("batch_num_images")
    if numbers is None:
        return [False] * count
    return [int(n) != 1 for n in numbers for _ in range(int(n))]


def _image_token(config: Any) -> int | None:
    for name in ("image_token_id", "image_token_index"):
        value = getattr(config, name, None)
        if isinstance(value, int):
            return value
    return None


def _why_not(model: PreTrainedModel, token: int | None) -> str | None:
    """Why a model's pictures cannot be served, in a user's words; None if nothing speaks against it yet."""
    taken = inspect.signature(model.forward).parameters
    if any(name in taken for name in _CROSS_ATTENTION):
        return "its text looks at pictures through cross-attention layers, which keep a cache of their own"
    if "mm_encoder_outputs" not in taken:
        return "it takes no features computed beforehand (its forward has no mm_encoder_outputs)"
    if encoder_of(model) is None:
        return "it has no method that computes the features of its pictures (get_image_features)"
    if token is None:
        return "its configuration names no placeholder token for pictures (image_token_id)"
    return None


__all__ = (
    "KIND_ARGUMENTS",
    "PIXEL_ARGUMENTS",
    "PROVEN",
    "Family",
    "PictureInput",
    "digest",
    "encoder_arguments",
    "encoder_of",
    "is_neutral",
    "takes_pictures",
)
