"""The engine: a Hugging Face model that answers sooner, with the same tokens (SYSTEM.md M1)."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from transformers import PreTrainedModel

from mmspec_agent.core.controller import Controller
from mmspec_agent.core.decode import Decoder, Request, StopRule
from mmspec_agent.core.drafters.base import Drafter
from mmspec_agent.core.drafters.ngram import NgramDrafter
from mmspec_agent.core.errors import (
    CopyError,
    EngineBusy,
    OptionError,
    PictureError,
    TokenizerMismatch,
    UnsupportedModel,
)
from mmspec_agent.core.hf_target import HFTarget
from mmspec_agent.core.memory import check_request, parse_bytes
from mmspec_agent.core.noise import ReplyNoise
from mmspec_agent.core.sampling import IdBuffer, Processing, Sampler
from mmspec_agent.core.stats import DecodeStats
from mmspec_agent.core.unwrapping import unwrapped
from mmspec_agent.core.visual.placing import Placed
from mmspec_agent.grammar.drafter import GrammarDrafter

from . import generation
from .batch import Batch, BatchRules, Row
from .chat import ChatRun
from .conversation import Conversation
from .drafter_choice import DEFAULT_DRAFTERS, given_drafters
from .guard import ModelGuard
from .options import ChatOptions
from .reply import Done, Event, Reply
from .session import Session
from .vision import Vision

if TYPE_CHECKING:
    from mmspec_agent.video.watch import Watch

DEFAULT_VISUAL_BUDGET = "256MiB"


class Engine:
    """Speculative decoding around a model of transformers, without changing the model.

    ``drafters``: sources of guesses, default the untrained n-gram drafter. ``memory_budget``: bytes (or
    "512MiB") for KV and scratch; a request that cannot fit is refused before it starts. ``busy``: what a second
    thread gets while a request runs, "wait" or "refuse" (EngineBusy). ``max_nodes`` bounds a draft tree.
    ``visual_budget``: bytes for features and KV segments of pictures that are kept over requests, 0 for none;
    ``lossy_int8_segments`` keeps the segments at half the bytes, not quite exactly.

    Errors: UnsupportedModel if the model's cache cannot be rolled back or its attention does not follow a tree
    mask, TokenizerMismatch if the tokenizer has ids without a row in the model.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Any = None,
        *,
        drafters: Sequence[Drafter] | str = DEFAULT_DRAFTERS,
        memory_budget: int | str | None = None,
        busy: str = "wait",
        max_nodes: int = 64,
        visual_budget: int | str = DEFAULT_VISUAL_BUDGET,
        lossy_int8_segments: bool = False,
    ) -> None:
        if busy not in ("wait", "refuse"):
            raise OptionError(f"busy={busy!r}: accepted is 'wait' or 'refuse'")
        if not isinstance(max_nodes, int) or max_nodes < 0:
            raise OptionError(f"max_nodes={max_nodes!r}: accepted is an integer >= 0 (0 turns drafting off)")
        chosen = given_drafters(drafters)
        self.model = unwrapped(model)
        self.processor = tokenizer if hasattr(tokenizer, "tokenizer") else None
        self.tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
        self.memory_budget = parse_bytes(memory_budget)
        self.target = HFTarget(self.model, self.memory_budget)
        self._check_tokenizer()
        self.guard = ModelGuard(self.target)
        self.controller = Controller(max_nodes=max_nodes, enabled=max_nodes > 0)
        self._visual = (parse_bytes(visual_budget, zero=True) or 0, lossy_int8_segments)
        self.drafters = self._default_drafters() if chosen is None else chosen
        self._busy = busy
        self._lock = threading.Lock()
        self._owner: int | None = None

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        dtype: torch.dtype | str = "auto",
        device_map: Any = None,
        drafters: Sequence[Drafter] | str = DEFAULT_DRAFTERS,
        memory_budget: int | str | None = None,
        busy: str = "wait",
        max_nodes: int = 64,
        visual_budget: int | str = DEFAULT_VISUAL_BUDGET,
        lossy_int8_segments: bool = False,
        **model_options: Any,
    ) -> Engine:
        """An engine around "reference-lm", any Hub id, or a local folder (ModelNotFound otherwise)."""
        from .models.resolve import load_model

        model, tokenizer = load_model(name, dtype=dtype, device_map=device_map, **model_options)
        return cls(
            model,
            tokenizer,
            drafters=drafters,
            memory_budget=memory_budget,
            busy=busy,
            max_nodes=max_nodes,
            visual_budget=visual_budget,
            lossy_int8_segments=lossy_int8_segments,
        )

    def _default_drafters(self) -> list[Drafter]:
        return [GrammarDrafter(), NgramDrafter(banned=self.target.placeholder_ids)]

    def _check_tokenizer(self) -> None:
        if self.tokenizer is not None and len(self.tokenizer) > self.target.vocab_size:
            raise TokenizerMismatch(
                f"the tokenizer has {len(self.tokenizer)} ids, the model {self.target.vocab_size} rows; load the "
                "tokenizer that belongs to the model, or resize the model's embeddings"
            )

    # -- requests ---------------------------------------------------------------------------------------------

    def chat(self, messages: Sequence[Any] | str, **options: Any) -> Reply:
        """Answer ``messages`` (a text, or messages in the OpenAI form); options as in ``ChatOptions``."""
        for event in self.stream(messages, **options):
            if isinstance(event, Done):
                return event.reply
        raise AssertionError("a stream ends with Done")

    def stream(self, messages: Sequence[Any] | str, **options: Any) -> Iterator[Event]:
        """``chat`` as events: text pieces, tool-call pieces, a StepPiece per forward, Done at the end."""
        chosen = ChatOptions.of(**options)
        return self.run(self._scratch, messages, chosen)

    def run(self, conversation: Conversation, messages: Sequence[Any] | str, options: ChatOptions) -> Iterator[Event]:
        """Events of one request on a conversation; holds the engine until it ends or is closed."""
        with self.exclusive():
            yield from ChatRun(self, conversation, messages, options).events()

    def session(self, system: str | None = None, **defaults: Any) -> Session:
        """A conversation that keeps its KV over turns; ``defaults`` are options of every turn."""
        return Session(self, system=system, **defaults)

    def watch(self, source: Any, question: str | Sequence[str] = "What is happening?", **options: Any) -> Watch:
        """Answers about a stream, frame by frame, as an iterator of ``WatchAnswer``.

        ``source``: camera index, URL, file, GIF, folder, iterator of pictures, or an opened source. ``question``: one
        or several, which share frames and KV. ``every``: seconds between answered frames. ``on_change``: True to
        yield changed answers only, or a callable that gets them. ``window``, ``keep_answers``, ``system``, … as in
        ``watching.SeeingOptions``; ``lossy_skip_s`` as in ``video.watch.WatchOptions``; ``gate``: ``GateOptions``;
        options of the source as in ``SourceOptions``, of answering as in ``ChatOptions``.
        """
        from .watching import open_watch

        return open_watch(self, source, question, **options)

    @property
    def allows_int8_segments(self) -> bool:
        """Whether rows that were stored in INT8 may be used (``lossy_int8_segments``)."""
        return self._visual[1]

    def resume(self, path: str | Path) -> Session:
        """A session saved by ``Session.save``; SessionError if it belongs to another model.

        Rows that INT8 segments made are left out, and computed anew, unless this engine has ``lossy_int8_segments``.
        """
        return Session.load(self, Path(path))

    @cached_property
    def _scratch(self) -> Conversation:
        """The conversation of requests without a session: the next one reuses what it shares with the last."""
        return self.open_conversation()

    def open_conversation(self) -> Conversation:
        """An empty conversation with drafters of its own."""
        return Conversation.open(self.target.open(), self.drafters)

    # -- pictures ---------------------------------------------------------------------------------------------

    @cached_property
    def vision(self) -> Vision:
        """What the engine sees with; PictureError or UnsupportedModel if its model takes no pictures."""
        budget, int8 = self._visual
        return Vision(self.target, self.tokenizer, self.processor, lambda: f"epoch {self.target.epoch}", budget, int8)

    @cached_property
    def vision_or_none(self) -> Vision | None:
        """``vision``, or None where pictures cannot be used."""
        try:
            return self.vision
        except (PictureError, UnsupportedModel):
            return None

    # -- transformers -----------------------------------------------------------------------------------------

    def generate(self, inputs: torch.Tensor | None = None, **options: Any) -> Any:
        """``model.generate`` of transformers through the engine: same arguments, same return values.

        ``seed`` (optional) fixes the noise of sampling. Refused by name: beams, contrastive search, guidance,
        a cache that already holds tokens, attentions and hidden states as outputs.
        """
        return generation.generate(self, inputs, options)

    @property
    def custom_generate(self) -> generation.CustomGenerate:
        """For existing code: ``model.generate(**inputs, custom_generate=engine.custom_generate)``."""
        return generation.CustomGenerate(self)

    def decode_batch(
        self,
        prompts: Sequence[list[int]],
        pictures: Sequence[tuple[Placed, ...]],
        ids: torch.Tensor,
        rules: BatchRules,
        max_new_tokens: int,
    ) -> Batch:
        """The rows of one ``generate`` call to their end, each on a conversation of its own."""
        total = sum(map(len, prompts))
        check_request(self.target, self.memory_budget, total, len(prompts) * max_new_tokens, self.controller.max_nodes)
        lengths = list(map(len, prompts))
        if self.target.length_rule is not None:
            self.target.length_rule.check(type(self.model).__name__, lengths, ids.shape[1], max_new_tokens)
        with self.exclusive():
            rows = [
                self._open_row(prompt, seen, max_new_tokens, max(lengths) - len(prompt))
                for prompt, seen in zip(prompts, pictures, strict=True)
            ]
            batch = Batch(rows, ids, rules, self.target.vocab_size)
            batch.decode(self.target.context_limit)
        self.last_stats = rows[-1].decoder.stats
        return batch

    def _open_row(self, ids: list[int], pictures: tuple[Placed, ...], max_new_tokens: int, ahead: int) -> Row:
        """A row of a batch after its first forward; the longest row is ``ahead`` tokens longer."""
        conversation = self.open_conversation()
        conversation.sequence.ahead = ahead
        conversation.reuse(ids, pictures)
        stats = DecodeStats(prompt_tokens=len(ids))
        if pictures:
            self.vision.absorb(conversation, stats)

        def open_decoder(stop: StopRule) -> Decoder:
            request = Request(
                conversation.tokens,
                Sampler(Processing(), ReplyNoise(0), IdBuffer(ids, self.target.device)),
                stop,
                max_new_tokens,
                placeholder_ids=self.target.placeholder_ids,
                vocab_size=self.target.vocab_size,
            )
            return Decoder(conversation.sequence, request, conversation.drafters, self.controller, stats)

        row = Row(open_decoder)
        row.start()
        if pictures:
            conversation.save_segments(self.vision)
        return row

    last_stats: DecodeStats | None = None
    """Statistics of the last row that ``generate`` decoded."""

    # -- one request at a time ---------------------------------------------------------------------------------

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the engine; a second thread waits or is refused, as ``busy`` says."""
        if self._owner == threading.get_ident():
            raise EngineBusy(
                "this thread already has a request open on the engine (a stream that was not read to its end?); "
                "read or close it first"
            )
        if not self._lock.acquire(blocking=self._busy == "wait"):
            raise EngineBusy("the engine serves another request; wait for it, or use busy='wait'")
        self._owner = threading.get_ident()
        try:
            self._look_at_model()
            yield
        finally:
            self._owner = None
            self._lock.release()

    def _look_at_model(self) -> None:
        """KV rows belong to the weights they were computed with: if the model changed, none is used again."""
        epoch = self.target.epoch
        try:
            self.guard.look()
        finally:
            if self.target.epoch != epoch:
                self._drop_stored()

    def check_model(self) -> None:
        """Notice now whether the model has changed since the last request; ModelError in training mode."""
        if self._owner != threading.get_ident():  # this thread's open request has looked already
            with self.exclusive():
                pass

    def forget(self) -> None:
        """Compute everything anew from here on: conversations, sessions and pictures keep no rows or features.

        Changes of the model are noticed before each request: weights, adapters, modules, hooks, configuration. This is
        for changes that cannot be seen: single elements written through ``parameter.data``, or plain attributes of
        modules.
        """
        self.target.forget()
        self._drop_stored()

    def _drop_stored(self) -> None:
        if "vision" in self.__dict__:
            self.vision.forget()

    def __reduce__(self) -> NoReturn:
        raise CopyError(
            "an Engine cannot be copied or pickled: it holds a lock and the KV rows of its model. Build another one "
            "with Engine(model, tokenizer); engines may share a model"
        )

    def close(self) -> None:
        """Free what the engine holds beside the model."""
        self.__dict__.pop("_scratch", None)
        if "vision" in self.__dict__:
            self.vision.memory.clear()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
