"""How models mark the section in which they reason, as their chat templates and prompts show it."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_WORD: Final = r"[a-z_:]*(?:think|thought|reason|reflect)[a-z_]*"
_OPENERS: Final = (
    re.compile(rf"<\|(?:start|begin)(_(?:of_)?{_WORD})\|>$", re.IGNORECASE),
    re.compile(rf"<(?:start|begin)(_(?:of_)?{_WORD})>$", re.IGNORECASE),
    re.compile(rf"<\|?({_WORD})\|?>$", re.IGNORECASE),
    re.compile(rf"\[({_WORD})\]$", re.IGNORECASE),
    re.compile(rf"◁({_WORD})▷$", re.IGNORECASE),
)
_CLOSERS: Final = (
    re.compile(rf"<(\|?)(?:/)({_WORD})(\|?)>", re.IGNORECASE),
    re.compile(rf"(\[)/({_WORD})(\])", re.IGNORECASE),
    re.compile(rf"(◁)/({_WORD})(▷)", re.IGNORECASE),
    re.compile(rf"(<\|?)end(_(?:of_)?{_WORD})(\|?>)", re.IGNORECASE),
)


class Section(NamedTuple):
    """The texts that begin and end a reasoning section."""

    opener: str
    closer: str


def section_left_open(prompt: str) -> Section | None:
    """The section that a prompt ends in, if the template has opened one for the answer."""
    text = prompt.rstrip()
    for pattern in _OPENERS:
        found = pattern.search(text[-64:])
        if found is not None and not found[1].lower().startswith(("end", "/")):
            return Section(found[0], _closer_of(found[0], found[1]))
    return None


def is_closed(prompt: str) -> bool:
    """Whether a prompt ends behind a reasoning section: the template writes an empty one."""
    text = prompt.rstrip()[-64:]
    return any(found.end() == len(text) for pattern in _CLOSERS for found in pattern.finditer(text))


def section_of(template: str) -> Section | None:
    """The section that a template knows of, by the text that ends it; answers may begin with one."""
    for pattern in _CLOSERS:
        found = pattern.search(template)
        if found is not None:
            return Section(_opener_of(found[0], template), found[0])
    return None


def _closer_of(opener: str, word: str) -> str:
    swapped = _with_word(opener, {"start": "end", "begin": "end"})
    return swapped if swapped != opener else opener.replace(word, f"/{word}", 1)


def _opener_of(closer: str, template: str) -> str:
    if "/" in closer:
        return closer.replace("/", "", 1)
    started, begun = (_with_word(closer, {"end": word}) for word in ("start", "begin"))
    return begun if begun in template and started not in template else started


def _with_word(marker: str, words: dict[str, str]) -> str:
    """``marker`` with its first word exchanged, in the same case."""

    def exchanged(found: re.Match[str]) -> str:
        word = words[found[1].lower()]
        return word.upper() if found[1].isupper() else word

    return re.sub(rf"(?<=[<|])({'|'.join(words)})(?=_)", exchanged, marker, count=1, flags=re.IGNORECASE)
