"""Nothing that comes with pictures is dropped: it reaches the model, says nothing, or is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from quick import every
from tiny import VOCAB
from tiny_visual import IMAGE, prompt, tiny_vlm

from mmspec_agent import Engine
from mmspec_agent.core.errors import MMSpecError, OptionError, PictureInputError, UnsupportedModel
from mmspec_agent.core.visual.families import Family
from mmspec_agent.core.visual.unread import is_neutral


def generate(engine: Engine, path: str, **inputs: Any) -> Any:
    options: dict[str, Any] = {"do_sample": False, "max_new_tokens": 6}
    if path == "generate":
        return engine.generate(**inputs, **options)
    with torch.inference_mode():
        return engine.model.generate(**inputs, **options, custom_generate=engine.custom_generate)


PATHS = ("generate", "custom_generate")
VIDEO: dict[str, Any] = {"pixel_values_videos": torch.randn(16, 96), "video_grid_thw": torch.tensor([[1, 4, 4]])}
UNREAD: dict[str, Any] = {
    "second_per_grid_ts": torch.tensor([1.0]),
    "input_features": torch.randn(1, 4, 4),
    "pixel_mask": torch.zeros(1, 28, 28),
    "pixel_attention_mask": torch.zeros(1, 28, 28),
    "cross_attention_mask": torch.zeros(1, 4),
    "spatial_shapes": torch.tensor([[2, 2]]),
    "image_bound": torch.tensor([[0, 4]]),
    "image_sizes": torch.tensor([[28, 28]]),
    "something": torch.ones(1),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("family", ["qwen2_5_vl", "gemma3"])
def test_an_input_that_nothing_reads_is_named(family: str, path: str) -> None:
    engine, asked = Engine(tiny_vlm(family)), prompt(family, 1, 0)
    with pytest.raises((MMSpecError, ValueError), match="video"):
        generate(engine, path, **asked.generate, **VIDEO)
    for name, value in UNREAD.items():
        with pytest.raises((MMSpecError, ValueError), match=name):
            generate(engine, path, **asked.generate, **{name: value})
    assert len(generate(engine, path, **asked.generate)) == 1


@pytest.mark.parametrize("path", PATHS)
def test_a_video_is_never_left_out(path: str) -> None:
    engine = Engine(tiny_vlm("qwen2_5_vl"))
    ids = torch.tensor([[5, *([VOCAB - 2] * 4), 6, 7]])
    inputs = {"input_ids": ids, "mm_token_type_ids": (ids == VOCAB - 2).long() * 2}
    with pytest.raises(PictureInputError, match=r"video.*pass their frames as pictures"):
        generate(engine, path, **inputs, **VIDEO)


def test_what_says_nothing_is_taken() -> None:
    assert is_neutral("pixel_mask", torch.ones(2, 3))
    assert is_neutral("anything", {})
    assert not is_neutral("pixel_mask", torch.tensor([1, 0]))
    assert not is_neutral("image_sizes", torch.ones(2))
    family = Family.of(tiny_vlm("llava"))
    assert family is not None
    pixels = torch.randn(2, 3, 28, 28)
    assert len(family.split({"pixel_values": pixels, "pixel_mask": torch.ones(2, 28, 28)})) == 2
    with pytest.raises(PictureInputError, match="pixel_mask"):
        family.split({"pixel_values": pixels, "pixel_mask": torch.zeros(2, 28, 28)})
    with pytest.raises(OptionError, match="nonsense"):
        family.split({"pixel_values": pixels, "nonsense": torch.ones(1)})
    with pytest.raises(PictureInputError, match="without pixel_values"):
        family.split({"image_sizes": torch.ones(1, 2)})
    with pytest.raises(PictureInputError, match="'image_sizes' has 3 entries for 2 pictures"):
        family.split({"pixel_values": pixels, "image_sizes": torch.ones(3, 2)})


def test_kinds_have_to_mark_the_placeholders() -> None:
    for family, name in (("gemma3", "token_type_ids"), ("qwen2_5_vl", "mm_token_type_ids")):
        engine, asked = Engine(tiny_vlm(family)), prompt(family, 1, 0)
        for wrong in (torch.zeros(1, len(asked.ids), dtype=torch.long), 1 - asked.inputs[name]):
            with pytest.raises(PictureInputError, match=name):
                generate(engine, "generate", **{**asked.generate, name: wrong})


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("counts", [(1, 0), (0, 1), (2, 1), (1, 1, 0)])
def test_batches_with_rows_of_text(counts: tuple[int, ...], path: str) -> None:
    """Rows with no, one and two pictures, each as if alone; tiles of a row are padded as the processor pads them."""
    family = "idefics3"
    model = tiny_vlm(family, seed=2)
    asked = [prompt(family, max(count, 1), seed=index) for index, count in enumerate(counts)]
    rows = [one.ids if count else [5, 6, 7, 8] for one, count in zip(asked, counts)]
    width = max(map(len, rows))
    tiles = max(counts)
    pixels = torch.zeros(len(rows), tiles, 3, 28, 28)
    mask = torch.zeros(len(rows), tiles, 28, 28, dtype=torch.bool)
    for index, (one, count) in enumerate(zip(asked, counts)):
        if count:
            pixels[index, :count], mask[index, :count] = one.inputs["pixel_values"][0], True
    inputs = {
        "input_ids": torch.tensor([[0] * (width - len(row)) + row for row in rows]),
        "attention_mask": torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows]),
        "pixel_values": pixels,
        "pixel_attention_mask": mask,
    }
    with torch.inference_mode():
        wanted = model.generate(**inputs, do_sample=False, max_new_tokens=6)
    assert generate(Engine(model), path, **inputs).tolist() == wanted.tolist()


@pytest.mark.parametrize("path", PATHS)
def test_a_merge_size_without_axes_of_positions(path: str) -> None:
    model, asked = tiny_vlm("internvl"), prompt("internvl", 2, 0)
    model.config.vision_config.spatial_merge_size = 2
    with torch.inference_mode():
        wanted = model.generate(**asked.generate, do_sample=False, max_new_tokens=6)
    assert generate(Engine(model), path, **asked.generate).tolist() == wanted.tolist()


ONE, TWO = [5, *([IMAGE] * 4), 6, 7], [8, *([IMAGE] * 4), 9, 10]


@pytest.mark.parametrize("path", every(2, PATHS))
@pytest.mark.parametrize(
    ("rows", "pictures"),
    [
        ([ONE, TWO], 1),
        ([ONE, ONE], 1),
        ([ONE, TWO], 3),
        ([ONE, TWO], 4),
        ([ONE, [8, 9, 9, 9, 9, 9, 10]], 2),
        ([[5, IMAGE, IMAGE, 6, 7, 7, 7], [8, IMAGE, IMAGE, 9, 9, 9, 9]], 1),
        ([ONE], 2),
    ],
)
def test_rows_pictures_and_placeholders_have_to_fit(rows: list[list[int]], pictures: int, path: str) -> None:
    engine = Engine(tiny_vlm("llava"))
    inputs: dict[str, Any] = {"input_ids": torch.tensor(rows), "attention_mask": torch.ones(len(rows), len(rows[0]))}
    if pictures:
        inputs["pixel_values"] = torch.randn(pictures, 3, 28, 28)
    with pytest.raises((PictureInputError, OptionError)):
        generate(engine, path, **inputs)


@pytest.mark.parametrize("path", PATHS)
def test_samples_of_a_row_share_its_picture(path: str) -> None:
    model = tiny_vlm("llava", seed=1)
    inputs = {"input_ids": torch.tensor([ONE, TWO]), "pixel_values": torch.randn(2, 3, 28, 28)}
    alone = generate(Engine(model), path, **inputs, attention_mask=torch.ones(2, 7)).tolist()
    options: dict[str, Any] = {"do_sample": True, "top_k": 1, "num_return_sequences": 2, "max_new_tokens": 6}
    engine = Engine(model)
    with torch.inference_mode():
        if path == "generate":
            twice = engine.generate(**inputs, **options)
        else:
            twice = model.generate(**inputs, **options, custom_generate=engine.custom_generate)
    assert twice.tolist() == [row for row in alone for _ in range(2)]


@pytest.mark.parametrize("path", PATHS)
def test_a_model_that_is_not_served_says_why(path: str) -> None:
    model, asked = tiny_vlm("llava"), prompt("llava", 1, 0)
    model.config.image_token_id = None
    engine = Engine(model)
    with pytest.raises(UnsupportedModel, match="names no placeholder token"):
        generate(engine, path, **asked.generate)
    assert len(generate(engine, path, input_ids=torch.tensor([[5, 6]]))) == 1


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
@pytest.mark.parametrize("model_type", [None, "newcomer"])
def test_features_live_as_long_as_their_call_whatever_is_kept(family: str, model_type: str | None) -> None:
    """The tower runs once a picture; a look at a family that no test covers has a tower of its own."""
    for budget in (0, "1MiB"):
        model, asked = tiny_vlm(family), prompt(family, 2, 0).generate
        model.config.model_type = model_type or model.config.model_type
        engine = Engine(model, visual_budget=budget)
        for times in (1, 2):
            engine.generate(**asked, do_sample=False, max_new_tokens=3)
            assert engine.vision.encoder.passes == 2 * (times if budget == 0 else 1)
        assert engine.vision.memory.bytes == 0 or budget
