"""Whether an MPEG transport stream lost its end: ffmpeg reads one that is cut and does not say so."""

from __future__ import annotations

from pathlib import Path

_PACKET = 188
_TAIL = 2 << 20


def damage_of(path: Path) -> str | None:
    """A sentence on a transport stream that is cut, else None; for files that ffmpeg takes for one.

    A muxer fills up the last packet of a picture; a last packet without stuffing means a picture cut short.
    """
    size = path.stat().st_size
    if size % _PACKET:
        return "the transport stream is cut within a packet"
    with path.open("rb") as file:
        file.seek(max(0, size - _TAIL // _PACKET * _PACKET))
        tail = file.read()
    packets = [tail[i : i + _PACKET] for i in range(0, len(tail), _PACKET)]
    if any(packet[0] != 0x47 for packet in packets):
        return None
    videos = {pid for pid in {_pid(packet) for packet in packets} if _is_video(packets, pid)}
    video = [packet for packet in packets if _pid(packet) in videos]
    if video and not video[-1][3] & 0x20:
        return "the transport stream is cut within a picture; the last one may be damaged"
    return None


def _pid(packet: bytes) -> int:
    return ((packet[1] & 0x1F) << 8) | packet[2]


def _is_video(packets: list[bytes], pid: int) -> bool:
    """Whether a packet of ``pid`` starts a PES of a video stream id (0xE0 to 0xEF)."""
    for packet in packets:
        if _pid(packet) == pid and packet[1] & 0x40:
            start = 4 + (1 + packet[4] if packet[3] & 0x20 else 0)
            return packet[start : start + 3] == b"\x00\x00\x01" and packet[start + 3] & 0xF0 == 0xE0
    return False
