"""What OpenCV does not tell of a file: how many video streams it has, and whether its end is missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_MAX_MOOV = 64 << 20
_TS_PACKET = 188
_TS_TAIL = 2 << 20


class ContainerFacts(NamedTuple):
    """``streams``: (width, height) of each video stream, empty if unknown; ``damage``: a sentence, or None."""

    streams: tuple[tuple[int, int], ...] = ()
    damage: str | None = None


def inspect(path: Path) -> ContainerFacts:
    """Facts of an MP4/MOV or MPEG-TS file, nothing for other kinds; never raises on damaged content."""
    try:
        with path.open("rb") as file:
            head = file.read(_TS_PACKET * 2 + 1)
        if head[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"):
            return _inspect_mp4(path)
        if len(head) > _TS_PACKET and head[0] == 0x47 and head[_TS_PACKET] == 0x47:
            return _inspect_ts(path)
    except (OSError, ValueError, IndexError):
        pass
    return ContainerFacts()


def _inspect_mp4(path: Path) -> ContainerFacts:
    size = path.stat().st_size
    moov, damage, position = b"", None, 0
    with path.open("rb") as file:
        while position + 8 <= size:
            file.seek(position)
            header = file.read(16)
            length, kind, skip = _box_header(header, size - position)
            if length < skip:
                break
            if position + length > size:
                damage = (
                    f"the file is cut: its {kind.decode('latin-1')} part promises {position + length - size} more bytes"
                )
            elif kind == b"moov" and length <= _MAX_MOOV:
                file.seek(position + skip)
                moov = file.read(length - skip)
            position += length
    if not moov:
        damage = "the file is cut: its index (moov) is missing" if damage or position >= size else damage
    return ContainerFacts(tuple(_video_sizes(moov)), damage)


def _box_header(header: bytes, rest: int) -> tuple[int, bytes, int]:
    """Length (0 means to the end, 1 means a 64-bit length follows), kind, and length of the header."""
    length, kind = int.from_bytes(header[:4], "big"), header[4:8]
    if length == 1:
        return int.from_bytes(header[8:16], "big"), kind, 16
    return (rest if length == 0 else length), kind, 8


def _boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    position = 0
    while position + 8 <= len(data):
        length, kind, skip = _box_header(data[position : position + 16], len(data) - position)
        if length < skip:
            return
        yield kind, data[position + skip : position + length]
        position += length


def _video_sizes(moov: bytes) -> Iterator[tuple[int, int]]:
    for kind, trak in _boxes(moov):
        if kind != b"trak":
            continue
        parts = dict(_boxes(trak))
        handlers = [body[8:12] for name, body in _boxes(parts.get(b"mdia", b"")) if name == b"hdlr"]
        tkhd = parts.get(b"tkhd", b"")
        if b"vide" in handlers and len(tkhd) >= 8:
            yield int.from_bytes(tkhd[-8:-6], "big"), int.from_bytes(tkhd[-4:-2], "big")


def _inspect_ts(path: Path) -> ContainerFacts:
    """A muxer fills up the last packet of a picture; a last packet without stuffing means a picture cut short."""
    size = path.stat().st_size
    if size % _TS_PACKET:
        return ContainerFacts(damage="the transport stream is cut within a packet")
    with path.open("rb") as file:
        file.seek(max(0, size - _TS_TAIL // _TS_PACKET * _TS_PACKET))
        tail = file.read()
    packets = [tail[i : i + _TS_PACKET] for i in range(0, len(tail), _TS_PACKET)]
    videos = {pid for pid in {_pid(packet) for packet in packets} if _is_video(packets, pid)}
    video = [packet for packet in packets if _pid(packet) in videos]
    if video and not video[-1][3] & 0x20:
        return ContainerFacts(damage="the transport stream is cut within a picture; the last one may be damaged")
    return ContainerFacts()


def _pid(packet: bytes) -> int:
    return ((packet[1] & 0x1F) << 8) | packet[2]


def _is_video(packets: list[bytes], pid: int) -> bool:
    """Whether a packet of ``pid`` starts a PES of a video stream id (0xE0 to 0xEF)."""
    for packet in packets:
        if _pid(packet) == pid and packet[1] & 0x40:
            start = 4 + (1 + packet[4] if packet[3] & 0x20 else 0)
            return packet[start : start + 3] == b"\x00\x00\x01" and packet[start + 3] & 0xF0 == 0xE0
    return False
