"""The reasoning section of an answer, told apart from the answer in a form behind it."""

from __future__ import annotations

from collections.abc import Sequence

from mmspec_agent.grammar.sections import Section

from .prompts import Answer, AnswerReader
from .reply import ReasoningPiece, TextPiece, ToolCallPiece


class ReasoningReader:
    """Gives the section's text apart, and what comes behind it to ``answer`` (AnswerReader)."""

    def __init__(self, answer: AnswerReader, section: Section, is_open: bool) -> None:
        self._answer = answer
        self._section = section
        self._inside = is_open
        self._undecided = not is_open
        self._waiting = ""
        self._blank = False
        self._reasoning: list[str] = []
        self._rest: list[str] = []

    def feed(self, text: str) -> Sequence[TextPiece | ToolCallPiece | ReasoningPiece]:
        self._waiting += text
        pieces: list[TextPiece | ToolCallPiece | ReasoningPiece] = []
        if self._undecided:
            self._decide()
        if self._inside:
            pieces += self._think()
        if not self._inside and not self._undecided:
            pieces += self._behind()
        return pieces

    def finish(self, text: str, finish: str) -> Answer:
        if self._inside:
            self._reasoning.append(self._waiting)
        elif self._waiting:
            self._undecided = False
            self._behind()
        answer = self._answer.finish("".join(self._rest), finish)
        return answer._replace(reasoning="".join(self._reasoning).strip())

    def _decide(self) -> None:
        """Whether the answer begins with the section's opener."""
        begun, opener = self._waiting.lstrip(), self._section.opener
        if begun.startswith(opener):
            self._inside, self._undecided, self._waiting = True, False, begun[len(opener) :]
        elif not opener.startswith(begun):
            self._undecided = False

    def _think(self) -> list[ReasoningPiece]:
        closer = self._section.closer
        end = self._waiting.find(closer)
        if end >= 0:
            said, self._waiting = self._waiting[:end], self._waiting[end + len(closer) :]
            self._inside, self._blank = False, True
        else:
            overlap = next((k for k in range(len(closer) - 1, 0, -1) if self._waiting.endswith(closer[:k])), 0)
            cut = len(self._waiting) - overlap
            said, self._waiting = self._waiting[:cut], self._waiting[cut:]
        self._reasoning.append(said)
        return [ReasoningPiece(said)] if said else []

    def _behind(self) -> Sequence[TextPiece | ToolCallPiece | ReasoningPiece]:
        text = self._waiting.lstrip() if self._blank else self._waiting
        if not text:
            return ()
        self._blank, self._waiting = False, ""
        self._rest.append(text)
        return self._answer.feed(text)
