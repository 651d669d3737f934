"""Newest frame or none: cameras that repeat, hang and vanish, and slow consumers (cases of issue 5, V1)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest

from mmspec_agent.core.errors import (
    OptionError,
    SourceEnded,
    SourceFrozen,
    SourceLost,
    SourceOpenError,
    SourceStalled,
)
from mmspec_agent.video.clock import SimulatedClock
from mmspec_agent.video.frame import Frame
from mmspec_agent.video.source import FrameSource, open_source
from mmspec_agent.video.source_options import SourceEvent

Picture = npt.NDArray[np.uint8]


PATIENCE = 60.0
"""Seconds waited for what has to come; a machine that is busy may take its time."""


class FakeCapture:
    """Speaks like ``cv2.VideoCapture``; ``isOpened`` is always true, as OpenCV's is after a camera has gone."""

    def __init__(self, read: Callable[[int], Picture | None], period: float = 0.01) -> None:
        self._read, self._period = read, period
        self.count = 0
        self.released = threading.Event()

    def isOpened(self) -> bool:
        return True

    def read(self) -> tuple[bool, Picture | None]:
        time.sleep(self._period)
        picture = self._read(self.count)
        self.count += 1
        return picture is not None, picture

    def release(self) -> None:
        self.released.set()


def grey(level: int) -> Picture:
    return np.full((32, 32, 3), level % 250, np.uint8)


def first_error(source: FrameSource, seconds: float = PATIENCE) -> Exception | None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            source.latest(timeout=0.2)
        except Exception as error:
            return error
    return None


def readers() -> int:
    return sum(thread.name.startswith("mmspec-") for thread in threading.enumerate())


def assert_no_readers() -> None:
    """What was released may still be on its way out."""
    until = time.monotonic() + PATIENCE
    while readers() and time.monotonic() < until:
        time.sleep(0.01)
    assert readers() == 0


def test_a_camera_that_repeats_its_last_frame_is_noticed() -> None:
    capture = FakeCapture(lambda n: grey(min(n, 5)))
    started = time.monotonic()
    with open_source(capture, frozen_timeout=0.3) as source:
        error = first_error(source)
        assert isinstance(error, SourceFrozen)
        assert time.monotonic() - started >= 0.3
        assert [e.kind for e in source.take_events()].count("frozen") == 1
    assert capture.released.is_set()
    assert readers() == 0


def test_a_still_scene_with_noise_is_not_frozen() -> None:
    rng = np.random.default_rng(0)
    noisy = FakeCapture(lambda n: rng.integers(90, 110, (32, 32, 3), dtype=np.uint8))
    with open_source(noisy, frozen_timeout=0.1) as source:
        assert first_error(source, 0.5) is None


def test_a_frozen_camera_that_is_plugged_in_again_comes_back() -> None:
    made: list[FakeCapture] = []

    def make() -> FakeCapture:
        made.append(FakeCapture((lambda n: grey(7)) if not made else (lambda n: grey(100 + n % 100))))
        return made[-1]

    with open_source(make, frozen_timeout=0.2, backoff=0.05) as source:
        assert isinstance(first_error(source), SourceFrozen)
        frame = source.latest(timeout=PATIENCE)
        assert frame is not None
        assert frame.discontinuity
        assert frame.rgb[0, 0, 0] >= 100
    assert all(capture.released.is_set() for capture in made)


def test_reads_that_fail_for_a_moment_are_retried() -> None:
    capture = FakeCapture(lambda n: None if n in (5, 6) else grey(n))
    with open_source(capture) as source:
        for _ in range(8):
            assert source.latest(timeout=PATIENCE) is not None
        assert source.stats.retries == 2
        assert source.stats.reconnects == 0


def test_a_camera_that_is_gone_ends_in_an_error_when_it_cannot_be_made_again() -> None:
    capture = FakeCapture(lambda n: grey(n) if n < 4 else None)
    with open_source(capture) as source:
        assert isinstance(first_error(source), SourceLost)
        with pytest.raises(SourceLost):
            source.latest()


