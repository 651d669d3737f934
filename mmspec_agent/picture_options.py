"""Among the arguments of ``generate``: which are pictures, which other media, and what a model makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from mmspec_agent.core.visual.families import takes_pictures
from mmspec_agent.core.visual.placing import Placed
from mmspec_agent.core.visual.unread import is_neutral, media_among, refuse_unread

from .vision import PICTURE_ARGUMENTS

if TYPE_CHECKING:
    from .engine import Engine


def picture_names(engine: Engine) -> tuple[str, ...]:
    """Arguments that belong to pictures, as the model's vision tower says them; none for models of text."""
    vision = engine.vision_or_none
    if vision is not None:
        return tuple(dict.fromkeys([*PICTURE_ARGUMENTS, *sorted(vision.family.reads)]))
    return PICTURE_ARGUMENTS if takes_pictures(engine.model) else ()


def refuse_other_media(engine: Engine, inputs: Mapping[str, Any]) -> None:
    """Say why a model is not served with its pictures; PictureInputError for videos, sound, and what nothing reads."""
    if not takes_pictures(engine.model):
        return
    media = media_among({name: value for name, value in inputs.items() if not is_neutral(name, value)})
    if (media or inputs.get("mm_encoder_outputs")) and engine.vision_or_none is None:
        _ = engine.vision  # raises, and says why
    names = picture_names(engine)
    outputs = inputs.get("mm_encoder_outputs") or {}
    others = {name: value for name, value in media.items() if name not in names}
    others |= {name: value for name, value in outputs.items() if name != "image"}
    refuse_unread(str(engine.model.config.model_type), others)


def pictures_of_batch(
    engine: Engine,
    prompts: Sequence[list[int]],
    given: Mapping[str, Any],
    position_ids: torch.Tensor | None,
    times: int,
    batch: Mapping[str, torch.Tensor | None],
) -> list[tuple[Placed, ...]]:
    """The pictures of each row; ``batch``: its ids and attention mask, ``times``: samples of each row."""
    if not given:
        return [()] * len(prompts)
    call = {name: value for name, value in batch.items() if value is not None}
    with engine.exclusive():
        return engine.vision.pictures_of_rows(prompts, given, position_ids, times, call)
