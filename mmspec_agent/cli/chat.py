"""`mmspec chat`: a conversation in the terminal, or through a pipe."""

import sys
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from mmspec_agent.engine import Engine
    from mmspec_agent.reply import Event, Reply

HELP = "/quit ends, /stats shows what the last answer cost, /reset forgets the conversation, /help shows this"


def register(app: typer.Typer) -> None:
    """Add the command `chat` to the command line."""
    app.command("chat")(chat)


def chat(
    model: Annotated[str, typer.Option(help="reference-lm, a Hub id or a folder.")] = "reference-lm",
    dtype: Annotated[str, typer.Option(help="bf16, fp16, fp32, or auto (as stored).")] = "auto",
    system: Annotated[str | None, typer.Option(help="The system message.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 256,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Same seed, same answer.")] = 0,
    colors: Annotated[bool, typer.Option(help="Colour accepted draft tokens by their source.")] = False,
) -> None:
    """Talk to a model; the conversation's KV is kept. Reads a message a line when standard input is a pipe."""
    from rich.console import Console

    from mmspec_agent.engine import Engine

    from .console import quiet_libraries
    from .progress import Bars

    quiet_libraries()
    with Bars() as bars:
        bars.stage(f"loading {model}")
        engine = Engine.from_pretrained(model, dtype=dtype)
    options = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    Conversation(engine, system, options, Console(highlight=False), colors).run()


class Conversation:
    """The loop: read a line, answer it, until /quit or the end of input."""

    def __init__(
        self, engine: "Engine", system: str | None, options: dict[str, Any], console: "Console", colors: bool
    ) -> None:
        self._engine = engine
        self._system = system
        self._options = options
        self._console = console
        self._colors = colors
        self._interactive = sys.stdin.isatty()
        self._last: Reply | None = None
        self._session = engine.session(system=system, **options)

    def run(self) -> None:
        """Until the input ends."""
        if self._interactive:
            self._console.print(HELP, style="dim")
        for line in self._lines():
            if line == "/quit":
                return
            if line.startswith("/"):
                self._command(line)
            elif line:
                self._answer(line)

    def _lines(self) -> Iterator[str]:
        while True:
            try:
                line = input("> " if self._interactive else "")
            except EOFError:
                return
            except KeyboardInterrupt:
                if not self._interactive:
                    raise
                self._console.print("  (/quit ends)", style="dim")
                continue
            yield line.strip()

    def _command(self, line: str) -> None:
        if line == "/stats":
            self._stats()
        elif line == "/reset":
            self._session = self._engine.session(system=self._system, **self._options)
            self._last = None
            self._console.print("The conversation is forgotten.", style="dim")
        elif line == "/help":
            self._console.print(HELP, style="dim")
        else:
            self._console.print(f"There is no command {line}. {HELP}", style="yellow", markup=False)

    def _answer(self, line: str) -> None:
        """Stream one answer; Ctrl-C stops it, and the turn is then not part of the conversation."""
        from mmspec_agent.reply import Done, ReasoningPiece, StepPiece, TextPiece

        from .console import Painter, Palette

        painter = Painter(self._engine.tokenizer, Palette())
        stream = cast("Generator[Event]", self._session.stream(line))
        try:
            for event in stream:
                if isinstance(event, TextPiece) and not self._colors:
                    self._write(event.text)
                elif isinstance(event, ReasoningPiece) and not self._colors:
                    self._write(event.text, style="dim")
                elif isinstance(event, StepPiece) and self._colors:
                    self._write(painter.paint(event.tokens))
                elif isinstance(event, Done):
                    self._last = event.reply
            self._write(painter.rest())
        except KeyboardInterrupt:
            self._console.print("\n(stopped; the turn is forgotten)", style="dim")
            return
        finally:
            stream.close()
        self._console.print()

    def _write(self, text: Any, style: str | None = None) -> None:
        self._console.print(text, end="", markup=False, soft_wrap=True, style=style)

    def _stats(self) -> None:
        if self._last is None:
            self._console.print("No answer yet.", style="dim")
            return
        stats = self._last.stats
        sources = ", ".join(f"{name} {count}" for name, count in stats.sources.most_common())
        self._console.print(
            f"{stats.emitted} tokens in {stats.forwards} forwards, {stats.tokens_per_step:.2f} a step ({sources}); "
            f"prompt {stats.prompt_tokens} tokens, {stats.reused_tokens} of them kept from before; "
            f"{stats.emitted / max(stats.seconds, 1e-9):.1f} tokens a second",
            style="dim",
            markup=False,
        )
        for change, count in stats.ladder.items():
            self._console.print(f"{change} ({count}×)", style="dim", markup=False)
