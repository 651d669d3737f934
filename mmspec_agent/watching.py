"""``engine.watch``: an engine that sees a stream and answers about it."""

from __future__ import annotations

import difflib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image
from transformers import GenerationConfig

from mmspec_agent.core.decode import OpenDrafter
from mmspec_agent.core.drafters.base import Drafter
from mmspec_agent.core.errors import ContextOverflow, FrameError, OptionError, PromptError
from mmspec_agent.core.visual.families import PictureInput
from mmspec_agent.core.visual.features import Encoder, PictureFeatures
from mmspec_agent.core.visual.memory import ByteStore
from mmspec_agent.core.visual.placing import Placed
from mmspec_agent.video.clock import Clock, RealClock, SimulatedClock
from mmspec_agent.video.drafter import PreviousAnswerDrafter
from mmspec_agent.video.frame import Frame
from mmspec_agent.video.gate import GateDecision, GateOptions
from mmspec_agent.video.source import FrameSource, open_source, source_options
from mmspec_agent.video.source_options import SourceOptions
from mmspec_agent.video.tail import TailDrafter
from mmspec_agent.video.watch import (
    DEFAULT_GATE,
    OnChange,
    Said,
    Seen,
    Watch,
    WatchAnswer,
    WatchOptions,
    checked_questions,
)
from mmspec_agent.video.window import FrameWindow

from .chat import ChatRun
from .conversation import Conversation
from .frame_look import FrameLook
from .frame_prompt import FramePrompt
from .option_table import TABLE
from .options import ALIASES, ChatOptions
from .pictures import Picture
from .prompts import Prompt
from .reply import Done, Reply
from .structured import form_of
from .text_checks import check_strings
from .vision import Prepared

if TYPE_CHECKING:
    from .engine import Engine

MAX_NEW_TOKENS = 128
SEVERAL_PICTURES = 8
"""Default window of families trained on several pictures at once; models of one picture get a window of one."""

_ONE_PICTURE = frozenset({"llava", "llava_next"})
_SPARE_ROWS = 64
_OF_OPENING = {"on_event", "live"}
_NOT_HERE = {
    "tools": "a watch answers in text or in a response_format",
    "tool_choice": "a watch answers in text or in a response_format",
    "continue_final_message": "each answer of a watch is a message of its own",
    "chat_template_kwargs": "a watch writes its prompt once, without further options of the template",
    "lossy_visual_tokens": "make its frames smaller with max_frame_tokens, or take fewer with fps",
}

__all__ = ["Watch", "WatchAnswer", "open_watch"]


@dataclass(frozen=True)
class SeeingOptions:
    """How frames are kept.

    ``window``: frames in the context (None: 1 for models made for one picture, up to 8 for others; "auto" takes as
    many as the model's range holds, 64 at most). ``keep_answers``: questions and answers stay in the context with
    their frame. ``system``: a system prompt. ``time_stamps``: write each frame's time before it (None: where the
    family was trained so). ``max_frame_tokens``: a frame of more tokens is made smaller before the vision tower.
    """

    window: int | str | None = None
    keep_answers: bool = False
    system: str | None = None
    time_stamps: bool | None = None
    max_frame_tokens: int | None = None

    def __post_init__(self) -> None:
        window, tokens = self.window, self.max_frame_tokens
        if not (window in (None, "auto") or (isinstance(window, int) and window > 0)):
            raise OptionError(f'window={window!r} was given; accepted are a number of frames above 0, "auto" and None')
        if not (tokens is None or (isinstance(tokens, int) and tokens > 0)):
            raise OptionError(f"max_frame_tokens={tokens!r} was given; accepted are numbers above 0, and None")


class WatchSettings(NamedTuple):
    """All options of a watch, checked: the loop's, those of seeing, of the source, and of answering."""

    watching: WatchOptions
    seeing: SeeingOptions
    of_source: dict[str, Any]
    chat: ChatOptions


def watch_settings(
    *,
    every: float | None = None,
    on_change: OnChange = None,
    lossy_skip_s: float | None = None,
    gate: GateOptions | Mapping[str, Any] | None = None,
    **options: Any,
) -> WatchSettings:
    """Check the options of ``Engine.watch``, for which no model is needed."""
    seeing, of_source, chat = _split(options)
    source_options(**{name: value for name, value in of_source.items() if name not in _OF_OPENING})
    return WatchSettings(WatchOptions(every, on_change, lossy_skip_s, _gate_options(gate)), seeing, of_source, chat)


def open_watch(
    engine: Engine, source: Any, question: str | Sequence[str], *, clock: Clock | None = None, **options: Any
) -> Watch:
    """See ``Engine.watch``. Whatever can be wrong is found here, before the first frame."""
    check_strings(question, "question", PromptError)
    clock = clock or RealClock()
    settings = watch_settings(**options)
    questions = checked_questions(question)
    viewer = FrameViewer(engine, settings.chat, settings.seeing, clock)
    opened = _opened(source, clock, settings.of_source)
    try:
        return Watch(opened, viewer, questions, settings.watching, clock)
    except BaseException:
        opened.close()
        raise


