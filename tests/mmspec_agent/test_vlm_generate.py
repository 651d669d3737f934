"""Proof 2 with pictures: greedy tokens equal transformers' generate in fp32, for every family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from fake import eager_controller
from tiny import VOCAB
from tiny_visual import FAMILIES, IMAGE, prompt, tiny_vlm

from mmspec_agent import Engine
from mmspec_agent.core.drafters.base import DraftView, Outcome
from mmspec_agent.core.drafters.ngram import NgramDrafter
from mmspec_agent.core.errors import OptionError, PictureInputError, UnsupportedModel
from mmspec_agent.core.tree import ROOT, DraftTree


class Chaos:
    """Guesses anything, placeholders included, in random trees; the answer must not change."""

    name = "chaos"
    needs_hidden = False
    keeps_to_constraint = False

    def open(self) -> Chaos:
        self._generator = torch.Generator().manual_seed(7)
        self.proposed: list[int] = []
        return self

    def propose(self, view: DraftView, budget: int) -> DraftTree:
        """Children of one parent carry different tokens; the first guess is a placeholder."""
        nodes = min(6, budget)
        parents = [ROOT if node < 2 else self._below(node) for node in range(nodes)]
        tokens = [IMAGE - (7 * node + self._below(7)) % (VOCAB - 3) if node else IMAGE for node in range(nodes)]
        return DraftTree(tuple(tokens), tuple(parents), ("chaos",) * nodes, (0.5,) * nodes)

    def _below(self, limit: int) -> int:
        return int(torch.randint(0, limit, (), generator=self._generator))

    def observe(self, outcome: Outcome) -> None:
        self.proposed += outcome.tree.tokens


def expected(model: Any, inputs: dict[str, Any], **options: Any) -> list[list[int]]:
    with torch.inference_mode():
        out: list[list[int]] = model.generate(**inputs, do_sample=False, **options).tolist()
    return out


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_tokens_equal_transformers(name: str, count: int) -> None:
    model = tiny_vlm(name, seed=count)
    asked = prompt(name, count, seed=count)
    wanted = expected(model, asked.generate, max_new_tokens=24)
    chaos = Chaos()
    engine = Engine(model, drafters=[chaos, NgramDrafter()])
    engine.controller = eager_controller()
    assert engine.generate(**asked.generate, do_sample=False, max_new_tokens=24).tolist() == wanted
    assert engine.last_stats is not None
    nested = name in ("idefics3", "smolvlm")
    assert engine.last_stats.vision_passes == (1 if nested else count)
    assert chaos.proposed
    assert IMAGE not in chaos.proposed
    with torch.inference_mode():
        again = model.generate(
            **asked.generate, do_sample=False, max_new_tokens=24, custom_generate=engine.custom_generate
        )
    assert again.tolist() == wanted
    assert engine.generate(**asked.generate, do_sample=False, max_new_tokens=24).tolist() == wanted
    assert engine.last_stats.vision_passes == 0


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl", "internvl"])
def test_batches_with_left_padding(name: str) -> None:
    model = tiny_vlm(name, seed=3)
    first, second = prompt(name, 1, seed=4), prompt(name, 1, seed=5, before=9)
    alone = [expected(model, one.generate, max_new_tokens=10)[0] for one in (first, second)]
    pad = len(second.ids) - len(first.ids)
    inputs: dict[str, Any] = {
        "input_ids": torch.tensor([[0] * pad + first.ids, second.ids]),
        "attention_mask": torch.tensor([[0] * pad + [1] * len(first.ids), [1] * len(second.ids)]),
    }
    for key in first.inputs:
        if key == "mm_token_type_ids":
            inputs[key] = (inputs["input_ids"] == IMAGE).long()
        else:
            inputs[key] = torch.cat([first.inputs[key], second.inputs[key]])
    rows = Engine(model).generate(**inputs, do_sample=False, max_new_tokens=10).tolist()

    def reply(row: Sequence[int], length: int) -> list[int]:
        return list(row[length:])

    width = len(second.ids)
    for row, one, ids in zip(rows, alone, (first.ids, second.ids)):
        wanted = reply(one, len(ids))
        assert reply(row, width)[: len(wanted)] == wanted


def test_the_module_keeps_no_state() -> None:
    model = tiny_vlm("qwen2_5_vl")
    model.model.rope_deltas = torch.tensor([[5]])
    Engine(model).generate(**prompt("qwen2_5_vl", 1, 0).generate, do_sample=False, max_new_tokens=4)
    assert model.model.rope_deltas.tolist() == [[5]]


def test_inputs_that_do_not_fit_are_named() -> None:
    asked = prompt("llava", 1, 0)
    engine = Engine(tiny_vlm("llava"))
    with pytest.raises(PictureInputError, match="placeholder"):
        engine.generate(input_ids=torch.tensor([[5, 6, 7]]), pixel_values=asked.inputs["pixel_values"])
    with pytest.raises(PictureInputError, match="ends with a picture"):
        engine.generate(input_ids=torch.tensor([[5, *([IMAGE] * 4)]]), pixel_values=asked.inputs["pixel_values"])
    with pytest.raises((OptionError, ValueError), match="nonsense"):
        engine.generate(input_ids=torch.tensor([[5, 6]]), nonsense=torch.zeros(1))


@pytest.mark.parametrize("name", ["gemma3", "qwen3_vl", "llava_next", "idefics3"])
def test_long_prompts_are_read_in_chunks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec_agent.conversation.PREFILL_CHUNK", 6)
    model = tiny_vlm(name, seed=6)
    asked = prompt(name, 2, seed=6, before=11, after=9)
    wanted = expected(model, asked.generate, max_new_tokens=12)
    assert Engine(model).generate(**asked.generate, do_sample=False, max_new_tokens=12).tolist() == wanted


def test_several_samples_share_the_pictures() -> None:
    model = tiny_vlm("qwen2_5_vl", seed=8)
    first, second = prompt("qwen2_5_vl", 1, seed=4), prompt("qwen2_5_vl", 1, seed=5)
    engine = Engine(model)
    inputs = {key: torch.cat([first.inputs[key], second.inputs[key]]) for key in first.inputs}
    inputs["input_ids"] = torch.tensor([first.ids, second.ids])
    rows = engine.generate(**inputs, do_sample=True, num_return_sequences=3, max_new_tokens=4, seed=1)
    assert rows.shape == (6, len(first.ids) + 4)
    assert engine.last_stats is not None
    assert engine.last_stats.vision_passes == 2


def test_unknown_families_are_looked_at_before_their_first_answer() -> None:
    model = tiny_vlm("internvl")
    asked = prompt("internvl", 2, 0)
    wanted = expected(model, asked.generate, max_new_tokens=8)
    model.config.model_type = "newcomer"
    engine = Engine(model)
    assert engine.generate(**asked.generate, do_sample=False, max_new_tokens=8).tolist() == wanted
    with torch.inference_mode():
        again = model.generate(
            **asked.generate, do_sample=False, max_new_tokens=8, custom_generate=Engine(model).custom_generate
        )
    assert again.tolist() == wanted
    strange = tiny_vlm("gemma3")
    strange.config.model_type = "newcomer"
    with pytest.raises(UnsupportedModel, match="newcomer"):
        Engine(strange).generate(**prompt("gemma3", 1, 0).generate, max_new_tokens=4)
