"""The drafter is judged by forwards: gold calls are replayed as if a target had written them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from mmspec_agent.core.drafters.base import DraftView, Outcome
from mmspec_agent.core.tree import ROOT, DraftTree
from mmspec_agent.grammar.calls import calls_plan
from mmspec_agent.grammar.constraint import GrammarPlan
from mmspec_agent.grammar.drafter import GrammarDrafter, GrammarDraftState
from mmspec_agent.grammar.families import PLAIN_JSON
from mmspec_agent.grammar.plans import json_plan
from mmspec_agent.grammar.tools import read_tools
from mmspec_agent.grammar.vocabulary import Vocabulary


def tool(name: str, required: Sequence[str] = (), **properties: Any) -> dict[str, Any]:
    return {"name": name, "parameters": {"type": "object", "properties": properties, "required": list(required)}}


NUMBER, TEXT, FLAG = {"type": "number"}, {"type": "string"}, {"type": "boolean"}
TASKS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("Solve a=2, b=-11 and c=5", tool("solve", ["a", "b", "c"], a=NUMBER, b=NUMBER, c=NUMBER),
     {"a": 2, "b": -11, "c": 5}),
    ("Weather in San Francisco for 3 days", tool("get_weather", ["city"], city=TEXT, days={"type": "integer"}),
     {"city": "San Francisco", "days": 3}),
    ("Find 'blue note' jazz, at most 10", tool("search", ["query", "limit"], query=TEXT, limit={"type": "integer"}),
     {"query": "blue note", "limit": 10}),
    ("Mail joe@example.com on 2024-01-31", tool("remind", ["mail", "day"], mail={**TEXT, "format": "email"},
     day={**TEXT, "format": "date"}), {"mail": "joe@example.com", "day": "2024-01-31"}),
    ("Turn the lamp in the kitchen off",
     tool("switch", ["room", "on"], room={"enum": ["hall", "kitchen", "attic"]}, on=FLAG),
     {"room": "kitchen", "on": False}),
    ("Mean of 4, 8, 15 and 16", tool("mean", ["values"], values={"type": "array", "items": NUMBER}),
     {"values": [4, 8, 15, 16]}),
]  # fmt: skip


def ids_of(plan: GrammarPlan, text: str) -> list[int]:
    """The tokens in which a target under the masks would write ``text``, its end included."""
    cursor, ids, rest = plan.open(2000), [], text.encode()
    while rest:
        mask = cursor.mask()
        options = [plan.vocabulary.tokenize(rest)[0]]
        options += [t for end in range(len(rest), 0, -1) if (t := plan.vocabulary.id_of(rest[:end])) is not None]
        token = next(t for t in options if mask.allows(t))
        cursor.advance(token)
        ids.append(token)
        rest = rest[len(plan.vocabulary.spelling[token]) :]
    return [*ids, plan.vocabulary.eos_ids[0]]


def replay(plan: GrammarPlan, state: GrammarDraftState, prompt: list[int], ids: list[int], budget: int = 12) -> int:
    """Forwards after the first until ``ids`` are written, with forced runs and drafts."""
    cursor, tokens, at, forwards = plan.open(2000), list(prompt), 0, -1

    def take(token: int) -> None:
        nonlocal at
        assert token == ids[at]
        cursor.advance(token)
        tokens.append(token)
        at += 1

    while at < len(ids):
        for token in cursor.forced_run(len(ids) - at):
            take(token)
        if at == len(ids):
            break
        forwards += 1
        view = DraftView(tokens, len(prompt), cursor.fork(), remaining=2000 - at)
        tree = state.propose(view, budget) if forwards else DraftTree()
        check(tree, plan, cursor, budget)
        node, start, accepted = ROOT, at, []
        while at < len(ids):
            child = tree.child(node, ids[at])
            take(ids[at])
            if child is None:
                break
            accepted.append(child)
            node = child
        state.observe(Outcome(tree, tuple(accepted), tuple(ids[start:at])))
    return forwards


def check(tree: DraftTree, plan: GrammarPlan, cursor: Any, budget: int) -> None:
    """Every node is legal where it hangs, and scores never rise along a path."""
    assert len(tree) <= budget
    cursors = {ROOT: cursor.fork()}
    for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
        cursors[node] = cursors[parent].fork()
        cursors[node].advance(token)
        assert tree.scores[node] <= (1.0 if parent == ROOT else tree.scores[parent])


def call_text(name: str, arguments: dict[str, Any]) -> str:
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)


def prompt_of(vocabulary: Vocabulary, *messages: str) -> list[int]:
    mark = vocabulary.control("<|im_start|>")
    assert mark is not None
    return [token for text in messages for token in (mark, *vocabulary.tokenize("user\n" + text))] + [mark]


def test_values_of_the_question_are_drafted(vocabulary: Vocabulary) -> None:
    plain = forwards = 0
    state = GrammarDrafter().open()
    for _ in range(2):
        for question, spec, arguments in TASKS:
            plan = calls_plan(vocabulary, read_tools([spec]), PLAIN_JSON, 1)
            ids = ids_of(plan, call_text(spec["name"], arguments))
            plain += len(ids) - 1
            forwards += replay(plan, state, prompt_of(vocabulary, question), ids)
    assert forwards / plain < 0.18


@pytest.mark.parametrize("budget", [1, 2, 5, 40])
def test_any_budget_is_kept_and_the_reply_is_the_same(budget: int, vocabulary: Vocabulary) -> None:
    question, spec, arguments = TASKS[1]
    plan = calls_plan(vocabulary, read_tools([spec]), PLAIN_JSON, 1)
    ids = ids_of(plan, call_text(spec["name"], arguments))
    replay(plan, GrammarDrafter().open(), prompt_of(vocabulary, question), ids, budget)


def test_earlier_calls_of_the_loop_are_guessed_again(vocabulary: Vocabulary) -> None:
    """G7: the same tools in turn, with arguments that stand nowhere but in the history."""
    tools = [tool("open_page", ["handle"], handle=TEXT), tool("read_page", ["handle"], handle=TEXT)]
    plan = calls_plan(vocabulary, read_tools(tools), PLAIN_JSON, 1)
    names = ["open_page", "read_page"] * 3
    handle = {"handle": "zq-81-xw"}
    history = ["go on", *(call_text(name, handle) for name in names)]
    ids = ids_of(plan, call_text("open_page", handle))
    with_history = replay(plan, GrammarDrafter().open(), prompt_of(vocabulary, *history, "go on"), ids)
    without = replay(plan, GrammarDrafter().open(), prompt_of(vocabulary, "go on"), ids)
    assert with_history < without


def test_it_is_silent_without_a_grammar_and_after_the_end(vocabulary: Vocabulary) -> None:
    state = GrammarDrafter().open()
    assert len(state.propose(DraftView([1, 2], 2), 8)) == 0
    plan = json_plan(vocabulary, {"const": 1})
    cursor = plan.open(20)
    for token in cursor.forced_run(20):
        cursor.advance(token)
    assert len(state.propose(DraftView([1, 2], 2, cursor), 8)) == 0


def test_kinds_that_fail_are_offered_less(vocabulary: Vocabulary) -> None:
    state = GrammarDrafter().open()
    before = state.rates.chance("number0")
    for _ in range(50):
        state.rates.note("number0", False)
    assert state.rates.chance("number0") < before / 3


def test_plain_schemas_are_drafted_too(vocabulary: Vocabulary) -> None:
    schema = {"type": "object", "properties": {"city": TEXT, "open": FLAG}, "required": ["city", "open"]}
    plan = json_plan(vocabulary, schema)
    ids = ids_of(plan, '{"city": "New York", "open": true}')
    forwards = replay(plan, GrammarDrafter().open(), prompt_of(vocabulary, "Is New York open?"), ids)
    assert forwards <= len(ids) // 3
