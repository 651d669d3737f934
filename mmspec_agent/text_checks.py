"""Texts that cannot be written in UTF-8 are refused where they enter, not deep in a tokenizer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from mmspec_agent.core.errors import MMSpecError, OptionError

_SURROGATE = re.compile("[\ud800-\udfff]")


def check_strings(value: Any, where: str, error: type[MMSpecError] = OptionError) -> None:
    """``error`` if a text anywhere in ``value`` (nested lists and dicts) holds half of a surrogate pair."""
    for text in _strings(value):
        found = _SURROGATE.search(text)
        if found is not None:
            raise error(
                f"{where} holds the lone surrogate {found[0]!r} at character {found.start()} of {text!r:.60}, which is "
                "half a character; accepted is text that can be written in UTF-8. Decode it with errors='replace'"
            )


def _strings(value: Any, depth: int = 32) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif depth and isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key, depth - 1)
            yield from _strings(item, depth - 1)
    elif depth and isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from _strings(item, depth - 1)
