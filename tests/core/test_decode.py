"""The loop over a table: greedy and sampled tokens do not depend on drafter, budget, or any change of them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import pytest
from fake import (
    GARBAGE,
    EagerController,
    FakeDrafter,
    FakeSequence,
    Table,
    adversaries,
    decode,
    eager_controller,
    oracle,
    raising,
    random_drafter,
    random_tree,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mmspec_agent.core.controller import Controller, Level
from mmspec_agent.core.decode import Decoder
from mmspec_agent.core.drafters.base import DraftView
from mmspec_agent.core.drafters.ngram import NgramDrafter
from mmspec_agent.core.errors import Cancelled, DrafterWarning, NumericalError
from mmspec_agent.core.tree import EMPTY, ROOT, DraftTree

TABLE = Table.random(0, vocab=12)
PROMPT = [3, 4, 5, 6, 7]
NEW = 60


def plain(temperature: float = 0.0, seed: int = 0) -> list[int]:
    return decode(TABLE, PROMPT, NEW, temperature=temperature, seed=seed)[0]


def reference_greedy(table: Table, prompt: Sequence[int], new: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(new):
        tokens.append(int(table.row(tokens).argmax()))
    return tokens[len(prompt) :]


def test_plain_loop_is_argmax_decoding() -> None:
    assert plain() == reference_greedy(TABLE, PROMPT, NEW)


ADVERSARIES = [*adversaries([1], 1, 5)]


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("name", ADVERSARIES)
def test_adversarial_drafters_change_nothing(name: str, temperature: float) -> None:
    expected = plain(temperature)
    drafter = adversaries(expected, len(PROMPT), TABLE.vocab)[name]
    for controller in (eager_controller(), Controller(max_nodes=16)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DrafterWarning)
            tokens, _ = decode(
                TABLE,
                PROMPT,
                NEW,
                drafters=[drafter],
                temperature=temperature,
                controller=controller,
                vocab_size=TABLE.vocab,
            )
        assert tokens == expected


@pytest.mark.parametrize(
    "name", ["none", "text", "floats", "strings", "negative", "beyond the vocabulary", "no scores"]
)
def test_garbage_is_dropped_with_a_warning_and_counted(name: str) -> None:
    drafter = FakeDrafter(lambda view, budget: GARBAGE[name], "garbage")
    with pytest.warns(DrafterWarning, match="garbage"):
        tokens, decoder = decode(TABLE, PROMPT, NEW, drafters=[drafter], vocab_size=TABLE.vocab)
    assert tokens == plain()
    assert len(decoder.stats.dropped_drafters) == 1
    assert decoder.controller.changes["drafter garbage failed"] == 1


def test_one_failing_drafter_leaves_the_others_at_work() -> None:
    expected = plain()
    with pytest.warns(DrafterWarning, match="broken"):
        tokens, decoder = decode(
            TABLE, PROMPT, NEW, drafters=[raising(ValueError("broken")), oracle(expected, len(PROMPT))]
        )
    assert tokens == expected
    assert decoder.stats.accepted > 0
    assert decoder.stats.dropped_drafters == ["raising: ValueError: broken"]


def test_a_drafter_that_fails_while_learning_is_dropped() -> None:
    expected = plain()
    drafter = oracle(expected, len(PROMPT))
    original = drafter.open

    def open_broken() -> object:
        state = original()
        state.observe = lambda outcome: 1 / 0  # type: ignore[method-assign,assignment]
        return state

    drafter.open = open_broken  # type: ignore[method-assign,assignment]
    with pytest.warns(DrafterWarning, match="ZeroDivisionError"):
        tokens, _ = decode(TABLE, PROMPT, NEW, drafters=[drafter])
    assert tokens == expected


def test_an_oracle_pays_and_the_statistics_say_so() -> None:
    expected = plain()
    tokens, decoder = decode(
        TABLE, PROMPT, NEW, drafters=[oracle(expected, len(PROMPT))], controller=eager_controller(8)
    )
    stats = decoder.stats
    assert tokens == expected
    assert stats.emitted == NEW == sum(stats.sources.values())
    assert stats.forwards == -(-NEW // 9)
    assert stats.accepted == stats.sources["oracle"]
    assert stats.tokens_per_step == pytest.approx((NEW - stats.first_emitted) / (stats.forwards - 1))


def test_placeholders_are_never_verified() -> None:
    seen: list[DraftTree] = []

    class Watching(EagerController):
        def choose(self, tree: DraftTree, pending: int, room: int) -> DraftTree:
            seen.append(tree)
            return super().choose(tree, pending, room)

    decode(
        TABLE,
        PROMPT,
        NEW,
        drafters=[random_drafter(3, TABLE.vocab)],
        controller=Watching(max_nodes=24),
        placeholder_ids=frozenset({2, 5}),
    )
    drafted = {token for tree in seen for token in tree.tokens}
    assert drafted
    assert not drafted & {2, 5}


@pytest.mark.parametrize("limit", [6, 7, 12, 30])
def test_the_reply_ends_at_the_context_limit(limit: int) -> None:
    """The last token needs no row of its own, so a context of n positions holds n + 1 tokens."""
    expected = plain()
    for drafters in ([], [oracle(expected, len(PROMPT))], [random_drafter(4, TABLE.vocab)]):
        tokens, _ = decode(TABLE, PROMPT, NEW, drafters=drafters, limit=limit)
        assert tokens == expected[: limit - len(PROMPT) + 1]


@pytest.mark.parametrize("chunk", [1, 2, 3, 512])
def test_prompts_are_prefilled_in_chunks_and_cancelled_between_them(chunk: int) -> None:
    prompt = [int(t) for t in np.random.default_rng(0).integers(0, 12, size=40)]
    tokens, _ = decode(TABLE, prompt, 10, chunk=chunk)
    assert tokens == reference_greedy(TABLE, prompt, 10)
    sequence = FakeSequence(TABLE)
    calls = iter([False] * 3 + [True] * 100)
    with pytest.raises(Cancelled):
        decode(TABLE, prompt, 10, chunk=chunk, sequence=sequence, cancelled=lambda: next(calls))
    tokens, _ = decode(TABLE, prompt, 10, sequence=sequence)
    assert tokens == reference_greedy(TABLE, prompt, 10)


def test_nan_logits_raise_and_are_never_sampled() -> None:
    logits = TABLE.logits.copy()
    logits[:, 4] = np.nan
    broken = Table(logits)
    for temperature in (0.0, 1.0):
        with pytest.raises(NumericalError):
            decode(broken, [3, 4], 5, temperature=temperature)


def test_out_of_memory_steps_down_and_the_reply_continues() -> None:
    expected = plain()
    sequence = FakeSequence(TABLE)

    def fail(rows: int) -> None:
        if rows > 5:
            raise RuntimeError("CUDA out of memory. Tried to allocate")

    sequence.fail = fail
    controller = eager_controller()
    tokens, decoder = decode(
        TABLE, PROMPT, NEW, drafters=[random_drafter(5, 12)], sequence=sequence, controller=controller
    )
    assert tokens == expected
    assert decoder.stats.ladder["down to chain: out of memory"] == 1
    assert controller.ceiling < Level.TREE


@pytest.mark.parametrize("level", [Level.TREE, Level.CHAIN, Level.PLAIN])
def test_any_draft_at_all_out_of_memory_still_answers(level: Level) -> None:
    sequence = FakeSequence(TABLE)

    def fail(rows: int) -> None:
        if rows > 1 and sequence.forwards:
            raise MemoryError

    sequence.fail = fail

    class StartsAt(EagerController):
        def begin_reply(self) -> None:
            self.level = level

    controller = StartsAt(max_nodes=24)
    drafter = random_drafter(6, 12)
    tokens, _ = decode(TABLE, PROMPT, NEW, drafters=[drafter], sequence=sequence, controller=controller)
    assert tokens == plain()
    assert controller.ceiling is Level.PLAIN


def test_out_of_memory_without_drafts_is_an_error() -> None:
    sequence = FakeSequence(TABLE)

    def fail(rows: int) -> None:
        raise MemoryError

    sequence.fail = fail
    with pytest.raises(MemoryError):
        decode(TABLE, PROMPT, NEW, sequence=sequence)


def test_other_runtime_errors_are_not_swallowed() -> None:
    sequence = FakeSequence(TABLE)

    def fail(rows: int) -> None:
        raise RuntimeError("a shape does not fit")

    sequence.fail = fail
    with pytest.raises(RuntimeError, match="shape"):
        decode(TABLE, PROMPT, NEW, drafters=[random_drafter(5, 12)], sequence=sequence)


class Changing(EagerController):
    """Another budget at every step, none at some."""

    def __init__(self, seed: int) -> None:
        super().__init__(max_nodes=24)
        self._rng = np.random.default_rng(seed)

    def budget(self, pending: int = 1) -> int:
        return int(self._rng.choice([0, 1, 2, 5, 24]))


def _switching(first: FakeDrafter, second: FakeDrafter, at: int) -> FakeDrafter:
    def propose(view: DraftView, budget: int) -> DraftTree:
        chosen = first if len(view.tokens) < at else second
        tree: DraftTree = chosen.propose(view, budget)
        return tree

    return FakeDrafter(propose, "switching")


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 1.7])
@pytest.mark.parametrize("seed", range(4))
def test_same_seed_same_tokens_whatever_drafts(temperature: float, seed: int) -> None:
    """Proof 6: drafter, budget, and a change of either half-way do not show in the tokens."""
    expected = plain(temperature, seed)
    right = oracle(expected, len(PROMPT))
    arms: list[tuple[list[FakeDrafter], Controller]] = [
        ([random_drafter(seed, 12)], eager_controller()),
        ([random_drafter(seed, 12), right], eager_controller(7)),
        ([right], Changing(seed)),
        ([_switching(right, random_drafter(seed, 12), 30)], Changing(seed + 1)),
        ([_switching(random_drafter(seed, 12), right, 30)], Controller(max_nodes=12)),
    ]
    for drafters, controller in arms:
        tokens, _ = decode(
            TABLE, PROMPT, NEW, drafters=drafters, controller=controller, temperature=temperature, seed=seed
        )
        assert tokens == expected
    if temperature:
        assert plain(temperature, seed + 100) != expected


def test_the_ngram_drafter_changes_nothing_and_helps_on_repetition() -> None:
    table = Table.random(5, vocab=5, scale=4.0)
    prompt = [3, 4, 1, 0, 2]
    expected = reference_greedy(table, prompt, NEW)
    drafter = NgramDrafter()
    tokens, decoder = decode(table, prompt, NEW, drafters=[drafter])  # type: ignore[list-item]
    assert tokens == expected
    assert decoder.stats.tokens_per_step > 1.5


def _tree_drafter(seed: int, vocab: int, answer: Sequence[int], prompt: int, right: float) -> FakeDrafter:
    """Random trees in which a share of the branches is right for a while."""
    rng = np.random.default_rng(seed)

    def propose(view: DraftView, budget: int) -> DraftTree:
        if rng.uniform() < right:
            rest = list(answer[len(view.tokens) - prompt :])[: int(rng.integers(0, 8))]
            return DraftTree.chain(rest, "right")
        return random_tree(rng, int(rng.integers(0, 2 * budget + 1)), vocab)

    return FakeDrafter(propose, "mixed")


STOPS = ("never", "token", "several", "pair", "count")


def _stopper(kind: str, token: int, count: int) -> object:
    return {
        "never": lambda emitted: False,
        "token": lambda emitted: emitted[-1] == token,
        "several": lambda emitted: emitted[-1] in (token, (token + 1) % 5),
        "pair": lambda emitted: emitted[-2:] == [token, token],
        "count": lambda emitted: len(emitted) >= count,
    }[kind]


@pytest.mark.slow
@settings(max_examples=2200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 10_000),
    vocab=st.integers(2, 9),
    prompt_length=st.integers(1, 9),
    new=st.integers(1, 14),
    cached=st.integers(0, 9),
    max_nodes=st.integers(0, 20),
    right=st.floats(0, 1),
    number=st.integers(1, 3),
    temperature=st.sampled_from([0.0, 0.0, 0.6, 1.0]),
    stop=st.sampled_from(STOPS),
    limit=st.one_of(st.none(), st.integers(10, 20)),
    chunk=st.sampled_from([1, 3, 512]),
    cautious=st.booleans(),
)
def test_fuzz(
    seed: int,
    vocab: int,
    prompt_length: int,
    new: int,
    cached: int,
    max_nodes: int,
    right: float,
    number: int,
    temperature: float,
    stop: str,
    limit: int | None,
    chunk: int,
    cautious: bool,
) -> None:
    """Random trees, budgets, drafters, stop conditions and pending lengths: speculative equals plain."""
    table = Table.random(seed % 7, vocab=vocab)
    rng = np.random.default_rng(seed)
    prompt = rng.integers(0, vocab, size=prompt_length).tolist()
    stopper = _stopper(stop, int(rng.integers(vocab)), int(rng.integers(1, 10)))
    fixed = {"temperature": temperature, "seed": seed, "stop": stopper, "limit": limit or 1 << 20}
    expected, _ = decode(table, prompt, new, **fixed)  # type: ignore[arg-type]
    sequence = FakeSequence(table, limit or 1 << 20)
    sequence.tokens = prompt[:cached]
    controller = Controller(max_nodes=max_nodes) if cautious else EagerController(max_nodes=max_nodes)
    drafters = [_tree_drafter(seed + i, vocab, expected, prompt_length, right) for i in range(number)]
    tokens, decoder = decode(
        table,
        prompt,
        new,
        drafters=drafters,
        controller=controller,
        chunk=chunk,
        sequence=sequence,
        vocab_size=vocab,
        **fixed,  # type: ignore[arg-type]
    )
    assert tokens == expected
    assert decoder.stats.emitted == len(tokens)
    assert not decoder.stats.dropped_drafters


def test_trace_records_replay_the_tokens() -> None:
    expected = plain()
    records: list[dict[str, object]] = []
    _, decoder = decode(TABLE, PROMPT, 1)
    sequence = FakeSequence(TABLE)
    request = decoder.request
    request.tokens[:] = PROMPT
    request.max_new_tokens = NEW
    left = iter(range(NEW))
    request.stop = lambda draw: None if next(left) < NEW - 1 else "length"
    again = Decoder(sequence, request, [], eager_controller(), trace=records.append)
    steps = list(again.steps())
    assert [t for r in records for t in r["emitted"]] == expected  # type: ignore[attr-defined]
    assert [r["step"] for r in records] == list(range(1, len(steps) + 1))
    assert steps[-1].finish == "length"


def test_empty_tree_is_a_plain_step() -> None:
    tokens, decoder = decode(TABLE, PROMPT, NEW, drafters=[FakeDrafter(lambda view, budget: EMPTY)])
    assert tokens == plain()
    assert decoder.stats.forwards == NEW
    assert ROOT == -1
