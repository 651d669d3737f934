"""Local language and vision-language models that answer sooner, with the same tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine import Engine as Engine
    from .reply import Reply as Reply
    from .session import Session as Session

__version__ = "0.1.0"
__all__ = ["Engine", "Reply", "Session"]

_HOMES = {"Engine": "engine", "Reply": "reply", "Session": "session"}


def __getattr__(name: str) -> Any:
    """Load torch and transformers on first use, so that ``mmspec --help`` answers at once."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
