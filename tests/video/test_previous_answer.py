"""The last answer as draft: found again after a divergence (cases static-paraphrase, scene-cut)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from mmspec_agent.core.drafters.base import Drafter, DraftState, DraftView
from mmspec_agent.core.tree import ROOT, DraftTree
from mmspec_agent.video.align import Answer, align
from mmspec_agent.video.drafter import NAME, PreviousAnswerDrafter

PROMPT = [900, 901, 902]


@dataclass(frozen=True)
class Decision:
    hit: bool = True
    scene_break: bool = False
    crosses_gap: bool = False


HIT, MISS, BREAK, GAP = Decision(), Decision(hit=False), Decision(False, True), Decision(False, True, True)


def words(text: str) -> list[int]:
    """One id per word, the same in every call."""
    return [sum(ord(c) * 31**i for i, c in enumerate(word)) % 10007 + 1000 for word in text.split()]


def decode(drafter: PreviousAnswerDrafter, answer: Sequence[int], budget: int = 16) -> tuple[int, int]:
    """Let a target that will say ``answer`` verify the drafts; (verify forwards, nodes spent). Remembers the answer."""
    state = drafter.open()
    said = [answer[0]]
    forwards = nodes = 0
    while len(said) < len(answer):
        view = DraftView(tokens=[*PROMPT, *said], prompt_length=len(PROMPT), remaining=len(answer) - len(said))
        tree = state.propose(view, budget)
        assert len(tree) <= budget
        forwards, nodes = forwards + 1, nodes + len(tree)
        node = ROOT
        while len(said) < len(answer):
            token = answer[len(said)]
            said.append(token)
            child = tree.child(node, token)
            if child is None:
                break
            node = child
    assert said == list(answer)
    drafter.remember(answer)
    return forwards, nodes


def propose(drafter: PreviousAnswerDrafter, said: Sequence[int], budget: int = 16) -> DraftTree:
    return drafter.open().propose(DraftView(tokens=[*PROMPT, *said], prompt_length=len(PROMPT)), budget)


def main_line(tree: DraftTree) -> list[int]:
    """Tokens along the best-scored path."""
    best: list[int] = []
    node = ROOT
    while True:
        children = [i for i in range(len(tree)) if tree.parents[i] == node]
        if not children:
            return best
        node = max(children, key=lambda i: tree.scores[i])
        best.append(tree.tokens[node])


def test_it_is_a_drafter() -> None:
    drafter: Drafter = PreviousAnswerDrafter()
    state: DraftState = drafter.open()
    assert drafter.name == NAME
    assert not drafter.needs_hidden
    assert len(state.propose(DraftView(tokens=PROMPT, prompt_length=3), 8)) == 0


def test_the_same_answer_costs_a_few_forwards() -> None:
    answer = words("a red lamp stands on the left of a small grey box and a cat sits behind both of them on the floor")
    drafter = PreviousAnswerDrafter()
    drafter.set_offer(None)
    decode(drafter, answer)
    drafter.set_offer(HIT)
    forwards, _ = decode(drafter, answer)
    assert (len(answer) - 1) / forwards >= 8


def test_a_replaced_word_costs_one_more_forward() -> None:
    old = words("the lamp is red and the box stands on the left side of the table next to a cup")
    new = words("the lamp is blue and the box stands on the left side of the table next to a cup")
    drafter = PreviousAnswerDrafter()
    drafter.remember(old)
    drafter.set_offer(HIT)
    forwards, _ = decode(drafter, new)
    assert forwards <= 4
    assert (len(new) - 1) / forwards >= 3.5


@pytest.mark.parametrize(
    ("new", "most"),
    [
        ("there is now a lamp that is red and the box stands on the left side of the table", 10),
        ("the lamp is very very red and the box stands on the left side of the table", 6),
        ("the lamp is red and the box is on the left side of the table", 5),
        ("the box stands on the left side of the table and the lamp is red", 6),
    ],
)
def test_it_finds_its_place_again_after_insertions_and_moves(new: str, most: int) -> None:
    drafter = PreviousAnswerDrafter()
    drafter.remember(words("the lamp is red and the box stands on the left side of the table"))
    drafter.set_offer(HIT)
    forwards, _ = decode(drafter, words(new))
    assert forwards <= most


def test_alignment_is_by_tokens_and_takes_the_nearest_of_equals() -> None:
    answer = Answer(tuple(words("a b c x a b c y a b c z")))
    assert align(answer, []).at == 0
    assert align(answer, words("a b c")).at == 3
    assert align(answer, words("a b c x a b c")).at == 7
    assert align(answer, words("q q q q y a b c")).at == 11
    assert align(answer, words("a b c q")).state == "resync"
    assert align(answer, words("a b c q")).at == 4


def test_the_end_of_the_answer_is_drafted_too() -> None:
    drafter = PreviousAnswerDrafter()
    drafter.remember([1, 2, 3, 0])
    drafter.set_offer(HIT)
    assert main_line(propose(drafter, [1])) == [2, 3, 0]
    assert len(propose(drafter, [1, 2, 3, 0])) <= 1


def test_a_miss_is_offered_only_while_it_pays() -> None:
    answer = words("one two three four five six seven eight nine ten eleven twelve")
    drafter = PreviousAnswerDrafter()
    drafter.remember(answer)
    for _ in range(3):
        drafter.set_offer(MISS)
        forwards, _ = decode(drafter, answer)
    assert forwards < len(answer) / 2
    rng = random.Random(0)
    for _ in range(12):
        drafter.set_offer(MISS)
        decode(drafter, [rng.randrange(2000, 9000) for _ in range(12)])
    drafter.set_offer(MISS)
    _, nodes = decode(drafter, answer)
    assert nodes == 0
    # It keeps comparing without offering, and so notices when it would pay again.
    for _ in range(8):
        drafter.set_offer(MISS)
        forwards, nodes = decode(drafter, answer)
    assert nodes > 0
    assert forwards < len(answer) / 2


def test_nothing_is_offered_over_a_scene_break_and_nothing_is_left_after_a_gap() -> None:
    answer = words("one two three four five six")
    drafter = PreviousAnswerDrafter()
    drafter.remember(answer)
    drafter.set_offer(BREAK)
    assert len(propose(drafter, answer[:1])) == 0
    drafter.set_offer(HIT)
    assert len(propose(drafter, answer[:1])) > 0
    drafter.set_offer(GAP)
    drafter.set_offer(HIT)
    assert len(propose(drafter, answer[:1])) == 0


def test_answers_that_take_turns_become_branches() -> None:
    drafter = PreviousAnswerDrafter()
    drafter.remember(words("the light is green now go"))
    drafter.remember(words("the light is red please wait"))
    drafter.set_offer(HIT)
    tree = propose(drafter, words("the light is"))
    firsts = {tree.tokens[i] for i in range(len(tree)) if tree.parents[i] == ROOT}
    assert set(words("green red")) <= firsts
    assert main_line(tree) == words("red please wait")


def test_scores_are_chances_that_fall_along_a_path_and_learn() -> None:
    answer = words("one two three four five six seven eight nine ten")
    drafter = PreviousAnswerDrafter()
    drafter.remember(answer)
    drafter.set_offer(HIT)
    before = propose(drafter, answer[:2]).scores[0]
    for _ in range(10):
        drafter.set_offer(HIT)
        decode(drafter, answer)
    drafter.set_offer(HIT)
    after = propose(drafter, answer[:2])
    assert after.scores[0] > before
    for node, parent in enumerate(after.parents):
        assert 0 < after.scores[node] < 1
        assert parent == ROOT or after.scores[node] <= after.scores[parent]
    assert set(after.sources) == {NAME}
    assert drafter.acceptance() > 0.9


def test_scores_are_calibrated() -> None:
    """A stream whose words change one time in five: the foretold chance of the first guess is near the real one."""
    rng = random.Random(1)
    answer = [rng.randrange(2000, 9000) for _ in range(40)]
    drafter = PreviousAnswerDrafter()
    drafter.remember(answer)
    foretold: list[float] = []
    right: list[bool] = []
    for _ in range(40):
        answer = [token if rng.random() > 0.2 else rng.randrange(2000, 9000) for token in answer]
        drafter.set_offer(HIT)
        state = drafter.open()
        for length in range(1, len(answer)):
            tree = state.propose(DraftView(tokens=[*PROMPT, *answer[:length]], prompt_length=len(PROMPT)), 4)
            if len(tree):
                foretold.append(max(tree.scores))
                right.append(main_line(tree)[0] == answer[length])
        drafter.remember(answer)
    half = len(right) // 2
    assert sum(right[half:]) / half == pytest.approx(sum(foretold[half:]) / half, abs=0.08)


def test_memory_is_bounded_and_questions_are_kept_apart() -> None:
    drafter = PreviousAnswerDrafter()
    for question in range(20):
        for _ in range(6):
            drafter.remember(list(range(5000)), topic=question)
    drafter.set_offer(HIT, topic=19)
    tree = propose(drafter, [1], budget=100000)
    assert 0 < len(tree) <= 2048
    drafter.set_offer(HIT, topic=0)
    assert len(propose(drafter, [1])) == 0
    assert len(drafter._topics) <= 8
    assert all(len(topic.answers) <= 4 for topic in drafter._topics.values())


def test_the_budget_and_the_rest_of_the_reply_are_kept_to() -> None:
    drafter = PreviousAnswerDrafter()
    drafter.remember(list(range(100)))
    drafter.set_offer(HIT)
    state = drafter.open()
    for budget in (0, 1, 5):
        assert len(state.propose(DraftView(tokens=[*PROMPT, 0, 1], prompt_length=3), budget)) == budget
    assert state.propose(DraftView(tokens=[*PROMPT, 0, 1], prompt_length=3, remaining=2), 50).depth <= 2


@pytest.mark.parametrize("verdict", [MISS, BREAK])
def test_answers_that_stay_are_offered_whatever_the_gate_says(verdict: Decision) -> None:
    """A camera that pans over the same room reads as another scene at every frame, and the answers stay."""
    drafter, answer = PreviousAnswerDrafter(), words(" ".join(f"w{i}" for i in range(24)))
    forwards = []
    for _ in range(6):
        drafter.set_offer(verdict)
        forwards.append(decode(drafter, answer)[0])
    assert max(forwards[2:]) <= 2
    assert forwards[0] == 23


def test_answers_that_change_at_every_break_are_offered_no_more() -> None:
    """And what is learned behind breaks says nothing about frames that stand still."""
    drafter, rng = PreviousAnswerDrafter(), random.Random(0)
    nodes = []
    for _ in range(20):
        drafter.set_offer(BREAK)
        nodes.append(decode(drafter, [rng.randrange(10**6) for _ in range(12)])[1])
    assert sum(nodes[4:]) == 0
    drafter.set_offer(HIT)
    assert len(propose(drafter, [])) > 0


def test_of_breaks_that_are_half_of_them_true_no_more_is_lost_than_a_block_each() -> None:
    drafter, rng = PreviousAnswerDrafter(), random.Random(1)
    same = words(" ".join(f"w{i}" for i in range(16)))
    total = 0
    for turn in range(30):
        answer = same if turn % 2 else [rng.randrange(10**6) for _ in range(16)]
        drafter.set_offer(BREAK)
        total += decode(drafter, answer)[0]
    assert total <= 30 * 15
