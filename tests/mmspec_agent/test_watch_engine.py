"""``engine.watch`` on tiny random models: same answers as plain chat, one vision pass a frame, verified drafts."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_chat import tiny_chat_vlm, user
from tiny_visual import IMAGE

from mmspec_agent.core.controller import Controller
from mmspec_agent.core.errors import (
    ContextOverflow,
    FrameError,
    MemoryBudgetExceeded,
    OptionError,
    PictureError,
    PromptError,
    SourceNotFound,
)
from mmspec_agent.core.tree import DraftTree
from mmspec_agent.engine import Engine
from mmspec_agent.frame_prompt import Cut, FramePrompt, cut_template
from mmspec_agent.video.clock import SimulatedClock
from mmspec_agent.video.watch import WatchAnswer

MODEL, PROCESSOR = tiny_chat_vlm()
ASK = "what now?"
NEW = 12


def frames(count: int, change: int | None = None, size: int = 64, noise: int = 0) -> list[np.ndarray[Any, Any]]:
    """Pictures that all look alike, but for noise; from ``change`` on another one."""
    rng = np.random.default_rng(5)
    first, second = (rng.integers(0, 256, (size, size, 3), dtype=np.uint8) for _ in range(2))
    made = []
    for index in range(count):
        picture = second if change is not None and index >= change else first
        shake = rng.integers(-noise, noise + 1, picture.shape) if noise else 0
        made.append(np.clip(picture.astype(np.int16) + shake, 0, 255).astype(np.uint8))
    return made


class Always(Controller):
    """Verifies whatever is offered: the cost of a tiny model's forward says nothing."""

    def budget(self, pending: int = 1) -> int:
        return self.max_nodes

    def choose(self, tree: DraftTree, pending: int, room: int) -> DraftTree:
        return tree.trim(min(self.max_nodes, room))


@pytest.fixture
def engine() -> Engine:
    made = Engine(MODEL, PROCESSOR)
    made.controller = Always()
    return made


def collect(engine: Engine, pictures: Any, question: Any = ASK, **options: Any) -> list[WatchAnswer]:
    options = {"max_new_tokens": NEW, **options}
    with engine.watch(pictures, question, **options) as watch:
        return list(watch)


def test_every_frame_is_answered_as_chat_would(engine: Engine) -> None:
    """A window of one frame is what a fresh request sees: the same ids, the same answer."""
    pictures = frames(4, change=2)
    answers = collect(engine, pictures)
    assert [a.frame_index for a in answers] == [0, 1, 2, 3]
    for answer, picture in zip(answers, pictures):
        reply = engine.chat([user(ASK, picture)], max_new_tokens=NEW, speculate=False)
        assert answer.text == reply.text
        assert list(answer.token_ids) == reply.token_ids
    assert [a.changed for a in answers][1] is False


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_never_change_an_answer(engine: Engine, window: int, temperature: float) -> None:
    """Against the plain arm, and case static-paraphrase: under sampling too, token for token."""
    pictures = frames(6, change=4, noise=3)
    options = {"window": window, "temperature": temperature, "seed": 3}
    ours = collect(engine, pictures, **options)
    plain = collect(Engine(MODEL, PROCESSOR, drafters=[], max_nodes=0), pictures, **options)
    assert [a.token_ids for a in ours] == [a.token_ids for a in plain]
    assert all(a.stats.drafted == 0 for a in plain)


def test_a_static_scene_is_answered_from_the_last_answer(engine: Engine) -> None:
    answers = collect(engine, frames(4), max_new_tokens=24)
    assert answers[0].decision.reason == "first"
    for answer in answers[1:]:
        assert answer.decision.hit
        drafted = answer.stats.emitted - answer.stats.sources["target"]
        assert answer.stats.sources["previous-answer"] > 0
        assert drafted >= 20
        assert answer.stats.forwards <= 3
        assert not answer.changed


def test_a_cut_drops_the_draft(engine: Engine) -> None:
    """Case scene-cut: not one node of the old answer is offered, and the next answer follows the new scene."""
    answers = collect(engine, frames(4, change=2))
    assert answers[2].decision.scene_break
    assert answers[2].stats.proposed["previous-answer"] == 0


def test_a_frame_is_encoded_once_for_all_questions(engine: Engine) -> None:
    """Case qwen-kv-example: the second question on a frame runs no tower and prefills its own text only."""
    answers = collect(engine, frames(2, noise=2), question=[ASK, "and?"])
    assert [a.seen.vision_passes for a in answers] == [1, 0, 1, 0]
    assert [a.question for a in answers] == [ASK, "and?"] * 2
    for answer in answers:
        text = f"{answer.question}][a"
        assert answer.stats.prefilled_tokens == len(text)
        assert answer.stats.vision_passes == 0


def test_identical_pictures_are_not_encoded_again(engine: Engine) -> None:
    answers = collect(engine, frames(3))
    assert [a.seen.vision_passes for a in answers] == [1, 0, 0]


