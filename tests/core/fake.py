"""A target that is a table of logits, and drafters of every kind of misbehaviour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mmspec_agent.core.controller import Controller
from mmspec_agent.core.decode import Decoder, OpenDrafter, Request
from mmspec_agent.core.drafters.base import DraftView, Outcome
from mmspec_agent.core.noise import ReplyNoise
from mmspec_agent.core.sampling import Draw, IdBuffer, Processing, Sampler
from mmspec_agent.core.target import StepResult
from mmspec_agent.core.tree import EMPTY, ROOT, DraftTree

Propose = Callable[[DraftView, int], Any]


@dataclass(frozen=True)
class Table:
    """Logits [V, V, V] of the next token by the last two: a target whose every answer is known."""

    logits: npt.NDArray[np.float64]

    @classmethod
    def random(cls, seed: int, vocab: int = 8, scale: float = 1.5) -> Table:
        return cls(np.random.default_rng(seed).normal(size=(vocab, vocab, vocab)) * scale)

    @property
    def vocab(self) -> int:
        return int(self.logits.shape[0])

    def row(self, tokens: Sequence[int]) -> npt.NDArray[np.float64]:
        before = tokens[-2] if len(tokens) > 1 else 0
        row: npt.NDArray[np.float64] = self.logits[before, tokens[-1]]
        return row

    def probs(self, tokens: Sequence[int]) -> npt.NDArray[np.float64]:
        weights = np.exp(self.row(tokens) - self.row(tokens).max())
        return np.asarray(weights / weights.sum())


class FakeSequence:
    """A ``TargetSequence`` over a table. Keeps the committed tokens, so a wrong commit shows at once."""

    def __init__(self, table: Table, limit: int = 1 << 20) -> None:
        self.table = table
        self.limit = limit
        self.tokens: list[int] = []
        self.rows = 0
        self.forwards = 0
        self.fail: Callable[[int], None] = lambda rows: None
        self._last: tuple[list[int], DraftTree] | None = None

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def max_rows(self) -> int:
        return self.limit - len(self.tokens)

    def settle(self, total: int) -> None: ...

    def span(self, count: int) -> int:
        return count

    def draft_room(self, pending: int) -> int:
        return 1 << 30

    def prefill(self, tokens: Sequence[int]) -> None:
        assert len(tokens) <= self.max_rows
        self.tokens += tokens

    def verify(self, pending: Sequence[int], tree: DraftTree = EMPTY, need_hidden: bool = False) -> StepResult:
        assert pending, "a forward needs at least one pending token"
        assert len(pending) + tree.depth <= self.max_rows, "past the context's end"
        self.fail(len(pending) + len(tree))
        contexts = [[*self.tokens, *pending]]
        contexts += [contexts[0] + tree.path_tokens(node) for node in range(len(tree))]
        self.rows += len(pending) + len(tree)
        self.forwards += 1
        self._last = (list(pending), tree)
        return StepResult(torch.from_numpy(np.stack([self.table.row(c) for c in contexts])))

    def commit(self, pending: int, path: Sequence[int]) -> None:
        assert self._last is not None, "commit without verify"
        tokens, tree = self._last
        assert pending == len(tokens)
        parent = ROOT
        for node in path:
            assert tree.parents[node] == parent, "not a path from the root"
            parent = node
        self.tokens += [*tokens, *(tree.tokens[node] for node in path)]
        self._last = None

    def truncate(self, length: int) -> None:
        del self.tokens[length:]


@dataclass
class FakeState:
    """Proposes what ``propose`` returns; remembers the outcomes."""

    propose_: Propose
    outcomes: list[Outcome] = field(default_factory=list)

    def propose(self, view: DraftView, budget: int) -> DraftTree:
        tree: DraftTree = self.propose_(view, budget)
        return tree

    def observe(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)


@dataclass
class FakeDrafter:
    """A drafter from a function."""

    propose: Propose
    name: str = "fake"
    needs_hidden: bool = False
    keeps_to_constraint: bool = False
    states: list[FakeState] = field(default_factory=list)

    def open(self) -> FakeState:
        self.states.append(FakeState(self.propose))
        return self.states[-1]


def random_tree(rng: np.random.Generator, nodes: int, vocab: int, first: int = 0, last: float = 1.0) -> DraftTree:
    """``nodes`` distinct guesses with random scores that fall along paths, the lowest above ``last`` / 10."""
    tokens: list[int] = []
    parents: list[int] = []
    scores: list[float] = []
    used: set[tuple[int, int]] = set()
    for _ in range(8 * nodes):
        if len(tokens) == nodes:
            break
        parent, token = int(rng.integers(-1, len(tokens))), int(rng.integers(first, vocab))
        if (parent, token) not in used:
            used.add((parent, token))
            tokens.append(token)
            parents.append(parent)
            scores.append((last if parent == ROOT else scores[parent]) * float(rng.uniform(0.5, 1.0)))
    return DraftTree(tuple(tokens), tuple(parents), ("random",) * len(tokens), tuple(scores))


def random_drafter(seed: int, vocab: int, first: int = 0) -> FakeDrafter:
    """Random trees up to the budget."""
    rng = np.random.default_rng(seed)
    return FakeDrafter(lambda view, budget: random_tree(rng, int(rng.integers(0, budget + 1)), vocab, first), "random")


def oracle(answer: Sequence[int], prompt: int, name: str = "oracle") -> FakeDrafter:
    """Always right, and far past the end: knows the ``answer`` to a prompt of that length."""

    def propose(view: DraftView, budget: int) -> DraftTree:
        return DraftTree.chain(list(answer[len(view.tokens) - prompt :])[:budget], name)

    return FakeDrafter(propose, name)


def always_wrong(answer: Sequence[int], prompt: int, vocab: int) -> FakeDrafter:
    """Claims certainty and is never right."""

    def propose(view: DraftView, budget: int) -> DraftTree:
        rest = answer[len(view.tokens) - prompt :]
        return DraftTree.chain([(t + 1) % vocab for t in rest][:budget], "wrong")

    return FakeDrafter(propose, "wrong")


def raising(error: BaseException, after: int = 0) -> FakeDrafter:
    """Works ``after`` times (with no guesses), then raises."""
    calls = [0]

    def propose(view: DraftView, budget: int) -> DraftTree:
        calls[0] += 1
        if calls[0] > after:
            raise error
        return EMPTY

    return FakeDrafter(propose, "raising")


GARBAGE: dict[str, Any] = {
    "none": None,
    "text": "not a tree",
    "floats": DraftTree((1.5, 2.5), (ROOT, 0), ("g",) * 2, (1.0,) * 2),  # type: ignore[arg-type]
    "strings": DraftTree(("a",), (ROOT,), ("g",), (1.0,)),  # type: ignore[arg-type]
    "negative": DraftTree((-5,), (ROOT,), ("g",), (1.0,)),
    "beyond the vocabulary": DraftTree((10**6,), (ROOT,), ("g",), (1.0,)),
    "nan scores": DraftTree((3, 4), (ROOT, ROOT), ("g",) * 2, (float("nan"), 1.0)),
    "no scores": DraftTree((3,), (ROOT,), ("g",), (None,)),  # type: ignore[arg-type]
    "huge scores": DraftTree((3, 4), (ROOT, 0), ("g",) * 2, (1e300, float("inf"))),
    "rising scores": DraftTree((3, 4), (ROOT, 0), ("g",) * 2, (0.1, 0.9)),
}
"""What a broken drafter may return."""


def adversaries(answer: Sequence[int], prompt: int, vocab: int) -> dict[str, FakeDrafter]:
    """Every drafter the proofs name, against a known ``answer``."""
    right = list(answer)

    def duplicates(view: DraftView, budget: int) -> DraftTree:
        rest = right[len(view.tokens) - prompt :][:3] or [3]
        tokens = tuple(t for t in rest for _ in range(3))
        parents = tuple(3 * (i // 3) - 1 if i >= 3 else ROOT for i in range(len(tokens)))
        return DraftTree(tokens, parents, ("twice",) * len(tokens), (1.0,) * len(tokens))

    def over_budget(view: DraftView, budget: int) -> DraftTree:
        rest = right[len(view.tokens) - prompt :]
        return DraftTree.chain([*rest, *([5] * (4 * budget + 300))][: 4 * budget + 300], "much")

    drafters = {
        "random": random_drafter(1, vocab),
        "oracle": oracle(right, prompt),
        "past the end": oracle([*right, *right, *right], prompt),
        "wrong": always_wrong(right, prompt, vocab),
        "duplicates": FakeDrafter(duplicates, "duplicates"),
        "over budget": FakeDrafter(over_budget, "over budget"),
        "raising": raising(RuntimeError("broken"), after=2),
    }
    for label, value in GARBAGE.items():
        drafters[label] = FakeDrafter(lambda view, budget, value=value: value, label)  # type: ignore[misc]
    return drafters


def decode(
    table: Table,
    prompt: Sequence[int],
    new_tokens: int,
    *,
    drafters: Sequence[FakeDrafter] = (),
    temperature: float = 0.0,
    seed: int = 0,
    stop: Callable[[list[int]], bool] = lambda emitted: False,
    limit: int = 1 << 20,
    controller: Controller | None = None,
    chunk: int = 512,
    sequence: FakeSequence | None = None,
    **request_options: Any,
) -> tuple[list[int], Decoder]:
    """Tokens of a reply over ``table``, and the decoder for its statistics."""
    sequence = sequence or FakeSequence(table, limit)
    emitted: list[int] = []

    def rule(draw: Draw) -> str | None:
        emitted.append(draw.token)
        if stop(emitted):
            return "stop"
        return "length" if len(emitted) >= new_tokens else None

    tokens = list(prompt)
    warp = () if temperature in (0.0, 1.0) else (lambda ids, scores: scores / temperature,)
    sampler = Sampler(
        Processing(after=warp, greedy=temperature == 0.0),
        ReplyNoise(seed),
        IdBuffer(tokens, torch.device("cpu")),
    )
    request = Request(tokens, sampler, rule, new_tokens, chunk=chunk, **request_options)
    opened = [OpenDrafter(d, d.open()) for d in drafters]
    decoder = Decoder(sequence, request, opened, controller or eager_controller())
    for _ in decoder.steps():
        assert sequence.tokens == tokens[: sequence.length], "the cache holds other tokens than the reply"
        assert sequence.length <= len(tokens)
    assert tokens == [*prompt, *emitted]
    return emitted, decoder


def eager_controller(max_nodes: int = 24) -> Controller:
    """A controller that trusts every drafter: forwards cost the same whatever their rows."""
    return EagerController(max_nodes=max_nodes)


class EagerController(Controller):
    """Asks always, and verifies whatever is proposed, unless memory ran out."""

    def budget(self, pending: int = 1) -> int:
        return self.max_nodes if self.ceiling else 0

    def choose(self, tree: DraftTree, pending: int, room: int) -> DraftTree:
        return tree.trim(room)

    def observe(self, *args: Any) -> None:
        """Nothing is learned, so nothing is ever switched off."""
