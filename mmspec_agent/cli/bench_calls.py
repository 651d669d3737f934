"""`mmspec bench calls`: function calls under one constraint."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

MOST_TASKS = 200


class Dtype(StrEnum):
    """Weights of the benchmark."""

    BF16 = "bf16"
    FP32 = "fp32"


def calls(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
    tasks: Annotated[
        Path | None, typer.Option(help="JSON lines with id, messages, tools, answers (default: the packaged ones).")
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="The first so many tasks.")] = MOST_TASKS,
    dtype: Annotated[
        Dtype, typer.Option(help="bf16, or fp32, where the tokens of all arms must be equal.")
    ] = Dtype.BF16,
    outlines: Annotated[int, typer.Option(min=0, help="Tasks for outlines in its default form, for information.")] = 0,
    full: Annotated[
        bool, typer.Option("--full", help="Also 10,000 replies of random weights over 300 schemas: all must close.")
    ] = False,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest reply, in tokens.")] = 192,
    model: Annotated[str, typer.Option(help="reference-lm, a Hub id or a folder.")] = "reference-lm",
) -> None:
    """Function calls: transformers' generate, our plain loop, forced tokens skipped, and everything."""
    from mmspec_agent.bench.calls import CallsOptions, run

    from .bench import finish
    from .console import quiet_libraries
    from .progress import Bars

    quiet_libraries()
    options = CallsOptions(model, tasks, limit, dtype.value, max_new_tokens, outlines, full)
    with Bars() as bars:
        report = run(options, bars)
    finish(report, as_json)