def test_frames_of_a_window_equal_one_prompt_with_several_pictures(engine: Engine) -> None:
    pictures = frames(3, change=1)
    answers = collect(engine, pictures, window=3, system="be kind")
    messages = [{"role": "system", "content": "be kind"}, user(ASK, *pictures)]
    expected = engine.chat(messages, max_new_tokens=NEW, speculate=False)
    assert list(answers[-1].token_ids) == expected.token_ids


def test_kept_answers_are_what_transformers_would_have_read(engine: Engine) -> None:
    """The whole dialogue as one prompt through transformers' own generate, ids as they were decoded."""
    pictures = frames(3, change=1)
    answers = collect(engine, pictures, window=3, keep_answers=True, suppress_tokens=[IMAGE])
    prompt = FramePrompt(engine.vision, engine.tokenizer)
    ids = list(prompt.prefix_ids)
    for answer in answers:
        ids += prompt.frame_ids("<image>" * 4) + prompt.question_ids(ASK)
        if answer is not answers[-1]:
            ids += [*answer.token_ids, *prompt.closing_ids(answer.token_ids)]
    pixels = PROCESSOR.image_processor(list(map(Image.fromarray, pictures)), return_tensors="pt")["pixel_values"]
    out = MODEL.generate(
        torch.tensor([ids]), pixel_values=pixels, do_sample=False, max_new_tokens=NEW, suppress_tokens=[IMAGE]
    )
    assert list(answers[-1].token_ids) == out[0, len(ids) :].tolist()


def test_questions_change_while_it_runs(engine: Engine) -> None:
    with engine.watch(frames(4), ASK, max_new_tokens=4) as watch:
        first = next(watch)
        at_once = watch.ask("why?")
        watch.questions = "how?"
        rest = list(watch)
    assert (first.question, at_once.question) == (ASK, "why?")
    assert at_once.frame_index == 0
    assert at_once.seen.tokens == 0
    assert [a.question for a in rest] == ["how?"] * 3


def test_every_and_on_change(engine: Engine) -> None:
    rung: list[WatchAnswer] = []
    timed = [(index * 0.5, picture) for index, picture in enumerate(frames(8, change=5))]
    changes = collect(engine, timed, on_change=rung.append)
    assert rung == changes
    assert changes[0].frame_index == 0
    assert all(a.changed for a in changes)
    spaced = collect(engine, timed, every=1.0)
    assert [a.time_s for a in spaced] == [0.0, 1.0, 2.0, 3.0]
    assert [a.frame_index for a in spaced] == [0, 2, 4, 6]


def test_skipping_is_opt_in_has_an_age_and_is_shown(engine: Engine) -> None:
    timed = [(index * 0.5, picture) for index, picture in enumerate(frames(8))]
    assert not any(a.skipped for a in collect(engine, timed))
    answers = collect(engine, timed, lossy_skip_s=1.0)
    assert [a.skipped for a in answers] == [False, True, True, False, True, True, False, True]
    for answer in answers:
        assert answer.stats.lossy == (["lossy_skip_s=1"] if answer.skipped else [])
        assert answer.text == answers[0].text
    assert answers[1].seen.tokens == 0


def test_a_small_lamp_is_never_skipped(engine: Engine) -> None:
    """Case ssim-blind-led: nearly equal by SSIM, but a tile and a colour say no."""
    import cv2

    plain = cv2.GaussianBlur(np.full((240, 320, 3), 90, np.uint8), (0, 0), 3)
    lit = plain.copy()
    cv2.circle(lit, (200, 100), 16, (250, 30, 30), -1)
    answers = collect(engine, [(0.0, plain), (0.5, plain), (1.0, lit)], lossy_skip_s=9.0)
    assert [a.skipped for a in answers] == [False, True, False]


def test_no_draft_crosses_a_gap(engine: Engine) -> None:
    """Case rtsp-reconnect-late: the frame after a gap is encoded and answered without the old answers."""
    from mmspec_agent.video.frame import Frame

    pictures = frames(3)
    made = [Frame(p, float(i), float(i), i, discontinuity=i == 2) for i, p in enumerate(pictures)]

    class Source:
        is_live = False

        def __init__(self) -> None:
            self.left = list(made)

        def latest(self, timeout: float | None = None) -> Frame:
            from mmspec_agent.core.errors import SourceEnded

            if not self.left:
                raise SourceEnded("end")
            return self.left.pop(0)

        def take_events(self) -> list[Any]:
            return []

        def close(self) -> None:
            self.left = []

    answers = collect(engine, Source())
    assert answers[1].stats.proposed["previous-answer"] > 0
    assert answers[2].decision.crosses_gap
    assert answers[2].stats.proposed["previous-answer"] == 0
    assert answers[2].text == answers[1].text


def test_on_a_simulated_clock_work_takes_its_time(engine: Engine) -> None:
    clock = SimulatedClock()
    answers = collect(engine, iter(frames(60)), live=True, clock=clock, rate=25.0, max_new_tokens=4)
    assert len(answers) < 60 or clock.now() > 60 / 25 - 0.1
    for answer in answers[:-1]:  # the last frame of a stream waits, since nothing newer takes its place
        assert answer.lag_s <= answer.seen.seconds + answer.seconds + 0.04 + 1e-6


