"""`mmspec watch`: questions about a camera, a stream or a clip, answered frame by frame."""

import json
import warnings
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmspec_agent.core.errors import MMSpecError, SourceWarning

from .interrupts import ended_at_once
from .spoken import spoken

if TYPE_CHECKING:
    from mmspec_agent.engine import Engine
    from mmspec_agent.video.source import FrameSource

    from .annotate import AnnotatedClip
    from .watch_events import EventTeller

_OF_SOURCE = ("fps", "rate", "rotation", "open_timeout", "read_timeout", "stall_timeout", "frozen_timeout", "reconnect")


def register(app: typer.Typer) -> None:
    """Add the command `watch` to the command line."""
    app.command("watch")(watch)


def watch(
    source: Annotated[
        str,
        typer.Argument(
            help="Camera index, URL, video file, animation, picture, folder, pattern, or - for standard input; "
            "`clip` is the one included."
        ),
    ],
    question: Annotated[
        list[str], typer.Option("-q", "--question", help="May be given several times; they share the frames.")
    ] = ["What is happening?"],  # noqa: B006 - typer copies it
    model: Annotated[str, typer.Option(help="reference-vlm, a Hub id or a folder.")] = "reference-vlm",
    dtype: Annotated[str, typer.Option(help="bf16, fp16, fp32, or auto (as stored).")] = "auto",
    every: Annotated[float | None, typer.Option(help="Seconds from one answered frame to the next.")] = None,
    fps: Annotated[float | None, typer.Option(help="Frames a second to take at most.")] = None,
    rate: Annotated[float | None, typer.Option(help="Pace of pictures that carry no times.")] = None,
    on_change: Annotated[bool, typer.Option("--on-change", help="Show changed answers only.")] = False,
    live: Annotated[
        bool | None, typer.Option("--live/--every-frame", help="Newest frame, or all (default: as the source is).")
    ] = None,
    window: Annotated[int | None, typer.Option(min=1, help="Frames kept in the context.")] = None,
    keep_answers: Annotated[bool, typer.Option("--keep-answers", help="Earlier answers stay in the context.")] = False,
    system: Annotated[str | None, typer.Option(help="The system message.")] = None,
    time_stamps: Annotated[
        bool | None, typer.Option("--time-stamps/--no-time-stamps", help="Each frame's time before it.")
    ] = None,
    max_frame_tokens: Annotated[int | None, typer.Option(min=1, help="Larger frames are made smaller.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy; above, answers are drawn.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Of the draws.")] = None,
    rotation: Annotated[str, typer.Option(help="auto, none, 0, 90, 180 or 270 degrees.")] = "auto",
    open_timeout: Annotated[float | None, typer.Option(help="Seconds that opening may take.")] = None,
    read_timeout: Annotated[float, typer.Option(help="Seconds that one read of a recording may take.")] = 10.0,
    stall_timeout: Annotated[float | None, typer.Option(help="Seconds of silence that count as a stall.")] = None,
    frozen_timeout: Annotated[
        float | None, typer.Option(help="Seconds of identical pictures that count as a fault; 0: never.")
    ] = None,
    reconnect: Annotated[
        int | None, typer.Option(min=0, help="Attempts in a row at a lost source (default: no limit).")
    ] = None,
    gate_threshold: Annotated[float | None, typer.Option(help="SSIM from which a frame counts as still.")] = None,
    gate_max_age: Annotated[float | None, typer.Option(help="Seconds after which a frame is never still.")] = None,
    steady: Annotated[bool, typer.Option("--steady", help="Undo small shifts of the camera.")] = False,
    lossy_skip: Annotated[
        float | None, typer.Option("--lossy-skip", help="Repeat answers, unseen, for so many seconds of stillness.")
    ] = None,
    drafts: Annotated[bool, typer.Option(help="Offer drafts; without them every token costs a forward.")] = True,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after so many answers.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write an annotated clip (.mp4, .avi, .mkv).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object an answer, and one an event.")] = False,
) -> None:
    """Ask about what a camera, stream or clip shows; Ctrl-C ends it."""
    gate = {"threshold": gate_threshold, "max_age_s": gate_max_age, "steady": steady or None}
    frozen: float | str | None = "auto" if frozen_timeout is None else frozen_timeout or None
    options: dict[str, Any] = {
        "every": every,
        "fps": fps,
        "rate": rate,
        "on_change": on_change,
        "window": window,
        "keep_answers": keep_answers,
        "system": system,
        "time_stamps": time_stamps,
        "max_frame_tokens": max_frame_tokens,
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "rotation": int(rotation) if rotation.isdecimal() else rotation,
        "open_timeout": open_timeout,
        "read_timeout": read_timeout,
        "stall_timeout": stall_timeout,
        "frozen_timeout": frozen,
        "reconnect": True if reconnect is None else reconnect,
        "gate": {name: value for name, value in gate.items() if value is not None},
        "lossy_skip_s": lossy_skip,
        "speculate": drafts,
        **({} if seed is None else {"seed": seed}),
    }
    problem: MMSpecError
    try:
        _watch(source, question, model, dtype, live, options, limit, save, as_json)
        return
    except MMSpecError as error:
        problem = type(error)(spoken(str(error)))
    raise problem


