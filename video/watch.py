"""The loop over a stream: newest frame, gate, see, ask, yield.

One frame is in hand at a time and nothing is queued, so lag is bounded by one answer: while the model is busy, a live
source replaces its newest frame. What sees and answers is a ``Viewer``; the loop knows neither models nor tokenizers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from mmspec_agent.core.errors import OptionError, SourceEnded
from mmspec_agent.core.stats import DecodeStats

from .clock import Clock
from .frame import Frame
from .gate import Gate, GateDecision, GateOptions
from .source_base import FrameSource
from .source_options import SourceEvent

_POLL_S = 0.5

DEFAULT_GATE = GateOptions(calibrate_s=1.0)
"""A camera that stands still for a second shows what its noise alone does; a hit is an offer only, never an answer."""


class Seen(NamedTuple):
    """What taking in a frame cost: rows prefilled, passes of the vision tower, seconds, bytes of KV held afterwards."""

    tokens: int
    vision_passes: int
    seconds: float
    kv_bytes: int = 0


class Said(NamedTuple):
    """An answer of the viewer; ``seconds`` are its own, the frame's apart. ``tokens`` say who paid for each."""

    text: str
    token_ids: tuple[int, ...]
    stats: DecodeStats
    seconds: float
    tokens: tuple[Any, ...] = ()
    parsed: Any = None


class Viewer(Protocol):
    """What sees frames and answers questions about them."""

    def see(self, frame: Frame) -> Seen:
        """Encode and prefill a frame."""
        ...

    def ask(self, question: str, frame: Frame, decision: GateDecision) -> Said:
        """Answer about the frames seen so far; the gate's decision says what may be drafted."""
        ...

    def close(self) -> None:
        """Free what is held."""
        ...


