"""`mmspec bench video`: answers about a stream, four arms on the same frames."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mmspec_agent.core.errors import SourceNotFound


class Dtype(StrEnum):
    """Weights of the benchmark."""

    BF16 = "bf16"
    FP32 = "fp32"
    BOTH = "both"


def video(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Twice the frames, and 10,000 frames through a tiny model.")
    ] = False,
    clips: Annotated[Path | None, typer.Option(help="A clip, or a folder of clips, beside the filmed scenes.")] = None,
    dtype: Annotated[Dtype, typer.Option(help="Weights as bf16, fp32, or one after the other.")] = Dtype.BOTH,
    scene: Annotated[list[str] | None, typer.Option(help="Scenes to film (default: all); may be repeated.")] = None,
    frames: Annotated[int, typer.Option(min=4, help="Frames of each scene, 2 a second.")] = 6,
    new_tokens: Annotated[int, typer.Option(min=4, help="Answers are cut at so many tokens.")] = 30,
    window: Annotated[int | None, typer.Option(min=1, help="Frames in our context.")] = None,
    hours: Annotated[
        int, typer.Option(min=0, help="Frames through a tiny model without --full; 0 leaves it out.")
    ] = 500,
    model: Annotated[str, typer.Option(help="reference-vlm, a Hub id or a folder.")] = "reference-vlm",
) -> None:
    """Streams: transformers without and with history, ours without and with drafts, on scenes with ground truth."""
    from mmspec_agent.bench.video import DTYPES, VideoOptions, run
    from mmspec_agent.bench.video_scenes import KINDS

    from .bench import finish
    from .console import quiet_libraries
    from .progress import Bars

    quiet_libraries()
    options = VideoOptions(
        model=model,
        dtypes=DTYPES if dtype is Dtype.BOTH else (dtype.value,),
        kinds=tuple(scene) if scene else KINDS,
        frames=frames,
        new_tokens=new_tokens,
        window=window,
        clips=_clips(clips),
        hours=hours,
        full=full,
    )
    with Bars() as bars:
        report = run(options, bars)
    finish(report, as_json)


def _clips(path: Path | None) -> tuple[Path, ...]:
    if path is None:
        return ()
    if not path.exists():
        raise SourceNotFound(f"--clips {path}: there is no such file or folder")
    if path.is_file():
        return (path,)
    suffixes = {".mp4", ".mov", ".mkv", ".avi", ".webm", ".ts", ".gif"}
    found = tuple(sorted(one for one in path.iterdir() if one.suffix.lower() in suffixes))
    if not found:
        raise SourceNotFound(f"--clips {path}: no clip in this folder; accepted are {', '.join(sorted(suffixes))}")
    return found
