"""`mmspec demo`: one screen that shows what the engine does, measured and checked in the same run."""

from collections.abc import Callable, Iterator
from enum import StrEnum
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

if TYPE_CHECKING:
    from rich.console import Console


class Dtype(StrEnum):
    """Weights of the demo's model."""

    BF16 = "bf16"
    FP32 = "fp32"


class Part(Protocol):
    """A part of the demo: text here, pictures and clips where their models are at hand."""

    title: str

    def unavailable(self) -> str | None:
        """Why the part cannot be shown on this machine, None if it can."""

    def show(self, console: "Console") -> None:
        """Draw the part."""


def register(app: typer.Typer) -> None:
    """Add the command `demo` to the command line."""
    app.command("demo")(demo)


def demo(
    dtype: Annotated[
        Dtype, typer.Option(help="fp32: tokens must be identical. bf16: near-ties may fall the other way.")
    ] = Dtype.FP32,
    max_new_tokens: Annotated[int, typer.Option(min=8, help="Longest answer, in tokens.")] = 120,
    model: Annotated[str, typer.Option(help="reference-lm, a Hub id or a folder.")] = "reference-lm",
    prompt: Annotated[str | None, typer.Option(help="A prompt of your own.")] = None,
) -> None:
    """Watch a model answer sooner, with the same tokens."""
    from rich.console import Console

    from .console import quiet_libraries

    quiet_libraries()
    console = Console(highlight=False)
    for part in parts(model, dtype.value, max_new_tokens, prompt):
        reason = part.unavailable()
        if reason is not None:
            console.print(f"{part.title}: left out, {reason}", style="dim")
            continue
        part.show(console)


def parts(model: str, dtype: str, max_new_tokens: int, prompt: str | None) -> list[Part]:
    """What the demo shows, in order."""
    from .demo_picture import PicturePart
    from .demo_text import TextPart
    from .demo_video import VideoPart

    return [TextPart(model, dtype, max_new_tokens, prompt), PicturePart(dtype), VideoPart(dtype)]


class Stopwatch:
    """Counts the seconds spent inside an iterator, not those of whoever draws what it yields."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def over(self, items: Iterator[Any]) -> Iterator[Any]:
        """The items, with the clock running only while the next one is computed."""
        while True:
            started = perf_counter()
            try:
                item = next(items)
            except StopIteration:
                return
            finally:
                self.seconds += perf_counter() - started
            yield item

    def call(self, work: Callable[[], Any]) -> Any:
        """The result of one call under the clock."""
        started = perf_counter()
        result = work()
        self.seconds += perf_counter() - started
        return result
