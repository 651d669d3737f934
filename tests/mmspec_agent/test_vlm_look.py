"""The look at families that no test covers finds planted rules of their own, in half precision too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_visual import prompt, tiny_vlm
from transformers import PreTrainedModel

from mmspec_agent import Engine
from mmspec_agent.core.errors import MMSpecError, UnsupportedModel
from mmspec_agent.core.visual import proof

DTYPES = (torch.float32, torch.bfloat16)


def newcomer(family: str, dtype: torch.dtype) -> PreTrainedModel:
    """A model of a family under a type that nobody knows."""
    model = tiny_vlm(family, seed=1).to(dtype)
    model.config.model_type = "newcomer"
    return model


def inputs(family: str, count: int, dtype: torch.dtype, seed: int = 0) -> dict[str, Any]:
    asked = prompt(family, count, seed).generate
    return {name: value.to(dtype) if value.is_floating_point() else value for name, value in asked.items()}


def plant(model: Any, change: Any) -> None:
    """``change`` sees what the vision tower was given and what it gives, and may give something else."""
    core, before = model.model, model.model.get_image_features

    def planted(pixel_values: torch.Tensor, image_mask: torch.Tensor | None = None, **options: Any) -> Any:
        output = before(pixel_values, **options)
        output.pooler_output = change(output.pooler_output, pixel_values, image_mask)
        return output

    core.get_image_features = planted


def several_are_other(rows: Any, pixels: torch.Tensor, _: Any) -> Any:
    return [row * 0.5 for row in rows] if len(pixels) > 1 else rows


def later_ones_are_other(rows: Any, pixels: torch.Tensor, _: Any) -> Any:
    return [row * (1 if index < 2 else -1) for index, row in enumerate(rows)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("change", "good"), [(several_are_other, 1), (later_ones_are_other, 2)])
def test_another_rule_for_more_pictures_is_found_when_they_come(change: Any, good: int, dtype: torch.dtype) -> None:
    model = newcomer("llava", dtype)
    plant(model, change)
    engine = Engine(model)
    for count in range(1, good + 1):
        assert engine.generate(**inputs("llava", count, dtype), do_sample=False, max_new_tokens=3) is not None
    for _ in range(2):
        with pytest.raises(UnsupportedModel, match="newcomer give other logits"):
            engine.generate(**inputs("llava", good + 1, dtype), do_sample=False, max_new_tokens=3)
    assert engine.generate(**inputs("llava", 1, dtype, 3), do_sample=False, max_new_tokens=3) is not None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("room", [True, False])
def test_pictures_that_see_both_ways_are_found(dtype: torch.dtype, room: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where memory has no room for a copy in fp32."""
    if not room:
        monkeypatch.setattr(proof, "_free_bytes", lambda device: 0)
    for seed in range(2):
        engine = Engine(newcomer("gemma3", dtype))
        with pytest.raises(UnsupportedModel, match="newcomer"):
            engine.generate(**inputs("gemma3", 1, dtype, seed), do_sample=False, max_new_tokens=3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
def test_a_family_that_behaves_is_served(family: str, dtype: torch.dtype) -> None:
    engine = Engine(newcomer(family, dtype))
    for count in (1, 2):
        assert engine.generate(**inputs(family, count, dtype), do_sample=False, max_new_tokens=3) is not None
    assert engine.model.dtype == dtype


def test_a_mask_reaches_the_tower(monkeypatch: pytest.MonkeyPatch) -> None:
    """An argument that the tower reads is handed to it, picture by picture; the answer is transformers'."""
    model = newcomer("llava", torch.float32)
    plant(model, lambda rows, pixels, mask: rows if mask is None else [r * m.mean() for r, m in zip(rows, mask)])
    asked = inputs("llava", 2, torch.float32)
    asked["image_mask"] = torch.stack([torch.ones(28, 28), torch.zeros(28, 28)])
    forward = model.forward

    def taking_a_mask(
        input_ids: Any = None,
        image_mask: Any = None,
        pixel_values: Any = None,
        mm_encoder_outputs: Any = None,
        **kw: Any,
    ) -> Any:
        if pixel_values is not None:
            mm_encoder_outputs = {"image": model.model.get_image_features(pixel_values, image_mask)}
        return forward(input_ids=input_ids, mm_encoder_outputs=mm_encoder_outputs, **kw)

    monkeypatch.setattr(model, "forward", taking_a_mask)
    engine = Engine(model)
    with torch.inference_mode():
        wanted = model(**asked).logits[0, -1]
    found = engine.generate(
        **asked, do_sample=False, max_new_tokens=1, return_dict_in_generate=True, output_logits=True
    ).logits[0][0]
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
    dropped = {**asked, "image_mask": torch.ones(2, 28, 28)}
    with torch.inference_mode():
        assert not torch.allclose(model(**dropped).logits[0, -1], wanted, atol=1e-2)


def test_an_argument_of_the_forward_alone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = newcomer("llava", torch.float32)
    forward = model.forward

    def taking(input_ids: Any = None, image_weight: Any = None, mm_encoder_outputs: Any = None, **kw: Any) -> Any:
        return forward(input_ids=input_ids, mm_encoder_outputs=mm_encoder_outputs, **kw)

    monkeypatch.setattr(model, "forward", taking)
    with pytest.raises(MMSpecError, match="image_weight"):
        Engine(model).generate(**inputs("llava", 1, torch.float32), image_weight=torch.tensor([2.0]), max_new_tokens=2)


def test_a_class_of_ones_own_is_looked_at_whatever_its_type_says() -> None:
    model = tiny_vlm("llava")

    class Own(type(model)):  # type: ignore[misc]
        pass

    model.__class__ = Own
    plant(model, several_are_other)
    with pytest.raises(UnsupportedModel, match="llava give other logits"):
        Engine(model).generate(**inputs("llava", 2, torch.float32), do_sample=False, max_new_tokens=2)
