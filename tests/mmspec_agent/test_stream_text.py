"""Text from tokens: whole characters, and nothing that a stop string could take back."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmspec_agent.text_stream import Stopped, TextStream


class Pieces:
    """A tokenizer whose tokens are given byte strings."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = pieces

    def decode(self, ids: Sequence[int], **_: object) -> str:
        return b"".join(self.pieces[i] for i in ids).decode("utf-8", errors="replace")


def run(
    pieces: Sequence[bytes], stops: Sequence[str], steps: Sequence[int] | None = None
) -> tuple[list[str], str, Stopped | None]:
    """Shown pieces, whole text, and where it stopped, when tokens arrive in steps of the given sizes."""
    stream = TextStream(Pieces(pieces), stops)
    shown: list[str] = []
    ids = iter(range(len(pieces)))
    for size in steps or [1] * len(pieces):
        stopped = stream.add(list(itertools.islice(ids, size)))
        if stopped is not None:
            shown.append(stream.finish(stopped=True))
            return shown, stream.text, stopped
        shown.append(stream.piece())
    shown.append(stream.finish())
    return shown, stream.text, None


def splits(text: bytes) -> list[list[bytes]]:
    """Every way to cut a text into tokens."""
    ways = []
    for cuts in itertools.product((False, True), repeat=len(text) - 1):
        pieces, start = [], 0
        for at, cut in enumerate(cuts, 1):
            if cut:
                pieces.append(text[start:at])
                start = at
        ways.append([*pieces, text[start:]])
    return ways


@pytest.mark.parametrize(("text", "stop"), [("abcENDxy", "END"), ("aaab", "aab"), ("xé€y", "€"), ("EENEND", "END")])
def test_stop_strings_are_found_over_every_split(text: str, stop: str) -> None:
    for pieces in splits(text.encode()):
        shown, whole, stopped = run(pieces, [stop])
        assert whole == "".join(shown) == text[: text.index(stop)]
        assert stopped is not None
        needed = len(text[: text.index(stop) + len(stop)].encode())
        sizes = list(itertools.accumulate(map(len, pieces)))
        assert sizes[stopped.tokens - 1] >= needed
        assert stopped.tokens == 1 or sizes[stopped.tokens - 2] < needed or pieces[stopped.tokens - 1] in (b"",)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    text=st.text(alphabet="abEND é€🎉", min_size=1, max_size=16),
    cuts=st.lists(st.booleans(), min_size=64, max_size=64),
    stops=st.lists(st.text(alphabet="abEND é", min_size=1, max_size=3), max_size=3),
    sizes=st.lists(st.integers(1, 5), min_size=64, max_size=64),
)
def test_steps_never_decide_where_an_answer_ends(
    text: str, cuts: list[bool], stops: list[str], sizes: list[int]
) -> None:
    data, pieces, start = text.encode(), [], 0
    for at in range(1, len(data)):
        if cuts[at % 64]:
            pieces.append(data[start:at])
            start = at
    pieces.append(data[start:])
    one = run(pieces, stops)
    many = run(pieces, stops, sizes[: len(pieces)])
    assert one[1:] == many[1:]
    assert "".join(one[0]) == "".join(many[0]) == one[1]
    assert not any(stop in one[1] for stop in stops)
    if one[2] is None:
        assert one[1] == text


def test_only_whole_characters_are_shown() -> None:
    text = "a🎉é漢"
    for pieces in splits(text.encode())[::7]:
        stream, seen = TextStream(Pieces(pieces)), ""
        for token in range(len(pieces)):
            stream.add([token])
            piece = stream.piece()
            assert "\ufffd" not in piece
            seen += piece
            assert text.startswith(seen)
        assert seen + stream.finish() == text


def test_an_incomplete_last_character_is_shown_as_such() -> None:
    shown, whole, _ = run([b"ab", "🎉".encode()[:2]], [])
    assert whole == "".join(shown) == "ab\ufffd"


def test_text_is_held_back_while_it_could_become_a_stop_string() -> None:
    stream = TextStream(Pieces([b"ab", b"E", b"N", b"x", b"EN", b"D"]), ["END"])
    seen = []
    for token in range(5):
        assert stream.add([token]) is None
        seen.append(stream.piece())
    assert seen == ["ab", "", "", "ENx", ""]
    assert stream.add([5]) == Stopped(6, "abENx")
    assert stream.finish(stopped=True) == ""


def test_others_may_hold_text_back_too() -> None:
    stream = TextStream(Pieces([b"abcdef", b"gh"]), ())
    stream.add([0])
    assert stream.piece(held_back=4) == "ab"
    stream.add([1])
    assert stream.piece(held_back=1) == "cdefg"
    assert stream.finish() == "h"
