"""How each family of vision-language models takes its pictures (SYSTEM.md C1, V5).

All of them hand features over as ``mm_encoder_outputs={"image": …}``; they differ in how a batch of pixel inputs
falls apart into pictures, in rotary positions, and in whether a picture's tokens see each other both ways.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from ..errors import PictureInputError, UnsupportedModel
from ..masks import IntArray

PIXEL_ARGUMENTS = (
    "pixel_values",
    "image_grid_thw",
    "image_sizes",
    "pixel_attention_mask",
    "batch_num_images",
    "vision_feature_layer",
    "vision_feature_select_strategy",
    "vision_aspect_ratio",
)
"""Arguments of ``get_image_features`` that belong to pictures."""

KIND_ARGUMENTS = ("token_type_ids", "mm_token_type_ids")
"""Arguments that say which tokens are pictures; we find them by their ids."""

VIDEO_ARGUMENTS = ("pixel_values_videos", "video_grid_thw", "image_sizes_videos", "second_per_grid_ts")

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

_NESTED = frozenset({"idefics3", "smolvlm"})
_BIDIRECTIONAL = frozenset({"gemma3"})


@dataclass(frozen=True)
class PictureInput:
    """One picture as ``get_image_features`` takes it.

    ``key``: hash of the preprocessed pixels and all settings that change the features. ``load`` gives the tower's
    arguments when they are needed, or features that were computed already. ``grid``: (time, height, width) in
    visual tokens, for M-RoPE. ``count``: its placeholder tokens, None if not known before encoding.
    """

    key: str
    load: Callable[[], Any]
    grid: tuple[int, int, int] | None = None
    count: int | None = None
    coordinates: IntArray | None = None
    """[3, count] places of the tokens where they do not fill the grid (a compressed picture)."""
    lossy: str | None = None
    """The option that made its features other than the tower's, as ``stats.lossy`` names it."""


@dataclass(frozen=True)
class Family:
    """What is particular to the pictures of one model."""

    model_type: str
    image_token_id: int
    merge: int | None = None

    @classmethod
    def of(cls, model: PreTrainedModel) -> Family | None:
        """The family of a model, None if it takes no pictures.

        UnsupportedModel if it cannot take features computed beforehand. A family that is not ``proven`` has to be
        looked at with ``proof.prove`` before its first answer.
        """
        config = model.config
        if not hasattr(model, "get_image_features") or getattr(config, "vision_config", None) is None:
            return None
        kind = str(config.model_type)
        token = getattr(config, "image_token_id", None)
        if not isinstance(token, int) or "mm_encoder_outputs" not in inspect.signature(model.forward).parameters:
            raise UnsupportedModel(
                f"pictures with {kind} are not supported: it takes no features computed beforehand. Accepted are "
                f"{', '.join(sorted(PROVEN))}, and models built like them; text-only requests work"
            )
        merge = getattr(config.vision_config, "spatial_merge_size", None)
        return cls(kind, token, merge if isinstance(merge, int) else None)

    @property
    def proven(self) -> bool:
        """Whether tests cover it."""
        return self.model_type in PROVEN

    @property
    def bidirectional(self) -> bool:
        """Whether the tokens of a picture see each other in both directions."""
        return self.model_type in _BIDIRECTIONAL

    def split(self, inputs: Mapping[str, Any]) -> list[PictureInput]:
        """The pictures in a processor's output (or in ``generate``'s arguments), in order."""
        _refuse_videos(inputs)
        given = {name: inputs[name] for name in PIXEL_ARGUMENTS if inputs.get(name) is not None}
        pixels = given.get("pixel_values")
        if pixels is None:
            return []
        if "image_grid_thw" in given:
            return self._split_grid(given)
        if self.model_type in _NESTED:
            return self._split_rows(given)
        return self._split_first_axis(given)

    def whole(self, inputs: Mapping[str, Any], count: int) -> PictureInput:
        """A processor's output for one picture, tiles and crops included, as one of ``count`` placeholders."""
        _refuse_videos(inputs)
        given = {name: inputs[name] for name in PIXEL_ARGUMENTS if inputs.get(name) is not None}
        grid = self._grid(torch.as_tensor(given["image_grid_thw"])[0]) if "image_grid_thw" in given else None
        return self._picture(given, grid, count)

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
        pictures = []
        for index, part in enumerate(parts):
            grid = self._grid(grids[index])
            arguments = {**given, "pixel_values": part, "image_grid_thw": grids[index : index + 1]}
            pictures.append(self._picture(arguments, grid, grid[0] * grid[1] * grid[2]))
        return pictures

    def _split_rows(self, given: dict[str, Any]) -> list[PictureInput]:
        """[rows, tiles, 3, H, W]: the tiles of a row, padding tiles left out, count as one picture."""
        pictures = []
        for row in range(given["pixel_values"].shape[0]):
            real = given["pixel_values"][row].flatten(1).any(dim=1)
            if not bool(real.any()):
                continue
            arguments = {**given, "pixel_values": given["pixel_values"][row][real][None]}
            if "pixel_attention_mask" in given:
                arguments["pixel_attention_mask"] = given["pixel_attention_mask"][row][real][None]
            pictures.append(self._picture(arguments))
        return pictures

    def _split_first_axis(self, given: dict[str, Any]) -> list[PictureInput]:
        several = _several(given, len(given["pixel_values"]))
        pictures = []
        for index in range(len(given["pixel_values"])):
            arguments = {**given, "pixel_values": given["pixel_values"][index : index + 1]}
            if "image_sizes" in given:
                arguments["image_sizes"] = torch.as_tensor(given["image_sizes"])[index : index + 1]
            if "batch_num_images" in given:
                # Among several pictures OneVision takes the base patch alone; a count other than 1 says so.
                arguments["batch_num_images"] = torch.tensor([2 if several[index] else 1])
            pictures.append(self._picture(arguments))
        return pictures

    def _picture(
        self, arguments: dict[str, Any], grid: tuple[int, int, int] | None = None, count: int | None = None
    ) -> PictureInput:
        return PictureInput(digest(arguments), lambda: arguments, grid, count)


def digest(arguments: Mapping[str, Any]) -> str:
    """Hash of tensors and settings by name, shape, dtype and bytes."""
    state = hashlib.blake2b(digest_size=16)
    for name in sorted(arguments):
        value = arguments[name]
        state.update(name.encode())
        if isinstance(value, torch.Tensor):
            plain = value.detach().cpu().contiguous()
            state.update(f"{plain.dtype}{tuple(plain.shape)}".encode())
            state.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            state.update(repr(value).encode())
    return state.hexdigest()


def _several(given: Mapping[str, Any], count: int) -> list[bool]:
    numbers = given.get("batch_num_images")
    if numbers is None:
        return [False] * count
    return [int(n) != 1 for n in numbers for _ in range(int(n))]


def _refuse_videos(inputs: Mapping[str, Any]) -> None:
    for name in VIDEO_ARGUMENTS:
        if inputs.get(name) is not None:
            raise PictureInputError(
                f"input {name!r}: videos as one input are not supported; pass their frames as pictures"
            )
