"""Dialogues that a model wrote itself, kept as token ids in files that only grow."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from ..errors import TrainingDataError

SHARD_DIALOGUES = 512
"""Dialogues per file: what an interruption can lose at most."""


@dataclass(frozen=True)
class Dialogue:
    """Ids of a rendered prompt, ids of the model's answer, and how the answer was chosen."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    temperature: float
    kind: str = "free"


class DialogueFolder:
    """A folder of dialogues: ``about.json`` and numbered shards, each written whole or not at all."""

    def __init__(self, folder: Path, about: dict[str, object]) -> None:
        self.folder = folder
        self.about = about

    @classmethod
    def create(cls, folder: Path, about: dict[str, object]) -> Self:
        """The folder, begun or gone on with; TrainingDataError if it holds another model's text."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "about.json"
        if not path.is_file():
            path.write_text(json.dumps(about, indent=1), encoding="utf-8")
        found = cls.open(folder)
        if found.about != about:
            raise TrainingDataError(f"{folder} holds dialogues of {found.about}, not of {about}; choose another folder")
        return found

    @classmethod
    def open(cls, folder: Path) -> Self:
        """A folder that exists; TrainingDataError if it holds no dialogues of ours."""
        try:
            about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise TrainingDataError(f"{folder} is no folder of dialogues: {error}") from error
        return cls(folder, about)

    @property
    def shards(self) -> list[Path]:
        """The finished files, oldest first."""
        return sorted(self.folder.glob("dialogues-*.npz"))

    def append(self, dialogues: Sequence[Dialogue]) -> None:
        """Write one shard."""
        number = len(self.shards)
        parts = [np.asarray(part, np.int32) for d in dialogues for part in (d.prompt, d.answer)]
        temporary = self.folder / "part.npz"
        np.savez_compressed(
            temporary,
            ids=np.concatenate(parts),
            lengths=np.asarray([len(part) for part in parts], np.int32),
            temperatures=np.asarray([d.temperature for d in dialogues], np.float32),
            kinds=np.asarray([d.kind for d in dialogues]),
        )
        temporary.replace(self.folder / f"dialogues-{number:05d}.npz")

    def __iter__(self) -> Iterator[Dialogue]:
        for path in self.shards:
            yield from read_shard(path)


def read_shard(path: Path) -> Iterator[Dialogue]:
    """The dialogues of one file; TrainingDataError if it is damaged."""
    try:
        with np.load(path) as stored:
            ids, lengths = stored["ids"], stored["lengths"]
            temperatures, kinds = stored["temperatures"], stored["kinds"]
    except Exception as error:  # numpy and zip each raise their own
        raise TrainingDataError(f"{path} is damaged ({error}); delete it and write it anew") from error
    ends = np.cumsum(lengths)
    parts = np.split(ids, ends[:-1])
    for index, (temperature, kind) in enumerate(zip(temperatures, kinds)):
        prompt, answer = parts[2 * index], parts[2 * index + 1]
        yield Dialogue(tuple(prompt.tolist()), tuple(answer.tolist()), float(temperature), str(kind))
