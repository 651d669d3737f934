"""What a schema asks for that cannot be had: impossible bounds, empty choices, and where nothing fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mmspec_agent.core.errors import SchemaError

from .document import Document, place_of, subschemas
from .facts import Part
from .shape import settle, shortest

if TYPE_CHECKING:
    from .shape_build import Builder

_BOUNDS: Final = (
    ("minimum", "maximum"), ("minLength", "maxLength"), ("minItems", "maxItems"), ("minProperties", "maxProperties"),
)  # fmt: skip
_TURNED_AROUND: Final = ("/not/", "/if/")
_MOST_BLAMED: Final = 200


def check_possible(document: Document) -> None:
    """Raise SchemaError, by pointer, for bounds that exclude each other and for empty enums."""
    if document.root is False:
        raise SchemaError("The schema is impossible: 'false' admits no value.")
    for pointer, sub in subschemas(document.root):
        if not isinstance(sub, dict) or any(word in pointer + "/" for word in _TURNED_AROUND):
            continue
        place = place_of(pointer)
        if sub.get("enum") == []:
            raise SchemaError(f"The schema is impossible: 'enum' at {place} is empty, so no value fits.")
        for low, high in _BOUNDS:
            if low in sub and high in sub and sub[low] > sub[high]:
                raise SchemaError(f"The schema is impossible at {place}: {low} {sub[low]} is above {high} {sub[high]}.")
        _check_open_bounds(sub, place)


def _check_open_bounds(sub: dict[str, Any], place: str) -> None:
    low, high = (_bound(sub, name) for name in ("inimum", "aximum"))
    if low is None or high is None:
        return
    (low_name, low_value, low_open), (high_name, high_value, high_open) = low, high
    if (low_open or high_open) and low_value >= high_value:
        raise SchemaError(
            f"The schema is impossible at {place}: {low_name} {low_value} leaves nothing below {high_name} "
            f"{high_value}."
        )


def _bound(sub: dict[str, Any], name: str) -> tuple[str, Any, bool] | None:
    """Name, value and openness of a bound that is open if any is."""
    plain, exclusive = "m" + name, "exclusiveM" + name
    if isinstance(sub.get(exclusive), bool) or exclusive not in sub:
        return (plain, sub[plain], sub.get(exclusive) is True) if plain in sub else None
    return exclusive, sub[exclusive], True


def blame_impossible(builder: Builder, document: Document) -> str:
    """What to say of a schema that no finite document fits: the innermost place that is to blame."""
    place = None
    for pointer, sub in list(subschemas(document.root))[:_MOST_BLAMED]:
        if not isinstance(sub, (dict, bool)) or any(word in pointer + "/" for word in _TURNED_AROUND):
            continue
        root = builder.node([Part(pointer)])
        settle(root)
        if shortest(root) is None and (place is None or pointer.startswith(place)):
            place = pointer
    return (
        f"The schema is impossible: nothing fits at {place_of(place or '')}; every document would be endless or break "
        "a rule (a required property that refers back to its own schema, or demands that exclude each other?). Make "
        "the reference optional, or allow null beside it."
    )
