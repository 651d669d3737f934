"""Checking the ``drafters`` argument of an engine, where a mistake would otherwise only make it slow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mmspec_agent.core.drafters.base import Drafter
from mmspec_agent.core.errors import OptionError

DEFAULT_DRAFTERS = "default"

_ACCEPTED = (
    f"accepted are {DEFAULT_DRAFTERS!r} and a list of drafter objects, for example [NgramDrafter()]; an empty list "
    "turns drafting off"
)


def given_drafters(drafters: Any) -> list[Drafter] | None:
    """The drafters of a list, or None for the default ones. OptionError for anything else, saying what it was."""
    if isinstance(drafters, str):
        if drafters == DEFAULT_DRAFTERS:
            return None
        raise OptionError(f"drafters={drafters!r}: there is no drafter of that name; {_ACCEPTED}")
    if isinstance(drafters, (bytes, dict)) or not isinstance(drafters, Iterable):
        hint = "put it into a list" if _problem(drafters) is None else _ACCEPTED
        raise OptionError(f"drafters={_shown(drafters)}: this is no list; {hint}")
    chosen = list(drafters)
    for index, drafter in enumerate(chosen):
        problem = _problem(drafter)
        if problem is not None:
            raise OptionError(f"drafters[{index}] is {_shown(drafter)}: {problem}; {_ACCEPTED}")
    return chosen


def _problem(drafter: Any) -> str | None:
    """Why an object is no drafter; None if it is one."""
    if isinstance(drafter, type):
        return f"this is a class; pass an object of it, {drafter.__name__}()"
    if isinstance(drafter, str):
        return "drafters are objects, not names"
    missing = [name for name in ("name", "open") if not _has(drafter, name)]
    if missing:
        return f"it has no {', '.join(missing)} (see the Drafter protocol in mmspec_agent.core.drafters.base)"
    if not isinstance(drafter.name, str) or not callable(drafter.open):
        return "its name has to be a text and its open a method"
    return None


def _has(drafter: Any, name: str) -> bool:
    try:
        getattr(drafter, name)
    except Exception:  # a property of somebody else's class may raise anything
        return False
    return True


def _shown(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return repr(value) if value is None or isinstance(value, (str, int, float, bool)) else f"a {type(value).__name__}"
