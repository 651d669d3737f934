"""TypedDicts that pydantic reads on every Python."""

from __future__ import annotations

import functools
import operator
import sys
import types
import typing
from typing import Annotated, Any

import typing_extensions


def portable(wanted: Any) -> Any:
    """TypedDicts of ``typing`` as those of ``typing_extensions``, which pydantic asks for before Python 3.12."""
    if typing.is_typeddict(wanted) and sys.version_info < (3, 12):
        hints = typing.get_type_hints(wanted, include_extras=True)
        required = wanted.__required_keys__
        fields = {
            name: portable(kind) if name in required else typing_extensions.NotRequired[portable(_bare(kind))]
            for name, kind in hints.items()
        }
        return typing_extensions.TypedDict(wanted.__name__, fields)  # type: ignore[operator]
    origin, args = typing.get_origin(wanted), typing.get_args(wanted)
    if origin is Annotated:
        return Annotated[(portable(args[0]), *args[1:])]
    if origin in (list, dict, tuple, set, frozenset) and args:
        return origin[tuple(portable(arg) for arg in args)]
    if origin in (typing.Union, types.UnionType):
        return functools.reduce(operator.or_, (portable(arg) for arg in args))
    return wanted


def _bare(kind: Any) -> Any:
    return typing.get_args(kind)[0] if typing.get_origin(kind) is typing.NotRequired else kind