def _opened(source: Any, clock: Clock, of_source: dict[str, Any]) -> FrameSource:
    if hasattr(source, "latest") and hasattr(source, "take_events"):
        if of_source:
            raise OptionError(
                f"{next(iter(of_source))!r} was given with a source that is open already; give it to open_source"
            )
        opened: FrameSource = source
        return opened
    return open_source(source, clock=clock, **of_source)


def _gate_options(gate: GateOptions | Mapping[str, Any] | None) -> GateOptions:
    if gate is None or isinstance(gate, GateOptions):
        return gate or DEFAULT_GATE
    known = [f.name for f in fields(GateOptions)]
    for name in gate:
        if name not in known:
            raise OptionError(f"unknown gate option {name!r}; accepted are {', '.join(known)}")
    return replace(DEFAULT_GATE, **gate)


def _split(options: dict[str, Any]) -> tuple[SeeingOptions, dict[str, Any], ChatOptions]:
    """Options of seeing, of the source, and of answering; an unknown one is an OptionError with the nearest known."""
    seeing = {f.name for f in fields(SeeingOptions)}
    of_source = {f.name for f in fields(SourceOptions)} | _OF_OPENING
    own = {f.name for f in fields(WatchOptions)} | {"clock"}
    chat = {f.name for f in fields(ChatOptions)} | set(GenerationConfig().to_dict()) | set(ALIASES) | set(TABLE)
    for name in options:
        if name not in seeing | of_source | chat:
            close = difflib.get_close_matches(name, sorted(seeing | of_source | chat | own), n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise OptionError(
                f"unknown option {name!r}{hint} Accepted are the options of Engine.watch, of sources (SourceOptions) "
                "and of answers (ChatOptions)."
            )
    for name, instead in _NOT_HERE.items():
        if options.get(name):
            raise OptionError(f"{name!r} was given to watch; {instead}")
    answering = {k: v for k, v in options.items() if k not in seeing | of_source}
    if not any(ALIASES.get(name, name) == "max_new_tokens" for name in answering):
        answering["max_new_tokens"] = MAX_NEW_TOKENS
    return (
        SeeingOptions(**{k: v for k, v in options.items() if k in seeing}),
        {k: v for k, v in options.items() if k in of_source},
        ChatOptions.of(**answering),
    )


class FrameRun(ChatRun):
    """One question behind the frames of a window: a chat request whose prompt is cached but for its end."""

    def __init__(
        self, engine: Engine, conversation: Conversation, ids: list[int], question: str, options: ChatOptions
    ) -> None:
        self._ids = ids
        super().__init__(engine, conversation, question, options)

    def _render(self, messages: Sequence[Any] | str) -> Prompt:
        shown = [{"role": "user", "content": str(messages)}]
        form = form_of(self._engine.tokenizer, sorted(self._eos_ids), shown, self._options)
        return Prompt("", form.messages, form.plan, form.reader)

    def _encode(self) -> tuple[list[int], tuple[Placed, ...]]:
        return self._ids, ()

    def _see(self, stats: Any) -> None:
        """The frames are in the cache."""

    def _keep_segments(self) -> None:
        """A stream's frames do not come again: nothing is stored for other requests."""


class FrameViewer:
    """An engine's eyes on one stream: its own KV rows, its own features, drafts from its own answers."""

    def __init__(self, engine: Engine, options: ChatOptions, seeing: SeeingOptions, clock: Clock) -> None:
        self._engine = engine
        self._options = options
        self._seeing = seeing
        self._clock = clock
        self._vision = engine.vision
        self._prompt = FramePrompt(self._vision, engine.tokenizer, seeing.system)
        self._look = FrameLook(self._vision, self._prompt, self._frames() > 1, seeing.keep_answers)
        # One frame's features: a picture that comes again unchanged, to the bit, is not encoded again.
        self._memory = ByteStore(1 << 62)
        self._encoder = Encoder(engine.model, self._vision.family, self._memory)
        self._previous = PreviousAnswerDrafter()
        self._tails = [TailDrafter(drafter) for drafter in engine.drafters]
        drafters: list[Drafter] = [self._previous, *self._tails] if engine.drafters else []
        self._open_drafters = [OpenDrafter(drafter, drafter.open()) for drafter in drafters]
        self._window: FrameWindow | None = None
        self._scale = 1.0
        stamps = seeing.time_stamps
        self._stamps = self._vision.family.model_type == "qwen3_vl" if stamps is None else stamps

    @property
    def window(self) -> FrameWindow | None:
        """The frames held; None before the first."""
        return self._window

    def see(self, frame: Frame) -> Seen:
        """Encode and prefill a frame; it waits for nobody's question."""
        started, passes = time.perf_counter(), self._encoder.passes
        with self._engine.exclusive():
            window = self._append(frame)
        seconds = time.perf_counter() - started
        self._charge(seconds)
        return Seen(len(window.segments[-1].ids), self._encoder.passes - passes, seconds, window.bytes)

    def ask(self, question: str, frame: Frame, decision: GateDecision) -> Said:
        """Answer a question about the frames in the window; only its own text is prefilled."""
        assert self._window is not None, "a frame is seen before it is asked about"
        started = time.perf_counter()
        with self._engine.exclusive():
            if self._current() is None:  # the model changed after the frame was seen
                self._append(frame)
            reply = self._answer(self._window, question, decision, frame)
        seconds = time.perf_counter() - started
        self._charge(seconds)
        return Said(reply.text, tuple(reply.token_ids), reply.stats, seconds, reply.tokens, reply.parsed)

    def _append(self, frame: Frame) -> FrameWindow:
        """Prefill a frame; a window of a shape that is new to an uncovered family is compared with the model's own."""
        stamp = f"<{frame.time_s:.1f} seconds>" if self._stamps else ""
        image, prepared, ids = self._prepare(frame, stamp)
        window = self._current() or self._open(ids, prepared.picture)
        window.append(ids, prepared.picture, frame.time_s)
        self._look.at(image, stamp, window.held)
        return window

    def _current(self) -> FrameWindow | None:
        """The window, unless its rows belong to weights that the model no longer has: frames are not kept as pixels,
        so a stream then goes on with the frames to come."""
        if self._window is not None and self._window.sequence.is_void:
            self._window = None
            self._memory.clear()
        return self._window

    def close(self) -> None:
        """Free the KV rows."""
        self._window = None
        self._memory.clear()

    def _answer(self, window: FrameWindow, question: str, decision: GateDecision, frame: Frame) -> Reply:
        ids = self._prompt.question_ids(question)
        window.ready(len(ids) + self._options.max_new_tokens)
        for tail in self._tails:
            tail.base = window.length
        self._previous.set_offer(decision, question)
        conversation = Conversation(window.sequence, self._open_drafters, list(window.tokens))
        run = FrameRun(self._engine, conversation, window.ask(ids), question, self._options)
        reply = next(event.reply for event in run.events() if isinstance(event, Done))
        self._previous.remember(reply.token_ids, question)
        if self._seeing.keep_answers:
            window.keep(conversation.tokens, self._prompt.closing_ids(reply.token_ids), frame.time_s)
        else:
            window.crop()
        return reply

    def _prepare(self, frame: Frame, stamp: str) -> tuple[Image.Image, Prepared, list[int]]:
        """The picture, also as the model takes it, and its segment's ids, within ``max_frame_tokens``."""
        limit = self._seeing.max_frame_tokens
        for _ in range(6):
            image = Image.fromarray(frame.rgb)
            if self._scale < 1.0:
                image = image.resize([max(28, round(side * self._scale)) for side in image.size])
            prepared = self._vision.prepare_once(Picture(image, ""), alone=self._frames() == 1)
            ids = self._prompt.frame_ids(prepared.text, stamp)
            if limit is None or len(ids) <= limit:
                return image, prepared, ids
            self._scale *= 0.95 * (limit / len(ids)) ** 0.5
        raise FrameError(
            f"a frame of {frame.size[0]}×{frame.size[1]} pixels takes {len(ids)} tokens however small it is made, "
            f"max_frame_tokens is {limit}; this model gives every picture as many, so raise the limit"
        )

    def _open(self, ids: Sequence[int], picture: PictureInput) -> FrameWindow:
        """The window, once the first frame tells how many tokens a frame takes."""
        reserve = self._options.max_new_tokens + _SPARE_ROWS
        prefix = self._prompt.prefix_ids
        frames = self._frames()
        target = self._engine.target
        rows = len(prefix) + frames * len(ids) + reserve + self._engine.controller.max_nodes
        window = FrameWindow(
            target.open(min(rows, 1 << 16)), self._vision.family, self._encode, prefix, frames, reserve
        )
        fits = window.fits(ids, picture)
        if self._seeing.window in (None, "auto"):
            window.frames = max(1, min(frames, fits))
        elif frames > fits:
            raise ContextOverflow(
                f"window={frames} frames of {len(ids)} tokens do not fit the model's range of "
                f"{target.context_limit} beside prompt and answer; {fits} do. Lower window or max_new_tokens"
            )
        window.check_budget(len(ids) + (reserve if self._seeing.keep_answers else 0))
        self._window = window
        return window

    def _frames(self) -> int:
        asked = self._seeing.window
        if isinstance(asked, int):
            return asked
        if asked == "auto":
            return 64
        return 1 if self._vision.family.model_type in _ONE_PICTURE else SEVERAL_PICTURES

    def _encode(self, picture: PictureInput) -> PictureFeatures:
        features = self._encoder.encode(picture)
        self._memory.budget = features.bytes
        return features

    def _charge(self, seconds: float) -> None:
        """On a simulated clock work takes the time it really took."""
        if isinstance(self._clock, SimulatedClock):
            self._clock.advance(seconds)
