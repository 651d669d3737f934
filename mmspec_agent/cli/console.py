"""What the terminal commands share: colours of token sources, a painter of streamed tokens, dtype and threads."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

if TYPE_CHECKING:
    from mmspec_agent.reply import TokenInfo

STYLES = {
    "target": "default",
    "ngram": "bold green",
    "forced": "cyan",
    "previous-answer": "bold yellow",
    "refusal": "red",
}
OTHER_STYLES = ("bold magenta", "bold blue", "bold bright_cyan", "bold bright_yellow")

MEANINGS = {
    "target": "the model's own token, one a forward",
    "ngram": "accepted draft: seen before in prompt or answer",
    "forced": "the only legal token: no forward needed",
    "previous-answer": "accepted draft: the answer before",
    "refusal": "refusal text in place of a banned phrase",
}


class Palette:
    """A style for every source of tokens; drafters of one's own get the free colours in order of appearance."""

    def __init__(self) -> None:
        self._styles = dict(STYLES)

    def style(self, source: str) -> str:
        """The style of tokens from ``source``."""
        if source not in self._styles:
            used = len(self._styles) - len(STYLES)
            self._styles[source] = OTHER_STYLES[used % len(OTHER_STYLES)]
        return self._styles[source]

    def legend(self, sources: Iterable[str]) -> Text:
        """One line a source: its colour and what it means."""
        lines = []
        for source in sources:
            meaning = MEANINGS.get(source, f"accepted draft of the drafter {source!r}")
            lines.append(Text.assemble((f"  ■ {source}", self.style(source)), f"  {meaning}"))
        return Text("\n").join(lines)


class Painter:
    """Turns the tokens of a stream into coloured text, whole characters only."""

    def __init__(self, tokenizer: Any, palette: Palette) -> None:
        from mmspec_agent.text_stream import Detokenizer

        self._detokenizer = Detokenizer(tokenizer)
        self._palette = palette
        self.counts: Counter[str] = Counter()

    def paint(self, tokens: "Sequence[TokenInfo]") -> Text:
        """The text that ``tokens`` complete, each in the colour of its source."""
        text = Text()
        for token in tokens:
            self.counts[token.source] += 1
            text.append(self._detokenizer.add([token.id]), self._palette.style(token.source))
        return text

    def rest(self) -> Text:
        """What is left at the end."""
        return Text(self._detokenizer.flush())


def quiet_libraries() -> None:
    """Keep transformers' loading bars and advice off a screen that has its own."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
