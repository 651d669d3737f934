"""Named states of JSON text: they depend on the bytes alone, never on how they were cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmspec_agent.grammar.machine import END, STATES, JsonState


@pytest.mark.parametrize(
    ("text", "name", "pointer"),
    [
        ("", "START", ""),
        ("{", "OBJECT", "/"),
        ('{"a', "KEY_NAME", "/"),
        ('{"a"', "COLON", "/a"),
        ('{"a": ', "VALUE_START", "/a"),
        ('{"a": "x\\"', "STRING", "/a"),
        ('{"a": -1', "NUMBER", "/a"),
        ('{"a": tr', "LITERAL", "/a"),
        ('{"a": true', "COMMA", "/a"),
        ('{"a": [', "ARRAY", "/a/0"),
        ('{"a": [1, {"b/c~": 2', "NUMBER", "/a/1/b~1c~0"),
        ('{"a": 1, ', "KEY_NAME", "/"),
        ('{"a": 1}', "END", ""),
    ],
)
def test_every_place_has_a_name_and_a_pointer(text: str, name: str, pointer: str) -> None:
    state = JsonState().feed(text.encode())
    assert (state.name, state.pointer) == (name, pointer)
    assert state.name in STATES


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=120, deadline=None)
@given(values, st.data(), st.booleans())
def test_state_does_not_depend_on_how_the_text_is_cut(value: object, data: st.DataObject, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    cut = data.draw(st.integers(0, len(text)))
    whole = JsonState().feed(text)
    assert JsonState().feed(text[:cut]).feed(text[cut:]) == whole
    if isinstance(value, (dict, list, str, bool)) or value is None:
        assert whole.name == END
        assert whole.depth == 0
