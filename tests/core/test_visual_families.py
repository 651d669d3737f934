"""Proof 1 with pictures: logits behind pictures equal those of the model's own forward, for every family."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_visual import FAMILIES, IMAGE, Prompt, prompt, tiny_vlm
from transformers import PreTrainedModel

from mmspec_agent.core.errors import PictureInputError, UnsupportedModel
from mmspec_agent.core.hf_target import HFSequence, HFTarget
from mmspec_agent.core.tree import ROOT, DraftTree
from mmspec_agent.core.visual.families import Family
from mmspec_agent.core.visual.features import Encoder
from mmspec_agent.core.visual.memory import ByteStore
from mmspec_agent.core.visual.placing import Placed, place, visual_inputs
from mmspec_agent.core.visual.proof import prove


class Setup:
    """A tiny model with everything needed to prefill a prompt in pieces."""

    def __init__(self, name: str, count: int, seed: int = 0) -> None:
        self.model: PreTrainedModel = tiny_vlm(name, seed)
        family = Family.of(self.model)
        assert family is not None
        self.family = family
        self.encoder = Encoder(self.model, self.family, ByteStore(1 << 20))
        self.prompt: Prompt = prompt(name, count, seed)
        self.target = HFTarget(self.model)
        self.sequence: HFSequence = self.target.open(16)
        self.placed = self._place()

    def _place(self) -> tuple[Placed, ...]:
        pictures = [
            replace(picture, count=len(self.encoder.encode(picture).rows))
            for picture in self.family.split(self.prompt.inputs)
        ]
        return place(self.prompt.ids, IMAGE, pictures)

    def prefill(self, start: int, end: int) -> None:
        visual = visual_inputs(
            self.family, self.prompt.ids, self.placed, start, end, self.sequence.positions, self.encoder.encode
        )
        self.sequence.prefill(self.prompt.ids[start:end], visual)

    def plain(self, extra: list[int]) -> torch.Tensor:
        """Last logits of the model's own forward over pixel values, without cache."""
        ids = torch.tensor([[*self.prompt.ids, *extra]])
        inputs = dict(self.prompt.inputs)
        for kind in ("token_type_ids", "mm_token_type_ids"):
            if kind in inputs:
                inputs[kind] = (ids == IMAGE).long()
        with torch.inference_mode():
            logits: torch.Tensor = self.model(input_ids=ids, use_cache=False, **inputs).logits[0, -1]
        return logits


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_depend_on_the_pictures(name: str) -> None:
    """Otherwise the comparisons below would show nothing."""
    setup, other = Setup(name, 2), prompt(name, 2, 1)
    logits = setup.plain([])
    setup.prompt.inputs["pixel_values"] = other.inputs["pixel_values"]
    assert float((setup.plain([]) - logits).abs().max() / logits.std()) > 0.05


