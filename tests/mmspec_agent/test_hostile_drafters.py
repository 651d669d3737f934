"""A drafter may do anything to what it is shown: the answer stays the target's own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from fake import FakeDrafter
from texts import byte_tokenizer, chat_model
from unhurried import Unhurried

from mmspec_agent import Engine
from mmspec_agent.core.drafters.base import DraftView, Outcome
from mmspec_agent.core.drafters.ngram import NgramDrafter
from mmspec_agent.core.errors import OptionError
from mmspec_agent.core.tree import EMPTY, DraftTree

TOKENIZER = byte_tokenizer()

Attack = Callable[[DraftView], Any]


def _poke(target: Any, seen: set[int], depth: int = 0) -> None:
    """Try to change everything that can be reached from ``target`` by its public attributes."""
    if depth > 4 or id(target) in seen or callable(target) or isinstance(target, (int, str, float, type(None))):
        return
    seen.add(id(target))
    for change in (_append, _zero, _delete):
        with contextlib.suppress(Exception):  # refused, which is what is hoped for
            change(target)
    for name in dir(target):
        if not name.startswith("_") and name not in ("tobytes", "plan"):
            with contextlib.suppress(Exception):
                value = getattr(target, name)
                _poke(value, seen, depth + 1)
                object.__setattr__(target, name, 0 if isinstance(value, int) else None)


def _append(target: Any) -> None:
    target.append(5)
    target[:] = [7] * len(target)


def _zero(target: Any) -> None:
    target[...] = 0


def _delete(target: Any) -> None:
    target.clear()


def _walk_constraint(view: DraftView) -> None:
    constraint = view.constraint
    if constraint is not None:
        for _ in range(6):
            mask = constraint.mask()
            token = 5 if mask is None else int(mask.tokens()[-1])
            constraint.advance(token)
            if mask is not None:
                mask.words[:] = 0


def _poison_noise(view: DraftView) -> None:
    if view.noise is not None:
        view.noise.gumbel(0, 300)[:] = 1e9
        object.__setattr__(view.noise, "seed", 99)


def _seed_everything(view: DraftView) -> None:
    torch.manual_seed(1)
    np.random.seed(1)


ATTACKS: list[Attack] = [
    lambda view: view.tokens.append(5),  # type: ignore[attr-defined]
    lambda view: view.tokens.clear(),  # type: ignore[attr-defined]
    _walk_constraint,
    _poison_noise,
    _seed_everything,
    lambda view: _poke(view, set()),
]


class Attacker:
    """Attacks, then guesses badly and keeps hold of its guess to change it later."""

    def __init__(self, attack: Attack) -> None:
        self.attack = attack
        self.tree = DraftTree()

    def __call__(self, view: DraftView, budget: int) -> DraftTree:
        guess = [int(token) for token in view.tokens[-3:]]
        with contextlib.suppress(AttributeError, TypeError, ValueError):
            self.attack(view)
        _poke(self.tree, set())
        self.tree = DraftTree.chain(guess, "attacker")
        return self.tree


OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.9, "seed": 4},
    {"temperature": 0.9, "seed": 4, "mode": "rejection"},
    {"response_format": {"type": "object", "properties": {"a": {"enum": ["x", "yy"]}}, "required": ["a"]}},
]


@pytest.mark.parametrize("attack", range(len(ATTACKS)))
@pytest.mark.parametrize("options", OPTIONS, ids=["greedy", "sampled", "rejection", "json"])
@pytest.mark.filterwarnings("ignore")
def test_no_attack_on_the_view_changes_an_answer(attack: int, options: dict[str, Any]) -> None:
    if options.get("mode") == "rejection" and attack != 0:
        options = {**options, "mode": "coupled"}  # rejection draws depend on the trees, by nature
    model = chat_model(eos=2 if "response_format" in options else None)
    new = {"max_new_tokens": 24, **options}
    expected = Engine(model, TOKENIZER, drafters=[]).chat("one one one", **new)
    drafters: list[Any] = [FakeDrafter(Attacker(ATTACKS[attack])), NgramDrafter()]
    engine = Engine(model, TOKENIZER, drafters=drafters)
    engine.controller = Unhurried()
    reply = engine.chat("one one one", **new)
    if options.get("mode") != "rejection":
        assert reply.token_ids == expected.token_ids
    assert reply.stats.forwards > 0


class Unopenable:
    """A drafter whose every part fails."""

    @property
    def name(self) -> str:
        return "unopenable"

    @property
    def needs_hidden(self) -> bool:
        raise RuntimeError("broken")

    def open(self) -> Any:
        raise RuntimeError("broken")


def test_a_drafter_that_cannot_be_opened_costs_a_warning() -> None:
    model = chat_model(eos=None)
    engine = Engine(model, TOKENIZER, drafters=[Unopenable()])  # type: ignore[list-item]
    engine.controller = Unhurried()
    with pytest.warns(match="unopenable"):
        reply = engine.chat("one", max_new_tokens=12)
    assert reply.token_ids == Engine(model, TOKENIZER, drafters=[]).chat("one", max_new_tokens=12).token_ids


class ShouldBeState:
    """Opened at once instead of handed over to be opened."""

    def propose(self, view: DraftView, budget: int) -> DraftTree:
        return EMPTY

    def observe(self, outcome: Outcome) -> None: ...


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("ngrm", "'ngrm'"),
        ("", "''"),
        (None, "None"),
        (5, "5"),
        (True, "True"),
        ({}, "dict"),
        (b"default", "bytes"),
        (NgramDrafter, "the class NgramDrafter"),
        (NgramDrafter(), "put it into a list"),
        ([NgramDrafter], r"pass an object of it, NgramDrafter\(\)"),
        (["ngram"], "not names"),
        ([None], r"drafters\[0\] is None"),
        ([NgramDrafter(), ShouldBeState()], r"drafters\[1\].*no name, open"),
        ([object()], "Drafter protocol"),
    ],
)
def test_what_is_no_drafter_is_refused_and_named(given: Any, expected: str) -> None:
    with pytest.raises(OptionError, match=expected) as caught:
        Engine(chat_model(), TOKENIZER, drafters=given)
    assert "default" in str(caught.value) or "list" in str(caught.value)
