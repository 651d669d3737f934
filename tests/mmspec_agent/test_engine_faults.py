"""Whatever happens while the engine works, to it or around it: nothing is lost, and it goes on."""

from __future__ import annotations

import gc
import resource
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fake import FakeDrafter, raising
from texts import chat_model
from transformers import (
    StoppingCriteria,
    StoppingCriteriaList,
)
from unhurried import Unhurried
from usable import NEW, TOKENIZER, check_usable, fresh, two_turns

from mmspec_agent import Engine
from mmspec_agent.core.errors import (
    Cancelled,
    DrafterWarning,
    EngineBusy,
)
from mmspec_agent.core.tree import DraftTree
from mmspec_agent.reply import TextPiece


@pytest.fixture(scope="module")
def expected() -> list[str]:
    return two_turns()


# -- interruptions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("events", [1, 2, 5, 9])
def test_a_generator_closed_mid_stream(expected: list[str], events: int) -> None:
    engine = fresh()
    session = engine.session(max_new_tokens=NEW)
    stream = session.stream("one")
    for _ in range(events):
        next(stream)
    stream.close()  # type: ignore[attr-defined]
    check_usable(engine, session, expected)


class Stop(Exception):
    """Raised by a caller's callback."""


def _raise_at(count: int, error: BaseException) -> Callable[..., Any]:
    calls = [0]

    def callback(*_: Any, **__: Any) -> Any:
        calls[0] += 1
        if calls[0] == count:
            raise error
        return False

    return callback


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Stop()])
@pytest.mark.parametrize("where", ["trace", "cancelled"])
@pytest.mark.parametrize("count", [1, 4])
def test_exceptions_in_callbacks(expected: list[str], error: BaseException, where: str, count: int) -> None:
    engine = fresh()
    session = engine.session(max_new_tokens=NEW)
    with pytest.raises(type(error)):
        session.send("one", **{where: _raise_at(count, error)})
    check_usable(engine, session, expected)


def test_a_keyboard_interrupt_inside_a_drafter(expected: list[str]) -> None:
    guess = raising(KeyboardInterrupt(), after=2)
    engine = fresh(drafters=[guess])
    engine.controller = Unhurried()
    session = engine.session(max_new_tokens=NEW)
    with pytest.raises(KeyboardInterrupt):
        session.send("one")
    for state in guess.states:
        state.propose_ = lambda view, budget: DraftTree()
    guess.propose = lambda view, budget: DraftTree()
    check_usable(engine, session, expected)


@pytest.mark.parametrize("moment", range(1, 12, 2))
def test_a_keyboard_interrupt_inside_a_forward(expected: list[str], moment: int) -> None:
    """In the middle of the layers, when the arena holds half a step."""
    engine = fresh()
    session = engine.session(max_new_tokens=NEW)
    interrupt = _raise_at(moment, KeyboardInterrupt())
    handle = engine.model.model.layers[1].register_forward_hook(lambda *_: interrupt() or None)
    with pytest.raises(KeyboardInterrupt):
        session.send("one")
    handle.remove()
    check_usable(engine, session, expected)


@pytest.mark.parametrize("where", ["criteria", "streamer", "processor"])
def test_exceptions_in_the_callbacks_of_generate(expected: list[str], where: str) -> None:
    engine = fresh()

    class Criteria(StoppingCriteria):  # type: ignore[misc]
        def __init__(self) -> None:
            self.inner = _raise_at(3, Stop())

        def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            return torch.tensor([self.inner()])

    class Streamer:
        def __init__(self) -> None:
            self.put = _raise_at(3, Stop())

        def end(self) -> None:
            raise AssertionError("an interrupted stream does not end")

    def processor(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if ids.shape[1] == 6:
            raise Stop
        return scores

    options: dict[str, Any] = {
        "criteria": {"stopping_criteria": StoppingCriteriaList([Criteria()])},
        "streamer": {"streamer": Streamer()},
        "processor": {"logits_processor": [processor]},
    }[where]
    with pytest.raises(Stop):
        engine.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=NEW, **options)
    check_usable(engine, engine.session(max_new_tokens=NEW), expected)


