"""Regular languages as terminals of llguidance's Lark dialect, as they are or as the content of JSON strings.

In a JSON string every character has one spelling: itself, or its short escape. That makes complements exact.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from .charset import CharSet
from .regular import ANYTHING, EMPTY, NOTHING, Regular, derivative

ESCAPES: Final = {'"': '"', "\\": "\\", "\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f"}
"""Characters that JSON strings spell by an escape, and its letter; other control characters are not written."""

_ESCAPED: Final = CharSet.only("".join(ESCAPES))
_RAW: Final = ~(CharSet.of([(0, 0x1F), (0x7F, 0x7F)]) | _ESCAPED)
_MAX_STATES: Final = 4000
_MAX_MULTIPLE: Final = 30_000
"""Characters of an expression for the multiples of a number at most."""


class Unwritable(ValueError):
    """A language that has no terminal of reasonable size."""


def terminal(language: Regular, in_json: bool) -> str:
    """A Lark terminal expression of ``language``; in quotes and escaped with ``in_json``."""
    body = _lark(language, in_json)
    return f'"\\"" {body} "\\""' if in_json else body


@lru_cache(maxsize=4096)
def _lark(language: Regular, in_json: bool) -> str:
    plain = _expression(language, in_json)
    if plain is not None:
        return f"/{plain}/" if plain else '""'
    kind, parts = language.kind, language.parts
    if kind == "then":
        return " ".join(_lark(part, in_json) for part in _chain(language))
    if kind == "either":
        return "(" + " | ".join(_lark(part, in_json) for part in parts) + ")"
    if kind == "both":
        return "(" + " & ".join(f"({_lark(part, in_json)})" for part in parts) + ")"
    if kind == "never":
        return f"({_lark(ANYTHING, in_json)} & ~({_lark(parts[0], in_json)}))"
    part, least, most = parts
    return f"({_lark(part, in_json)}){{{least},{'' if most is None else most}}}"


@lru_cache(maxsize=4096)
def _expression(language: Regular, in_json: bool) -> str | None:
    """Syntax of Rust's regex; None for languages with intersections or complements."""
    kind, parts = language.kind, language.parts
    if language is EMPTY:
        return ""
    if language is NOTHING:
        raise Unwritable("nothing at all")
    if kind == "chars":
        return _characters(parts[0], in_json)
    if kind == "multiple":
        return _multiples(language)
    if kind not in ("then", "either", "repeat"):
        return None
    some = _chain(language) if kind == "then" else parts[:1] if kind == "repeat" else parts
    inner = [_expression(part, in_json) for part in some]
    texts = [text for text in inner if text is not None]
    if len(texts) < len(inner):
        return None
    if kind == "then":
        return "".join(texts)
    if kind == "either":
        return "(?:" + "|".join(texts) + ")"
    _, least, most = parts
    counts = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most))
    return f"(?:{texts[0]})" + (counts or f"{{{least},{'' if most is None else most}}}")


def _chain(language: Regular) -> list[Regular]:
    """The parts of a sequence, which may be long."""
    parts = []
    while language.kind == "then":
        parts.append(language.parts[0])
        language = language.parts[1]
    return [*parts, language]


@lru_cache(maxsize=1024)
def _characters(members: CharSet, in_json: bool) -> str:
    if not in_json:
        return _class(members)
    raw = members & _RAW
    escaped = "".join(letter for char, letter in ESCAPES.items() if char in members)
    options = [*([_class(raw)] if raw else []), *([rf"\\[{_escaped(escaped)}]"] if escaped else [])]
    if not options:
        raise Unwritable("characters that JSON strings are not given here")
    return options[0] if len(options) == 1 else "(?:" + "|".join(options) + ")"


def _class(members: CharSet) -> str:
    if len(members.ranges) == 1 and members.ranges[0][0] == members.ranges[0][1]:
        return _code(members.ranges[0][0])
    spans = (_code(low) if low == high else f"{_code(low)}-{_code(high)}" for low, high in members.ranges)
    return f"[{''.join(spans)}]"


def _escaped(letters: str) -> str:
    return "".join(_code(ord(letter)) for letter in letters)


def _code(code: int) -> str:
    char = chr(code)
    return char if char.isascii() and char.isalnum() else f"\\x{{{code:x}}}"


@lru_cache(maxsize=64)
def _multiples(language: Regular) -> str:
    """The digits of a multiple: its automaton, with as few states as can be, whose states are taken out one by one."""
    edges, start, finals = _smallest(language)
    begin, end = -1, -2
    ways: dict[tuple[int, int], str] = {(begin, start): "", **{(state, end): "" for state in finals}}
    for (source, target), letters in edges.items():
        ways[source, target] = f"[{letters}]"
    states = {state for key in edges for state in key} | finals | {start}
    while states:
        gone = min(states, key=lambda state: _degree(ways, state))
        states.remove(gone)
        _take_out(ways, gone)
        if sum(map(len, ways.values())) > _MAX_MULTIPLE:
            raise Unwritable("multiples of a number with so many remainders")
    return f"(?:{ways[begin, end]})"


def _smallest(language: Regular) -> tuple[dict[tuple[int, int], str], int, set[int]]:
    """Edges, start and accepting states of the smallest automaton (Moore's partition)."""
    known, order = {language: 0}, [language]
    steps: list[dict[str, int]] = []
    for state in order:
        row = {}
        for char in "0123456789.":
            after = derivative(state, char)
            if after is not NOTHING:
                if after not in known:
                    known[after] = len(order)
                    order.append(after)
                row[char] = known[after]
        steps.append(row)
        if len(order) > _MAX_STATES:
            raise Unwritable("multiples of a number with so many remainders")
    cells = [int(state.nullable) for state in order]
    while True:
        names: dict[object, int] = {}
        signs = [(cells[i], tuple(sorted((c, cells[t]) for c, t in row.items()))) for i, row in enumerate(steps)]
        refined = [names.setdefault(sign, len(names)) for sign in signs]
        if len(set(refined)) == len(set(cells)):
            break
        cells = refined
    edges: dict[tuple[int, int], str] = {}
    for index in {cell: index for index, cell in enumerate(cells)}.values():
        for char, target in steps[index].items():
            key = (cells[index], cells[target])
            edges[key] = edges.get(key, "") + ("\\." if char == "." else char)
    return edges, cells[0], {cells[i] for i, state in enumerate(order) if state.nullable}


def _degree(ways: dict[tuple[int, int], str], state: int) -> int:
    into = sum(key[1] == state != key[0] for key in ways)
    return into * sum(key[0] == state != key[1] for key in ways)


def _take_out(edges: dict[tuple[int, int], str], gone: int) -> None:
    loop = edges.pop((gone, gone), None)
    again = f"(?:{loop})*" if loop is not None else ""
    into = [(key[0], edges.pop(key)) for key in list(edges) if key[1] == gone]
    out = [(key[1], edges.pop(key)) for key in list(edges) if key[0] == gone]
    for source, before in into:
        for target, after in out:
            way = f"(?:{before}){again}(?:{after})"
            known = edges.get((source, target))
            edges[source, target] = way if known is None else f"{known}|{way}"
