"""Function-calling tasks: the packaged ones, or any file in the shape of the Berkeley leaderboard's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema

from mmspec_agent.core.errors import OptionError
from mmspec_agent.reply import ToolCall

PACKAGED = "calls_tasks.jsonl"
ACCEPTED = 'a JSON object a line: {"id": …, "messages": […], "tools": […], "answers": [{"name": …, "arguments": …}]}'


@dataclass(frozen=True)
class CallTask:
    """A question, the tools on offer, and the calls that count as right.

    ``answers[i]["arguments"]`` maps each parameter to the list of values accepted for it; an empty text among
    them means that it may be left out.
    """

    id: str
    category: str
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...]
    answers: tuple[Mapping[str, Any], ...] = ()

    @property
    def parallel(self) -> bool:
        """Whether the question asks for several calls."""
        return "parallel" in self.category or len(self.answers) > 1

    def is_correct(self, calls: Sequence[ToolCall]) -> bool:
        """Whether the calls are those accepted, in any order."""
        if len(calls) != len(self.answers):
            return False
        left = list(self.answers)
        for call in calls:
            match = next((answer for answer in left if _matches(call, answer)), None)
            if match is None:
                return False
            left.remove(match)
        return True

    def is_valid(self, calls: Sequence[ToolCall]) -> bool:
        """Whether there is a call, and each one's arguments validate against its tool's schema."""
        schemas = {t["function"]["name"]: t["function"].get("parameters", {}) for t in self.tools}
        for call in calls:
            try:
                jsonschema.validate(call.arguments, schemas[call.name])
            except (jsonschema.ValidationError, KeyError):
                return False
        return bool(calls)


def load_tasks(path: Path | None) -> list[CallTask]:
    """Tasks of a file, or the packaged ones; OptionError names a line that does not fit."""
    if path is None:
        text = (files("mmspec_agent.bench") / "data" / PACKAGED).read_text(encoding="utf-8")
    else:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"--tasks {path}: cannot be read ({error}); accepted is {ACCEPTED}") from error
    tasks = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            tasks.append(_task(f"{path or PACKAGED}, line {number}", line))
    if not tasks:
        raise OptionError(f"--tasks {path}: holds no task; accepted is {ACCEPTED}")
    return tasks


def _task(where: str, line: str) -> CallTask:
    try:
        given = json.loads(line)
        return CallTask(
            str(given["id"]),
            str(given.get("category", "")),
            tuple(given["messages"]),
            tuple(given["tools"]),
            tuple(given.get("answers", ())),
        )
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise OptionError(f"--tasks {where}: {type(error).__name__}: {error}; accepted is {ACCEPTED}") from error


def _matches(call: ToolCall, answer: Mapping[str, Any]) -> bool:
    if call.name != answer["name"]:
        return False
    wanted = answer["arguments"]
    if set(call.arguments) - set(wanted):
        return False
    return all(_accepted(call.arguments, name, values) for name, values in wanted.items())


def _accepted(arguments: Mapping[str, Any], name: str, values: Any) -> bool:
    accepted = values if isinstance(values, list) else [values]
    if name not in arguments:
        return "" in accepted
    return any(_same(arguments[name], value) for value in accepted)


def _same(given: Any, value: Any) -> bool:
    """Equal up to the case and outer spaces of texts, as the leaderboard compares."""
    if isinstance(given, str) and isinstance(value, str):
        return given.strip().lower() == value.strip().lower()
    if isinstance(given, list) and isinstance(value, list):
        return len(given) == len(value) and all(_same(g, v) for g, v in zip(given, value))
    if isinstance(given, dict) and isinstance(value, dict):
        return all(_accepted(given, name, values) for name, values in value.items()) and set(given) <= set(value)
    if isinstance(given, bool) or isinstance(value, bool):
        return given is value
    return bool(given == value)
