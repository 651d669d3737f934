"""`mmspec bench`: each claim as a command (SYSTEM.md M10)."""

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .bench_calls import calls
from .bench_video import video

if TYPE_CHECKING:
    from mmspec_agent.bench.common import Report


class Dtype(StrEnum):
    """Weights of the benchmark."""

    BF16 = "bf16"
    FP32 = "fp32"
    BOTH = "both"


def register(app: typer.Typer) -> None:
    """Add the group `bench` to the command line."""
    group = typer.Typer(
        help="Benchmarks against transformers on the same weights, arms in turn; exit status 1 if a bar falls short.",
        no_args_is_help=True,
    )
    # With a callback the group keeps its sub-commands' names even while it has only one.
    group.callback()(_group)
    group.command("text")(text)
    group.command("image")(image)
    group.command("calls")(calls)
    group.command("video")(video)
    group.command("reference")(reference)
    group.command("architectures")(architectures)
    app.add_typer(group, name="bench")


def _group() -> None:
    """Benchmarks against transformers on the same weights, arms in turn; exit status 1 if a bar falls short."""


def text(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
    prompts: Annotated[
        Path | None, typer.Option(help="JSON lines with messages (or prompt), kind, id, max_new_tokens.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="All prompts, under every dtype.")] = False,
    dtype: Annotated[Dtype, typer.Option(help="Weights as bf16, fp32, or one after the other.")] = Dtype.BOTH,
    repeats: Annotated[int, typer.Option(help="Turns of every arm on every prompt.")] = 2,
    per_kind: Annotated[int, typer.Option("--per-kind", help="Prompts of each kind without --full.")] = 2,
    model: Annotated[str, typer.Option(help="reference-lm, a Hub id or a folder.")] = "reference-lm",
) -> None:
    """Plain text: ours, our plain loop, transformers' generate and its prompt lookup."""
    from mmspec_agent.bench.text import DTYPES, TextOptions, run

    from .console import quiet_libraries
    from .progress import Bars

    quiet_libraries()
    options = TextOptions(
        model=model,
        prompts=prompts,
        dtypes=DTYPES if dtype is Dtype.BOTH else (dtype.value,),
        repeats=repeats,
        kind_limit=per_kind,
        full=full,
    )
    with Bars() as bars:
        report = run(options, bars)
    finish(report, as_json)


def image(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
    full: Annotated[bool, typer.Option("--full", help="At least 20 conversations per dtype.")] = False,
    dtype: Annotated[Dtype, typer.Option(help="Weights as bf16, fp32, or one after the other.")] = Dtype.BOTH,
    scenes: Annotated[int, typer.Option(min=1, help="Conversations per dtype.")] = 4,
    repeats: Annotated[int, typer.Option(min=1, help="Times each is held; ratios are medians over all.")] = 3,
    pictures: Annotated[int, typer.Option(min=0, help="Pictures through one engine under the budget.")] = 200,
    budget: Annotated[str, typer.Option(help="Bytes of visual memory.")] = "256MB",
    lossy_scenes: Annotated[int, typer.Option(min=0, help="Scenes for the table of compression ratios.")] = 8,
    model: Annotated[str, typer.Option(help="reference-vlm, a Hub id or a folder.")] = "reference-vlm",
) -> None:
    """Pictures: first questions and follow-ups, short and long answers, against transformers' generate."""
    from mmspec_agent.bench.image import DTYPES, ImageOptions, run

    from .console import quiet_libraries
    from .progress import Bars

    quiet_libraries()
    options = ImageOptions(
        model=model,
        dtypes=DTYPES if dtype is Dtype.BOTH else (dtype.value,),
        scenes=scenes,
        repeats=repeats,
        pictures=pictures,
        budget=budget,
        lossy_scenes=lossy_scenes,
        full=full,
    )
    with Bars() as bars:
        report = run(options, bars)
    finish(report, as_json)


def reference(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
    full: Annotated[bool, typer.Option("--full", help="At least 1,000 scenes.")] = False,
    scenes: Annotated[
        int, typer.Option(min=1, help="Unseen scenes: seven questions and a description about each.")
    ] = 100,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes of one thread; default: one a core.")] = None,
    weights: Annotated[
        Path | None, typer.Option(help="Weights that train-reference wrote, instead of the shipped ones.")
    ] = None,
) -> None:
    """How often reference-vlm is right about scenes it has not seen, with its picture and with a grey one."""
    from mmspec_agent.bench.reference import ReferenceOptions, run

    from .console import quiet_libraries
    from .progress import Bars

    quiet_libraries()
    with Bars() as bars:
        report = run(ReferenceOptions(scenes=scenes, full=full, workers=workers, weights=weights), bars)
    finish(report, as_json)


def architectures(
    names: Annotated[list[str] | None, typer.Argument(help="Types such as llama or gemma3_text; default all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
    step: Annotated[int, typer.Option(min=1, help="Every how many types one is tried.")] = 1,
) -> None:
    """Every causal model type of transformers, tiny and random: served with the very tokens, or refused by name."""
    from mmspec_agent.bench.architectures import ArchitectureOptions, run, table

    from .console import quiet_libraries
    from .progress import Bars

    quiet_libraries()
    with Bars() as bars:
        report = run(ArchitectureOptions(tuple(names or ()), step), bars)
    if not as_json:
        typer.echo(table(report.details["types"]))
    finish(report, as_json)


def finish(report: "Report", as_json: bool) -> None:
    """Show a report and leave with status 1 if a bar falls short."""
    from rich.console import Console

    if as_json:
        typer.echo(json.dumps(report.as_dict()))
    else:
        report.render(Console())
    if not report.ok:
        raise typer.Exit(1)
