"""What `mmspec watch` draws: a live panel where somebody looks, a line an answer in a log."""

from collections import Counter, deque
from time import monotonic
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from .console import Painter, Palette

if TYPE_CHECKING:
    from mmspec_agent.video.watch import Watch, WatchAnswer

_RECENT = 20


class Tally:
    """Running figures of a watch."""

    def __init__(self) -> None:
        self.started = monotonic()
        self.answers = 0
        self.sources: Counter[str] = Counter()
        self.gate: Counter[str] = Counter()
        self.lags: deque[float] = deque(maxlen=_RECENT)
        self.seconds: deque[float] = deque(maxlen=_RECENT)

    def add(self, answer: "WatchAnswer") -> None:
        """Take an answer into account."""
        self.answers += 1
        self.sources.update(answer.stats.sources)
        self.gate[answer.decision.reason] += 1
        self.lags.append(answer.lag_s)
        self.seconds.append(answer.seen.seconds + answer.seconds)

    @property
    def per_second(self) -> float:
        """Answers a second since the start."""
        return self.answers / max(monotonic() - self.started, 1e-6)

    @property
    def lag(self) -> float:
        """Median lag of the last answers, in seconds."""
        ordered = sorted(self.lags)
        return ordered[len(ordered) // 2] if ordered else 0.0


class View:
    """Shows answers as they come."""

    def __init__(self, console: Console, tokenizer: Any, watch: "Watch", name: str) -> None:
        self._console = console
        self._tokenizer = tokenizer
        self._watch = watch
        self._name = name
        self._palette = Palette()
        self._latest: dict[str, Text] = {}
        self.tally = Tally()
        self._width = console.width
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> "View":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
        self._console.print(self._summary())

    def add(self, answer: "WatchAnswer") -> None:
        """Show one answer."""
        self.tally.add(answer)
        painter = Painter(self._tokenizer, self._palette)
        text = painter.paint(answer.tokens)
        text.append_text(painter.rest())
        self._latest[answer.question] = text
        if self._live is None:
            self._console.print(self._line(answer), soft_wrap=True)
        else:
            self._fit_width()
            self._live.update(self._panel(answer), refresh=True)

    def _fit_width(self) -> None:
        """A narrower terminal has folded the panel's lines: what was drawn is wiped, and drawing begins anew."""
        width = self._console.width
        if width != self._width and self._live is not None:
            self._live.stop()
            self._console.clear()
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        self._width = width

    def _line(self, answer: "WatchAnswer") -> Text:
        changed = "*" if answer.changed else " "
        head = f"{answer.time_s:8.2f} s {changed} lag {answer.lag_s:5.2f} s  {answer.decision.reason:<13} "
        return Text.assemble((head, "dim"), answer.text.replace("\n", " "))

    def _panel(self, answer: "WatchAnswer") -> Group:
        stats, counts, tally = self._watch.source.stats, self._watch.counts, self.tally
        table = Table.grid(padding=(0, 2))
        decision = answer.decision
        ssim = "" if decision.ssim != decision.ssim else f"ssim {decision.ssim:.3f}, tile {decision.tile_min:.2f}, "
        hits = self.tally.gate["still"] / max(1, tally.answers)
        thinned = f", {stats.thinned} thinned" if stats.thinned else ""
        superseded = f", {stats.superseded} superseded" if self._watch.source.is_live else ""
        table.add_row("frames", f"{stats.grabbed} in, {counts.frames} seen{superseded}{thinned}")
        table.add_row("answers", f"{tally.answers}, {tally.per_second:.2f} a second, lag {tally.lag:.2f} s")
        table.add_row("gate", f"{decision.reason} ({ssim}{hits:.0%} hits)")
        step = f"{answer.stats.forwards} forwards for {answer.stats.emitted} tokens, frame {answer.seen.tokens} tokens"
        table.add_row("this answer", f"{step}, {answer.seen.vision_passes} vision passes")
        table.add_row("tokens by", self._by_source())
        body: list[Any] = [table]
        for question in self._watch.questions:
            if question in self._latest:
                body += [Text(f"\n{question}", style="dim"), self._latest[question]]
        # A Text is shown as it is: a name may hold what rich would read as markup.
        title = Text(f"{self._name} at {answer.time_s:.2f} s")
        return Group(Panel(Group(*body), title=title, title_align="left"))

    def _by_source(self) -> Text:
        total = max(1, sum(self.tally.sources.values()))
        parts: list[Any] = []
        for source, count in self.tally.sources.most_common():
            parts += [(f"■ {source} ", self._palette.style(source)), f"{count / total:.0%}  "]
        return Text.assemble(*parts) if parts else Text("-")

    def _summary(self) -> Text:
        tally, counts = self.tally, self._watch.counts
        text = f"{counts.frames} frames seen, {tally.answers} answers, median lag {tally.lag:.2f} s. Tokens by "
        return Text.assemble((text, "dim"), self._by_source())
