"""What visual memory holds: many pictures under one budget, and KV segments in INT8 (SYSTEM.md V5, C2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from PIL import Image

from mmspec_agent.conversation import Conversation
from mmspec_agent.core.cache import KVRows
from mmspec_agent.core.tree import DraftTree
from mmspec_agent.core.visual.quantize import Int8Rows
from mmspec_agent.engine import Engine
from mmspec_agent.models.progress import Progress
from mmspec_agent.options import ChatOptions
from mmspec_agent.reply import Done, Reply

from .common import counted

QUESTION = "How many things are in the picture?"
SHORT_TOKENS = 8
ASKED_AGAIN = 10


def asked(picture: Image.Image, question: str) -> list[dict[str, Any]]:
    """A conversation of one question about one picture."""
    content = [{"type": "image", "image": picture}, {"type": "text", "text": question}]
    return [{"role": "user", "content": content}]


def budget_run(
    engine: Engine, picture_of: Callable[[int], Image.Image], pictures: int, progress: Progress
) -> dict[str, Any]:
    """Different pictures through one engine, then the first and the last ones again, whose answers must be the same."""
    memory = engine.vision.memory
    memory.clear()
    before = (memory.counts.hits, memory.counts.misses, memory.counts.evictions)
    answers: list[list[int]] = []
    most = passes = 0
    for index in counted(range(pictures), progress, f"{pictures} pictures, {memory.budget:,} bytes", pictures):
        reply = engine.chat(asked(picture_of(400_000 + index), QUESTION), max_new_tokens=SHORT_TOKENS)
        answers.append(reply.token_ids)
        passes += reply.stats.vision_passes
        most = max(most, memory.bytes)
    again = sorted({*range(min(ASKED_AGAIN, pictures)), *range(max(0, pictures - ASKED_AGAIN), pictures)})
    changed = repeated_passes = 0
    for index in again:
        reply = engine.chat(asked(picture_of(400_000 + index), QUESTION), max_new_tokens=SHORT_TOKENS)
        changed += reply.token_ids != answers[index]
        repeated_passes += reply.stats.vision_passes
        most = max(most, memory.bytes)
    hits, misses, evictions = (
        now - then
        for now, then in zip((memory.counts.hits, memory.counts.misses, memory.counts.evictions), before, strict=True)
    )
    return {
        "pictures": pictures,
        "budget": memory.budget,
        "most_bytes": most,
        "vision_passes": passes,
        "asked_again": len(again),
        "vision_passes_when_asked_again": repeated_passes,
        "changed_answers": changed,
        "hits": hits,
        "misses": misses,
        "evictions": evictions,
    }


def int8_table(engine: Engine, pictures: Sequence[Image.Image], question: str, new_tokens: int) -> dict[str, Any]:
    """Bytes of picture segments as they are and in INT8, and how often the next token stays the same."""
    exact_bytes = int8_bytes = agreeing = compared = 0
    for picture in pictures:
        conversation, prompt = _answered(engine, picture, question, new_tokens)
        border = conversation.pictures[-1].end
        rows = conversation.sequence.arena.read(0, border)
        small = Int8Rows.of(rows)
        exact_bytes, int8_bytes = exact_bytes + rows.bytes, int8_bytes + small.bytes
        pairs = zip(
            _next_tokens(engine, conversation, rows, prompt),
            _next_tokens(engine, conversation, small.restore(), prompt),
            strict=True,
        )
        same = [one == other for one, other in pairs]
        agreeing, compared = agreeing + sum(same), compared + len(same)
    return {
        "bytes": exact_bytes,
        "bytes_int8": int8_bytes,
        "share_of_bytes": int8_bytes / max(1, exact_bytes),
        "tokens_compared": compared,
        "argmax_agreement": agreeing / max(1, compared),
    }


def _answered(engine: Engine, picture: Image.Image, question: str, new_tokens: int) -> tuple[Conversation, int]:
    """A conversation with one answer in it, and the length of its prompt."""
    conversation = engine.open_conversation()
    options = ChatOptions.of(max_new_tokens=new_tokens)
    reply: Reply | None = None
    for event in engine.run(conversation, asked(picture, question), options):
        if isinstance(event, Done):
            reply = event.reply
    assert reply is not None
    return conversation, reply.stats.prompt_tokens


def _next_tokens(engine: Engine, conversation: Conversation, rows: KVRows, prompt: int) -> list[int]:
    """The most likely token at every place of the answer, given these rows of the picture: one forward."""
    tokens = conversation.tokens
    sequence = engine.target.open(len(tokens) + 1)
    order, following = conversation.sequence.positions.snapshot(rows.length)
    sequence.restore(rows, order, following)
    answer = DraftTree.chain(tokens[prompt:-1], "answer")
    result = sequence.verify(tokens[rows.length : prompt], answer)
    return [result.argmax(node) for node in range(-1, len(answer))]