def test_closing_ends_threads_and_frees_rows(engine: Engine) -> None:
    before = threading.active_count()
    watch = engine.watch(frames(3), ASK, max_new_tokens=4)
    next(watch)
    watch.close()
    watch.close()
    assert list(watch) == []
    assert threading.active_count() == before
    with engine.watch(frames(3), ASK, max_new_tokens=4) as other:
        next(other)
        assert engine.chat("hi", max_new_tokens=2).token_ids
    assert threading.active_count() == before


def test_wrong_options_are_named(engine: Engine) -> None:
    for options, text in (
        ({"evry": 1}, "did you mean 'every'"),
        ({"windw": 1}, "did you mean 'window'"),
        ({"every": 0}, "every=0"),
        ({"window": 0}, "window=0"),
        ({"lossy_skip_s": -1}, "lossy_skip_s"),
        ({"gate": {"treshold": 1}}, "treshold"),
        ({"tools": [{"name": "x"}]}, "tools"),
        ({"max_frame_tokens": 0}, "max_frame_tokens"),
    ):
        with pytest.raises(OptionError, match=text):
            engine.watch(frames(1), ASK, **options)
    with pytest.raises(OptionError, match="not empty"):
        engine.watch(frames(1), "  ")
    with pytest.raises(OptionError, match="twice"):
        engine.watch(frames(1), [ASK, ASK])
    with pytest.raises(SourceNotFound):
        engine.watch("/no/such/clip.mp4", ASK)
    with pytest.raises(PromptError, match="<image>"):
        collect(engine, frames(1), question="an <image> here")


def test_what_does_not_fit_is_refused_with_the_numbers(engine: Engine) -> None:
    with pytest.raises(ContextOverflow, match="window=200 frames"):
        collect(engine, frames(1), window=200)
    with pytest.raises(FrameError, match="max_frame_tokens is 2"):
        collect(engine, frames(1), max_frame_tokens=2)
    with pytest.raises(MemoryBudgetExceeded, match="window of 40 frames"):
        collect(Engine(MODEL, PROCESSOR, memory_budget=50_000), frames(1), window=40)


def test_a_text_model_cannot_watch() -> None:
    from tiny import tiny_model
    from tiny_chat import tiny_tokenizer

    with pytest.raises(PictureError, match="text only"):
        Engine(tiny_model("llama"), tiny_tokenizer()).watch(frames(1), ASK)


def test_a_long_stream_stays_inside_the_models_range() -> None:
    """Frames are evicted and moved; every answer still comes, and the answers equal the plain arm's."""
    pictures = frames(60, noise=4)
    model, processor = tiny_chat_vlm()
    model.config.text_config.max_position_embeddings = 200
    engines = (Engine(model, processor), Engine(model, processor, drafters=[], max_nodes=0))
    arms = [collect(engine, pictures, window=4, max_new_tokens=6) for engine in engines]
    assert [a.token_ids for a in arms[0]] == [a.token_ids for a in arms[1]]
    assert len({a.seen.kv_bytes for a in arms[0][-20:]}) <= 6


def encode(text: str) -> list[int]:
    return [ord(c) for c in text]


def test_templates_are_cut_where_frames_repeat() -> None:
    qwen = cut_template(lambda n: "U:" + "<v><image></v>" * n + "Q A:", "<image>", encode)
    assert qwen == Cut("U:", "<v>", "</v>")
    lines = cut_template(lambda n: "U:\n" + "<image>\n" * n + "Q\nA:", "<image>", encode)
    assert lines == Cut("U:\n", "", "\n")
    bare = cut_template(lambda n: "U:" + "<image>" * n + "Q A:", "<image>", encode)
    assert bare == Cut("U:", "", "")
    with pytest.raises(PromptError, match="numbers its pictures"):
        cut_template(lambda n: "U:" + "".join(f"{i}: <image> " for i in range(n)) + "Q", "<image>", encode)
    with pytest.raises(PromptError, match="once for each"):
        cut_template(lambda n: "U: Q", "<image>", encode)


def test_the_processor_gets_rgb(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case bgr-rgb: a camera's blue arrives in channel 2."""
    seen: list[Any] = []
    prepare = engine.vision.prepare_once

    def recorded(picture: Any, alone: bool) -> Any:
        seen.append(picture)
        return prepare(picture, alone)

    monkeypatch.setattr(engine.vision, "prepare_once", recorded)

    class Camera:
        def read(self) -> tuple[bool, Any]:
            blue = np.zeros((40, 40, 3), np.uint8)
            blue[:, :, 0] = 255
            return True, blue

        def release(self) -> None:
            pass

    with engine.watch(Camera(), ASK, max_new_tokens=2) as watch:
        next(watch)
    assert np.asarray(seen[0].image)[0, 0].tolist() == [0, 0, 255]


def test_answers_are_json(engine: Engine) -> None:
    import json

    answer = collect(engine, frames(1))[0]
    line = json.loads(json.dumps(answer.as_dict()))
    assert line["text"] == answer.text
    assert line["gate"]["reason"] == "first"
    assert line["gate"]["ssim"] is None
    assert torch.is_tensor(answer.stats) is False
