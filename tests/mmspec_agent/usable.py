"""An engine on a tiny chat model, and whether it still answers as it did."""

from __future__ import annotations

from typing import Any

import torch
from texts import byte_tokenizer, chat_model

from mmspec_agent import Engine, Session

TOKENIZER = byte_tokenizer()
NEW = 24


def fresh(**options: Any) -> Engine:
    """An engine of its own."""
    return Engine(chat_model(eos=None), TOKENIZER, **options)


def two_turns() -> list[str]:
    """Two turns of a session that nothing happened to."""
    session = fresh().session(max_new_tokens=NEW)
    return [session.send("one").text, session.send("two").text]


def check_usable(engine: Engine, session: Session, expected: list[str]) -> None:
    """Session and engine answer as if nothing had happened."""
    assert session.messages == []
    assert [session.send("one").text, session.send("two").text] == expected
    assert engine.chat("one", max_new_tokens=NEW).text == expected[0]
    ids = torch.tensor([TOKENIZER.encode("abc", add_special_tokens=False)])
    theirs = engine.model.generate(ids, max_new_tokens=10, do_sample=False)
    assert engine.generate(ids, max_new_tokens=10, do_sample=False).tolist() == theirs.tolist()