@dataclass(frozen=True)
class WatchAnswer:
    """One answer about one frame.

    ``time_s``: the frame's time stamp in its source. ``lag_s``: from the frame's arrival to the finished answer.
    ``changed``: the text differs from the answer to the same question before. ``seen``: what the frame cost, zero
    for a second question on it. ``seconds``: the answer's own. ``skipped``: the last answer was repeated unseen, which
    is lossy and was asked for (``lossy_skip_s``). ``events``: what happened to the source since the last answer.
    """

    question: str
    text: str
    time_s: float
    frame_index: int
    lag_s: float
    decision: GateDecision
    stats: DecodeStats
    changed: bool
    seen: Seen
    seconds: float
    token_ids: tuple[int, ...] = ()
    tokens: tuple[Any, ...] = field(default=(), repr=False)
    parsed: Any = None
    skipped: bool = False
    events: tuple[SourceEvent, ...] = ()
    frame: Frame | None = field(default=None, repr=False, compare=False)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: everything but the picture."""
        decision = {name: _number(value) for name, value in vars(self.decision).items()}
        return {
            "question": self.question,
            "text": self.text,
            "time_s": round(self.time_s, 4),
            "frame": self.frame_index,
            "lag_s": round(self.lag_s, 4),
            "seconds": round(self.seconds, 4),
            "changed": self.changed,
            "skipped": self.skipped,
            "gate": decision,
            "seen": self.seen._asdict(),
            "stats": self.stats.as_dict(),
            "events": [{"kind": e.kind, "text": e.text} for e in self.events],
        }


def _number(value: Any) -> Any:
    """NaN is not JSON."""
    if isinstance(value, float):
        return None if value != value else round(value, 4)
    return value


OnChange = Callable[[WatchAnswer], None] | bool | None


@dataclass(frozen=True)
class WatchOptions:
    """How a stream is watched.

    ``every``: seconds of stream from one answered frame to the next (None: every frame taken). ``on_change``: yield
    an answer only when its text changed; a callable is called with it as well. Every frame is still looked at and
    answered, so nothing is missed. ``lossy_skip_s``: frames in which nothing at all seems to have changed are left
    out for up to that many seconds and the last answer is repeated: not exact, and shown in ``stats.lossy``.
    """

    every: float | None = None
    on_change: OnChange = None
    lossy_skip_s: float | None = None
    gate: GateOptions = DEFAULT_GATE

    def __post_init__(self) -> None:
        for name in ("every", "lossy_skip_s"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, (int, float)) and value > 0):
                raise OptionError(f"{name}={value!r} was given; accepted are seconds above 0, and None")
        if not (self.on_change is None or isinstance(self.on_change, bool) or callable(self.on_change)):
            raise OptionError(f"on_change={self.on_change!r} was given; accepted are True, False and a callable")


def checked_questions(questions: Sequence[str] | str) -> tuple[str, ...]:
    """The questions as a tuple; ``OptionError`` for an empty one, and for one given twice."""
    wanted = (questions,) if isinstance(questions, str) else tuple(questions)
    for question in wanted:
        if not isinstance(question, str) or not question.strip():
            raise OptionError(f"question {question!r}: accepted are texts that are not empty")
    if len(set(wanted)) != len(wanted):
        raise OptionError(f"a question was given twice: {', '.join(map(repr, wanted))}; ask each once")
    return wanted


@dataclass
class WatchCounts:
    """What a watch did so far."""

    frames: int = 0
    answers: int = 0
    yielded: int = 0
    skipped: int = 0


class Watch:
    """Answers about a stream, as an iterator; close it, or use it in a ``with`` block, to free the source.

    ``questions`` may be changed while it runs, from any thread: the next frame is asked the new ones.
    """

    def __init__(
        self, source: FrameSource, viewer: Viewer, questions: Sequence[str], options: WatchOptions, clock: Clock
    ) -> None:
        self.source = source
        self.counts = WatchCounts()
        self._viewer = viewer
        self._options = options
        self._clock = clock
        self._gate = Gate(options.gate)
        self._lock = threading.RLock()
        self._last: dict[str, Said] = {}
        self._current: tuple[Frame, GateDecision] | None = None
        self._answered_at: float | None = None
        self._closed = False
        self._questions: tuple[str, ...] = ()
        self.questions = questions
        self._answers = self._run()

    @property
    def questions(self) -> tuple[str, ...]:
        """What every answered frame is asked, in order."""
        return self._questions

    @questions.setter
    def questions(self, questions: Sequence[str] | str) -> None:
        self._questions = checked_questions(questions)

    def ask(self, question: str) -> WatchAnswer:
        """Answer a question about the frames in hand, at once: only its own text is prefilled."""
        with self._lock:
            if self._closed:
                raise SourceEnded("the watch is closed, so nothing more can be asked; open a new one")
            if self._current is None:
                raise OptionError("no frame has been seen yet; read an answer of the watch first")
            frame, decision = self._current
            return self._answer(question, frame, decision, Seen(0, 0, 0.0))

    def close(self) -> None:
        """End the source's threads and free the KV rows; harmless when repeated."""
        self._closed = True
        self.source.close()
        with self._lock:
            self._viewer.close()
            self._current = None

    def __iter__(self) -> Iterator[WatchAnswer]:
        return self

    def __next__(self) -> WatchAnswer:
        return next(self._answers)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.close()

    # -- the loop ---------------------------------------------------------------------------------------------

    def _run(self) -> Iterator[WatchAnswer]:
        try:
            while (frame := self._next_frame()) is not None:
                self.counts.frames += 1
                yield from self._on_frame(frame)
        finally:
            self.close()

    def _next_frame(self) -> Frame | None:
        """The newest frame (live) or the next one; None at the end, or once closed."""
        while not self._closed:
            try:
                frame = self.source.latest(_POLL_S)
            except SourceEnded:
                return None
            if frame is not None:
                return frame
        return None

    def _on_frame(self, frame: Frame) -> Iterator[WatchAnswer]:
        decision = self._gate.decide(frame)
        due = self._is_due(frame)
        if self._may_skip(decision):
            self.counts.skipped += 1
            if due:
                self._answered_at = frame.time_s
                yield from self._yielded(self._repeated(question, frame, decision) for question in self.questions)
            return
        with self._lock:
            seen = self._viewer.see(frame)
            self._current = (frame, decision)
        if due:
            self._answered_at = frame.time_s
            yield from self._yielded(self._asked(frame, decision, seen))
            self._gate.answered(frame)

    def _asked(self, frame: Frame, decision: GateDecision, seen: Seen) -> Iterator[WatchAnswer]:
        """Every question about one frame; one that was withdrawn meanwhile is left out."""
        for question in self.questions:
            if self._closed or question not in self.questions:
                continue
            with self._lock:
                answer = self._answer(question, frame, decision, seen)
            seen = seen._replace(tokens=0, vision_passes=0, seconds=0.0)
            # What was remembered before a gap is forgotten once; this frame's own answers are not.
            decision = replace(decision, crosses_gap=False)
            yield answer

    def _yielded(self, answers: Iterator[WatchAnswer]) -> Iterator[WatchAnswer]:
        on_change = self._options.on_change
        for answer in answers:
            self.counts.answers += 1
            if on_change and not answer.changed:
                continue
            if callable(on_change):
                on_change(answer)
            self.counts.yielded += 1
            yield answer

    def _is_due(self, frame: Frame) -> bool:
        every, last = self._options.every, self._answered_at
        return every is None or last is None or frame.discontinuity or frame.time_s - last >= every - 1e-6

    def _may_skip(self, decision: GateDecision) -> bool:
        limit = self._options.lossy_skip_s
        known = bool(self.questions) and all(question in self._last for question in self.questions)
        return limit is not None and decision.skippable and decision.age_s <= limit and known

    def _repeated(self, question: str, frame: Frame, decision: GateDecision) -> WatchAnswer:
        last = self._last[question]
        stats = DecodeStats(lossy=[f"lossy_skip_s={self._options.lossy_skip_s:g}"])
        said = last._replace(stats=stats, seconds=0.0)
        return self._made(question, frame, decision, said, Seen(0, 0, 0.0), changed=False, skipped=True)

    def _answer(self, question: str, frame: Frame, decision: GateDecision, seen: Seen) -> WatchAnswer:
        said = self._viewer.ask(question, frame, decision)
        before = self._last.get(question)
        self._last[question] = said
        while len(self._last) > 4 * max(4, len(self.questions)):
            self._last.pop(next(iter(self._last)))
        changed = before is None or before.text != said.text
        return self._made(question, frame, decision, said, seen, changed)

    def _made(
        self,
        question: str,
        frame: Frame,
        decision: GateDecision,
        said: Said,
        seen: Seen,
        changed: bool,
        skipped: bool = False,
    ) -> WatchAnswer:
        return WatchAnswer(
            question,
            said.text,
            frame.time_s,
            frame.index,
            self._clock.now() - frame.arrived_s,
            decision,
            said.stats,
            changed,
            seen,
            said.seconds,
            said.token_ids,
            said.tokens,
            said.parsed,
            skipped,
            tuple(self.source.take_events()),
            frame,
        )
