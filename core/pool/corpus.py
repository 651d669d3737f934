"""From a model to its own text on disk, and from that text to a store of counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ..drafters.counts import CountStore
from ..errors import TrainingDataError
from ..hf_target import HFTarget
from .counting import Corpus, build_store
from .dialogues import SHARD_DIALOGUES, Dialogue, DialogueFolder
from .openings import Openings
from .writing import Writer, turn_ids

Progress = Callable[[int], None]
"""Called with the number of answer tokens written in this run, now and then."""


def write_dialogues(
    model: PreTrainedModel,
    tokenizer: Any,
    name: str,
    folder: Path,
    tokens: int,
    *,
    rows: int = 64,
    max_tokens: int = 448,
    shard: int = SHARD_DIALOGUES,
    progress: Progress = lambda _: None,
) -> DialogueFolder:
    """Let ``model`` write dialogues into ``folder`` until it holds ``tokens`` answer tokens.

    Goes on from what is there; each run draws with seeds of its own. TrainingDataError if the folder
    holds another model's text or the tokenizer has no chat template.
    """
    if getattr(tokenizer, "chat_template", None) is None:
        raise TrainingDataError(
            f"the tokenizer of {name} has no chat template, so there is no user's turn to begin; "
            "set tokenizer.chat_template"
        )
    target = HFTarget(model)
    about = {"format": 1, "model": name, "vocab_size": target.vocab_size}
    stored = DialogueFolder.create(folder, about)
    written = sum(len(d.answer) for d in stored)
    if written >= tokens:
        return stored
    seed = len(stored.shards)
    openings = Openings(tokenizer, seed)
    eos = model.generation_config.eos_token_id
    ends = eos if isinstance(eos, list) else [] if eos is None else [eos]
    writer = Writer(target, turn_ids(tokenizer, ends), openings, rows=rows, max_tokens=max_tokens, seed=seed)
    _collect(writer.dialogues(), stored, tokens - written, shard, openings, tokenizer, progress)
    return stored


def _collect(
    dialogues: Iterator[Dialogue],
    stored: DialogueFolder,
    wanted: int,
    shard: int,
    openings: Openings,
    tokenizer: Any,
    progress: Progress,
) -> None:
    batch: list[Dialogue] = []
    written = 0
    for dialogue in dialogues:
        batch.append(dialogue)
        written += len(dialogue.answer)
        openings.remember(tokenizer.decode(dialogue.answer, skip_special_tokens=True))
        done = written >= wanted
        if done or len(batch) == shard:
            stored.append(batch)
            batch = []
            progress(written)
        if done:
            return


def store_of(folder: Path, max_bytes: int) -> CountStore:
    """The count store of the dialogues in ``folder``; TrainingDataError if there are none."""
    stored = DialogueFolder.open(folder)
    corpus = Corpus.of(stored)
    if not corpus.answers.any():
        raise TrainingDataError(f"{folder} holds no dialogues; write some with `mmspec draft data`")
    about = {key: str(value) for key, value in stored.about.items() if key != "format"}
    return build_store(corpus, max_bytes, about, int(str(stored.about["vocab_size"])))
