"""All vision-language types of the installed transformers: the same tokens over turns of pictures, or the reason."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_types import IMAGE, TYPES, fed, tiny_type
from transformers import PreTrainedModel

from mmspec_agent import Engine
from mmspec_agent.core.errors import MMSpecError, UnsupportedModel

DOCS = Path(__file__).parents[2] / "docs" / "pictures.md"
TURNS = ((1, 0), (2, 0), (1, 1), (0, 0), (3, 1))
"""Pictures of each turn and which of two sizes comes first."""

REASONS = (
    "encoder-decoder",
    "cannot be rolled back",
    "does not run with an explicit mask",
    "give other logits",
    "gives other logits",
    "the logits of draft nodes differ",
    "do not run with features",
    "takes no features computed beforehand",
    "cross-attention layers",
    "does not say how many layers",
    "takes text only",
    "refuses these pictures",
)
TEXT_MODELS = ("evolla",)
"""Types in that mapping which take something other than pictures."""


def asked(model: PreTrainedModel, count: int, size: int, seed: int) -> dict[str, Any] | None:
    """Ids and inputs of a prompt with ``count`` pictures; None if no form of pictures fits the type."""
    ids, inputs = [5, 6, 7, 8], {}
    if count:
        found = fed(model, count, size, seed)
        if found is None:
            return None
        inputs = found.inputs
        for slots in found.slots:
            ids += [*([IMAGE] * slots), 9 + seed, 10]
    tokens = torch.tensor([ids])
    known = inspect.signature(model.forward).parameters
    kinds = {name: (tokens == IMAGE).long() for name in ("token_type_ids", "mm_token_type_ids") if name in known}
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), **kinds, **inputs}


def outcome(name: str) -> str:
    """Says "equal", "unfed", "unbuilt", or why the type is refused. AssertionError where a token differs."""
    model = tiny_type(name)
    if model is None:
        return "unbuilt"
    try:
        engine = Engine(model)
        _ = engine.vision
    except MMSpecError as error:
        return str(error)
    for seed, (count, size) in enumerate(TURNS):
        inputs = asked(model, count, size, seed)
        if inputs is None:
            return "unfed"
        with torch.inference_mode():
            wanted = model.generate(**inputs, do_sample=False, max_new_tokens=8).tolist()
        try:
            assert engine.generate(**inputs, do_sample=False, max_new_tokens=8).tolist() == wanted, (name, count)
            with torch.inference_mode():
                again = model.generate(
                    **inputs, do_sample=False, max_new_tokens=8, custom_generate=engine.custom_generate
                )
            assert again.tolist() == wanted, (name, count, "custom_generate")
        except UnsupportedModel as error:
            return str(error)
    return "equal"


@pytest.mark.slow
def test_every_type_is_equal_or_says_why() -> None:
    found = {name: outcome(name) for name in TYPES}
    built = {name for name, said in found.items() if said != "unbuilt"}
    served = {name for name, said in found.items() if said == "equal"}
    assert len(built) >= 60
    assert served >= documented()
    assert sum(said == "unfed" for said in found.values()) <= 8
    for name in built - served:
        said = found[name]
        assert said == "unfed" or any(reason in said for reason in REASONS), (name, said)
        assert "takes text only" not in said or name in TEXT_MODELS, (name, said)


def documented() -> set[str]:
    """Types that the notes call served."""
    line = re.search(r"<!-- served types -->\n(.*?)\n\n", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert line is not None
    return set(re.findall(r"`(\w[\w.-]*)`", line[1]))
