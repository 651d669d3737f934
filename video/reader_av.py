"""Files, pipes and streams through PyAV, which brings its own ffmpeg."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import av

from mmspec_agent.core.errors import SourceError, SourceOpenError, SourceOpenTimeout, SourceUndecodable

from .av_picture import Deinterlacer, curve_of, rgb_of, square_size, turn_of
from .frame import RGBArray, StreamInfo
from .reader import Reader
from .redaction import shown
from .source_options import SourceOptions
from .stream_http import HttpStream
from .stream_pipe import PipeStream
from .transport_stream import damage_of

_SLICE_S = 1.0
"""A read inside ffmpeg that cannot be ended from outside returns at least so often."""
_PICTURE_TYPES = ("image2", "png_pipe", "jpeg_pipe", "mjpeg_2000", "webp_pipe", "bmp_pipe", "tiff_pipe", "gif")
_BAD_READS = 4096
_LIVE_OPTIONS = {"fpsprobesize": "0", "analyzeduration": "1000000"}
_PLAYLIST_OPTIONS = {"http_persistent": "0", "allowed_extensions": "ALL", "extension_picky": "0"}


class Opening(NamedTuple):
    """What is handed to ``av.open``, and whether the source says that it ends."""

    file: Any
    arguments: dict[str, Any]
    ends: bool


class AvReader(Reader):
    """Anything ffmpeg decodes: a path, an address, "-" or an open file.

    Whether it is live is found out from what comes: whatever has a duration, a length or an end is a recording.
    """

    def __init__(self, target: Any, options: SourceOptions, name: str | None = None) -> None:
        super().__init__()
        self._target = target
        self._options = options
        self.name = name or shown(target)
        self._container: Any = None
        self._stream: Any = None
        self._packets: Iterator[Any] = iter(())
        self._ready: deque[Any] = deque()
        self._deinterlacer = Deinterlacer()
        self._frame: Any = None
        self._picture: RGBArray | None = None
        self._origin: Fraction | None = None
        self._ended = False
        self._sliced = False
        self._noted: set[str] = set()
        self._info: StreamInfo | None = None
        self._stream_file: Any = None

    # -- opening ----------------------------------------------------------------------------------------------

    def open(self) -> StreamInfo:
        """Connect, and decode the first frame: only then is it known what comes."""
        if self._info is None:
            opening = self._guarded(self._opening)
            self._container = self._guarded(lambda: av.open(opening.file, **opening.arguments))
            self._stream = self._video_stream()
            self._packets = self._container.demux(self._stream)
            self.ends = opening.ends or self._container.duration is not None
            self.has_times = self.ends
            self.rate = self._options.rate or self._average_rate()
            self._fill_first()
            self._info = self._describe()
            self._look_at_the_end()
        return self._info

    def _look_at_the_end(self) -> None:
        is_file = isinstance(self._target, str) and "://" not in self._target and self._stream_file is None
        if is_file and self._container.format.name == "mpegts":
            with suppress(OSError, IndexError):
                self.damage = damage_of(Path(self._target))

    def _opening(self) -> Opening:
        target = self._target
        if hasattr(target, "read"):
            return Opening(target, {}, True)
        text = str(target)
        scheme = urlsplit(text).scheme.lower() if "://" in text else ""
        if scheme in ("http", "https"):
            return self._http(text)
        if scheme:
            return self._native(text, scheme)
        if text == "-" or Path(text).is_fifo():
            self._stream_file = PipeStream(None if text == "-" else Path(text), self.cancelled)
            return Opening(self._stream_file, {}, True)
        # ffmpeg would take a "%" or a leading "-" of a relative path for something else.
        return Opening("file:" + str(Path(text).absolute()), {}, True)

    def _http(self, url: str) -> Opening:
        stream = HttpStream(url, self.cancelled, self._options.opening)
        self._stream_file = stream
        if "mpegurl" in stream.content_type.lower() or stream.peek(7) == b"#EXTM3U":
            arguments = {"format": "hls", "options": _PLAYLIST_OPTIONS, "io_open": self._part_of_playlist}
            return Opening(stream, arguments, False)
        if stream.content_type.startswith("multipart/"):
            return Opening(stream, {"format": "mpjpeg", "options": _LIVE_OPTIONS}, False)
        self.repeats_from_start = True
        return Opening(stream, {} if stream.is_finite else {"options": _LIVE_OPTIONS}, stream.is_finite)

    def _part_of_playlist(self, url: str, flags: int, options: dict[str, str]) -> HttpStream:
        start, end = int(options.get("offset", 0)), int(options.get("end_offset", 0))
        return HttpStream(url, self.cancelled, self._options.opening, start, end or None)

    def _native(self, url: str, scheme: str) -> Opening:
        """Protocols that ffmpeg speaks itself; its reads come back in slices, so that they can be ended."""
        if scheme.startswith("rtsp"):
            self._wait_for_answer(url)
        self._sliced = True
        options = {"rtsp_flags": "prefer_tcp"} if scheme.startswith("rtsp") else {}
        return Opening(url, {"options": options, "timeout": (self._options.opening, _SLICE_S)}, False)

    def _wait_for_answer(self, url: str) -> None:
        """Ask an RTSP server whether it is there, by a request that can be ended; it carries no login."""
        parts = urlsplit(url)
        problem: SourceError | None = None
        try:
            host, port = parts.hostname or "", parts.port or 554
            with socket.create_connection((host, port), self._options.opening) as link:
                copy = link.dup()
                self.cancelled.on_set(lambda: _shut(copy))
                link.sendall(f"OPTIONS rtsp://{host}:{port}/ RTSP/1.0\r\nCSeq: 1\r\n\r\n".encode())
                link.recv(64)
                copy.close()
        except TimeoutError:
            problem = SourceOpenTimeout(f"{self.name} did not answer within {self._options.opening:g} s (open_timeout)")
        except (OSError, ValueError):
            problem = SourceOpenError(f"{self.name} does not open. Check the address and that the camera is on.")
        self.cancelled.check()
        if problem is not None:
            raise problem

    def _guarded(self, action: Callable[[], Any]) -> Any:
        """The action's result; ffmpeg's errors name the whole address, so ours are raised without them."""
        problem: SourceError
        try:
            return action()
        except SourceError:
            raise
        except av.error.ExitError:
            problem = SourceOpenTimeout(f"{self.name} did not answer within {self._options.opening:g} s (open_timeout)")
        except (av.error.FFmpegError, OSError, ValueError, UnicodeError) as error:
            problem = self._refusal(error)
        self.cancelled.check()
        raise problem

    def _refusal(self, error: BaseException) -> SourceError:
        if isinstance(self._target, str) and "://" in self._target and not isinstance(error, av.error.InvalidDataError):
            return SourceOpenError(
                f"{self.name} does not open. Check the address, the password and that the source is on."
            )
        return SourceOpenError(
            f"{self.name} does not open: it is no video that ffmpeg knows, or it is damaged or cut short. "
            "Try to play it, or convert it to H.264 in MP4."
        )

    def _video_stream(self) -> Any:
        """ffmpeg's choice among the video streams, cover pictures apart."""
        streams = self._container.streams.video
        if not streams:
            raise SourceUndecodable(f"{self.name} holds no video, only {self._kinds()}; give a source with pictures")
        stream = self._container.streams.best("video") or streams[0]
        if getattr(stream, "codec_context", None) is None:
            raise SourceUndecodable(
                f"{self.name} is in a codec that ffmpeg does not know; convert it to H.264, for example with "
                "`ffmpeg -i IN -c:v libx264 OUT.mp4`"
            )
        # The model needs the cores; a decoder of one thread takes less time in all, and hands out frames at once.
        stream.thread_type = "NONE"
        return stream

    def _kinds(self) -> str:
        return ", ".join(sorted({stream.type for stream in self._container.streams})) or "nothing"

    def _average_rate(self) -> float | None:
        rate = self._stream.average_rate or self._stream.guessed_rate
        return float(rate) if rate and 0 < rate < 1000 else None

    def _fill_first(self) -> None:
        for _ in range(_BAD_READS):
            if self._ready or self._ended:
                break
            self._decode_more()
        if not self._ready:
            self.cancelled.check()
            promised = self._stream.frames
            claim = f"promises {promised} frames" if promised else "opens"
            raise SourceUndecodable(
                f"{self.name} {claim} and none can be decoded: it is damaged, cut short, or in a codec that ffmpeg "
                "does not know. Convert it to H.264, for example with `ffmpeg -i IN -c:v libx264 OUT.mp4`."
            )

    def _describe(self) -> StreamInfo:
        streams = [s for s in self._container.streams.video if getattr(s, "codec_context", None) is not None]
        first = self._ready[0]
        turn = self._turn(first)
        width, height = square_size(first.width, first.height, self._aspect())
        self._tell_choice(streams)
        return StreamInfo(
            name=self.name,
            backend=f"ffmpeg {self._container.format.name}",
            is_live=not self.ends,
            size=(height, width) if turn in (90, 270) else (width, height),
            fps=self._average_rate(),
            frame_count=self._stream.frames or None,
            rotation=turn_of(first),
            streams=tuple((s.codec_context.width, s.codec_context.height) for s in streams),
            stream=streams.index(self._stream) if self._stream in streams else None,
        )

    def _tell_choice(self, streams: list[Any]) -> None:
        if len(streams) > 1 and self._container.format.name != "hls":
            sizes = ", ".join(f"{s.codec_context.width}x{s.codec_context.height}" for s in streams)
            number = streams.index(self._stream)
            self.notes.append(f"{self.name} has {len(streams)} video streams ({sizes}); number {number} is decoded")

    # -- reading ----------------------------------------------------------------------------------------------

    def advance(self) -> bool:
        """Decode up to the next frame; False for a packet that cannot be decoded, and at the end."""
        if not self._ready:
            self._decode_more()
        if not self._ready:
            return False
        self._frame, self._picture = self._ready.popleft(), None
        self.time_s = self._time_of(self._frame)
        return True

    def picture(self) -> RGBArray | None:
        """The frame as RGB: deinterlaced, tone-mapped, of square pixels, upright."""
        if self._picture is None and self._frame is not None:
            curve = curve_of(self._frame)
            if curve is not None:
                self._remark(f"{self.name} is in high dynamic range ({curve}); it is tone-mapped to 8 bits")
            with suppress(av.error.FFmpegError, ValueError):
                self._picture = rgb_of(self._frame, self._aspect(), self._turn(self._frame))
        return self._picture

    @property
    def patience(self) -> int:  # type: ignore[override]
        """None once the end was met; until then packets may be bad for long."""
        return 0 if self._ended and not self._ready else _BAD_READS

    def _decode_more(self) -> None:
        """Packets up to the first that gives frames, or fails; at the end, what decoder and filter hold back."""
        while not (self._ready or self._ended or self.cancelled.is_set()):
            try:
                packet = next(self._packets)
                # An empty packet is the end: the decoder gives what it holds back.
                frames = self._stream.decode(packet if packet.dts is not None or packet.size else None)
                for frame in frames:
                    self._take(frame)
                if packet.size == 0 and packet.dts is None:
                    self._finish()
            except StopIteration:
                self._finish()
            except av.error.ExitError:
                if not self._sliced:
                    self._finish()
                self._packets = self._container.demux(self._stream)
                return
            except av.error.EOFError:
                self._finish()
            except (av.error.FFmpegError, OSError, ValueError) as error:
                self._failed(error)
                return

    def _take(self, frame: Any) -> None:
        if self._deinterlacer.used is False and frame.interlaced_frame:
            self._remark(f"{self.name} is interlaced; its fields are made into whole pictures (bwdif)")
        self._ready.extend(self._deinterlacer.feed(frame))

    def _finish(self) -> None:
        self._ended = True
        with suppress(av.error.FFmpegError):
            self._ready.extend(self._deinterlacer.flush())

    def _failed(self, error: BaseException) -> None:
        """A broken packet is stepped over; a broken connection is the end of this one."""
        if not isinstance(error, av.error.InvalidDataError):
            self._ended = not self._sliced or not isinstance(error, av.error.BlockingIOError)
        if not self._ended:
            self._packets = self._container.demux(self._stream)

    def _time_of(self, frame: Any) -> float | None:
        if frame.pts is None or frame.time_base is None:
            return None
        if self._origin is None:
            start = self._stream.start_time
            first = frame.pts * frame.time_base
            self._origin = start * self._stream.time_base if start is not None else first
        return float(frame.pts * frame.time_base - self._origin)

    def _aspect(self) -> Fraction | None:
        aspect: Fraction | None = self._stream.sample_aspect_ratio or self._stream.codec_context.sample_aspect_ratio
        return aspect

    def _turn(self, frame: Any) -> int:
        return turn_of(frame) if self._options.rotation == "auto" else 0

    def _remark(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self.remarks.append(text)

    def close(self) -> None:
        """Free the container and what it reads from."""
        self._packets, self._frame = iter(()), None
        self._ready.clear()
        container, self._container = self._container, None
        if container is not None:
            container.close()
        if self._stream_file is not None:
            self._stream_file.close()
            self._stream_file = None


def _shut(link: socket.socket) -> None:
    with suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)
