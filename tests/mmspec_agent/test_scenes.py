"""The renderer: same seed, same bytes; pixels show what the ground truth says; no answer is wrong by its own scene."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmspec_agent.models.scenes import (
    Background,
    Scene,
    Thing,
    check_answer,
    check_description,
    descriptions,
    full_description,
    questions,
    random_scene,
)
from mmspec_agent.models.scenes.clips import CLIPS, EQUAL_LUMA
from mmspec_agent.models.scenes.labels import HEADS, IGNORE, LEXICON, label
from mmspec_agent.models.scenes.questions import ATTRIBUTES, said
from mmspec_agent.models.scenes.vocabulary import CELLS, COLORS, SHAPES, SIDE

WHITE = Background("flat", (255, 255, 255), (255, 255, 255), "white")


def one(
    shape: str = "circle", color: str = "red", x: float = 96, y: float = 96, radius: float = 40, **more: object
) -> Scene:
    thing = Thing(shape, color, COLORS[color][0], "large", x, y, radius, **more)  # type: ignore[arg-type]
    return Scene(0, WHITE, (thing,))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**9))
def test_a_seed_gives_the_same_picture_and_words_each_time(seed: int) -> None:
    first, second = random_scene(seed), random_scene(seed)
    assert first == second
    assert np.array_equal(first.render(), second.render())
    assert questions(first) == questions(second)
    assert descriptions(first) == descriptions(second)


def test_different_seeds_give_different_pictures() -> None:
    assert len({random_scene(seed).render().tobytes() for seed in range(50)}) == 50


@pytest.mark.parametrize("shape", SHAPES)
def test_a_plain_object_has_its_colour_where_it_is(shape: str) -> None:
    image, ids = one(shape, "yellow").render_with_ids()
    assert image.dtype == np.uint8
    assert image.shape == (SIDE, SIDE, 3)
    covered = image[ids == 0].reshape(-1, 3)
    share = (covered == COLORS["yellow"][0]).all(1).mean()
    assert share > 0.6
    assert (image[ids == -1] == 255).mean() > (0.7 if shape == "lamp" else 0.9)  # a lamp glows


def test_colours_of_random_plain_objects_are_near_their_names() -> None:
    checked = 0
    for seed in range(200):
        scene = random_scene(seed, "objects").with_(noise=0.0, blur=0.0)
        image, ids = scene.render_with_ids()
        for index, thing in enumerate(scene.things):
            if thing.texture != "plain" or thing.shape == "lamp" or (ids == index).sum() < 30:
                continue
            middle = np.median(image[ids == index], axis=0)
            near = min(np.abs(middle - np.array(c)).max() for c in COLORS[thing.color])
            assert near <= 40, (seed, thing)
            checked += 1
    assert checked > 100


def test_objects_keep_apart_and_inside() -> None:
    for seed in range(200):
        things = random_scene(seed, "objects").things
        assert 1 <= len(things) <= 5
        assert len({thing.cell for thing in things}) == len(things)
        for thing in things:
            assert thing.radius <= thing.x <= SIDE - thing.radius
            assert thing.radius <= thing.y <= SIDE - thing.radius


def test_sizes_scale_with_the_picture() -> None:
    scene = one()
    small, large = scene.render_with_ids(96)[1], scene.render_with_ids(384)[1]
    assert abs((small == 0).mean() - (large == 0).mean()) < 0.01


def test_editing_a_thing_leaves_the_scene_as_it_was() -> None:
    scene = one()
    blue = scene.with_thing(0, color="blue")
    assert scene.things[0].color == "red"
    assert tuple(blue.render()[96, 96]) == COLORS["blue"][0]


def test_noise_depends_on_its_seed_alone() -> None:
    scene = one().with_(noise=5.0)
    again, other = scene.with_(noise_seed=0), scene.with_(noise_seed=1)
    assert np.array_equal(scene.render(), again.render())
    assert not np.array_equal(scene.render(), other.render())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9))
def test_every_answer_is_right_and_every_description_true(seed: int) -> None:
    scene = random_scene(seed)
    for question in questions(scene):
        assert check_answer(question, question.answer), question
    for description in descriptions(scene):
        stated, true = check_description(scene, description.answer)
        assert stated == true > 0, description.answer


def test_wording_varies_with_the_seed_of_the_questions() -> None:
    scene = random_scene(3)
    texts = {question.text for seed in range(20) for question in questions(scene, seed)}
    assert len(texts) > 3 * len(questions(scene))


def test_all_kinds_of_questions_are_asked() -> None:
    kinds = {question.kind for seed in range(300) for question in questions(random_scene(seed))}
    assert kinds >= {*ATTRIBUTES, "count", "existence", "relation", "extreme", "text", "chart"}


def test_full_descriptions_are_long() -> None:
    lengths = [len(full_description(random_scene(seed)).split()) for seed in range(100)]
    assert np.mean(lengths) > 35


def test_the_checker_counts_false_facts() -> None:
    scene = one()
    assert check_description(scene, "The picture shows one object on a white background.") == (2, 2)
    assert check_description(scene, "In the center there is a large red circle.") == (4, 4)
    assert check_description(scene, "In the center there is a large blue circle.") == (4, 3)
    assert check_description(scene, "At the top left there is a small blue star.") == (4, 0)
    assert check_description(scene, "There is a red circle and a red circle.") == (4, 2)
    assert check_description(scene, 'A sign says "STOP".') == (1, 0)
    assert check_description(scene, "Nothing to see here.") == (0, 0)


def test_a_description_of_another_scene_is_mostly_false() -> None:
    pairs = [check_description(random_scene(s), full_description(random_scene(s + 500))) for s in range(100)]
    assert sum(true for _, true in pairs) / sum(stated for stated, _ in pairs) < 0.35


def test_answers_are_judged_by_whole_words_and_the_longest_name() -> None:
    assert said("It is at the top left.", CELLS) == {"top left"}
    assert said("There are three boxes.", SHAPES) == set()
    assert said("Two circles.", SHAPES) == {"circle"}
    assert said("It is red or blue.", tuple(COLORS)) == {"red", "blue"}


def test_labels_name_what_a_token_covers() -> None:
    item = label(one(x=40, y=40, radius=30))
    shape, color = item.labels["shape"].reshape(12, 12), item.labels["color"].reshape(12, 12)
    assert set(item.labels) == set(HEADS)
    assert shape[2, 2] == SHAPES.index("circle")
    assert color[2, 2] == list(COLORS).index("red")
    assert shape[11, 11] == len(SHAPES)
    assert item.labels["size"].reshape(12, 12)[11, 11] == IGNORE
    words = {LEXICON[i] for i in np.flatnonzero(item.words.reshape(12, 12, -1)[2, 2])}
    assert words == {"red", "circle", "large", "top", "left", "still"}
    assert np.allclose(item.words.sum(1), 1)


@pytest.mark.parametrize("name", CLIPS)
def test_clips_tell_time_and_truth(name: str) -> None:
    frames = list(CLIPS[name](seed=2, frames=12, fps=5.0, size=96))
    assert [round(frame.time, 6) for frame in frames] == [round(i / 5, 6) for i in range(12)]
    assert all(frame.image.shape == (96, 96, 3) for frame in frames)
    assert all(np.array_equal(frame.image, frame.scene.render(96)) for frame in frames)
    assert not np.array_equal(frames[0].image, frames[1].image)
    changed = {frame.scene.with_(noise_seed=0) for frame in frames}
    assert len(changed) == {"static_noise": 1, "cut": 2, "lamp": 2, "equal_luma": 2}.get(name, 12)


def test_the_equal_luma_change_hides_from_a_grey_picture() -> None:
    lumas = [float(np.dot(rgb, (0.299, 0.587, 0.114))) for _, rgb in EQUAL_LUMA]
    assert abs(lumas[0] - lumas[1]) < 0.5
