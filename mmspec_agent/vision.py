"""What an engine needs to see: processor, vision tower, visual memory (SYSTEM.md V5, C2)."""

from __future__ import annotations

import dataclasses
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mmspec_agent.core.errors import (
    Cancelled,
    OptionError,
    PictureError,
    PictureInputError,
)
from mmspec_agent.core.hf_target import HFTarget
from mmspec_agent.core.stats import DecodeStats
from mmspec_agent.core.visual.compress import compressed, target_count
from mmspec_agent.core.visual.families import KIND_ARGUMENTS, PIXEL_ARGUMENTS, Family, PictureInput
from mmspec_agent.core.visual.features import PICTURE_FAULTS, Encoder, PictureFeatures, pictures_of_output
from mmspec_agent.core.visual.memory import ByteStore
from mmspec_agent.core.visual.placing import Placed, place
from mmspec_agent.core.visual.segments import SegmentStore
from mmspec_agent.core.visual.unread import check_kinds, refuse_unread

from .conversation import gone
from .look import Look
from .pictures import Picture
from .processor_settings import settings_digest
from .prompts import render
from .template_places import text_with_places
from .written_placeholders import escaped

if TYPE_CHECKING:
    from .conversation import Conversation

PICTURE_ARGUMENTS = (*PIXEL_ARGUMENTS, *KIND_ARGUMENTS)
"""Arguments of ``generate`` that belong to pictures."""

MAX_PREPARED = 1024
"""Pictures whose key and placeholder text are remembered: a few hundred bytes each."""


@dataclass(frozen=True)
class Prepared:
    """A picture ready for the model, and the text that stands for it in the prompt."""

    picture: PictureInput
    text: str


