"""How users begin: written requests about many subjects, beginnings to go on from, and free turns.

A model that writes the user's turns alone asks a narrow kind of question, and drafts trained on its
answers agree less on other prompts. So most turns here are composed from tasks and subjects, and
some hand the model a passage of its own earlier text to work on.
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from .writing import Opening

SHARES = {"composed": 0.5, "begun": 0.2, "passage": 0.15, "free": 0.15}
"""Shares of the kinds of user's turns."""

KEPT_PASSAGES = 200


class Openings:
    """An endless, seeded source of users' turns; ``remember`` gives it passages to ask about."""

    def __init__(self, tokenizer: Any, seed: int = 0) -> None:
        self._tokenizer = tokenizer
        self._random = random.Random(seed)
        written = files(__package__).joinpath("openings.json").read_text(encoding="utf-8")
        self._parts: dict[str, list[str]] = json.loads(written)
        self._passages: deque[str] = deque(maxlen=KEPT_PASSAGES)

    def __iter__(self) -> Iterator[Opening]:
        while True:
            yield next(self)

    def __next__(self) -> Opening:
        kind = self._random.choices(list(SHARES), weights=list(SHARES.values()))[0]
        if kind == "passage" and len(self._passages) < KEPT_PASSAGES // 4:
            kind = "composed"
        text = getattr(self, f"_{kind}")()
        ids = tuple(self._tokenizer.encode(text, add_special_tokens=False)) if text else ()
        return Opening(ids, complete=kind in ("composed", "passage"), kind=kind)

    def remember(self, answer: str) -> None:
        """A passage of an earlier answer, for turns about a given text."""
        sentences = answer.replace("\n", " ").split(". ")
        if len(sentences) > 2:
            self._passages.append(". ".join(sentences[:4]).strip())

    def _pick(self, name: str) -> str:
        return self._random.choice(self._parts[name])

    def _composed(self) -> str:
        task = self._pick("tasks")
        subjects = self._random.sample(self._parts["subjects"], 2)
        text = task.replace("{a}", subjects[0]).replace("{b}", subjects[1])
        text = text.replace("{n}", str(self._random.randint(2, 9)))
        text = text.replace("{who}", self._pick("readers")).replace("{name}", self._pick("names"))
        return text + (self._pick("manners") if self._random.random() < 0.25 else "")

    def _begun(self) -> str:
        beginning = self._pick("beginnings")
        return beginning + (f" {self._pick('subjects')}" if self._random.random() < 0.5 else "")

    def _passage(self) -> str:
        return self._pick("passage_tasks").replace("{text}", self._random.choice(self._passages))

    def _free(self) -> str:
        return ""