TREE = DraftTree((10, 11, 12, 13, 14), (ROOT, ROOT, 0, 0, 2), ("t",) * 5, (1.0,) * 5)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", FAMILIES)
def test_node_logits_behind_pictures_equal_the_models_own(name: str, count: int) -> None:
    setup = Setup(name, count)
    ids = setup.prompt.ids
    setup.prefill(0, len(ids) - 2)
    result = setup.sequence.verify(ids[-2:], TREE)
    for node in (ROOT, *range(len(TREE))):
        path = [] if node == ROOT else TREE.path_tokens(node)
        torch.testing.assert_close(result.row(node)[0], setup.plain(path), atol=1e-4, rtol=1e-4)
    setup.sequence.commit(2, TREE.path(4))
    more = setup.sequence.verify([20], DraftTree.chain([21], "t"))
    expected = setup.plain([*TREE.path_tokens(4), 20, 21])
    torch.testing.assert_close(more.row(0)[0], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", FAMILIES)
def test_pictures_may_be_prefilled_in_pieces(name: str) -> None:
    """Any cut is exact for causal families; those that look both ways are cut at the picture's borders."""
    setup = Setup(name, 2)
    first, second = setup.placed[0], setup.placed[-1]
    middle = setup.family.bidirectional or first is second
    cuts = [0, 2, first.start, first.end if middle else first.start + 3, second.end, len(setup.prompt.ids) - 1]
    for start, end in itertools.pairwise(cuts):
        if end > start:
            setup.prefill(start, end)
    result = setup.sequence.verify(setup.prompt.ids[-1:])
    torch.testing.assert_close(result.row(ROOT)[0], setup.plain([]), atol=1e-4, rtol=1e-4)
    assert setup.encoder.passes == len(setup.placed)


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_rotary_positions_equal_the_models_rule(name: str) -> None:
    setup = Setup(name, 3)
    ids = torch.tensor([setup.prompt.ids])
    expected, _ = setup.model.model.get_rope_index(
        ids,
        mm_token_type_ids=setup.prompt.inputs["mm_token_type_ids"],
        image_grid_thw=setup.prompt.inputs["image_grid_thw"],
    )
    visual = visual_inputs(
        setup.family,
        setup.prompt.ids,
        setup.placed,
        0,
        len(setup.prompt.ids),
        setup.sequence.positions,
        setup.encoder.encode,
    )
    assert visual.positions is not None
    assert np.array_equal(visual.positions, expected[:, 0].numpy())


@pytest.mark.parametrize("name", FAMILIES)
def test_nothing_stays_on_the_model(name: str) -> None:
    setup = Setup(name, 1)

    def state() -> list[tuple[str, int]]:
        return [(n, id(m.__dict__.get("rope_deltas"))) for n, m in setup.model.named_modules()] + [
            (key, hash(str(value))) for key, value in setup.model.config.to_dict().items()
        ]

    before = state()
    setup.prefill(0, len(setup.prompt.ids) - 1)
    setup.sequence.verify(setup.prompt.ids[-1:], TREE)
    assert state() == before
    assert getattr(setup.model.model, "rope_deltas", None) is None


def test_placeholders_and_pictures_must_match() -> None:
    setup = Setup("llava", 1)
    with pytest.raises(PictureInputError, match="placeholder"):
        place([5, IMAGE, 6], IMAGE, [one.picture for one in setup.placed])
    with pytest.raises(PictureInputError, match="video"):
        setup.family.split({"pixel_values_videos": torch.zeros(1)})


def renamed(name: str) -> Setup:
    """A family under a type that nobody knows."""
    setup = Setup(name, 2)
    setup.family = replace(setup.family, model_type="newcomer")
    assert not setup.family.proven
    return setup


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in ("gemma3", "idefics3", "smolvlm")])
def test_an_unknown_family_that_behaves_is_accepted(name: str) -> None:
    setup = renamed(name)
    before = setup.model.config.to_dict()
    prove(setup.target, setup.family, setup.prompt.ids, setup.placed, setup.encoder.encode)
    assert getattr(setup.model.model, "rope_deltas", None) is None
    assert setup.model.config.to_dict() == before


def test_an_unknown_family_with_rules_of_its_own_is_refused() -> None:
    """Gemma3 under another name: nobody says that its pictures see themselves both ways."""
    setup = renamed("gemma3")
    with pytest.raises(UnsupportedModel, match="newcomer give other logits"):
        prove(setup.target, setup.family, setup.prompt.ids, setup.placed, setup.encoder.encode)
    setup = renamed("qwen2_5_vl")
    wrong = replace(setup.family, merge=1)
    with pytest.raises((UnsupportedModel, PictureInputError)):
        prove(setup.target, wrong, setup.prompt.ids, _regrid(setup.placed), setup.encoder.encode)


def _regrid(placed: tuple[Placed, ...]) -> tuple[Placed, ...]:
    """Pictures whose grid lies on its side."""
    return tuple(
        replace(one, picture=replace(one.picture, grid=(g[0], g[2], g[1])))
        for one in placed
        if (g := one.picture.grid) is not None
    )


def test_models_without_features_are_refused_by_name() -> None:
    model = tiny_vlm("llava")
    model.config.model_type = "mllama"
    model.forward = lambda input_ids=None: None
    with pytest.raises(UnsupportedModel, match="mllama"):
        Family.of(model)
