"""Negated claims about scenes are judged by their sense, and pictures that are no scenes come in every kind."""

import re

import numpy as np
import pytest

from mmspec_agent.models.scenes import Scene, check_answer, random_scene
from mmspec_agent.models.scenes import outside as module
from mmspec_agent.models.scenes.negation import ABSENT, NOT_SO, PRESENT, SO, negations
from mmspec_agent.models.scenes.outside import ANSWER, HELD_OUT, KINDS, TAUGHT, outside, says_outside, whole
from mmspec_agent.models.scenes.scene import Image
from mmspec_agent.models.scenes.vocabulary import COLOR_NAMES, SHAPES

THING = rf"(?:an? )?(?:(?P<color>{'|'.join(COLOR_NAMES)}) )?(?P<shape>{'|'.join(SHAPES)})"


def pattern(template: str) -> re.Pattern[str]:
    """What a template's questions look like; the hints at brevity may follow."""
    escaped = re.escape(template).replace(r"\{bare\}", THING).replace(r"\{one\}", THING)
    escaped = escaped.replace(r"\{name\}", rf"(?P<name>{'|'.join(SHAPES)})")
    return re.compile(escaped.replace(r"\{color\}", rf"(?P<said>{'|'.join(COLOR_NAMES)})"))


def truth(scene: Scene, template: str, match: re.Match[str]) -> bool:
    """Whether the statement a question of this template asks about is true, found without the code under test."""
    if template in (*SO, *NOT_SO):
        colors = [thing.color for thing in scene.things if thing.shape == match["name"]]
        return (colors == [match["said"]]) != (template in NOT_SO)
    found = [t for t in scene.things if t.shape == match["shape"] and match["color"] in (None, t.color)]
    return bool(found) != (template in ABSENT)


def test_yes_means_that_the_statement_is_true() -> None:
    """Of every wording, on present and on missing things."""
    patterns = {template: pattern(template) for template in (*ABSENT, *PRESENT, *SO, *NOT_SO)}
    seen: set[tuple[str, str]] = set()
    for seed in range(400):
        scene = random_scene(seed, "objects")
        for question in negations(scene, number=6):
            (template, match), *others = [(t, m) for t, p in patterns.items() if (m := p.match(question.text))]
            assert not others
            assert question.value == ("yes" if truth(scene, template, match) else "no"), question
            assert check_answer(question, question.answer)
            seen.add((template, question.value))
    assert len(seen) == 2 * len(patterns), "each wording with both answers"


def test_yes_and_no_are_equally_frequent() -> None:
    values = [q.value for seed in range(500) for q in negations(random_scene(seed))]
    assert 0.45 < values.count("yes") / len(values) < 0.55


def test_a_chart_has_no_things_to_deny() -> None:
    assert negations(random_scene(1, "bars")) == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_depends_on_its_seed_alone(kind: str) -> None:
    first, again, other = outside(4, kind), outside(4, kind), outside(5, kind)
    assert first.shape == (192, 192, 3)
    assert first.dtype == np.uint8
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert first.std() > 1


def test_photographs_held_out_are_never_taught(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    original = module._read

    def read(name: str) -> Image:
        taken.append(name)
        return original(name)

    monkeypatch.setattr(module, "_read", read)
    for seed in range(150):
        outside(seed)
    assert set(taken) <= set(TAUGHT)
    assert len(set(taken)) > len(TAUGHT) // 2
    taken.clear()
    for seed in range(150):
        outside(seed, "photograph", held_out=True)
    assert set(taken) == set(HELD_OUT)
    assert not set(TAUGHT) & set(HELD_OUT)
    assert all(whole(name).shape == (192, 192, 3) for name in HELD_OUT)


def test_the_answer_to_what_is_no_scene_is_known_by_its_words() -> None:
    assert says_outside(ANSWER)
    assert not any(says_outside(q.answer) for seed in range(50) for q in negations(random_scene(seed)))