def test_a_read_that_hangs_is_given_up_and_the_camera_made_again() -> None:
    hang = threading.Event()

    def hanging(number: int) -> Picture | None:
        if number == 3:
            hang.wait(2 * PATIENCE)
        return grey(number)

    made: list[FakeCapture] = []

    def make() -> FakeCapture:
        made.append(FakeCapture(hanging if not made else lambda n: grey(200 + n % 20)))
        return made[-1]

    with open_source(make, read_timeout=1.0, backoff=0.05) as source:
        seen: list[Frame] = []
        unanswered = 0
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and not (seen and seen[-1].rgb[0, 0, 0] >= 200):
            frame = source.latest(timeout=0.1)
            unanswered += frame is None
            seen += [frame] if frame is not None else []
        assert unanswered >= 3  # while the read hung, the consumer was told so again and again
        assert seen[-1].rgb[0, 0, 0] >= 200
        assert [f.discontinuity for f in seen].count(True) == 1
        assert all(a.index < b.index and a.time_s < b.time_s for a, b in pairwise(seen))
        kinds = [event.kind for event in source.take_events()]
        assert kinds.index("stalled") < kinds.index("reconnected")
        hang.set()
    assert made[0].released.wait(PATIENCE)
    assert_no_readers()


def test_a_gap_is_not_lost_when_nobody_took_the_frame_behind_it() -> None:
    made: list[FakeCapture] = []
    taken = threading.Event()

    def make() -> FakeCapture:
        made.append(FakeCapture((lambda n: None if taken.is_set() else grey(n)) if not made else grey))
        return made[-1]

    with open_source(make, backoff=0.02) as source:
        assert source.latest(timeout=PATIENCE) is not None
        taken.set()
        until = time.monotonic() + PATIENCE
        while source.stats.reconnects == 0 and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(0.2)
        frame = source.latest(timeout=PATIENCE)
        assert frame is not None
        assert frame.discontinuity
        following = source.latest(timeout=PATIENCE)
        assert following is not None
        assert not following.discontinuity


