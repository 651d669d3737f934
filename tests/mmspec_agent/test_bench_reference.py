"""`mmspec bench reference`: parts of an evaluation add up, chance is what a guess is worth, bars are held."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from mmspec_agent.bench.reference import ReferenceOptions, bars, run
from mmspec_agent.cli.main import build
from mmspec_agent.core.errors import ModelError, ModelNotFound
from mmspec_agent.models.reference_vlm import load_reference_vlm
from mmspec_agent.models.scenes import random_scene
from mmspec_agent.models.vlm_training_evaluation import UNSEEN, Evaluation, answer, chosen, joined

COLORS = ("red", "green", "blue")


def part(right: int, asked: int, stated: int, true: int, values: dict[str, int], withheld: bool = False) -> Evaluation:
    counted: Counter[tuple[str, tuple[str, ...], str]] = Counter(
        {("color", COLORS, value): number for value, number in values.items()}
    )
    return Evaluation(2, withheld, {"color": (right, asked)}, stated, true, counted, [("q", "a", "r")])


def test_parts_add_up() -> None:
    first = part(3, 4, 10, 9, {"red": 3, "blue": 1})
    second = Evaluation(1, False, {"count": (1, 2)}, 5, 5, Counter({("count", ("one", "two"), "one"): 2}), [])
    whole = joined([first, second, part(1, 2, 0, 0, {"blue": 2})])
    assert (whole.scenes, whole.stated, whole.true) == (5, 15, 14)
    assert whole.kinds == {"color": (4, 6), "count": (1, 2)}
    assert whole.attributes == pytest.approx(4 / 6)
    assert whole.counting == 0.5
    assert whole.description_facts == pytest.approx(14 / 15)


def test_chance_is_the_most_frequent_answer_among_the_same_choices() -> None:
    evaluation = part(0, 6, 1, 0, {"red": 3, "blue": 2, "green": 1})
    assert evaluation.chance(("color",)) == 0.5
    evaluation.values["size", ("small", "large"), "small"] = 2
    assert evaluation.chance(("color", "size")) == pytest.approx(5 / 8)
    assert evaluation.chance(("count",)) == 0


@pytest.mark.parametrize("name", ["attribute questions, picture withheld", "stated facts of full descriptions"])
def test_a_bar_that_falls_short_is_named(name: str) -> None:
    good = {"color": (95, 100), "count": (9, 10), "negation": (19, 20), "relation": (9, 10)}
    values: Counter[tuple[str, tuple[str, ...], str]] = Counter(
        {("color", COLORS, "red"): 30, ("color", COLORS, "blue"): 70, ("count", ("1", "2"), "1"): 10}
    )
    facts = 80 if name.startswith("stated") else 95
    guesses = 60 if name.startswith("stated") else 90
    seen = Evaluation(9, False, good, 100, facts, values, [])
    withheld = Evaluation(9, True, {"color": (guesses, 100), "count": (4, 10)}, 9, 1, values, [])
    outside = Evaluation(0, False, {"outside noise": (9, 9), "outside text": (9, 10)}, 0, 0, Counter(), [])
    assert [bar.name.startswith(name) for bar in bars(seen, withheld, outside) if not bar.ok] == [True]


@pytest.mark.parametrize(
    ("name", "negated", "related", "told", "disowned"),
    [
        ("yes and no to negated questions", 89, 90, 90, 1),
        ("relations of two things", 95, 79, 90, 1),
        ("pictures that are no scenes", 95, 90, 89, 1),
        ("scenes taken for something else", 95, 90, 90, 2),
    ],
)
def test_each_further_bar_is_named(name: str, negated: int, related: int, told: int, disowned: int) -> None:
    values: Counter[tuple[str, tuple[str, ...], str]] = Counter(
        {("color", COLORS, "red"): 50, ("color", COLORS, "blue"): 50, ("count", ("1", "2"), "1"): 10}
    )
    good = {"color": (95, 100), "count": (9, 10), "negation": (negated, 100), "relation": (related, 100)}
    seen = Evaluation(100, False, good, 100, 95, values, [], disowned)
    withheld = Evaluation(9, True, {"color": (40, 100), "count": (4, 10)}, 9, 1, values, [])
    outside = Evaluation(0, False, {"outside noise": (told, 100)}, 0, 0, Counter(), [])
    assert [bar.name.startswith(name) for bar in bars(seen, withheld, outside) if not bar.ok] == [True]


@pytest.mark.reference
@pytest.mark.parametrize("content", [None, b"no weights", {"other.weight": torch.zeros(2)}])
def test_weights_that_are_none_are_an_error_before_work(content: Any, tmp_path: Path) -> None:
    """Missing, not safetensors, another model's: one line that names the file, never a traceback of a process."""
    path = tmp_path / "other.safetensors"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        save_file(content, path)
    with pytest.raises(ModelNotFound if content is None else ModelError, match=r"other\.safetensors"):
        run(ReferenceOptions(scenes=1, workers=2, weights=path))


@pytest.mark.reference
@pytest.mark.slow
def test_rows_that_end_early_leave_and_change_nothing() -> None:
    """Three short answers and a description a picture, in one batch, equal each asked by itself."""
    model, processor = load_reference_vlm(torch.float32)
    scenes = [random_scene(UNSEEN + seed) for seed in (3, 4)]
    asked = [[question.text for question in chosen(scene, 3)] for scene in scenes]
    together = answer(model, processor, [scene.render() for scene in scenes], asked)
    for scene, texts, replies in zip(scenes, asked, together):
        alone = [answer(model, processor, [scene.render()], [[text]])[0][0] for text in texts]
        assert replies == alone
    assert max(len(reply) for row in together for reply in row) > 100


@pytest.mark.reference
@pytest.mark.slow
def test_workers_change_nothing_but_the_time() -> None:
    alone = run(ReferenceOptions(scenes=3, workers=1))
    shared = run(ReferenceOptions(scenes=3, workers=2))
    assert alone.arms == shared.arms
    assert alone.arms["seen"]["scenes"] == 3


@pytest.mark.reference
@pytest.mark.slow
def test_the_command_prints_one_object() -> None:
    result = CliRunner().invoke(build(), ["bench", "reference", "--scenes", "1", "--workers", "1", "--json"])
    report = json.loads(result.stdout)
    assert report["bench"] == "reference"
    assert len(report["bars"]) == 9
    assert result.exit_code == (0 if all(bar["ok"] for bar in report["bars"]) else 1)
