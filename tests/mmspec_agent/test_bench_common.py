"""What benchmarks share: turns, ratios, bars, prompts, and where an answer begins to loop."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from mmspec_agent.bench.common import Bar, Report, Spread, environment, take_turns
from mmspec_agent.bench.prompts import load_prompts, per_kind
from mmspec_agent.bench.repeats import first_difference, tokens_before_loop
from mmspec_agent.core.errors import OptionError


def test_every_arm_runs_once_a_turn_and_another_one_begins_each_time() -> None:
    order: list[str] = []

    def arm(name: str) -> None:
        order.append(name)

    arms = {name: (lambda n=name: arm(n)) for name in "abc"}
    results = [take_turns(arms, turn) for turn in range(3)]
    assert order == list("abcbcacab")
    assert all(list(result) == list("abc") for result in results)
    assert all(timed.wall >= 0 and timed.cpu >= 0 for timed in results[0].values())


def test_spread_is_median_least_and_greatest() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)


@pytest.mark.parametrize(
    ("bar", "ok"),
    [
        (Bar("speed", 2.0, 2.0), True),
        (Bar("speed", 1.99, 2.0), False),
        (Bar("share", 0.04, 0.05, at_most=True), True),
        (Bar("share", 0.06, 0.05, at_most=True), False),
        (Bar("share", float("nan"), 0.05, at_most=True), False),
        (Bar("speed", float("nan"), 1.0), False),
    ],
)
def test_a_bar_is_reached_or_not(bar: Bar, ok: bool) -> None:
    assert bar.ok is ok


def test_report_is_one_json_object_and_a_table() -> None:
    report = Report("text", environment(model="m"))
    report.ratios["ours / theirs"] = Spread(2.0, 1.5, 2.5)
    report.bars = [Bar("speed", 2.0, 1.5), Bar("share", 0.2, 0.05, at_most=True)]
    report.details["bad"] = [float("nan"), 1.23456789]
    loaded = json.loads(json.dumps(report.as_dict()))
    assert set(loaded) == {"bench", "environment", "arms", "ratios", "bars", "details"}
    assert loaded["ratios"]["ours / theirs"] == {"median": 2.0, "min": 1.5, "max": 2.5}
    assert loaded["bars"][1] == {"name": "share", "value": 0.2, "bar": "<= 0.05", "ok": False}
    assert loaded["details"]["bad"] == [None, 1.235]
    assert {"threads", "cores", "packages", "processor"} <= set(loaded["environment"])
    assert not report.ok
    output = io.StringIO()
    report.render(Console(file=output, width=100))
    assert "falls short" in output.getvalue()
    assert "2.00" in output.getvalue()


def test_an_answer_counts_until_its_first_repeated_8_gram() -> None:
    once = list(range(20))
    assert tokens_before_loop(once) == 20
    assert tokens_before_loop(once + once[4:12]) == 20
    assert tokens_before_loop(once + once[4:11]) == 27
    assert tokens_before_loop([1] * 30) == 1
    assert tokens_before_loop([]) == 0


def test_the_first_difference_of_two_answers() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 5, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2


def test_own_prompts_may_be_short_or_whole(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    messages = [{"role": "user", "content": "b"}]
    path.write_text(
        json.dumps({"prompt": "a"})
        + "\n\n"
        + json.dumps({"id": "x", "kind": "chat", "messages": messages, "max_new_tokens": 7}),
        encoding="utf-8",
    )
    first, second = load_prompts(path, "unused")
    assert (first.id, first.kind, first.messages) == ("own/1", "own", ({"role": "user", "content": "a"},))
    assert (second.id, second.kind, second.max_new_tokens) == ("x", "chat", 7)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "holds no prompt"),
        ("nonsense", "line 1: not JSON"),
        ('{"prompt": "a"}\n{"messages": []}', "line 2: no messages"),
        ("[1]", "line 1: no messages"),
        ('{"prompt": "a", "max_new_tokens": 0}', "max_new_tokens=0"),
    ],
)
def test_bad_prompt_files_are_refused_with_the_line(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(OptionError, match=said):
        load_prompts(path, "unused")


def test_a_missing_prompt_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot be read"):
        load_prompts(tmp_path / "none.jsonl", "unused")


def test_prompts_that_ship_are_taken_by_kind() -> None:
    kinds = per_kind(load_prompts(None, "text_prompts.jsonl"), 2)
    assert {"copy_heavy", "passage", "chat", "second_turn"} == set(kinds)
    assert all(len(prompts) == 2 for prompts in kinds.values())