def test_a_source_that_does_not_open_says_so() -> None:
    class Closed(FakeCapture):
        def isOpened(self) -> bool:
            return False

    with pytest.raises(SourceOpenError, match="closed"):
        open_source(Closed(lambda n: None))
    with pytest.raises(SourceOpenError, match="read\\(\\)"):
        open_source(lambda: object())
    with pytest.raises(ZeroDivisionError):
        open_source(lambda: 1 // 0)
    assert readers() == 0


def test_opening_that_hangs_is_given_up() -> None:
    hang = threading.Event()

    def make() -> FakeCapture:
        hang.wait(PATIENCE)  # who waits for it gets a camera, and no error
        return FakeCapture(grey)

    with pytest.raises(SourceOpenError):
        open_source(make, open_timeout=0.3, read_timeout=1)
    hang.set()


def test_what_is_handed_out_is_never_older_than_the_newest_when_asked() -> None:
    """A generator at 30 a second, a model that takes six frames' time: it never works through what has piled up."""
    made = 0

    def camera() -> Iterator[Picture]:
        nonlocal made
        for number in range(1000):
            time.sleep(1 / 30)
            made = number + 1
            yield grey(number)

    with open_source(camera(), live=True) as source:
        for _ in range(8):
            grabbed = source.stats.grabbed
            frame = source.latest(timeout=PATIENCE)
            assert frame is not None
            assert frame.index >= grabbed - 1
            until = made + 6
            while made < until:
                time.sleep(0.01)
        assert source.stats.dropped > 20


def test_age_stays_constant_over_two_minutes_of_simulated_time() -> None:
    clock = SimulatedClock()
    count = 25 * 125
    with open_source(((i / 25, grey(i)) for i in range(count)), live=True, clock=clock) as source:
        ages, indices = [], []
        while clock.now() < 120:
            frame = source.latest()
            assert frame is not None
            clock.sleep(0.31)
            ages.append(clock.now() - frame.arrived_s)
            indices.append(frame.index)
        assert max(ages) <= 0.31 + 0.04 + 1e-6
        slope = np.polyfit(np.arange(len(ages)), ages, 1)[0]
        assert abs(slope) < 1e-4
        assert source.stats.dropped > 2000
        assert indices == sorted(set(indices))


def test_simulated_time_waits_for_the_next_frame_and_ends() -> None:
    clock = SimulatedClock()
    with open_source([(0.0, grey(0)), (1.0, grey(1)), (2.5, grey(2))], live=True, clock=clock) as source:
        first = source.latest()
        assert first is not None
        assert clock.now() == 0
        assert source.latest(timeout=0.4) is None
        assert clock.now() == pytest.approx(0.4)
        second = source.latest()
        assert second is not None
        assert second.time_s == 1.0
        assert clock.now() == pytest.approx(1.0)
        clock.sleep(5)
        third = source.latest()
        assert third is not None
        assert third.time_s == 2.5
        with pytest.raises(SourceEnded):
            source.latest()


def test_gaps_survive_dropping_in_simulated_time() -> None:
    clock = SimulatedClock()
    frames = [Frame(grey(i), i / 10, None, i, discontinuity=i == 3) for i in range(20)]
    with open_source(frames, live=True, clock=clock) as source:
        assert source.latest() is not None
        clock.sleep(1.0)
        frame = source.latest()
        assert frame is not None
        assert frame.index == 10
        assert frame.discontinuity


def test_a_recording_played_live_keeps_its_pace_and_its_times() -> None:
    started = time.monotonic()
    with open_source([(t, grey(int(t * 100))) for t in (0.0, 0.1, 0.2, 0.5)], live=True) as source:
        frames = list(source)
        assert time.monotonic() - started >= 0.49
    assert [f.time_s for f in frames] == [0.0, 0.1, 0.2, 0.5]
    assert not any(f.discontinuity for f in frames)


def test_closing_a_paced_recording_does_not_wait_for_its_next_frame() -> None:
    source = open_source([(0.0, grey(0)), (2 * PATIENCE, grey(1))], live=True)
    assert source.latest(timeout=PATIENCE) is not None
    started = time.monotonic()
    source.close()
    assert time.monotonic() - started < PATIENCE
    assert readers() == 0


def test_a_rate_limits_how_often_frames_are_handed_out() -> None:
    started = time.monotonic()
    with open_source(FakeCapture(grey), fps=10, order="rgb") as source:
        frames = [source.latest(timeout=PATIENCE) for _ in range(6)]
        assert time.monotonic() - started >= 0.48
        assert all(frame is not None for frame in frames)


def test_pictures_of_drivers_that_reuse_their_buffer_are_copied() -> None:
    buffer = np.zeros((32, 32, 3), np.uint8)

    def reuse(number: int) -> Picture:
        buffer[:] = number % 250
        return buffer

    with open_source(FakeCapture(reuse)) as source:
        frame = source.latest(timeout=PATIENCE)
        assert frame is not None
        level = int(frame.rgb[0, 0, 0])
        time.sleep(0.1)
        assert (frame.rgb == level).all()


def test_closing_from_another_thread_wakes_the_consumer() -> None:
    never = threading.Event()
    capture = FakeCapture(lambda n: grey(n) if n == 0 else (never.wait(0.8), None)[1])
    source = open_source(capture, read_timeout=PATIENCE)
    assert source.latest(timeout=PATIENCE) is not None
    threading.Timer(0.2, source.close).start()
    assert list(source) == []


def test_what_cannot_be_is_refused() -> None:
    for spec in (0, "0", FakeCapture(grey)):
        with pytest.raises(OptionError, match="live=False"):
            open_source(spec, live=False)
    with pytest.raises(OptionError, match="SimulatedClock"):
        open_source(FakeCapture(grey), clock=SimulatedClock())
    with pytest.raises(ValueError, match="go back"):
        SimulatedClock().advance(-1)


def test_stalls_of_objects_that_cannot_be_made_again_are_errors() -> None:
    never = threading.Event()
    capture = FakeCapture(lambda n: grey(n) if n < 2 else (never.wait(1.0), None)[1])
    with open_source(capture, read_timeout=0.2) as source:
        assert isinstance(first_error(source), SourceStalled)


def test_events_are_told_and_a_failing_listener_does_no_harm() -> None:
    told: list[str] = []

    def listen(event: SourceEvent) -> None:
        told.append(event.kind)
        if event.kind == "opened":
            raise RuntimeError("mine")

    with open_source(FakeCapture(grey), on_event=listen) as source:
        assert source.latest(timeout=PATIENCE) is not None
        texts = [event.text for event in source.take_events()]
    assert told == ["opened"]
    assert any("mine" in text for text in texts)
