"""The `mmspec` command: every group of sub-commands registers itself here."""

import sys
from typing import Annotated

import typer

from mmspec_agent.core.errors import MMSpecError

from . import ask, bench, call, chat, demo, doctor, draft, models, watch
from .wording import in_command_line_words


def build() -> typer.Typer:
    """The whole command line. Modules named here import torch and transformers only when a command runs."""
    app = typer.Typer(
        name="mmspec",
        help="Local language and vision-language models that answer sooner, with the same tokens.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    demo.register(app)
    chat.register(app)
    call.register(app)
    ask.register(app)
    watch.register(app)
    bench.register(app)
    doctor.register(app)
    draft.register(app)
    models.register(app)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"mmspec_agent {version('mmspec_agent')}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Options of the command itself; each acts through its callback."""


def main() -> None:
    """Entry point of the console script: errors of ours are one message and exit status 1, never a traceback."""
    try:
        build()()
    except MMSpecError as error:
        typer.secho(f"error: {in_command_line_words(str(error))}", fg=typer.colors.RED, err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
