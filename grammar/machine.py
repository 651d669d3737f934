"""The named states of JSON text (SYSTEM.md G1), read from the bytes emitted so far.

The scanner names positions for statistics, drafting and display; what is legal is llguidance's business
alone. A state is a value: forking it costs nothing.
"""

from __future__ import annotations

from typing import Final, NamedTuple

START: Final = "START"
KEY_NAME: Final = "KEY_NAME"
COLON: Final = "COLON"
VALUE_START: Final = "VALUE_START"
STRING: Final = "STRING"
NUMBER: Final = "NUMBER"
LITERAL: Final = "LITERAL"
OBJECT: Final = "OBJECT"
ARRAY: Final = "ARRAY"
COMMA: Final = "COMMA"
END: Final = "END"

STATES: Final = (START, KEY_NAME, COLON, VALUE_START, STRING, NUMBER, LITERAL, OBJECT, ARRAY, COMMA, END)

_SPACE: Final = frozenset(b" \t\n\r")
_DIGIT_START: Final = frozenset(b"-0123456789")
_NUMBER_BYTES: Final = frozenset(b"0123456789.eE+-")
_LITERAL_BYTES: Final = frozenset(b"truefalsn")


class Frame(NamedTuple):
    """An open container: ``key`` is the bytes of the member's name (raw JSON), or the item's index."""

    parent: Frame | None
    is_object: bool
    key: bytes | int


class JsonState(NamedTuple):
    """Where in a JSON text we are.

    ``piece``: raw bytes of the key, string, number or literal being written (quotes left out);
    ``escaped``: the last byte of ``piece`` is a backslash that escapes what follows.
    """

    name: str = START
    frame: Frame | None = None
    piece: bytes = b""
    escaped: bool = False

    @property
    def depth(self) -> int:
        """Number of open containers."""
        depth, frame = 0, self.frame
        while frame is not None:
            depth, frame = depth + 1, frame.parent
        return depth

    @property
    def path(self) -> tuple[str | int, ...]:
        """Keys and indices from the root to the value being written."""
        parts: list[str | int] = []
        frame = self.frame
        while frame is not None:
            key = frame.key
            parts.append(_unescape(key) if isinstance(key, bytes) else key)
            frame = frame.parent
        return tuple(reversed(parts))

    @property
    def pointer(self) -> str:
        """JSON pointer (RFC 6901) of the value being written."""
        return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in self.path)

    def feed(self, data: bytes) -> JsonState:
        """The state after ``data``; bytes after the end of the value are ignored."""
        state = self
        at = 0
        while at < len(data):
            if state.name in (STRING, KEY_NAME) and state.piece[:1] == b'"':
                state, at = _in_string(state, data, at)
            elif state.name == NUMBER or state.name == LITERAL:
                state, at = _in_scalar(state, data, at)
            else:
                state, at = _structural(state, data[at]), at + 1
        return state


def _in_string(state: JsonState, data: bytes, at: int) -> tuple[JsonState, int]:
    # ``piece`` keeps its opening quote while the string is open: an empty string is open too.
    escaped = state.escaped
    for end in range(at, len(data)):
        byte = data[end]
        if escaped:
            escaped = False
        elif byte == 0x5C:
            escaped = True
        elif byte == 0x22:
            piece = state.piece + data[at:end]
            if state.name == KEY_NAME and state.frame is not None:
                frame = Frame(state.frame.parent, True, piece[1:])
                return JsonState(COLON, frame), end + 1
            return _value_done(state.frame), end + 1
    return JsonState(state.name, state.frame, state.piece + data[at:], escaped), len(data)


def _in_scalar(state: JsonState, data: bytes, at: int) -> tuple[JsonState, int]:
    legal = _NUMBER_BYTES if state.name == NUMBER else _LITERAL_BYTES
    end = at
    while end < len(data) and data[end] in legal:
        end += 1
    piece = state.piece + data[at:end]
    if state.name == LITERAL and piece in (b"true", b"false", b"null"):
        return _value_done(state.frame), end
    if end == len(data):
        return JsonState(state.name, state.frame, piece), end
    return _value_done(state.frame), end


def _structural(state: JsonState, byte: int) -> JsonState:
    name, frame = state.name, state.frame
    if byte in _SPACE or name == END:
        return state
    if name == COLON and byte == 0x3A:
        return JsonState(VALUE_START, frame)
    if byte in b"}]" and frame is not None:
        return _value_done(frame.parent)
    if name == COMMA and byte == 0x2C and frame is not None:
        if frame.is_object:
            return JsonState(KEY_NAME, Frame(frame.parent, True, b""))
        assert isinstance(frame.key, int)
        return JsonState(VALUE_START, Frame(frame.parent, False, frame.key + 1))
    if name in (OBJECT, KEY_NAME):
        return JsonState(KEY_NAME, frame, b'"') if byte == 0x22 else state
    if name in (START, VALUE_START, ARRAY):
        return _value_begins(frame, byte)
    return state


def _value_begins(frame: Frame | None, byte: int) -> JsonState:
    if byte == 0x7B:
        return JsonState(OBJECT, Frame(frame, True, b""))
    if byte == 0x5B:
        return JsonState(ARRAY, Frame(frame, False, 0))
    if byte == 0x22:
        return JsonState(STRING, frame, b'"')
    if byte in _DIGIT_START:
        return JsonState(NUMBER, frame, bytes([byte]))
    return JsonState(LITERAL, frame, bytes([byte]))


def _value_done(frame: Frame | None) -> JsonState:
    return JsonState(END if frame is None else COMMA, frame)


def _unescape(raw: bytes) -> str:
    import json

    text = raw.decode("utf-8", "replace")
    if "\\" not in text:
        return text
    try:
        value = json.loads(f'"{text}"')
    except ValueError:
        return text
    return str(value)
