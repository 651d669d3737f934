"""The loop alone, with a scripted viewer and simulated time: lag, order, gate, questions, faults."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from mmspec_agent.core.errors import OptionError, SourceEnded, SourceFrozen
from mmspec_agent.core.stats import DecodeStats
from mmspec_agent.video.clock import Clock, RealClock, SimulatedClock
from mmspec_agent.video.frame import Frame
from mmspec_agent.video.gate import GateDecision, GateOptions
from mmspec_agent.video.source import open_source
from mmspec_agent.video.watch import Said, Seen, Watch, WatchAnswer, WatchOptions

ASK = "what?"


class Scripted:
    """Takes ``see_s`` and ``ask_s`` of the clock; says the mean grey of the frame."""

    def __init__(self, clock: Clock, see_s: float = 0.0, ask_s: float = 0.0) -> None:
        self.clock, self.see_s, self.ask_s = clock, see_s, ask_s
        self.log: list[tuple[str, Any]] = []
        self.closed = 0
        self.grey = 0.0

    def see(self, frame: Frame) -> Seen:
        self.clock.sleep(self.see_s)
        self.log.append(("see", frame.index))
        self.grey = float(frame.rgb.mean())
        return Seen(4, 1, self.see_s)

    def ask(self, question: str, frame: Frame, decision: GateDecision) -> Said:
        self.clock.sleep(self.ask_s)
        self.log.append(("ask", question))
        return Said(f"{question} {self.grey:.0f}", (1, 2), DecodeStats(), self.ask_s)

    def close(self) -> None:
        self.closed += 1


def grey(level: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.full((48, 64, 3), level, np.uint8)


def stream(seconds: float, fps: float) -> Iterator[np.ndarray[Any, np.dtype[np.uint8]]]:
    pictures = [grey(level) for level in range(0, 256, 5)]
    for index in range(int(seconds * fps)):
        yield pictures[index // 10 % len(pictures)]


@pytest.mark.parametrize("busy", [0.31, 0.9, 2.7])
def test_lag_stays_below_one_answer_for_ten_minutes(busy: float) -> None:
    """Cases fastrtc-backpressure and aiortc-delay: 25 fps, a slower model, ten virtual minutes, nothing queued."""
    clock = SimulatedClock()
    source = open_source(stream(600, 25), live=True, clock=clock, rate=25.0)
    watch = Watch(source, Scripted(clock, busy / 3, busy * 2 / 3), [ASK], WatchOptions(), clock)
    lags = [answer.lag_s for answer in watch][:-1]
    assert max(lags) <= busy + 0.2
    assert max(lags) <= busy + 1 / 25 + 1e-6
    tenth = len(lags) // 10
    assert np.mean(lags[-tenth:]) == pytest.approx(np.mean(lags[:tenth]), abs=0.02)
    assert len(lags) == pytest.approx(600 / busy, rel=0.07)
    stats = source.stats
    assert stats.grabbed == stats.delivered + stats.dropped


def test_frames_of_a_live_source_with_threads_and_real_time_do_not_pile_up() -> None:
    clock = RealClock()
    source = open_source(stream(3, 30), live=True, rate=30.0)
    grabbed: list[int] = []

    class Counting(Scripted):
        def ask(self, question: str, frame: Frame, decision: GateDecision) -> Said:
            said = super().ask(question, frame, decision)
            grabbed.append(source.stats.grabbed)
            return said

    with Watch(source, Counting(clock, 0.05, 0.15), [ASK], WatchOptions(), clock) as watch:
        answers = list(watch)
    seen = [a.frame_index for a in answers]
    assert seen == sorted(set(seen))
    # What had been grabbed when one answer was ready is the least that the next answer looks at.
    assert all(later >= newest - 1 for later, newest in zip(seen[1:], grabbed, strict=False))
    assert source.stats.dropped > 0


def watched(pictures: Any, *questions: str, **options: Any) -> tuple[list[WatchAnswer], Scripted]:
    clock = SimulatedClock()
    viewer = Scripted(clock)
    timed = [(index * 0.5, picture) for index, picture in enumerate(pictures)]
    watch = Watch(open_source(timed), viewer, questions or [ASK], WatchOptions(**options), clock)
    return list(watch), viewer


def test_a_frame_is_seen_once_and_asked_every_question() -> None:
    answers, viewer = watched([grey(10), grey(20)], "a?", "b?")
    assert viewer.log == [("see", 0), ("ask", "a?"), ("ask", "b?"), ("see", 1), ("ask", "a?"), ("ask", "b?")]
    assert [a.seen.tokens for a in answers] == [4, 0, 4, 0]
    assert viewer.closed >= 1


def test_frames_between_answers_are_seen_too() -> None:
    """A question asked later finds them in the context and waits for its own text only."""
    answers, viewer = watched([grey(10)] * 6, every=1.5)
    assert [a.time_s for a in answers] == [0.0, 1.5]
    assert [entry for entry in viewer.log if entry[0] == "see"] == [("see", i) for i in range(6)]


def test_changes_are_told_once() -> None:
    heard: list[str] = []
    answers, viewer = watched([grey(10)] * 3 + [grey(90)] * 3, on_change=lambda a: heard.append(a.text))
    assert [a.text for a in answers] == heard == ["what? 10", "what? 90"]
    assert sum(kind == "ask" for kind, _ in viewer.log) == 6


def test_the_anchor_is_the_last_answered_frame() -> None:
    """Case drift-anchor: steps too small to see one by one add up against what was last answered."""
    rng = np.random.default_rng(0)
    one, two = (rng.integers(0, 256, (90, 160, 3)).astype(np.float32) for _ in range(2))
    fade = [(one * (1 - k / 60) + two * k / 60).astype(np.uint8) for k in range(60)]
    answers, _ = watched(fade, every=10.0)
    assert [a.decision.hit for a in answers] == [False] * len(answers)
    close, _ = watched(fade)
    assert sum(a.decision.hit for a in close) > 40


def test_what_is_skipped_is_repeated_and_marked() -> None:
    answers, viewer = watched([grey(10)] * 5, lossy_skip_s=1.0)
    assert [a.skipped for a in answers] == [False, True, True, False, True]
    assert [bool(a.stats.lossy) for a in answers] == [a.skipped for a in answers]
    assert sum(kind == "see" for kind, _ in viewer.log) == 2


def test_a_new_question_is_answered_before_anything_is_repeated() -> None:
    clock = SimulatedClock()
    watch = Watch(
        open_source([(i * 0.1, grey(10)) for i in range(4)]),
        Scripted(clock),
        [ASK],
        WatchOptions(lossy_skip_s=60.0),
        clock,
    )
    next(watch)
    assert next(watch).skipped
    watch.questions = ["other?"]
    assert not next(watch).skipped
    assert next(watch).skipped


def test_questions_may_change_from_another_thread() -> None:
    clock = SimulatedClock()
    watch = Watch(open_source([grey(i) for i in range(6)]), Scripted(clock), [ASK], WatchOptions(), clock)
    assert next(watch).question == ASK
    other = threading.Thread(target=lambda: setattr(watch, "questions", ("new?",)))
    other.start()
    other.join()
    assert {a.question for a in watch} == {"new?"}


def test_events_come_with_the_next_answer() -> None:
    answers, _ = watched([grey(1), grey(2)])
    kinds = [event.kind for answer in answers for event in answer.events]
    assert "opened" in kinds or "ended" in kinds


def test_a_frozen_camera_is_an_error_and_not_a_hit() -> None:
    """Case usb-unplug-stale."""

    class Stuck:
        def read(self) -> tuple[bool, Any]:
            threading.Event().wait(0.01)
            return True, grey(7)

        def release(self) -> None:
            pass

    source = open_source(Stuck(), frozen_timeout=0.3, read_timeout=2.0)
    clock = RealClock()
    with Watch(source, Scripted(clock), [ASK], WatchOptions(), clock) as watch, pytest.raises(SourceFrozen):
        list(watch)


def test_closing_in_the_middle_ends_everything() -> None:
    before = threading.active_count()
    clock = RealClock()
    viewer = Scripted(clock)
    source = open_source(stream(60, 30), live=True, rate=30.0)
    watch = Watch(source, viewer, [ASK], WatchOptions(), clock)
    next(watch)
    watch.close()
    assert list(watch) == []
    assert viewer.closed >= 1
    assert threading.active_count() <= before


def test_options_are_checked() -> None:
    for options in ({"every": -1.0}, {"lossy_skip_s": 0.0}, {"on_change": 3}):
        with pytest.raises(OptionError, match=next(iter(options))):
            WatchOptions(**options)
    clock = SimulatedClock()
    with pytest.raises(OptionError, match="no frame has been seen"):
        Watch(open_source([grey(1)]), Scripted(clock), [ASK], WatchOptions(), clock).ask("now?")
    assert GateOptions().threshold == 0.95


def test_nothing_is_asked_of_a_closed_watch() -> None:
    clock = SimulatedClock()
    watch = Watch(open_source([grey(1)]), Scripted(clock), [ASK], WatchOptions(), clock)
    next(watch)
    watch.close()
    with pytest.raises(SourceEnded, match="the watch is closed"):
        watch.ask("now?")


def test_the_age_of_a_recorded_frame_counts_from_when_it_is_taken() -> None:
    """A recording decodes ahead; what it waits for its first reader, a model that loads, is no lag."""
    clock = SimulatedClock()
    source = open_source([grey(1), grey(2), grey(3)], clock=clock)
    clock.advance(100.0)
    watch = Watch(source, Scripted(clock, 0.2, 0.3), [ASK], WatchOptions(), clock)
    assert [answer.lag_s for answer in watch] == pytest.approx([0.5, 0.5, 0.5])
