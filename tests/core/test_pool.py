"""A model's own text: written in one batch as each text alone, kept whole, counted as by hand."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import tiny_model

from mmspec_agent.core.drafters.base import DraftView
from mmspec_agent.core.drafters.counts import (
    LOG_STEP,
    MAX_ORDER,
    CountStore,
    next_probabilities,
)
from mmspec_agent.core.drafters.ngram import NgramDrafter
from mmspec_agent.core.errors import StoreError, TrainingDataError
from mmspec_agent.core.hf_target import HFTarget
from mmspec_agent.core.pool.corpus import store_of
from mmspec_agent.core.pool.counting import Corpus, build_store
from mmspec_agent.core.pool.dialogues import Dialogue, DialogueFolder
from mmspec_agent.core.pool.writing import LOOP_NGRAM, Opening, TurnIds, Writer

TURN = TurnIds(before=(1, 5, 6), between=(7, 8), ends=frozenset({2}))


def some_dialogues(architecture: str, count: int, rows: int) -> tuple[HFTarget, list[Dialogue]]:
    """Dialogues that a tiny random model wrote, from openings of several lengths."""
    target = HFTarget(tiny_model(architecture))
    rng = np.random.default_rng(0)
    openings = (Opening(tuple(rng.integers(9, 90, n).tolist()), True) for n in itertools.cycle((1, 4, 9)))
    writer = Writer(target, TURN, openings, rows=rows, max_tokens=72, max_answer=40, top_k=20)
    return target, list(itertools.islice(writer.dialogues(), count))


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "qwen3"])
def test_each_text_is_the_one_the_model_writes_alone(architecture: str) -> None:
    target, written = some_dialogues(architecture, 24, rows=5)
    greedy = [d for d in written if d.temperature == 0.0]
    assert 2 < len(greedy) < len(written)
    for dialogue in greedy:
        alone = target.model.generate(
            torch.tensor([dialogue.prompt]), max_new_tokens=len(dialogue.answer), do_sample=False
        )
        assert alone[0, len(dialogue.prompt) :].tolist() == list(dialogue.answer)


def test_an_answer_ends_before_it_repeats_itself() -> None:
    _, written = some_dialogues("llama", 40, rows=8)
    for answer in (d.answer for d in written):
        grams = [answer[i : i + LOOP_NGRAM] for i in range(len(answer) - LOOP_NGRAM + 1)]
        assert len(grams) == len(set(grams))


def test_users_turns_of_the_models_own_end_where_it_ends_them() -> None:
    target = HFTarget(tiny_model("llama"))
    openings = itertools.repeat(Opening((11, 12)))
    writer = Writer(target, TURN, openings, rows=16, max_tokens=160, max_answer=20, top_k=4)
    for dialogue in itertools.islice(writer.dialogues(), 3):
        question = dialogue.prompt[len(TURN.before) : -len(TURN.between)]
        assert question[:2] == (11, 12)
        assert 2 not in question


def random_dialogues(seed: int, count: int = 25) -> list[Dialogue]:
    rng = np.random.default_rng(seed)
    return [
        Dialogue(tuple(rng.integers(0, 6, 4).tolist()), tuple(rng.integers(0, 6, 30).tolist()), 0.0)
        for _ in range(count)
    ]


def counts_by_hand(dialogues: list[Dialogue], length: int) -> Counter[tuple[int, ...]]:
    """How often each context of ``length`` was followed by each token: keys are context and token."""
    counts: Counter[tuple[int, ...]] = Counter()
    for dialogue in dialogues:
        text = dialogue.prompt + dialogue.answer
        for at in range(max(length, len(dialogue.prompt)), len(text)):
            counts[text[at - length : at + 1]] += 1
    return counts


class KneserNey:
    """Modified Kneser-Ney smoothing straight from its definition."""

    def __init__(self, dialogues: list[Dialogue], vocab: int) -> None:
        self.vocab = vocab
        raw = [counts_by_hand(dialogues, n) for n in range(1, MAX_ORDER + 1)]
        self.counts = [raw[-1]]
        for longer, own in zip(reversed(raw), reversed(raw[:-1])):
            continued = Counter(key[1:] for key in longer)
            self.counts.insert(0, Counter({key: max(continued[key], 1) for key in own}))
        self.frequency = Counter(key[-1] for key in self.counts[0])

    def discount(self, order: int, count: int) -> float:
        times = Counter(self.counts[order - 1].values())
        n = [max(times[k], 1) for k in range(5)]
        y = n[1] / (n[1] + 2 * n[2])
        k = min(count, 3)
        return min(max(k - (k + 1) * y * n[k + 1] / n[k], 0.1), (0.95, 1.9, 2.8)[k - 1])

    def probability(self, context: tuple[int, ...], token: int) -> float:
        if not context:
            return (self.frequency[token] + 0.5) / (self.frequency.total() + 0.5 * self.vocab)
        counts = {k[-1]: c for k, c in self.counts[len(context) - 1].items() if k[:-1] == context}
        lower = self.probability(context[1:], token)
        if not counts:
            return lower
        discounts = {t: self.discount(len(context), c) for t, c in counts.items()}
        own = counts[token] - discounts[token] if token in counts else 0.0
        return (own + sum(discounts.values()) * lower) / sum(counts.values())


@pytest.mark.parametrize("seed", range(3))
def test_probabilities_are_those_of_the_definition(seed: int) -> None:
    dialogues = random_dialogues(seed)
    store = build_store(Corpus.of(dialogues), 10**7, {}, vocab_size=8)
    definition = KneserNey(dialogues, vocab=8)
    rng = np.random.default_rng(seed)
    rounding = np.exp(MAX_ORDER * LOG_STEP)
    for _ in range(30):
        context = tuple(rng.integers(0, 6, MAX_ORDER).tolist())
        found = next_probabilities(store, context, most=20)
        assert found
        assert sum(prob for _, prob in found) < 1.1
        for token, prob in found:
            exact = definition.probability(context, token)
            assert exact / rounding < prob < exact * rounding


def test_a_store_keeps_to_its_size_and_to_what_tells_most() -> None:
    # One phrase is frequent, all else is noise: the smallest store knows the phrase.
    phrase = (3, 1, 4, 1, 5, 9, 2, 6)
    dialogues = [Dialogue((7,), (*d.answer, *phrase), 0.0) for d in random_dialogues(5)]
    for size in (400, 2_000, 20_000):
        store = build_store(Corpus.of(dialogues), size, {}, vocab_size=16)
        assert 0 < store.bytes <= size
        assert next_probabilities(store, phrase[:6])[0][0] == phrase[6]


def test_a_store_survives_its_file_and_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "counts.safetensors"
    store = build_store(Corpus.of(random_dialogues(1)), 10**6, {"model": "m"}, vocab_size=70_000)
    store.save(path)
    again = CountStore.open(path)
    assert again.about["model"] == "m"
    context = (1, 2, 3, 4, 5, 0)
    assert next_probabilities(again, context) == next_probabilities(store, context)
    whole = path.read_bytes()
    for length in (0, 7, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(StoreError, match="no readable count store"):
            CountStore.open(path)


def test_an_empty_corpus_makes_an_empty_store() -> None:
    store = build_store(Corpus.of([]), 1_000, {}, vocab_size=8)
    assert next_probabilities(store, (1, 2, 3)) == []


def test_dialogues_are_gone_on_with_and_not_mixed(tmp_path: Path) -> None:
    about: dict[str, object] = {"model": "a", "format": 1, "vocab_size": 8}
    first, second = random_dialogues(1, 5), random_dialogues(2, 5)
    DialogueFolder.create(tmp_path, about).append(first)
    DialogueFolder.create(tmp_path, about).append(second)
    assert list(DialogueFolder.open(tmp_path)) == [
        Dialogue(d.prompt, d.answer, d.temperature) for d in (*first, *second)
    ]
    assert store_of(tmp_path, 10**6).about["tokens"] == str(10 * 30)
    with pytest.raises(TrainingDataError, match="another folder"):
        DialogueFolder.create(tmp_path, {**about, "model": "b"})
    shard = DialogueFolder.open(tmp_path).shards[0]
    shard.write_bytes(shard.read_bytes()[:50])
    with pytest.raises(TrainingDataError, match="delete it"):
        list(DialogueFolder.open(tmp_path))
    with pytest.raises(TrainingDataError, match="no folder of dialogues"):
        DialogueFolder.open(tmp_path / "nowhere")


def test_no_dialogues_no_store(tmp_path: Path) -> None:
    (tmp_path / "about.json").write_text(json.dumps({"vocab_size": 8}))
    with pytest.raises(TrainingDataError, match="holds no dialogues"):
        store_of(tmp_path, 10**6)


def test_the_store_speaks_where_the_prompt_has_nothing_to_copy() -> None:
    phrase = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5)
    store = build_store(Corpus.of([Dialogue((7,), phrase, 0.0)] * 50), 10**6, {}, vocab_size=16)
    view = DraftView([10, 11, 3, 1, 4], 3)
    assert not len(NgramDrafter().open().propose(view, 4))
    tree = NgramDrafter(store=store).open().propose(view, 4)
    assert tree.path_tokens(tree.leaves[0]) == list(phrase[3:7])


def test_what_the_prompt_repeats_weighs_more_than_the_store() -> None:
    store = build_store(Corpus.of([Dialogue((7,), (1, 2, 3), 0.0)] * 50), 10**6, {}, vocab_size=16)
    tokens = [5, 6, 1, 2, 9, 10, 5, 6, 1, 2, 9, 10, 5, 6, 1, 2]
    tree = NgramDrafter(store=store).open().propose(DraftView(tokens, 16), 2)
    assert tree.tokens[0] == 9
