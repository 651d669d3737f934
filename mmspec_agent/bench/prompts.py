"""Prompts of a benchmark: fixed files that ship with the package, or a user's own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from mmspec_agent.core.errors import OptionError

ACCEPTED = (
    'a JSON object a line: {"messages": [{"role": "user", "content": …}], "kind": …, "id": …, "max_new_tokens": …}; '
    '"prompt": "…" may stand for messages; kind, id and max_new_tokens may be left out'
)


@dataclass(frozen=True)
class BenchPrompt:
    """A conversation that waits for an answer; ``kind`` groups prompts whose ratios are reported together."""

    id: str
    kind: str
    messages: tuple[dict[str, Any], ...]
    max_new_tokens: int = 128


def load_prompts(path: Path | None, packaged: str) -> list[BenchPrompt]:
    """Prompts of a user's file, or of ``packaged`` (a file name in ``bench/data``); OptionError names a bad line."""
    if path is None:
        text = (files("mmspec_agent.bench") / "data" / packaged).read_text(encoding="utf-8")
        source = packaged
    else:
        source = str(path)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"--prompts {path}: cannot be read ({error}); accepted is {ACCEPTED}") from error
    lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if not lines:
        raise OptionError(f"--prompts {source}: holds no prompt; accepted is {ACCEPTED}")
    return [_prompt(f"{source}, line {number}", number, line) for number, line in lines]


def per_kind(prompts: Sequence[BenchPrompt], limit: int | None) -> dict[str, list[BenchPrompt]]:
    """Prompts by kind in the order of the file, at most ``limit`` of each (None: all)."""
    kinds: dict[str, list[BenchPrompt]] = {}
    for prompt in prompts:
        chosen = kinds.setdefault(prompt.kind, [])
        if limit is None or len(chosen) < limit:
            chosen.append(prompt)
    return kinds


def _prompt(where: str, number: int, line: str) -> BenchPrompt:
    try:
        given = json.loads(line)
    except json.JSONDecodeError as error:
        raise OptionError(f"{where}: not JSON ({error}); accepted is {ACCEPTED}") from error
    messages = given.get("messages") if isinstance(given, dict) else None
    if isinstance(given, dict) and isinstance(given.get("prompt"), str):
        messages = [{"role": "user", "content": given["prompt"]}]
    new_tokens = given.get("max_new_tokens", 128) if isinstance(given, dict) else 0
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise OptionError(f"{where}: no messages; accepted is {ACCEPTED}")
    if not isinstance(new_tokens, int) or new_tokens < 1:
        raise OptionError(f"{where}: max_new_tokens={new_tokens!r}; accepted is a positive integer")
    kind = str(given.get("kind", "own"))
    return BenchPrompt(str(given.get("id", f"{kind}/{number}")), kind, tuple(messages), new_tokens)