def test_cancelling(expected: list[str]) -> None:
    engine = fresh()
    session = engine.session(max_new_tokens=NEW)
    flags = iter([False, False, False, True])
    with pytest.raises(Cancelled):
        session.send("one", cancelled=lambda: next(flags))
    check_usable(engine, session, expected)


def test_failing_drafters_are_dropped_with_a_warning_and_counted(expected: list[str]) -> None:
    engine = fresh(drafters=[raising(ValueError("no idea"))])
    engine.controller = Unhurried()
    session = engine.session(max_new_tokens=NEW)
    with pytest.warns(DrafterWarning, match="no idea"):
        reply = session.send("one")
    assert reply.text == expected[0]
    assert reply.stats.dropped_drafters == ["raising: ValueError: no idea"]
    with pytest.warns(DrafterWarning):
        assert session.send("two").text == expected[1]


def test_a_trace_can_be_a_file(tmp_path: Path) -> None:
    import json

    reply = fresh().chat("one", max_new_tokens=NEW, trace=str(tmp_path / "deep" / "trace.jsonl"))
    lines = (tmp_path / "deep" / "trace.jsonl").read_text().splitlines()
    assert len(lines) == reply.stats.forwards
    assert [t for line in lines for t in json.loads(line)["emitted"]] == reply.token_ids


# -- threads -------------------------------------------------------------------------------------------------------


def test_two_threads_never_mix() -> None:
    engine = fresh()
    questions = [f"question {i}" for i in range(6)]
    alone = [fresh().chat(q, max_new_tokens=NEW).text for q in questions]
    answers: dict[str, str] = {}

    def ask(mine: list[str]) -> None:
        for question in mine:
            answers[question] = engine.chat(question, max_new_tokens=NEW).text

    threads = [threading.Thread(target=ask, args=(questions[i::2],)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answers[q] for q in questions] == alone


def test_a_second_thread_is_refused_by_option() -> None:
    engine = fresh(busy="refuse")
    stream = engine.stream("one", max_new_tokens=NEW)
    next(stream)
    caught: list[BaseException] = []

    def ask() -> None:
        try:
            engine.chat("two", max_new_tokens=4)
        except EngineBusy as error:
            caught.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert len(caught) == 1
    with pytest.raises(EngineBusy, match="this thread"):
        engine.chat("two", max_new_tokens=4)
    stream.close()  # type: ignore[attr-defined]
    assert engine.chat("two", max_new_tokens=4).text


def test_a_second_thread_waits_its_turn() -> None:
    engine = fresh()
    stream = engine.stream("one", max_new_tokens=NEW)
    next(stream)
    done = threading.Event()

    def ask() -> None:
        engine.chat("two", max_new_tokens=4)
        done.set()

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(0.2)
    assert not done.is_set()
    "".join(e.text for e in stream if isinstance(e, TextPiece))
    thread.join(timeout=60)
    assert done.is_set()


# -- growth --------------------------------------------------------------------------------------------------------


def _resident_kib() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.slow
def test_300_replies_do_not_grow() -> None:
    engine = fresh()
    sizes = []
    for number in range(300):
        engine.chat(f"question {number % 7} " * 4, max_new_tokens=12, temperature=0.7, seed=number)
        if number in (29, 299):
            gc.collect()
            sizes.append(_resident_kib())
    assert sizes[1] <= 1.02 * sizes[0]


def test_nothing_stays_on_the_model_after_the_engine_is_gone() -> None:
    model = chat_model()
    before = (set(model.__dict__), model.config.to_dict(), model.generation_config.to_dict())
    with Engine(model, TOKENIZER, drafters=[FakeDrafter(lambda view, budget: DraftTree.chain([5, 6], "f"))]) as engine:
        engine.chat("one", max_new_tokens=8)
    assert (set(model.__dict__), model.config.to_dict(), model.generation_config.to_dict()) == before
    assert not any(module._forward_hooks for module in model.modules())


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() <= before