class Vision:
    """Pictures of one engine: preprocessing, features and KV segments within one budget of bytes.

    UnsupportedModel if its model cannot take features, PictureError if it takes no pictures at all. A family that no
    test covers is compared with the model's own forward when its first picture comes.
    """

    def __init__(
        self,
        target: HFTarget,
        tokenizer: Any,
        processor: Any,
        weights: Callable[[], str],
        budget: int,
        int8: bool = False,
    ) -> None:
        family = Family.of(target.model)
        if family is None:
            raise PictureError(
                f"{type(target.model).__name__} takes text only; load a vision-language model for pictures"
            )
        self.family: Family = family
        self.memory = ByteStore(budget)
        self.encoder = Encoder(target.model, family, self.memory)
        self.segments = SegmentStore(self.memory, int8)
        self._weights = weights
        self._target = target
        self._look = Look(target, family)
        self._tokenizer = tokenizer
        self._processor = processor
        self._names: dict[str, frozenset[str]] = {}
        self._prepared: OrderedDict[tuple[str, bool, str], Prepared] = OrderedDict()

    @property
    def weights(self) -> str:
        """What stands for the model as it is now in the hash of a prefix."""
        return self._weights()

    def forget(self) -> None:
        """Features and rows that are kept belong to weights that the model no longer has."""
        self.memory.clear()

    # -- chat -------------------------------------------------------------------------------------------------

    def render(
        self,
        messages: list[dict[str, Any]],
        pictures: Sequence[Picture],
        lossy_visual_tokens: int | float | None = None,
        **template_options: Any,
    ) -> tuple[str, tuple[PictureInput, ...]]:
        """The prompt text with every picture's placeholders written out, and the pictures in order.

        ``lossy_visual_tokens``: tokens (or the share of them) that each picture is compressed to.
        """

        def template(shown: list[dict[str, Any]]) -> str:
            return self.template(shown, **template_options)

        text = text_with_places(template, messages, len(pictures), self.image_token) if pictures else template(messages)
        if not pictures:
            return text, ()
        prepared = [self.prepare(picture, len(pictures) == 1) for picture in pictures]
        if not self.family.proven:
            parts = [(picture, one.picture) for picture, one in zip(pictures, prepared)]
            self._look.at_chat(self._processor, self.image_token, text, parts)
        if lossy_visual_tokens is not None:
            prepared = [self.compress(one, lossy_visual_tokens) for one in prepared]
        pieces = text.split(self.image_token)
        expanded = "".join(one + part.text for one, part in zip(pieces, prepared)) + pieces[-1]
        return expanded, tuple(part.picture for part in prepared)

    def without_written_placeholders(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Messages in which a placeholder that the model or a tool wrote is text; PictureInputError for a user's."""
        names = {
            self._tokenizer.convert_ids_to_tokens(self.family.image_token_id) if self._tokenizer is not None else None
        }
        names.add(getattr(self._processor, "image_token", None))
        return escaped(messages, [name for name in names if isinstance(name, str)])

    def template(self, messages: list[dict[str, Any]], **template_options: Any) -> str:
        """The prompt text as the chat template writes it, with one ``image_token`` for each picture."""
        source = self._processor if getattr(self._processor, "chat_template", None) else self._tokenizer
        return render(source, [_as_parts(message) for message in messages], **template_options)

    @property
    def image_token(self) -> str:
        """What stands for a picture in the template's text."""
        if self._processor is None:
            raise PictureError("pictures need the model's processor: build the engine with Engine(model, processor)")
        return str(self._processor.image_token)

    @property
    def resizes_several(self) -> bool:
        """Whether the processor makes another thing of one picture of several than of one alone."""
        return hasattr(self._processor, "vision_aspect_ratio")

    @property
    def settings(self) -> str:
        """What stands for the processor's settings as they are now."""
        return settings_digest(self._processor) if self._processor is not None else ""

    def look(self, text: str, pictures: Sequence[Picture]) -> None:
        """Compare our call over a prompt with the model's own; UnsupportedModel where they differ."""
        parts = [(one, self.prepare_once(one, len(pictures) == 1).picture) for one in pictures]
        self._look.at_chat(self._processor, self.image_token, text, parts)

    def starts_with_special(self, text: str) -> bool:
        """Whether the tokenizer should add its own first token: as processors do, unless the text has it."""
        bos = getattr(self._tokenizer, "bos_token", None)
        return self._processor is not None and not (bos and text.startswith(bos))

    def prepare(self, picture: Picture, alone: bool = True) -> Prepared:
        """Preprocess a picture, once: its pixels are kept for the first use only, its key and text for later.

        ``alone``: whether it is the only one of its prompt, which some families resize differently. The processor's
        settings are those of the call: a change of any makes a known picture a new one.
        """
        key = (picture.digest, alone, self.settings)
        known = self._prepared.get(key)
        if known is not None:
            self._prepared.move_to_end(key)
            again = dataclasses.replace(known.picture, load=lambda: self._arguments(picture, alone))
            return Prepared(again, known.text)
        fresh = self.prepare_once(picture, alone)
        # Remembered without pixels of any kind: those come with the picture each time it is asked for.
        self._prepared[key] = Prepared(dataclasses.replace(fresh.picture, load=gone), fresh.text)
        if len(self._prepared) > MAX_PREPARED:
            self._prepared.popitem(last=False)
        return fresh

    def prepare_once(self, picture: Picture, alone: bool = True) -> Prepared:
        """``prepare`` without remembering the picture: frames of a stream seldom come twice."""
        if self._processor is None:
            raise PictureError("pictures need the model's processor: build the engine with Engine(model, processor)")
        inputs, text = self._process(picture, alone)
        count = self._tokenizer.encode(text, add_special_tokens=False).count(self.family.image_token_id)
        return Prepared(self.family.whole(inputs, count), text)

    def compress(self, prepared: Prepared, keep: int | float) -> Prepared:
        """A picture of fewer visual tokens (V6). OptionError where they do not stand in one run."""
        count = prepared.picture.count or 0
        wanted = target_count(count, keep)
        token = self._tokenizer.convert_ids_to_tokens(self.family.image_token_id)
        if wanted == count:
            return prepared
        if token * count not in prepared.text:
            raise OptionError(
                "lossy_visual_tokens: this family spreads a picture over several runs of placeholders (tiles), which "
                "cannot be compressed as one; leave the option out"
            )
        picture = compressed(prepared.picture, wanted, self.encoder.encode)
        return Prepared(picture, prepared.text.replace(token * count, token * wanted))

    def _arguments(self, picture: Picture, alone: bool) -> Any:
        return self.family.whole(self._process(picture, alone)[0], 0).load()

    def _process(self, picture: Picture, alone: bool) -> tuple[dict[str, Any], str]:
        """The image processor's output for one picture, and its placeholder text."""
        processor = self._processor
        several = not alone and self.resizes_several
        images: Any = [picture.image] * (2 if several else 1)
        try:
            images = processor.prepare_inputs_layout(images=[images] if several else images)[0]
            options = processor._merge_kwargs(tokenizer_init_kwargs=processor.tokenizer.init_kwargs)["images_kwargs"]
            found, texts = processor._process_images(images, **{**options, "return_tensors": "pt"})
        except AttributeError as error:
            raise PictureError(
                f"{type(processor).__name__} is not built like transformers' processors of pictures ({error}); use "
                "engine.generate with what it returns"
            ) from error
        except (ValueError, TypeError, RuntimeError, ArithmeticError, LookupError) as error:
            raise PictureError(
                f"the model's processor refuses a picture of {picture.size[0]}×{picture.size[1]} pixels: {error}"
            ) from error
        inputs = self._of_model(dict(found), picture.image)
        if several:
            inputs = {
                name: value[:1] if name in PIXEL_ARGUMENTS and name != "batch_num_images" else value
                for name, value in inputs.items()
            }
        return inputs, texts[0]

    def _of_model(self, found: dict[str, Any], image: Any) -> dict[str, Any]:
        """Without what a processor makes for its text alone, such as how many tiles there are: its own call drops that
        too. What its call returns stays, and is refused where nothing reads it."""
        unread = set(found) - set(self.family.reads)
        dropped = unread - self._returned(image, found) if unread else unread
        return {name: value for name, value in found.items() if name not in dropped}

    def _returned(self, image: Any, found: Mapping[str, Any]) -> frozenset[str]:
        """Names of all that the processor returns for a prompt of one picture; those of ``found`` if it takes none."""
        if self.settings not in self._names:
            try:
                made = self._processor(text=[self.image_token], images=[image], return_tensors="pt")
            except PICTURE_FAULTS:
                return frozenset(found)
            self._names[self.settings] = frozenset(made)
        return self._names[self.settings]

    def absorb(
        self, conversation: Conversation, stats: DecodeStats, cancelled: Callable[[], bool] | None = None
    ) -> None:
        """Bring a conversation's pictures into its cache and count what that took."""
        if conversation.pictures and conversation.pictures[-1].end == len(conversation.tokens):
            raise PictureInputError("the prompt ends with a picture; put at least one token of text behind it")

        def check() -> None:
            if cancelled is not None and cancelled():
                raise Cancelled("the request was cancelled while its pictures were read")

        started, passes = time.perf_counter(), self.encoder.passes
        evicted = self.memory.counts.evictions
        restored = conversation.absorb(self, check)
        stats.reused_tokens += restored
        stats.vision_passes += self.encoder.passes - passes
        stats.prefill_seconds += time.perf_counter() - started
        if conversation.pictures:
            stats.notes["visual"] = {
                "pictures": len(conversation.pictures),
                "restored_tokens": restored,
                "stored_bytes": self.memory.bytes,
                "evictions": self.memory.counts.evictions - evicted,
            }
        stats.lossy += [name for name in conversation.lossy if name not in stats.lossy]

    # -- generate ---------------------------------------------------------------------------------------------

    def pictures_of_rows(
        self,
        rows: Sequence[Sequence[int]],
        inputs: Mapping[str, Any],
        position_ids: torch.Tensor | None,
        times: int = 1,
        call: Mapping[str, Any] | None = None,
    ) -> list[tuple[Placed, ...]]:
        """Pictures of each row of a batch, from ``generate``'s arguments.

        Pixel values go through our encoder; what transformers encoded itself is taken over. ``position_ids`` are
        those it prepared; ``times``: samples of each row (``num_return_sequences``); ``call``: ids and mask of the
        batch as the model's own call takes them. PictureInputError if pictures and placeholders do not fit.
        """
        if self.family.bidirectional and inputs.get("token_type_ids") is None:
            raise PictureInputError(f"{self.family.model_type} needs token_type_ids, as its processor returns them")
        features: dict[str, PictureFeatures] = {}
        pictures = self._pictures_in(rows, inputs, position_ids, features)
        if self.family.proven:
            for name in KIND_ARGUMENTS:
                if inputs.get(name) is not None:
                    check_kinds(name, inputs[name], rows, self.family.image_token_id)
        placed = self.place_rows(rows, pictures, times)
        if not self.family.proven and call is not None:
            once = sum(one.count or 0 for one in pictures) * times == self._slots(rows)
            step = times if once else 1
            own = {name: value[::step] for name, value in call.items()}
            if "mm_encoder_outputs" in inputs and self._target.rope_axes > 1 and position_ids is not None:
                own["position_ids"] = position_ids  # the grids that they came from are gone
            self._look.at_batch(rows[::step], placed[::step], {**own, **inputs})
        return [tuple(_with_features(one, features) for one in own) for own in placed]

    def _pictures_in(
        self,
        rows: Sequence[Sequence[int]],
        inputs: Mapping[str, Any],
        position_ids: torch.Tensor | None,
        features: dict[str, PictureFeatures],
    ) -> list[PictureInput]:
        """``features``: filled with what the tower gives here, by the pictures' keys."""
        outputs = dict(inputs.get("mm_encoder_outputs") or {})
        image = outputs.pop("image", None)
        refuse_unread(self.family.model_type, outputs)
        rest = {name: value for name, value in inputs.items() if name != "mm_encoder_outputs"}
        if image is None:
            return self._encoded(rest, features)
        # transformers ran the tower; what is still here was read by neither it nor us, but for positions and kinds.
        refuse_unread(self.family.model_type, {n: v for n, v in rest.items() if n not in self.family.reads})
        axes = self._target.rope_axes
        positions = position_ids[-axes:].cpu().numpy() if axes > 1 and position_ids is not None else None
        token, width = self.family.image_token_id, 0 if positions is None else positions.shape[-1]
        slots = [np.flatnonzero(np.asarray(ids) == token) + max(0, width - len(ids)) for ids in rows]
        try:
            return pictures_of_output(image, positions, slots)
        except PICTURE_FAULTS as error:
            raise PictureInputError(
                f"the features of the pictures do not fit the prompt's {sum(map(len, slots))} placeholders "
                f"({type(error).__name__}: {error})"
            ) from error

    def _encoded(self, inputs: Mapping[str, Any], features: dict[str, PictureFeatures]) -> list[PictureInput]:
        """Pictures among pixel arguments, encoded, so that their placeholders are known."""
        try:
            pictures = self.family.split(inputs)
        except (TypeError, RuntimeError, AttributeError, IndexError, KeyError) as error:
            raise PictureInputError(
                f"the pictures' inputs do not belong together ({type(error).__name__}: {error}); pass them as the "
                "processor returned them"
            ) from error
        for one in pictures:
            if one.key not in features:
                features[one.key] = self.encoder.encode(one)
        # With their pixels: a look in fp32 runs the tower anew.
        return [dataclasses.replace(one, count=len(features[one.key].rows)) for one in pictures]

    def _slots(self, rows: Sequence[Sequence[int]]) -> int:
        return sum(list(ids).count(self.family.image_token_id) for ids in rows)

    def place_rows(
        self, rows: Sequence[Sequence[int]], pictures: Sequence[PictureInput], times: int = 1
    ) -> list[tuple[Placed, ...]]:
        """Give the pictures of a batch to its rows, in order. PictureInputError if they do not fit.

        ``times``: each row comes that often (``num_return_sequences``), its pictures once or as often.
        """
        needed = sum(one.count or 0 for one in pictures)
        if times > 1 and needed and needed * times == self._slots(rows):
            return [one for one in self.place_rows(rows[::times], pictures) for _ in range(times)]
        token = self.family.image_token_id
        placed: list[tuple[Placed, ...]] = []
        at = 0
        for index, ids in enumerate(rows):
            slots = sum(1 for token_id in ids if token_id == token)
            first = at
            while at < len(pictures) and sum(one.count or 0 for one in pictures[first : at + 1]) <= slots:
                at += 1
            mine = pictures[first:] if index == len(rows) - 1 else pictures[first:at]
            placed.append(place(ids, token, mine))
        return placed


def _with_features(placed: Placed, features: Mapping[str, PictureFeatures]) -> Placed:
    """A picture whose features live as long as its call, whatever the budget of the visual memory."""
    known = features.get(placed.picture.key)
    if known is None:
        return placed
    return dataclasses.replace(placed, picture=dataclasses.replace(placed.picture, load=lambda: known))


def _as_parts(message: dict[str, Any]) -> dict[str, Any]:
    """Content as a list of parts, which the templates of vision-language models expect."""
    content = message.get("content")
    if not isinstance(content, str) or message.get("role") == "tool":
        return message
    return {**message, "content": [{"type": "text", "text": content}]}
