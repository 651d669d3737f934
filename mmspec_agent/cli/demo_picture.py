"""The picture part of `mmspec demo`: one picture, a few questions, and what each of them cost."""

from typing import TYPE_CHECKING, Any

from .console import Painter, Palette, quiet_libraries
from .demo import Stopwatch

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from mmspec_agent.bench.image_arms import Answered, ImageArms
    from mmspec_agent.reply import Reply
    from mmspec_agent.session import Session

NAME = "reference-vlm"
SEED = 920_000_017
QUESTIONS = ("How many things are in the picture?", "What is the background?", "Describe the picture in detail.")
NEW_TOKENS = 120
WIDTH, HEIGHT = 48, 24
"""Characters; each shows two pixels, one above the other."""


class PicturePart:
    """A rendered scene drawn in the terminal, asked about by a session and by transformers' generate."""

    title = "picture"

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype

    def unavailable(self) -> str | None:
        """The model for pictures has to be on this machine."""
        from mmspec_agent.models import catalog

        model = catalog.offline_model(NAME)
        if model is None or not model.is_ready():
            return f"{NAME} is not here yet: mmspec models get {NAME}"
        return None

    def show(self, console: "Console") -> None:
        """Draw the part; figures come from this very run."""
        from PIL import Image
        from rich.panel import Panel

        from mmspec_agent.models.scenes import random_scene

        image = Image.fromarray(random_scene(SEED, "objects").render())
        if console.color_system is not None and not console.no_color:
            # Without colours the half blocks would all be the same.
            console.print(Panel(_drawn(image), title=f"picture, to {NAME} in {self._dtype}", expand=False))
        arms = self._load(console)
        session = arms.engine.session(max_new_tokens=NEW_TOKENS)
        for index, question in enumerate(QUESTIONS):
            text = {"type": "text", "text": question}
            content: Any = [{"type": "image", "image": image}, text] if index == 0 else question
            self._ask(console, arms, session, {"role": "user", "content": content}, question)

    def _load(self, console: "Console") -> "ImageArms":
        from mmspec_agent.bench.image_arms import ImageArms
        from mmspec_agent.engine import Engine

        quiet_libraries()
        with console.status(f"loading {NAME} …"):
            return ImageArms(Engine.from_pretrained(NAME, dtype=self._dtype))

    def _ask(
        self, console: "Console", arms: "ImageArms", session: "Session", message: dict[str, Any], question: str
    ) -> None:
        console.print(f"\n> {question}", style="bold", markup=False)
        history = [*session.messages, message]
        clock = Stopwatch()
        reply = _stream(console, arms, session, message, clock)
        with console.status("the same from transformers' generate …"):
            theirs = arms.hf(history, NEW_TOKENS)
        console.print(_compared(reply, clock.seconds, theirs), style="dim", markup=False)


def _stream(
    console: "Console", arms: "ImageArms", session: "Session", message: dict[str, Any], clock: Stopwatch
) -> "Reply":
    from mmspec_agent.reply import Done, StepPiece

    painter = Painter(arms.engine.tokenizer, Palette())
    for event in clock.over(session.stream(message)):
        if isinstance(event, StepPiece):
            console.print(painter.paint(event.tokens), end="", soft_wrap=True)
        elif isinstance(event, Done):
            console.print(painter.rest())
            return event.reply
    raise AssertionError("a stream ends with Done")


def _compared(reply: "Reply", seconds: float, theirs: "Answered") -> str:
    """What a turn cost us and transformers, and whether the tokens are the same."""
    stats = reply.stats
    same = "the same tokens" if reply.token_ids == theirs.tokens else "other tokens (a near-tie fell the other way)"
    return (
        f"  ours {seconds:.2f} s: vision tower {stats.vision_passes}×, {stats.prefilled_tokens} of "
        f"{stats.prompt_tokens} prompt tokens read, {stats.forwards} forwards for {stats.emitted} tokens\n"
        f"  transformers {theirs.total:.2f} s: vision tower {theirs.vision_passes}×, {theirs.prefilled} prompt tokens "
        f"read; {same}"
    )


def _drawn(image: Any) -> "Text":
    """The picture in half blocks: two pixels a character."""
    from rich.text import Text

    small = image.resize((WIDTH, 2 * HEIGHT))
    text = Text()
    for row in range(HEIGHT):
        for column in range(WIDTH):
            above, below = small.getpixel((column, 2 * row)), small.getpixel((column, 2 * row + 1))
            text.append("▀", style="#{:02x}{:02x}{:02x} on #{:02x}{:02x}{:02x}".format(*above, *below))
        text.append("\n" if row < HEIGHT - 1 else "")
    return text
