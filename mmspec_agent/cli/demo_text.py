"""The text part of `mmspec demo`: a streaming answer, who guessed which token, and the proof that nothing changed."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .console import Painter, Palette, quiet_libraries
from .demo import Stopwatch

if TYPE_CHECKING:
    from rich.console import Console

    from mmspec_agent.bench.arms import TextArms
    from mmspec_agent.reply import Reply

PROMPT = (
    "Turn this text into a bullet list. Use the words of the text.\n\n"
    "The harbour ferry sails every forty minutes from the old pier. Buy the ticket at the red kiosk before you board, "
    "because the crew does not sell any. Dogs travel free but must stay on the lower deck. In strong wind the ferry "
    "does not sail, and the kiosk then refunds the ticket."
)


@dataclass(frozen=True)
class Measured:
    """Seconds and tokens of each arm on the one prompt."""

    reply: "Reply"
    ours: float
    plain: float
    hf: float
    plain_tokens: list[int]
    hf_tokens: list[int]


class TextPart:
    """One prompt, three arms: ours on the screen, then transformers' generate and our plain loop."""

    title = "text"

    def __init__(self, model: str, dtype: str, max_new_tokens: int, prompt: str | None) -> None:
        self._model = model
        self._dtype = dtype
        self._new_tokens = max_new_tokens
        self._prompt = prompt or PROMPT

    def unavailable(self) -> str | None:
        """Text can always be shown; a model that is missing is an error of its own, which says how to get it."""
        return None

    def show(self, console: "Console") -> None:
        """Draw the part; figures come from this very run."""
        from rich.panel import Panel
        from rich.rule import Rule

        arms = self._load(console)
        console.print(Panel(self._prompt, title=f"prompt, to {self._model} in {self._dtype}", title_align="left"))
        console.print(Rule("answer, token by token", align="left", style="dim"))
        palette = Palette()
        measured = self._measure(arms, console, palette)
        console.print(Rule(style="dim"))
        console.print(palette.legend(measured.reply.stats.sources))
        self._figures(console, measured)

    def _load(self, console: "Console") -> "TextArms":
        with console.status(f"loading {self._model}, a first forward of each arm …"):
            from mmspec_agent.bench.arms import TextArms
            from mmspec_agent.models.resolve import load_model

            quiet_libraries()
            arms = TextArms(*load_model(self._model, dtype=self._dtype))
            arms.warm_up()
            return arms

    def _measure(self, arms: "TextArms", console: "Console", palette: Palette) -> Measured:
        from mmspec_agent.bench.arms import HF, PLAIN

        ours = Stopwatch()
        reply = self._stream(arms, console, palette, ours)
        ids = arms.encode([{"role": "user", "content": self._prompt}])
        plain, hf = Stopwatch(), Stopwatch()
        with console.status("the same answer from transformers' generate, then from our loop without drafts …"):
            by_hf = hf.call(lambda: arms.call(HF, ids, self._new_tokens))
            by_plain = plain.call(lambda: arms.call(PLAIN, ids, self._new_tokens))
        return Measured(reply, ours.seconds, plain.seconds, hf.seconds, by_plain.tokens, by_hf.tokens)

    def _stream(self, arms: "TextArms", console: "Console", palette: Palette, watch: Stopwatch) -> "Reply":
        from mmspec_agent.reply import Done, StepPiece

        painter = Painter(arms.tokenizer, palette)
        session = arms.ours.session()
        events = watch.over(session.stream(self._prompt, max_new_tokens=self._new_tokens))
        for event in events:
            if isinstance(event, StepPiece):
                console.print(painter.paint(event.tokens), end="", soft_wrap=True)
            elif isinstance(event, Done):
                console.print(painter.rest())
                return event.reply
        raise AssertionError("a stream ends with Done")

    def _figures(self, console: "Console", measured: Measured) -> None:
        stats = measured.reply.stats
        accepted = ", ".join(f"{name} {count}" for name, count in stats.sources.most_common())
        console.print(
            f"\n[b]{stats.emitted}[/] tokens in [b]{stats.forwards}[/] forwards of the model ({accepted}): "
            f"[b]{stats.tokens_per_step:.1f}[/] tokens a step"
        )
        console.print(
            f"[b]{_ratio(measured.hf, measured.hf_tokens, measured):.2f}×[/] the speed of transformers' generate, "
            f"[b]{_ratio(measured.plain, measured.plain_tokens, measured):.2f}×[/] that of our loop without drafts "
            f"(wall-clock, prompt included; {measured.ours:.1f} s, {measured.hf:.1f} s, {measured.plain:.1f} s)"
        )
        for name, tokens in (("transformers' generate", measured.hf_tokens), ("our plain loop", measured.plain_tokens)):
            console.print(comparison(name, measured.reply.token_ids, tokens, self._dtype))


def comparison(name: str, ours: list[int], theirs: list[int], dtype: str) -> str:
    """The line that says whether two answers have the same tokens, as markup; checked here, token by token."""
    from mmspec_agent.bench.repeats import first_difference

    at = first_difference(ours, theirs)
    if at is None:
        return f"[green]✓[/] tokens identical to {name}: {len(ours)} of {len(ours)} ({dtype}, checked)"
    if dtype == "fp32":
        return f"[red]✗[/] tokens differ from {name} at token {at + 1}: please report this (fp32)"
    return (
        f"[yellow]~[/] tokens equal to {name} up to token {at}; there a near-tie fell the other way, as it may in "
        f"{dtype}, where a forward of several tokens rounds differently (run with --dtype fp32)"
    )


def _ratio(seconds: float, tokens: list[int], measured: Measured) -> float:
    """Speed of ours over another arm's, per token."""
    per_token: float = seconds / max(1, len(tokens))
    return per_token / (measured.ours / max(1, len(measured.reply.token_ids)))