def _watch(
    given: str,
    questions: list[str],
    model: str,
    dtype: str,
    live: bool | None,
    options: dict[str, Any],
    limit: int | None,
    save: Path | None,
    as_json: bool,
) -> None:
    """Source first, options next, model last: whatever is wrong is said before anything takes long."""
    from .watch_events import EventTeller

    of_source = {name: value for name, value in options.items() if name in _OF_SOURCE}
    rest = {name: value for name, value in options.items() if name not in _OF_SOURCE}
    with ExitStack() as stack, warnings.catch_warnings(), suppress(KeyboardInterrupt):
        # What a source has to say is shown as an event.
        warnings.simplefilter("ignore", SourceWarning)
        teller = EventTeller(as_json)
        _check_loop(questions, rest)
        clip = _clip(stack, save)
        opened: FrameSource = stack.enter_context(_opened(given, live, of_source, teller))
        with ended_at_once():
            _check_answering(rest)
        engine = _loaded(model, dtype)
        answers = stack.enter_context(engine.watch(opened, questions, **rest))
        _show(islice(answers, limit), clip, None if as_json else (engine, answers, _name(given)), teller)


def _clip(stack: ExitStack, save: Path | None) -> "AnnotatedClip | None":
    from .annotate import AnnotatedClip

    return stack.enter_context(AnnotatedClip(save)) if save is not None else None


def _opened(given: str, live: bool | None, options: dict[str, Any], teller: "EventTeller") -> "FrameSource":
    from mmspec_agent.clip import bundled_clip
    from mmspec_agent.video.source import open_source

    source = str(bundled_clip()) if given == "clip" else given
    return open_source(source, live=live, on_event=teller.tell, **options)


def _name(given: str) -> str:
    from mmspec_agent.video.redaction import shown

    return given if given == "clip" else shown(given)


def _check_loop(questions: list[str], options: dict[str, Any]) -> None:
    """What can be checked before the libraries of models are imported."""
    from mmspec_agent.video.gate import GateOptions
    from mmspec_agent.video.watch import WatchOptions, checked_questions

    checked_questions(questions)
    GateOptions(**options["gate"])
    WatchOptions(options["every"], options["on_change"], options["lossy_skip_s"])


def _check_answering(options: dict[str, Any]) -> None:
    """All other options, still without a model; the imports behind it take seconds."""
    from mmspec_agent.engine import Engine  # noqa: F401 - imported here, where an interrupt may end it
    from mmspec_agent.watching import watch_settings

    watch_settings(**options)


def _loaded(model: str, dtype: str) -> "Engine":
    from mmspec_agent.engine import Engine

    from .console import quiet_libraries
    from .progress import Bars

    quiet_libraries()
    with Bars() as bars:
        bars.stage(f"loading {model}")
        return Engine.from_pretrained(model, dtype=dtype)


def _show(answers: Any, clip: Any, shown: tuple[Any, Any, str] | None, teller: "EventTeller") -> None:
    from rich.console import Console

    from .watch_view import View

    if shown is None:
        for answer in answers:
            teller.line(json.dumps(answer.as_dict()))
            if clip is not None:
                clip.add(answer)
        return
    engine, opened, name = shown
    console = Console(highlight=False)
    with View(console, engine.tokenizer, opened, name) as view, teller.on(console):
        for answer in answers:
            view.add(answer)
            if clip is not None:
                clip.add(answer)
