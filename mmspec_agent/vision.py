"""What an engine needs to see: processor, vision tower, visual memory (SYSTEM.md V5, C2)."""

from __future__ import annotations

import dataclasses
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import PreTrainedModel

from mmspec_agent.core.errors import Cancelled, OptionError, PictureError, PictureInputError, PromptError
from mmspec_agent.core.hf_target import HFTarget
from mmspec_agent.core.stats import DecodeStats
from mmspec_agent.core.visual.compress import compressed, target_count
from mmspec_agent.core.visual.families import KIND_ARGUMENTS, PIXEL_ARGUMENTS, Family, PictureInput
from mmspec_agent.core.visual.features import Encoder, pictures_of_output
from mmspec_agent.core.visual.memory import ByteStore
from mmspec_agent.core.visual.placing import Placed, place
from mmspec_agent.core.visual.proof import prove
from mmspec_agent.core.visual.segments import SegmentStore

from .conversation import gone
from .pictures import Picture, is_picture_part
from .processor_settings import settings_digest
from .prompts import render
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
        self._looked_at = family.proven
        self._tokenizer = tokenizer
        self._processor = processor
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
        text = self._text_with_places(messages, pictures, **template_options)
        if not pictures:
            return text, ()
        prepared = [self.prepare(picture, len(pictures) == 1) for picture in pictures]
        if lossy_visual_tokens is not None:
            prepared = [self.compress(one, lossy_visual_tokens) for one in prepared]
        pieces = text.split(self.image_token)
        expanded = "".join(one + part.text for one, part in zip(pieces, prepared)) + pieces[-1]
        return expanded, tuple(part.picture for part in prepared)

    def _text_with_places(
        self, messages: list[dict[str, Any]], pictures: Sequence[Picture], **template_options: Any
    ) -> str:
        """The template's text with a place for every picture. PictureInputError says which role shows none."""
        try:
            text = self.template(messages, **template_options)
        except PromptError:
            if not pictures:
                raise
            text = None
        found = text.count(self.image_token) if text is not None and pictures else 0
        if text is not None and found == len(pictures):
            return text
        for role in dict.fromkeys(m["role"] for m in messages if _pictures_in(m)):
            others = [_without_pictures(m) if m["role"] == role else m for m in messages]
            mine = sum(_pictures_in(m) for m in messages if m["role"] == role)
            try:
                rest = self.template(others, **template_options).count(self.image_token)
            except PromptError:
                continue
            if text is None or found - rest != mine:
                raise PictureInputError(
                    f"the model's chat template shows no pictures in messages of role {role!r}; hand the picture over "
                    "in a message of role 'user'"
                )
        if text is None:
            self.template(messages, **template_options)
        raise PictureInputError(
            f"the chat template leaves {found} places {self.image_token!r} for {len(pictures)} pictures; use a "
            "template that writes every picture once"
        )

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

    def starts_with_special(self, text: str) -> bool:
        """Whether the tokenizer should add its own first token: as processors do, unless the text has it."""
        bos = getattr(self._tokenizer, "bos_token", None)
        return self._processor is not None and not (bos and text.startswith(bos))

    def prepare(self, picture: Picture, alone: bool = True) -> Prepared:
        """Preprocess a picture, once: its pixels are kept for the first use only, its key and text for later.

        ``alone``: whether it is the only one of its prompt, which some families resize differently. The processor's
        settings are those of the call: a change of any makes a known picture a new one.
        """
        key = (picture.digest, alone, settings_digest(self._processor) if self._processor is not None else "")
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
        several = not alone and hasattr(processor, "vision_aspect_ratio")
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
        inputs = dict(found)
        if several:
            inputs = {
                name: value[:1] if name in PIXEL_ARGUMENTS and name != "batch_num_images" else value
                for name, value in inputs.items()
            }
        return inputs, texts[0]

    def absorb(
        self, conversation: Conversation, stats: DecodeStats, cancelled: Callable[[], bool] | None = None
    ) -> None:
        """Bring a conversation's pictures into its cache and count what that took."""
        if conversation.pictures and conversation.pictures[-1].end == len(conversation.tokens):
            raise PictureInputError("the prompt ends with a picture; put at least one token of text behind it")

        if conversation.pictures and not self._looked_at:
            prove(self._target, self.family, conversation.tokens, conversation.pictures, self.encoder.encode)
            self._looked_at = True

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
        self, rows: Sequence[Sequence[int]], inputs: Mapping[str, Any], position_ids: torch.Tensor | None
    ) -> list[tuple[Placed, ...]]:
        """Pictures of each row of a batch, from ``generate``'s arguments.

        Pixel values go through our encoder; what transformers encoded itself is taken over. ``position_ids`` are
        those it prepared. PictureInputError if pictures and placeholders do not fit.
        """
        if self.family.bidirectional and inputs.get("token_type_ids") is None:
            raise PictureInputError(f"{self.family.model_type} needs token_type_ids, as its processor returns them")
        outputs = inputs.get("mm_encoder_outputs") or {}
        rest = {name: value for name, value in inputs.items() if name != "mm_encoder_outputs"}
        if not outputs.get("image"):
            return self.place_rows(rows, self._split(rest))
        self._split(rest)
        positions = position_ids[-3:].cpu().numpy() if self.family.merge and position_ids is not None else None
        token, width = self.family.image_token_id, 0 if positions is None else positions.shape[-1]
        slots = [np.flatnonzero(np.asarray(ids) == token) + max(0, width - len(ids)) for ids in rows]
        return self.place_rows(rows, pictures_of_output(outputs["image"], positions, slots))

    def _split(self, inputs: Mapping[str, Any]) -> list[PictureInput]:
        """Pictures among pixel arguments, encoded, so that their placeholders are known; OptionError for others."""
        unknown = sorted(set(inputs) - {*PIXEL_ARGUMENTS, *KIND_ARGUMENTS})
        if unknown:
            self.family.split({name: inputs[name] for name in unknown})
            raise OptionError(f"generate got inputs it does not know: {', '.join(unknown)}")
        pictures = self.family.split(inputs)
        return [dataclasses.replace(one, count=len(self.encoder.encode(one).rows)) for one in pictures]

    def place_rows(self, rows: Sequence[Sequence[int]], pictures: Sequence[PictureInput]) -> list[tuple[Placed, ...]]:
        """Give the pictures of a batch to its rows, in order. PictureInputError if they do not fit.

        With ``num_return_sequences`` each row comes several times, its pictures once.
        """
        token = self.family.image_token_id
        total, needed = sum(list(ids).count(token) for ids in rows), sum(one.count or 0 for one in pictures)
        if needed and total > needed and total % needed == 0 and len(rows) % (total // needed) == 0:
            times = total // needed
            return [one for one in self.place_rows(rows[::times], pictures) for _ in range(times)]
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


@contextmanager
def rope_state_kept(model: PreTrainedModel) -> Iterator[None]:
    """Leave the M-RoPE offset that Qwen-VL models keep on themselves as it was; ``generate`` writes it."""
    core = getattr(model, "model", None)
    before = core.__dict__.get("rope_deltas") if core is not None else None
    try:
        yield
    finally:
        if core is not None and "rope_deltas" in core.__dict__:
            core.rope_deltas = before


def _pictures_in(message: Mapping[str, Any]) -> int:
    content = message.get("content")
    return sum(is_picture_part(part) for part in content) if isinstance(content, list) else 0


def _without_pictures(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": "".join(part["text"] for part in content if not is_picture_part(part)) or "-"}


def _as_parts(message: dict[str, Any]) -> dict[str, Any]:
    """Content as a list of parts, which the templates of vision-language models expect."""
    content = message.get("content")
    if not isinstance(content, str) or message.get("role") == "tool":
        return message
    return {**message, "content": [{"type": "text", "text": content}]}
