"""Features of pictures: computed once, handed to the model as its own tower's output (SYSTEM.md V5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel

from ..errors import PictureInputError
from ..masks import IntArray
from .families import Family, encoder_of
from .memory import ByteStore
from .picture_input import PictureInput, digest


@dataclass(frozen=True)
class PictureFeatures:
    """Rows [n, width] that take the place of a picture's placeholders.

    ``deep``: rows [n, width] added after early layers (deepstack). ``stacked``: whether the model takes the rows
    as one tensor, or as a list with one entry per picture.
    """

    rows: torch.Tensor
    deep: tuple[torch.Tensor, ...] = ()
    stacked: bool = False
    deepstack: bool = False
    """Whether the tower has such layers at all: a configuration may name none of them."""

    @property
    def bytes(self) -> int:
        """Bytes held."""
        return self.rows.nbytes + sum(deep.nbytes for deep in self.deep)

    def cut(self, start: int, end: int) -> PictureFeatures:
        """The rows start … end-1."""
        if (start, end) == (0, len(self.rows)):
            return self
        return replace(self, rows=self.rows[start:end], deep=tuple(deep[start:end] for deep in self.deep))


class EncoderOutput(NamedTuple):
    """What the models read of their tower's output."""

    pooler_output: Any
    deepstack_features: list[list[torch.Tensor]] | None = None

    def to_tuple(self) -> tuple[Any, ...]:
        """What transformers asks of outputs it hands on."""
        return tuple(value for value in self if value is not None)


def as_model_output(parts: Sequence[PictureFeatures]) -> EncoderOutput:
    """Features of consecutive pictures in the form the model's own tower would give them."""
    rows = [part.rows for part in parts]
    layers = len(parts[0].deep)
    deep = [[part.deep[layer] for part in parts] for layer in range(layers)] if layers or parts[0].deepstack else None
    return EncoderOutput(torch.cat(rows)[None] if parts[0].stacked else rows, deep)


class Encoder:
    """Runs the vision tower, once per picture, and remembers the features within the visual memory's budget."""

    def __init__(self, model: PreTrainedModel, family: Family, memory: ByteStore) -> None:
        self._model = model
        self._memory = memory
        self.family = family
        self.passes = 0
        """Times the vision tower ran so far."""

    def encode(self, picture: PictureInput) -> PictureFeatures:
        """Features of a picture; PictureInputError if they do not fill its placeholders."""
        key = f"features:{picture.key}"
        held = self._memory.get(key)
        if held is None:
            held = self._run(picture)
            self._memory.put(key, held, held.bytes)
        assert isinstance(held, PictureFeatures)
        if picture.count is not None and picture.count != len(held.rows):
            raise PictureInputError(
                f"the vision tower gives {len(held.rows)} rows for a picture with {picture.count} placeholders; the "
                "processor's settings do not belong to this model"
            )
        return held

    @torch.inference_mode()
    def _run(self, picture: PictureInput) -> PictureFeatures:
        core, loaded, encoder = self._model, picture.load(), encoder_of(self._model)
        assert encoder is not None, "a family without an encoder is refused when it is looked for"
        if isinstance(loaded, PictureFeatures):
            return loaded
        arguments = {
            name: value.to(core.device) if isinstance(value, torch.Tensor) else value for name, value in loaded.items()
        }
        arguments = {name: _in_dtype(value, core.dtype) for name, value in arguments.items()}
        # A class of transformers' own may still get inputs of another one.
        try:
            features = _gather(encoder(**arguments, return_dict=True))
        except torch.OutOfMemoryError:
            raise
        except PICTURE_FAULTS as error:
            raise PictureInputError(
                f"the vision tower of {self.family.model_type} refuses these pictures ({type(error).__name__}: "
                f"{error}); pass its inputs as the processor returned them"
            ) from error
        self.passes += 1
        return features


PICTURE_FAULTS = (TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError, AssertionError)
"""What a model raises about inputs of a wrong shape or kind."""


def _in_dtype(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def pictures_of_output(output: Any, positions: IntArray | None, slots: Sequence[IntArray]) -> list[PictureInput]:
    """Pictures whose features transformers computed already, from its tower's output.

    ``slots``: per row of the batch, where its placeholders are. ``positions`` [3, rows, n]: M-RoPE positions, from
    which the pictures' grids are read; None for other models.
    """
    pooled = output.pooler_output
    found = getattr(output, "deepstack_features", None)
    deep = found or ()
    places = [(row, int(slot)) for row, found in enumerate(slots) for slot in found]
    pictures, at = [], 0
    for index, rows in enumerate(pooled):
        if not rows.numel():  # what some towers give for a row of text
            continue
        features = PictureFeatures(
            rows.flatten(0, -2),
            tuple(layer[index] for layer in deep),
            isinstance(pooled, torch.Tensor),
            found is not None,
        )
        count = len(features.rows)
        grid = _grid_at(positions, places[at : at + count]) if positions is not None else None
        key = digest({"rows": features.rows, "grid": grid})
        pictures.append(PictureInput(key, partial(_given, features), grid, count))
        at += count
    return pictures


def _given(features: PictureFeatures) -> PictureFeatures:
    return features


def _grid_at(positions: IntArray, places: Sequence[tuple[int, int]]) -> tuple[int, int, int] | None:
    if not places:
        return None
    found = np.stack([positions[:, row, slot] for row, slot in places])
    time, height, width = (found.max(axis=0) - found.min(axis=0) + 1).tolist()
    return time, height, width


def _gather(output: Any) -> PictureFeatures:
    pooled = output.pooler_output
    stacked = isinstance(pooled, torch.Tensor)
    rows = pooled.flatten(0, -2) if stacked else torch.cat([part.flatten(0, -2) for part in pooled])
    deep = getattr(output, "deepstack_features", None)
    layers = tuple(layer if isinstance(layer, torch.Tensor) else torch.cat(list(layer)) for layer in deep or ())
    return PictureFeatures(rows, layers, stacked, deep is not None)
