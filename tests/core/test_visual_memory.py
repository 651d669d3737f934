"""Visual memory: the budget holds, what is in use stays; prefixes are compared by ids and pictures alike."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmspec_agent.core.errors import PictureInputError
from mmspec_agent.core.visual.families import PictureInput
from mmspec_agent.core.visual.memory import ByteStore
from mmspec_agent.core.visual.placing import Placed, common_prefix, cut_at_borders, place
from mmspec_agent.core.visual.segments import prefix_keys

IMAGE = 9


def picture(key: str, count: int) -> PictureInput:
    return PictureInput(key, dict, None, count)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(1, 60), st.booleans()), max_size=40),
    st.sets(st.integers(0, 12), max_size=3),
)
def test_the_budget_holds_and_pinned_values_stay(steps: list[tuple[int, int, bool]], pins: set[int]) -> None:
    store = ByteStore(100)
    sizes: dict[str, int] = {}
    with store.pinned([str(pin) for pin in pins]):
        for name, size, reads in steps:
            key = str(name)
            held_pins = {k for k in map(str, pins) if k in store}
            if reads:
                assert (store.get(key) is not None) == (key in store)
            elif store.put(key, object(), size):
                sizes[key] = size
                assert key in store
            assert store.bytes <= store.budget
            assert store.bytes == sum(size for held, size in sizes.items() if held in store)
            assert all(pin in store for pin in held_pins - {key})


def test_the_least_recently_used_goes_first() -> None:
    store = ByteStore(30)
    for key in "abc":
        assert store.put(key, key, 10)
    store.get("a")
    assert store.put("d", "d", 10)
    assert [key in store for key in "abcd"] == [True, False, True, True]
    assert store.counts.evictions == 1
    assert not store.put("huge", "huge", 31)
    assert store.counts.refused == 1
    store.clear()
    assert (store.bytes, len(store)) == (0, 0)


def sequence(parts: list[tuple[str, int]]) -> tuple[list[int], tuple[Placed, ...]]:
    """Ids and pictures: ("", n) is n times token n, (key, n) a picture of n placeholders."""
    ids: list[int] = []
    pictures = []
    for key, size in parts:
        ids += [size] * size if not key else [IMAGE] * size
        if key:
            pictures.append(picture(key, size))
    return ids, place(ids, IMAGE, pictures)


PARTS = st.lists(st.tuples(st.sampled_from(["", "", "x", "y"]), st.integers(1, 4)), max_size=6)


@settings(deadline=None, max_examples=300)
@given(PARTS, PARTS)
def test_common_prefixes_share_ids_and_whole_pictures(
    left: list[tuple[str, int]], right: list[tuple[str, int]]
) -> None:
    """Against the rule itself, token by token."""
    ids, pictures = sequence(left)
    other_ids, other_pictures = sequence(right)

    def named(tokens: list[int], placed: tuple[Placed, ...]) -> list[object]:
        names: list[object] = list(tokens)
        for one in placed:
            names[one.start : one.end] = [(one.picture.key, one.start, one.end)] * (one.end - one.start)
        return names

    a, b = named(ids, pictures), named(other_ids, other_pictures)
    wanted = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    found = common_prefix(ids, pictures, other_ids, other_pictures)
    assert found == wanted
    assert cut_at_borders(found, pictures) == found == cut_at_borders(found, other_pictures)
    assert common_prefix(ids, pictures, ids, pictures) == len(ids)


def test_prefix_keys_depend_on_everything_before_them() -> None:
    ids, placed = sequence([("", 3), ("x", 2), ("", 1), ("y", 4), ("", 2)])
    keys = prefix_keys("model", ids, placed)
    assert prefix_keys("model", [*ids, 1, 2], placed) == keys, "what comes behind does not matter"
    first = replace(placed[0], picture=picture("z", 2))
    changed = [
        prefix_keys("other", ids, placed),
        prefix_keys("model", [7, *ids[1:]], placed),
        prefix_keys("model", ids, (first, placed[1])),
    ]
    for other in changed:
        assert not set(other) & set(keys)
    assert prefix_keys("model", [*ids[:5], 8, *ids[6:]], placed)[0] == keys[0]
    assert prefix_keys("model", [*ids[:5], 8, *ids[6:]], placed)[1] != keys[1]


def test_placeholders_are_counted() -> None:
    with pytest.raises(PictureInputError, match="1 placeholder tokens, its 1 pictures need 2"):
        place([1, IMAGE, 2], IMAGE, [picture("x", 2)])
