"""An agent loop in a session: each turn computes only what is new, and earlier calls are drafts of the next one."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from unhurried import Unhurried

from mmspec_agent.bench.closing import random_engine
from mmspec_agent.engine import Engine
from mmspec_agent.models import catalog
from mmspec_agent.reply import Reply
from mmspec_agent.session import Session

HERMES_TEMPLATE = (
    "{%- if tools %}<|im_start|>system\n"
    "{%- for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    'Reply with <tool_call>\n{"name": ..., "arguments": ...}\n</tool_call><|im_end|>\n{% endif %}'
    "{%- for m in messages %}<|im_start|>{{ 'user' if m['role'] == 'tool' else m['role'] }}\n"
    "{% if m['role'] == 'tool' %}<tool_response>\n{% endif %}{{ m['content'] }}"
    "{%- for call in m['tool_calls'] or [] %}{% if not loop.first %}\n{% endif %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{%- endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def find_orders(customer: str) -> str:
    """Find the orders of a customer.

    Args:
        customer: Name of the customer.
    """
    return f"3 chairs for {customer}"


def note(text: str, pinned: bool = False) -> str:
    """Keep a note."""
    return f"noted {text} {pinned}"


TOOLS = [find_orders, note]


def results(reply: Reply, text: str) -> list[dict[str, Any]]:
    """What the tools gave, as messages."""
    return [{"role": "tool", "name": call.name, "tool_call_id": call.id, "content": text} for call in reply.tool_calls]


def turns(session: Session, count: int = 4) -> list[Reply]:
    """A loop of calls, each followed by its result and the next question."""
    news: list[dict[str, Any]] = []
    replies = []
    for turn in range(count):
        replies.append(session.send([*news, {"role": "user", "content": f"Find the orders of Ann number {turn}."}]))
        news = results(replies[-1], "3 chairs")
    return replies


def check_reuse(engine: Engine, replies: list[Reply], news: int) -> None:
    """From the second turn on, the prompt computed anew is what came after the last reply, and its pending rows."""
    for before, after in itertools.pairwise(replies):
        held = before.stats.prompt_tokens + len(before.token_ids)
        assert after.stats.prompt_tokens <= held + news
        pending = 70  # forced tokens behind the last forward have no row yet
        assert after.stats.reused_tokens >= held - pending
        assert after.stats.prefilled_tokens <= news + pending


@pytest.mark.parametrize("style", ["spaced", "compact"])
@pytest.mark.parametrize("template", [None, HERMES_TEMPLATE])
def test_the_prompt_goes_on_where_the_call_ended(template: str | None, style: str) -> None:
    engine = random_engine(7)
    if template is not None:
        engine.tokenizer.chat_template = template
    options: dict[str, Any] = {"tool_choice": "required", "parallel_tool_calls": False, "json_style": style}
    session = engine.session(tools=TOOLS, temperature=1.5, max_new_tokens=60, **options)
    news: list[dict[str, Any]] = []
    held: list[int] = []
    for turn in range(4):
        reply = session.send([*news, {"role": "user", "content": f"Go on, {turn}."}], seed=turn)
        ids = session._conversation.tokens
        assert ids[: len(held)] == held, "what was decoded is repeated token for token"
        # A template that writes the arguments itself repeats them exactly only if they were in its own style.
        arguments = reply.tool_calls[0].arguments
        exact = template is None or arguments.text == json.dumps(arguments, ensure_ascii=False)  # type: ignore[attr-defined]
        end = len(ids) - (ids[-1] == engine.tokenizer.eos_token_id)
        held = ids[:end] if exact else []
        news = results(reply, "done")


def test_turns_prefill_only_what_is_new() -> None:
    engine = random_engine(7)
    session = engine.session(tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_new_tokens=60)
    replies = turns(session)
    check_reuse(engine, replies, news=110)
    assert replies[0].stats.reused_tokens == 0
    assert [m["role"] for m in session.messages] == ["user", "assistant", *["tool", "user", "assistant"] * 3]


def test_a_plain_answer_at_the_end_keeps_the_prefix() -> None:
    engine = random_engine(7)
    session = engine.session(tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_new_tokens=60)
    first = session.send("Find the orders of Ann.")
    last = session.send(results(first, "none"), tool_choice="none", max_new_tokens=8)
    assert last.tool_calls == ()
    assert last.stats.reused_tokens > first.stats.prompt_tokens


def reference_lm_is_here() -> bool:
    model = catalog.offline_model("reference-lm")
    return model is not None and model.is_ready()


@pytest.mark.slow
@pytest.mark.reference
@pytest.mark.skipif(not reference_lm_is_here(), reason="reference-lm is not here: mmspec models get reference-lm")
def test_the_second_similar_call_of_a_loop_costs_fewer_forwards() -> None:
    engine = Engine.from_pretrained("reference-lm", dtype="fp32")
    engine.controller = Unhurried()
    session = engine.session(tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_new_tokens=60)
    replies = []
    news: list[dict[str, Any]] = []
    for customer in ("Miller", "Rossi", "Miller"):
        question = {"role": "user", "content": f"Find the orders of customer {customer}."}
        replies.append(session.send([*news, question]))
        news = results(replies[-1], f"3 chairs for {customer}")
        assert replies[-1].tool_calls[0].arguments == {"customer": customer}
    plain = engine.chat("Find the orders of customer Miller.", tools=TOOLS, tool_choice="required", speculate=False)
    assert replies[2].stats.forwards <= replies[0].stats.forwards < plain.stats.forwards
    assert any(kind.startswith("grammar:earlier") for kind in replies[2].stats.proposed)
    assert replies[2].stats.reused_tokens > replies[2].stats.prompt_tokens / 2
