"""Pictures in every role, placeholders that others wrote, and a processor whose settings change between requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tiny_chat import TEMPLATE, expected_ids, noise_picture, tiny_chat_vlm, user

from mmspec_agent import Engine
from mmspec_agent.core.errors import PictureError, PictureInputError, PromptError
from mmspec_agent.grammar.envelope import prepare
from mmspec_agent.grammar.families import FAMILIES
from mmspec_agent.pictures import load_picture
from mmspec_agent.written_placeholders import escaped

TEXT_TOOLS = TEMPLATE.replace(
    "{% if m['content'] is string %}", "{% if m['content'] is string or m['role'] == 'tool' %}"
)
CLOSED_TOOLS = TEMPLATE.replace(
    "[{{ m['role'][0] }}", "[{{ m['role'][0] }}{% if m['role'] == 'tool' %}{{ ('' ~ 1) + m['content'] }}{% endif %}"
)


def engine(template: str = TEMPLATE, seed: int = 0) -> Engine:
    model, processor = tiny_chat_vlm(seed)
    processor.chat_template = template
    return Engine(model, processor)


def tool_turn(*pictures: Any) -> list[dict[str, Any]]:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": {"at": "x"}}}
    parts = [*({"type": "image", "image": p} for p in pictures), {"type": "text", "text": "seen"}]
    return [
        user("look!"),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "look", "tool_call_id": "c", "content": parts},
    ]


def shown_tool_turn() -> list[dict[str, Any]]:
    """As templates see it."""
    *before, result = tool_turn()
    return [*before, {**result, "content": [{"type": "image"}, *result["content"]]}]


def test_a_picture_in_a_tool_result_is_shown() -> None:
    one = engine()
    messages = [*tool_turn(noise_picture(1)), user("and this?", noise_picture(2))]
    prompt = one.vision.render(shown_tool_turn(), [load_picture(noise_picture(1))])[0]
    assert "[t<image><image><image><image>seen]" in prompt
    reply = one.chat(messages, max_new_tokens=6)
    assert reply.stats.vision_passes == 2


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_no_envelope_writes_a_picture_as_text(name: str) -> None:
    processor = tiny_chat_vlm()[1]
    envelope = prepare(processor.tokenizer, [], tool_choice="none", family=name, eos_ids=[2])
    content = envelope.messages(shown_tool_turn())[-1]["content"]
    assert [part for part in content if part["type"] == "image"] == [{"type": "image"}]


@pytest.mark.parametrize("template", [TEXT_TOOLS, CLOSED_TOOLS])
def test_a_template_without_pictures_in_tool_results_is_named(template: str) -> None:
    one = engine(template)
    shown, one_picture = shown_tool_turn(), load_picture(noise_picture(1))
    with pytest.raises(PictureInputError, match="no pictures in messages of role 'tool'"):
        one.vision.render(shown, [one_picture])
    with pytest.raises(PictureInputError, match="role 'tool'"):
        one.vision.render([*shown, {"role": "user", "content": [{"type": "image"}]}], [one_picture] * 2)
    assert one.chat([user("x", noise_picture(1))], max_new_tokens=2).token_ids


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("role", ["assistant", "tool"])
def test_a_written_placeholder_is_text(role: str, count: int) -> None:
    session = engine().session(max_new_tokens=5)
    session.send(user("one?", *[noise_picture(i) for i in range(count)]))
    session.messages[-1]["content"] = "I say <image><image>"
    if role == "tool":
        session.messages += [{"role": "tool", "content": "found <image>"}]
    for turn in range(2):
        reply = session.send(f"go on {turn}")
        assert reply.token_ids
        assert session._conversation.tokens.count(session._engine.vision.family.image_token_id) >= 4 * count


def test_written_placeholders_in_calls_and_names() -> None:
    call = {"function": {"name": "f", "arguments": {"<image>": ["a<image>b", {"c": "<image>"}]}}}
    message = {"role": "assistant", "content": [{"type": "text", "text": "<image>"}], "tool_calls": [call]}
    (found,) = escaped([message], ["<image>"])
    assert "<image>" not in str(found)
    assert str(found).replace("<\\u2060", "<") == str(message)
    assert escaped([message], ["<other>"])[0] is message


@pytest.mark.parametrize("role", ["user", "system"])
def test_a_users_placeholder_is_refused(role: str) -> None:
    one = engine()
    for pictures in ((), (noise_picture(1),)):
        with pytest.raises(PictureInputError, match="'<image>', the placeholder"):
            one.chat([{"role": role, "content": "is <image> here?"}, user("x", *pictures)])


CHANGES: dict[str, Callable[[Any], None]] = {
    "size": lambda p: setattr(p.image_processor, "size", {"height": 28, "width": 14}),
    "mean": lambda p: setattr(p.image_processor, "image_mean", [0.9, 0.1, 0.5]),
    "in place": lambda p: p.image_processor.image_std.__setitem__(0, 2.0),
    "switch": lambda p: setattr(p.image_processor, "do_rescale", False),
    "resample": lambda p: setattr(p.image_processor, "resample", 0),
}


@pytest.mark.parametrize("name", CHANGES)
def test_settings_of_the_processor_are_those_of_the_call(name: str) -> None:
    one = engine(seed=3)
    processor: Any = one.processor
    processor.image_processor.image_std = [0.5, 0.5, 0.5]
    messages = [user("what?", noise_picture(1, 60))]
    before = one.chat(messages, max_new_tokens=8)
    again = one.chat(messages, max_new_tokens=8)
    assert again.stats.vision_passes == 0
    CHANGES[name](processor)
    if name == "size":  # 14 pixels wide is no picture of this model: it says so, and does not show the old one
        with pytest.raises((PictureError, PictureInputError, PromptError, ValueError, RuntimeError)):
            one.chat(messages, max_new_tokens=8)
        return
    after = one.chat(messages, max_new_tokens=8)
    assert after.stats.vision_passes == 1
    assert after.token_ids == expected_ids(one.model, one.processor, messages, 8)
    assert before.token_ids == again.token_ids


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"type": "input_audio", "input_audio": {"data": "x"}}, "'input_audio'; accepted are text"),
        ({"type": "video", "video": "x.mp4"}, "'video'; accepted are text"),
        ({"type": "file", "file": {}}, "'file'; accepted are text"),
        ({"text": "x"}, "None; accepted are text"),
        (3, "'int'; accepted are text"),
        ({"type": "text", "text": 3}, "text is a int"),
    ],
)
def test_other_parts_are_named_and_the_model_not_slandered(part: Any, words: str) -> None:
    one = engine()
    for content in ([part], [{"type": "image", "image": noise_picture(1)}, part]):
        with pytest.raises(PromptError, match=words) as caught:
            one.chat([{"role": "user", "content": content}])
        assert "takes text only" not in str(caught.value)
