"""`mmspec draft`: drafts learned from what a model writes by itself."""

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the group `draft` to the command line."""
    group = typer.Typer(help="Drafts learned from a model's own text.", no_args_is_help=True)
    group.command("data")(data)
    group.command("store")(store)
    app.add_typer(group, name="draft")


def data(
    model: Annotated[str, typer.Argument(help="reference-lm, a Hub id, or a model folder.")],
    folder: Annotated[Path, typer.Argument(help="Where the dialogues go; a run there goes on.")],
    tokens: Annotated[
        int, typer.Option("--tokens", min=1, help="Answer tokens that the folder shall hold.")
    ] = 4_000_000,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Texts written side by side.")] = 64,
) -> None:
    """Let a model write dialogues by itself, its users' turns too (may be stopped and called again)."""
    from mmspec_agent.core.pool.corpus import write_dialogues
    from mmspec_agent.models.resolve import load

    from .console import quiet_libraries
    from .progress import Bars

    quiet_libraries()
    loaded = load(model)
    with Bars() as bars:
        bars.stage(f"{model} writes", float(tokens))
        stored = write_dialogues(
            loaded.model, loaded.tokenizer, model, folder, tokens, rows=rows, progress=bars.advance_to
        )
    count = sum(len(dialogue.answer) for dialogue in stored)
    typer.echo(f"{folder} holds {count:,} answer tokens in {len(stored.shards)} files")


def store(
    folder: Annotated[Path, typer.Argument(help="A folder of dialogues from `mmspec draft data`.")],
    out: Annotated[Path, typer.Argument(help="The store's file, *.safetensors.")],
    size: Annotated[str, typer.Option("--size", help="Largest size, such as 12MB.")] = "12MB",
) -> None:
    """Count a model's own text into a store that drafts from it."""
    from mmspec_agent.core.memory import parse_bytes
    from mmspec_agent.core.pool.corpus import store_of

    built = store_of(folder, parse_bytes(size) or 0)
    built.save(out)
    typer.echo(
        f"{out}: {built.bytes:,} bytes, {len(built.keys):,} contexts, {len(built.tokens):,} "
        f"continuations of {int(built.about['tokens']):,} answer tokens"
    )
