"""Live sources: a grab thread with a one-slot mailbox, watched by a supervisor that reconnects.

Health is judged by the arrival of frames alone: OpenCV's ``isOpened`` stays true after a camera is gone, and a
read of its may hang. A connection is therefore a *generation*: the supervisor gives up on one by moving to the
next, and a thread that comes back late finds that it is no longer the current one and frees its device.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from mmspec_agent.core.errors import (
    SourceEnded,
    SourceFrozen,
    SourceLost,
    SourceOpenTimeout,
    SourceStalled,
)

from .clock import Clock
from .connection import Connection, Fate
from .flat_guard import FlatGuard, Repeats
from .frame import Frame, StreamInfo
from .opening import join_all
from .reader import Reader
from .source_base import EventHook, Raw, SourceBase
from .source_options import SourceOptions
from .source_times import FrameTimes

_RETRY_PAUSE = 0.02
_REPEAT_PAUSE = 0.005
_HELD_S = 5.0
"""A connection that gave pictures for so long was a good one: the next is tried for at once."""
_LONGEST_WAIT = 3600.0


class LiveSource(SourceBase):
    """A camera, a stream, or anything played as if it were one: the consumer gets the newest frame, or none."""

    is_live = True

    def __init__(
        self,
        make: Callable[[], Reader],
        options: SourceOptions,
        clock: Clock,
        on_event: EventHook | None = None,
        name: str = "source",
        frozen_timeout: float | None = None,
        can_reconnect: bool = True,
        may_stall: bool = True,
    ) -> None:
        super().__init__(options, clock, on_event)
        self._make = make
        self._name = name
        self._attempts = options.attempts if can_reconnect else 0
        self._stall = options.stall if may_stall else math.inf
        self._repeats = Repeats(frozen_timeout)
        self._flat = FlatGuard(math.inf if frozen_timeout is not None else options.stall)
        self._opening_picture: Any = None
        self._times = FrameTimes()
        self._slot: Raw | None = None
        self._gap = False
        self._fault: BaseException | None = None
        self._fatal: BaseException | None = None
        self._origin: float | None = None
        self._last_given = -math.inf
        self._stop = threading.Event()
        self._current = Connection(clock.now())
        self._threads: list[threading.Thread] = []
        self._supervisor = threading.Thread(target=self._supervise, name=f"mmspec-watch-{name}", daemon=True)
        self._supervisor.start()
        try:
            self._await_open()
        except BaseException:
            self.close()
            raise

    def _await_open(self) -> None:
        with self._condition:
            while self._info is None and self._fatal is None:
                self._condition.wait()
            if self._fatal is not None and self._info is None:
                raise self._fatal

    def latest(self, timeout: float | None = None) -> Frame | None:
        """The newest frame not yet given out; see ``FrameSource.latest`` for what may be raised."""
        deadline = math.inf if timeout is None else self._clock.now() + timeout
        with self._condition:
            while True:
                now = self._clock.now()
                due = self._last_given + (1.0 / self._options.fps if self._options.fps else 0.0)
                if self._stop.is_set():
                    raise SourceEnded(f"{self._name} is closed")
                if self._slot is not None and now >= due:
                    break
                if self._slot is None:
                    self._raise_fault()
                rest = min(deadline, due if self._slot is not None else math.inf) - now
                if rest <= 0:
                    return None
                self._condition.wait(None if math.isinf(rest) else rest)
            raw, self._slot = self._slot, None
            self._last_given = now
            self._counters.delivered += 1
        return self._frame(raw)

    def _raise_fault(self) -> None:
        """A fault is raised once, an end for ever; frames that came before either are given out first."""
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault
        if self._fatal is not None:
            raise self._fatal

    def close(self) -> None:
        """End the threads and free the device; a read in progress is ended too where the reader can."""
        self._stop.set()
        with self._condition:
            self._slot = None
            self._condition.notify_all()
        self._current.cancel()
        join_all([self._supervisor, *self._threads])

    # -- supervisor ---------------------------------------------------------------------------------------------

    def _supervise(self) -> None:
        try:
            self._keep_connected()
        except BaseException as error:  # without a supervisor the consumer would wait for ever
            with self._condition:
                self._fatal = error
                self._condition.notify_all()

    def _keep_connected(self) -> None:
        failures, delay = 0, self._options.backoff
        while not self._stop.is_set():
            connection = self._connect()
            self._await_fate(connection)
            if self._stop.is_set():
                return
            if connection.delivered_any:
                failures = 0
            if connection.delivered_any and connection.last_arrival - connection.started >= _HELD_S:
                delay = self._options.backoff
            failures += 1
            connection.cancel()
            self._report(connection)
            if self._final(connection, failures):
                return
            self._stop.wait(delay)
            delay = min(delay * 2, max(self._options.backoff_cap, self._options.backoff))

    def _connect(self) -> Connection:
        connection = Connection(self._clock.now())
        thread = threading.Thread(target=self._grab, args=(connection,), name=f"mmspec-grab-{self._name}", daemon=True)
        with self._condition:
            self._threads = [t for t in self._threads if t.is_alive()] + [thread]
            self._current = connection
        thread.start()
        return connection

    def _await_fate(self, connection: Connection) -> None:
        """Wait until the connection is over, or nothing has been heard of it for too long."""
        with self._condition:
            while connection.fate == "running" and not self._stop.is_set():
                limit = self._stall if connection.opened else self._options.opening
                rest = connection.last_arrival + limit - self._clock.now()
                if rest <= 0:
                    connection.fate = "stalled"
                    return
                self._condition.wait(min(rest, _LONGEST_WAIT))

    def _report(self, connection: Connection) -> None:
        fate, error = connection.fate, connection.error
        with self._condition:
            self._gap = True
            self._counters.stalls += fate == "stalled"
            if fate == "frozen":
                self._fault = error
                self._condition.notify_all()
        self._flat.failed()
        if fate == "frozen":
            self._tell("frozen", str(error))
        elif fate == "stalled" and connection.opened:
            self._tell("stalled", f"{self._name}: no frame for {self._stall:g} s")
        elif fate != "ended" and self._info is not None:
            # What never opened is told by the error of opening alone.
            self._tell("lost", f"{self._name}: {error or 'the stream broke off'}")

    def _final(self, connection: Connection, failures: int) -> bool:
        """Whether it is over; then the reason is left for the consumer."""
        error: BaseException | None = None
        if connection.fate == "ended":
            error = SourceEnded(f"{self._name} is at its end")
            self._tell("ended", str(error))
        elif connection.fate == "hopeless":
            error = connection.error
        elif self._info is None:
            error = connection.error or SourceOpenTimeout(
                f"{self._name} did not answer within {self._options.opening:g} s (open_timeout)"
            )
        elif failures > self._attempts:
            error = self._given_up(connection, failures)
        if error is None:
            return False
        with self._condition:
            self._fatal = error
            self._condition.notify_all()
        return True

    def _given_up(self, connection: Connection, failures: int) -> BaseException:
        if connection.fate == "frozen" and connection.error is not None:
            return connection.error
        if connection.fate == "stalled" and self._attempts == 0:
            return SourceStalled(
                f"{self._name}: no frame for {self._stall:g} s (stall_timeout), and reconnecting is off. "
                "A slow camera needs a larger stall_timeout; reconnect=True keeps trying."
            )
        tries = f"{failures - 1} attempts to reconnect" if failures > 1 else "no attempt to reconnect"
        return SourceLost(f"{self._name} is lost after {tries}: {connection.error or 'the stream broke off'}")

    # -- grab thread ----------------------------------------------------------------------------------------------

    def _grab(self, connection: Connection) -> None:
        reader: Reader | None = None
        try:
            reader = connection.reader = self._make()
            if self._is_current(connection):
                self._grab_open(connection, reader, reader.open())
        except BaseException as error:
            self._decide(connection, "hopeless" if reader is not None and reader.is_hopeless else "failed", error)
        finally:
            if reader is not None:
                reader.close()

    def _grab_open(self, connection: Connection, reader: Reader, info: StreamInfo) -> None:
        with self._condition:
            if not self._is_current(connection):
                return
            reconnected = self._info is not None
            self._info = replace(info, is_live=True)
            connection.opened, connection.last_arrival = True, self._clock.now()
            self._condition.notify_all()
        if not reconnected:
            self._tell("opened", f"{self._name} is open")
        self._grab_all(connection, reader)

    def _grab_all(self, connection: Connection, reader: Reader) -> None:
        failures = 0
        while self._is_current(connection):
            picture = reader.picture() if reader.advance() else None
            self._tell_notes(reader)
            if picture is not None:
                if failures:
                    self._recovered(failures)
                failures = 0
                self._arrived(connection, reader, picture)
                continue
            failures += 1
            if failures > reader.patience:
                # A recording or iterator that is played live has an end; a camera that stops is a loss.
                self._count_retries(0 if reader.ends else failures)
                self._decide(connection, "ended" if reader.ends else "lost", None)
                return
            if not reader.ends:
                self._stop.wait(_RETRY_PAUSE)

    def _recovered(self, failures: int) -> None:
        """Reads failed and go on: something is missing, and what comes first may be no picture at all."""
        self._count_retries(failures)
        self._flat.failed()

    def _count_retries(self, failures: int) -> None:
        """Failed reads at the end of a recording are its end, not retries."""
        with self._condition:
            self._counters.retries += failures

    def _arrived(self, connection: Connection, reader: Reader, picture: Any) -> None:
        now = self._clock.now()
        if self._repeats.frozen(picture, now):
            self._decide(connection, "frozen", self._frozen_error())
            return
        if self._plays_again(connection, reader, picture):
            self._decide(connection, "ended", None)
            return
        if self._withheld(connection, picture, now):
            return
        with self._condition:
            if not self._is_current(connection):
                return
            connection.last_arrival = now
            back = self._gap and not connection.delivered_any and self._counters.grabbed > 0
            self._counters.reconnects += back
            connection.delivered_any = True
            self._put(reader, picture, now)
            self._condition.notify_all()
        if back:
            self._tell("reconnected", f"{self._name} is back")
        if self._repeats.repeating:
            self._stop.wait(_REPEAT_PAUSE)

    def _withheld(self, connection: Connection, picture: Any, now: float) -> bool:
        """Flat pictures behind a failure are not handed out; the gap is marked on the next that is."""
        self._flat.start(now)
        if not self._flat.withholds(picture, now):
            return False
        with self._condition:
            connection.last_arrival = now
            self._gap = True
            self._counters.withheld += 1
            first = self._counters.withheld == 1
        if first:
            self._tell("warning", f"{self._name} gives pictures of one flat colour behind a failure; they are left out")
        if self._flat.hopeless:
            self._decide(connection, "hopeless", self._hopeless_error())
        self._stop.wait(_REPEAT_PAUSE)
        return True

    def _hopeless_error(self) -> SourceLost:
        return SourceLost(
            f"{self._name} fails again and again, and gives nothing but pictures of one flat colour in between. "
            "Check its cable, its power and its driver."
        )

    def _plays_again(self, connection: Connection, reader: Reader, picture: Any) -> bool:
        """Whether an address that said nothing of its end begins anew with the very same picture: a film served
        again, which is at its end."""
        if connection.delivered_any or reader.ends or not reader.repeats_from_start:
            return False
        before, self._opening_picture = self._opening_picture, np.asarray(picture)
        same = before is not None and before.shape == self._opening_picture.shape
        return bool(same and np.ptp(picture) > 8 and np.array_equal(before, self._opening_picture))

    def _put(self, reader: Reader, picture: Any, now: float) -> None:
        """Into the one slot; a gap before a frame that nobody took is handed on to the next."""
        self._origin = now if self._origin is None else self._origin
        raw = reader.time_s
        stamp = self._times.stamp(
            raw if reader.has_times else now - self._origin, reader.rate if reader.has_times else None
        )
        gap = self._gap or reader.discontinuity or (stamp.gap and reader.has_times)
        first = self._counters.delivered == 0 and not self._counters.grabbed
        if self._slot is not None:
            self._counters.dropped += 1
            self._counters.thinned += bool(self._options.fps and now < self._last_given + 1.0 / self._options.fps)
            gap = gap or self._slot.discontinuity
        self._gap = False
        index = self._counters.grabbed
        self._counters.grabbed += 1
        self._slot = Raw(picture, reader.order, stamp.time_s, raw, index, now, gap and not first)

    def _frozen_error(self) -> SourceFrozen:
        return SourceFrozen(
            f"{self._name} repeats the same picture byte for byte: the camera is unplugged or its driver hangs. "
            "Plug it in again; for a source that may truly stand still pass frozen_timeout=None."
        )

    def _decide(self, connection: Connection, fate: Fate, error: BaseException | None) -> None:
        with self._condition:
            if connection.fate == "running":
                connection.fate, connection.error = fate, error
            self._condition.notify_all()

    def _is_current(self, connection: Connection) -> bool:
        return self._current is connection and connection.fate == "running" and not self._stop.is_set()
