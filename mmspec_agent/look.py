"""When a family of models that no test covers is looked at: once for every new shape of its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mmspec_agent.core.errors import UnsupportedModel
from mmspec_agent.core.hf_target import HFTarget
from mmspec_agent.core.visual.families import Family, PictureInput, digest
from mmspec_agent.core.visual.features import PICTURE_FAULTS
from mmspec_agent.core.visual.placing import Placed, place
from mmspec_agent.core.visual.proof import LookedRow, OwnCall, prove_call

from .pictures import Picture
from .processor_settings import settings_digest

_TEXT_INPUTS = ("input_ids", "attention_mask", "position_ids")


class Look:
    """Comparisons of one model with its own calls. UnsupportedModel if one of them fails, each time it is asked."""

    def __init__(self, target: HFTarget, family: Family) -> None:
        self._target = target
        self._family = family
        self._passed: set[Any] = set()

    def at_chat(
        self, processor: Any, image_token: str, text: str, pictures: Sequence[tuple[Picture, PictureInput]]
    ) -> None:
        """Compare with what transformers makes of the whole prompt ``text``, pictures as one place each.

        The shape: how many pictures there are, of which sizes, next to each other or apart, by which settings.
        """
        apart = tuple(bool(piece.strip()) for piece in text.split(image_token)[1:-1])
        shape = ("chat", settings_digest(processor), tuple(one.size for one, _ in pictures), apart)
        if shape in self._passed:
            return
        call = self._processed(processor, text, [one.image for one, _ in pictures])
        ids = call.ids[0].tolist()
        placed = place(ids, self._family.image_token_id, [taken for _, taken in pictures])
        prove_call(self._target, self._family, [LookedRow(ids, placed)], call)
        self._passed.add(shape)

    def at_batch(
        self, rows: Sequence[Sequence[int]], placed: Sequence[Sequence[Placed]], call: Mapping[str, Any]
    ) -> None:
        """Compare with the model's own call over a batch: ids and mask, and every input that came with them.

        The shape: shapes of all inputs, values of sizes and masks, and where the pictures lie.
        """
        inputs = tuple((name, _shape_of(value)) for name, value in sorted(call.items()) if name not in _TEXT_INPUTS)
        shape = (inputs, tuple(tuple((one.start, one.end) for one in own) for own in placed))
        if not any(placed) or shape in self._passed:
            return
        prove_call(self._target, self._family, [LookedRow(i, p) for i, p in zip(rows, placed)], OwnCall(call))
        self._passed.add(shape)

    def _processed(self, processor: Any, text: str, images: list[Any]) -> OwnCall:
        try:
            made = dict(processor(text=[text], images=[images], return_tensors="pt"))
        except PICTURE_FAULTS as error:
            raise UnsupportedModel(
                f"pictures with {self._family.model_type}: no test covers it, and its processor does not take a whole "
                f"prompt that its answer could be compared on ({type(error).__name__}: {error}); use engine.generate "
                "with the inputs of the model"
            ) from error
        return OwnCall({**made, "input_ids": torch.as_tensor(made["input_ids"])})


def _shape_of(value: Any) -> Any:
    """What may change the model's rule for pictures: shapes, sizes and grids, masks; not pixels."""
    if isinstance(value, torch.Tensor):
        shape = (str(value.dtype), tuple(value.shape))
        return shape if value.is_floating_point() else (*shape, digest({"": value}))
    if isinstance(value, Mapping):
        return tuple((name, _shape_of(one)) for name, one in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(_shape_of(one) for one in value)
    return repr(value)
