"""The clock of the grammar's work counts it once, a step at a time, and leaves nothing behind."""

from __future__ import annotations

import time

import pytest

from mmspec_agent.bench.closing import random_engine
from mmspec_agent.bench.grammar_clock import CLOCKED, GrammarClock, wide_schema
from mmspec_agent.grammar.constraint import GrammarCursor
from mmspec_agent.grammar.plans import json_plan
from mmspec_agent.grammar.vocabulary import Vocabulary


@pytest.mark.own_clock
def test_calls_inside_calls_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(1000))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(now)))
    plan = json_plan(Vocabulary.of(random_engine().tokenizer), {"const": "a rather long constant"})
    clock = GrammarClock()
    with clock:
        cursor = plan.open(60)
        cursor.advance(cursor.forced_run(1)[0])  # asks for masks inside
        cursor.fork().mask()
        clock.trace({"step": 2, "seconds": {"draft": 3.0, "verify": 6.0, "rest": 1.0}})
    assert clock.steps == [(4.0, 10.0)]
    assert clock.share.share == pytest.approx(0.4)
    assert clock.share.steps == 1


def test_the_first_step_is_kept_apart() -> None:
    clock = GrammarClock()
    clock.trace({"step": 1, "seconds": {"draft": 1.0, "verify": 1.0, "rest": 1.0}})
    assert clock.first == [0.0]
    assert clock.share.steps == 0


def test_the_methods_are_put_back() -> None:
    before = [getattr(owner, name) for owner, name in CLOCKED]
    with GrammarClock():
        assert GrammarCursor.mask is not before[0]
    assert [getattr(owner, name) for owner, name in CLOCKED] == before


def test_the_wide_schema_is_what_it_says() -> None:
    schema = wide_schema()
    assert len(schema["properties"]) == 200
    assert len(set(schema["properties"]["part"]["enum"])) == 5000
    assert set(schema["required"]) <= set(schema["properties"])


def test_every_mask_is_timed_wherever_it_is_asked_for() -> None:
    plan = json_plan(Vocabulary.of(random_engine().tokenizer), {"enum": ["a", "b"]})
    clock = GrammarClock()
    with clock:
        cursor = plan.open(20)
        cursor.forced_run(8)
        cursor.mask()
        cursor.mask()  # known by now
    assert clock.share.masks == len(clock.masks) >= 1
    assert clock.share.mask_p99_ms >= 0.0
