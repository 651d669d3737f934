"""One sequence with its KV rows, kept from request to request (SYSTEM.md M2).

What a request's prompt shares with what is held is not computed again, also after an edit in the middle; what
was decoded stays held, token for token.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmspec_agent.core.decode import OpenDrafter
from mmspec_agent.core.drafters.base import Drafter
from mmspec_agent.core.hf_target import HFSequence


@dataclass
class Conversation:
    """KV rows, the ids they belong to, and the drafters' memory.

    ``tokens`` may be longer than the cache (pending tokens); never shorter. ``rendered`` is the text of the last
    prompt and reply, so that the next prompt can continue the very ids that were decoded.
    """

    sequence: HFSequence
    drafters: list[OpenDrafter]
    tokens: list[int] = field(default_factory=list)
    rendered: str = ""

    @classmethod
    def open(cls, sequence: HFSequence, drafters: Iterable[Drafter]) -> Conversation:
        """An empty one."""
        return cls(sequence, [OpenDrafter(d, d.open()) for d in drafters])

    def encode(self, tokenizer: Any, text: str) -> list[int]:
        """Ids of a rendered prompt: where it continues what is held, the held ids and then the new text's."""
        if self.rendered and text.startswith(self.rendered):
            rest = text[len(self.rendered) :]
            held = _without_tail(self.tokens, tokenizer, rest)
            return held + list(tokenizer.encode(rest, add_special_tokens=False))
        return list(tokenizer.encode(text, add_special_tokens=False))

    def reuse(self, ids: Sequence[int]) -> int:
        """Make ``ids`` the sequence, keeping the longest common prefix of the cache; returns its length."""
        common = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(self.tokens, ids)))
        # The last token's logits are needed, so its row is computed anew.
        kept = min(common, self.sequence.length, len(ids) - 1)
        self.sequence.truncate(kept)
        self.tokens = list(ids)
        for drafter in self.drafters:
            drafter.failed = False
        return kept

    def keep_tokens(self, count: int) -> None:
        """Forget tokens behind ``count``: a stop string ended the reply in the middle of a step."""
        del self.tokens[count:]
        self.sequence.truncate(min(self.sequence.length, count))


def _without_tail(tokens: Sequence[int], tokenizer: Any, rest: str) -> list[int]:
    """The held ids, without a final end-of-turn token that ``rest`` spells out again."""
    held = list(tokens)
    while held and held[-1] in tokenizer.all_special_ids and rest.startswith(tokenizer.decode([held[-1]])):
        held.pop()
    return held
