"""The n-gram drafter: its index against a brute-force scan, its calibration, and edits of the history."""

from __future__ import annotations

import numpy as np
import pytest

from mmspec_agent.core.drafters import ngram
from mmspec_agent.core.drafters.base import DraftView, Outcome, Proposal
from mmspec_agent.core.drafters.calibration import Calibration
from mmspec_agent.core.drafters.ngram import MAX_CANDIDATES, MAX_MATCH, ORDERS, SEPARATOR, NgramDrafter, NgramIndex
from mmspec_agent.core.noise import ReplyNoise
from mmspec_agent.core.tree import ROOT


def brute_force(corpus: list[int]) -> dict[int, int]:
    """Every earlier end whose last tokens agree with the corpus's last, with the length of the agreement."""
    last, found = len(corpus) - 1, {}
    for end in range(last):
        length = 0
        while length < MAX_MATCH and end - length >= 0:
            if corpus[end - length] != corpus[last - length] or corpus[end - length] == SEPARATOR:
                break
            length += 1
        if length:
            found[end] = length
    return found


@pytest.mark.parametrize("seed", range(25))
def test_the_incremental_index_equals_a_scan(seed: int) -> None:
    rng = np.random.default_rng(seed)
    index, corpus = NgramIndex(), []
    for _ in range(30):
        new = rng.choice([SEPARATOR, 1, 2, 3, 4, 5], p=[0.02, *[0.196] * 5], size=int(rng.integers(1, 9))).tolist()
        corpus += new
        index.extend(new)
        if corpus[-1] == SEPARATOR:
            continue
        scan, matches = brute_force(corpus), index.matches()
        assert all(scan.get(end) == length for end, length in matches if length)
        longest = max(scan.values(), default=0)
        order = next((n for n in ORDERS if n <= longest), None)
        wanted = [end for end, length in scan.items() if order is not None and length >= order]
        found = [end for end, _ in matches]
        assert set(sorted(wanted)[-MAX_CANDIDATES:]) <= set(found)
        assert len(found) <= MAX_CANDIDATES


def test_the_index_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram, "MAX_TOKENS", 100)
    index = NgramIndex()
    for i in range(1000):
        index.extend([i % 7])
        assert len(index.tokens) <= 100
    assert index.matches()
    assert all(end < len(index.tokens) for end, _ in index.matches())


def view(tokens: list[int], remaining: int = 100) -> DraftView:
    return DraftView(tokens, 0, remaining=remaining)


def test_it_copies_what_follows_the_longest_match() -> None:
    state = NgramDrafter().open()
    tree = state.propose(view([1, 2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4]), 8)
    best = max(range(len(tree)), key=lambda n: (tree.scores[n], tree.depths[n]))
    assert tree.tokens[0] == 5
    assert 5 in tree.path_tokens(best)
    assert len(tree) <= 8
    assert list(tree.scores) == sorted(tree.scores, reverse=True)


def test_several_continuations_become_branches_with_counts_as_odds() -> None:
    state = NgramDrafter().open()
    tokens = [*[7, 8, 9, 1], *[7, 8, 9, 1], *[7, 8, 9, 2], 7, 8, 9]
    tree = state.propose(view(tokens), 12)
    odds = {tree.tokens[n]: tree.scores[n] for n, parent in enumerate(tree.parents) if parent == ROOT}
    assert odds[1] > odds[2] > 0


def test_placeholders_are_not_drafted_and_the_end_of_the_reply_is_respected() -> None:
    tokens = [1, 2, 3, 99, 99, 4, 5, 1, 2, 3]
    assert 99 not in NgramDrafter(banned=frozenset({99})).open().propose(view(tokens), 9).tokens
    assert NgramDrafter().open().propose(view([1, 2, 3, 4, 5, 1, 2], remaining=2), 9).depth <= 2
    assert len(NgramDrafter().open().propose(view([1, 2, 3]), 9)) == 0
    assert len(NgramDrafter().open().propose(view([1, 1, 1]), 0)) == 0


def test_an_edited_history_is_added_behind_a_separator() -> None:
    state = NgramDrafter().open()
    state.propose(view([1, 2, 3, 4, 5]), 4)
    state.propose(view([1, 2, 3, 4, 5, 6]), 4)
    assert SEPARATOR not in state._index.tokens
    state.propose(view([1, 2, 9, 9]), 4)
    assert state._index.tokens == [1, 2, 3, 4, 5, 6, SEPARATOR, 1, 2, 9, 9]
    tree = state.propose(view([1, 2, 9, 9, 4, 5]), 4)
    assert tree.tokens[0] == 6


def test_no_guess_runs_over_a_separator() -> None:
    state = NgramDrafter().open()
    state.propose(view([1, 2, 3]), 4)
    state.propose(view([8, 9]), 4)
    tree = state.propose(view([8, 9, 1, 2, 3]), 9)
    assert SEPARATOR not in tree.tokens


def test_sessions_share_nothing() -> None:
    drafter = NgramDrafter()
    drafter.open().propose(view([1, 2, 3, 4, 5, 6]), 4)
    assert len(drafter.open().propose(view([1, 2, 3]), 4)) == 0


def test_scores_follow_what_was_observed() -> None:
    state = NgramDrafter().open()
    tokens = [1, 2, 3, 4, 5, 6, 1, 2, 3]
    first = state.propose(view(tokens), 3)
    for _ in range(30):
        tree = state.propose(view(tokens), 3)
        state.observe(Outcome(tree, (), (9,)))
    assert state.propose(view(tokens), 3).scores[0] < 0.3 * first.scores[0]
    for _ in range(200):
        tree = state.propose(view(tokens), 3)
        state.observe(Outcome(tree, tuple(range(len(tree))), (*tree.tokens, 9)))
    assert state.propose(view(tokens), 3).scores[0] > 0.8


def test_calibration_converges_and_forgets() -> None:
    rng = np.random.default_rng(0)
    calibration = Calibration({1: 0.5, 4: 0.5})
    for _ in range(400):
        calibration.record(2, bool(rng.uniform() < 0.2))
        calibration.record(9, bool(rng.uniform() < 0.9))
    assert calibration.estimate(1) == pytest.approx(0.2, abs=0.12)
    assert calibration.estimate(4) == pytest.approx(0.9, abs=0.1)
    assert calibration.estimate(0) == calibration.estimate(1)
    for _ in range(100):
        calibration.record(9, False)
    assert calibration.estimate(9) < 0.3


def test_rejection_mode_records_its_draws() -> None:
    state = NgramDrafter().open()
    tokens = [*[7, 8, 9, 1], *[7, 8, 9, 1], *[7, 8, 9, 2], 7, 8, 9]
    proposal = Proposal(0.7, ReplyNoise(0), 5)
    tree = state.propose(DraftView(tokens, 0, proposal=proposal), 6)
    trials = tree.trials[ROOT]
    assert trials
    assert [t.token for t in trials] == [tree.tokens[n] for n, parent in enumerate(tree.parents) if parent == ROOT]
    assert all(trial.weights.sum() == pytest.approx(1.0) for trial in trials)
