"""`mmspec watch`: questions about a camera, a stream or a clip, answered frame by frame."""

import json
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer


def register(app: typer.Typer) -> None:
    """Add the command `watch` to the command line."""
    app.command("watch")(watch)


def watch(
    source: Annotated[
        str, typer.Argument(help="Camera index, URL, video file, GIF, picture or folder; `clip` is the one included.")
    ],
    question: Annotated[
        list[str], typer.Option("-q", "--question", help="May be given several times; they share the frames.")
    ] = ["What is happening?"],  # noqa: B006 - typer copies it
    model: Annotated[str, typer.Option(help="reference-vlm, a Hub id or a folder.")] = "reference-vlm",
    dtype: Annotated[str, typer.Option(help="bf16, fp16, fp32, or auto (as stored).")] = "auto",
    every: Annotated[float | None, typer.Option(help="Seconds from one answered frame to the next.")] = None,
    fps: Annotated[float | None, typer.Option(help="Frames a second to take at most.")] = None,
    on_change: Annotated[bool, typer.Option("--on-change", help="Show changed answers only.")] = False,
    live: Annotated[
        bool | None, typer.Option("--live/--every-frame", help="Newest frame, or all (default: as the source is).")
    ] = None,
    window: Annotated[int | None, typer.Option(min=1, help="Frames kept in the context.")] = None,
    keep_answers: Annotated[bool, typer.Option("--keep-answers", help="Earlier answers stay in the context.")] = False,
    system: Annotated[str | None, typer.Option(help="The system message.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 128,
    rotation: Annotated[str, typer.Option(help="auto, none, 0, 90, 180 or 270 degrees.")] = "auto",
    lossy_skip: Annotated[
        float | None, typer.Option("--lossy-skip", help="Repeat answers, unseen, for so many seconds of stillness.")
    ] = None,
    drafts: Annotated[bool, typer.Option(help="Offer drafts; without them every token costs a forward.")] = True,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after so many answers.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write an annotated clip (.mp4, .avi, .mkv).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object an answer.")] = False,
) -> None:
    """Ask about what a camera, stream or clip shows; Ctrl-C ends it."""
    from mmspec_agent.engine import Engine

    from .annotate import AnnotatedClip
    from .console import quiet_libraries
    from .progress import Bars

    options: dict[str, Any] = {
        "every": every,
        "fps": fps,
        "on_change": on_change,
        "live": live,
        "window": window,
        "keep_answers": keep_answers,
        "system": system,
        "max_new_tokens": max_new_tokens,
        "rotation": int(rotation) if rotation.isdecimal() else rotation,
        "lossy_skip_s": lossy_skip,
        "speculate": drafts,
    }
    quiet_libraries()
    with ExitStack() as stack:
        clip = stack.enter_context(AnnotatedClip(save)) if save is not None else None
        with Bars() as bars:
            bars.stage(f"loading {model}")
            engine = Engine.from_pretrained(model, dtype=dtype)
        opened = stack.enter_context(engine.watch(_source(source), question, **options))
        answers = islice(opened, limit)
        with suppress(KeyboardInterrupt):
            _show(answers, clip, None if as_json else (engine, opened, source))


def _source(given: str) -> str:
    from mmspec_agent.clip import bundled_clip

    return str(bundled_clip()) if given == "clip" else given


def _show(answers: Any, clip: Any, shown: tuple[Any, Any, str] | None) -> None:
    from rich.console import Console

    from .watch_view import View

    if shown is None:
        for answer in answers:
            typer.echo(json.dumps(answer.as_dict()))
            if clip is not None:
                clip.add(answer)
        return
    engine, opened, name = shown
    with View(Console(highlight=False), engine.tokenizer, opened, name) as view:
        for answer in answers:
            view.add(answer)
            if clip is not None:
                clip.add(answer)
