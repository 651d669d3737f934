"""Patterns mean what ECMA-262 says, in Python and in the engine alike.

``ecma_patterns.jsonl``: [pattern, flags it compiles with or null, [[text, found], ...]], random patterns judged by
V8's RegExp (flag u first, none where u is an error).
"""

from __future__ import annotations

import json
import random
import warnings
from pathlib import Path

import pytest

from mmspec_agent.grammar.ecma import PatternError
from mmspec_agent.grammar.pattern import searched, whole_match
from mmspec_agent.grammar.regex import Automaton
from mmspec_agent.grammar.regular import NOTHING
from mmspec_agent.grammar.terminal import Unwritable, terminal

from .byte_engine import accepting

DATA = Path(__file__).parent / "data" / "ecma_patterns.jsonl"
RECORDED = [json.loads(line) for line in DATA.read_text("utf-8").splitlines()]


def test_random_patterns_find_what_a_javascript_engine_finds() -> None:
    wrong, refused, judged = [], 0, 0
    for pattern, flags, texts in RECORDED:
        try:
            automaton = Automaton(searched(pattern))
        except PatternError:
            refused += flags is not None
            continue
        assert flags is not None, pattern
        judged += len(texts)
        wrong += [(pattern, text) for text, found in texts if automaton.matches(text) is not found]
    assert wrong == []
    assert judged > 8000
    assert refused < len(RECORDED) // 5


def test_the_engine_accepts_json_strings_of_the_same_texts() -> None:
    draw, judged = random.Random(1), 0
    for pattern, flags, texts in draw.sample(RECORDED, 150):
        try:
            language = searched(pattern)
        except PatternError:
            continue
        if flags is None or language is NOTHING:
            continue
        try:
            accepts = accepting(f"start: A\nA: {terminal(language, True)}\n")
        except Unwritable:
            continue
        for text, found in texts:
            if any(ord(char) < 0x20 and char not in "\n\r\t\b\f" for char in text):
                continue
            assert accepts(json.dumps(text, ensure_ascii=False)) is found, (pattern, text)
            judged += 1
    assert judged > 300


def test_a_completion_is_matched_and_none_is_shorter() -> None:
    for pattern in (r"^[a-c]{2,4}$", r"^(?=.*\d)\w+$", r"^(?!.*ab)[ab]{3}$", "a|bcd", r"^\d{3}-\d{4}$", r"^(ab)*c$"):
        automaton = Automaton(searched(pattern))
        for begun in ("", "a", "ab", "1", "b"):
            more = automaton.finish(begun)
            if more is not None:
                assert automaton.matches(begun + more)
                assert automaton.finish(begun, len(more) + 2) is None or automaton.matches(
                    begun + str(automaton.finish(begun, len(more) + 2))
                )
                assert all(automaton.finish(begun, 0, n) is None for n in range(len(more)))


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (r"(a)\1", "backreference"), (r"(?<n>a)\k<n>", "backreference"), ("(?<=a)b", "look-behind"),
        ("(?<!a)b", "look-behind"), ("(?i)a", "no group of ECMA-262"), ("(?P<n>a)", "no group of ECMA-262"),
        ("a{3,2}", "out of order"), ("[b-a]", "out of order"), ("(a", "not closed"), ("*a", "nothing to repeat"),
        (r"\p{Klingon}", "no property"), ("a{1,9999999}", "not supported"), ("(?:(?=a)b)*c", "assertion"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_named(pattern: str, words: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(PatternError, match=words):
            whole_match(pattern)
