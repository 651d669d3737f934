"""The video part of `mmspec demo`: the bundled clip, answered frame by frame, each answer drafted from the last."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from mmspec_agent.video.watch import WatchAnswer

NAME = "reference-vlm"
QUESTION = "What do you see in the picture?"
NEW_TOKENS = 48
FPS = 1.0


class VideoPart:
    """A clip watched twice: with drafts on the screen, then without, to time and to compare."""

    title = "video"

    def __init__(self, dtype: str, model: str = NAME) -> None:
        self._dtype = dtype
        self._model = model

    def unavailable(self) -> str | None:
        """The model for pictures has to be on this machine."""
        from mmspec_agent.models import catalog

        model = catalog.offline_model(self._model)
        if self._model == NAME and (model is None or not model.is_ready()):
            return f"{NAME} is not here yet: mmspec models get {NAME}"
        return None

    def show(self, console: "Console") -> None:
        """Draw the part; figures come from this very run."""
        from rich.rule import Rule
        from rich.text import Text

        from mmspec_agent.clip import bundled_clip
        from mmspec_agent.engine import Engine

        from .console import quiet_libraries
        from .watch_view import View

        quiet_libraries()
        with console.status(Text(f"loading {self._model} …")):
            engine = Engine.from_pretrained(self._model, dtype=self._dtype)
        console.print(Rule(f"video: {QUESTION}", align="left", style="dim"))
        options = {"fps": FPS, "max_new_tokens": NEW_TOKENS}
        ours: list[WatchAnswer] = []
        plain: list[WatchAnswer] = []
        with (
            engine.watch(bundled_clip(), QUESTION, **options) as watch,
            View(console, engine.tokenizer, watch, "clip") as view,
        ):
            for answer in watch:
                ours.append(answer)
                view.add(answer)
        with (
            console.status("the same clip without drafts …"),
            engine.watch(bundled_clip(), QUESTION, speculate=False, **options) as watch,
        ):
            plain.extend(watch)
        same = [a.token_ids for a in ours] == [a.token_ids for a in plain]
        seconds, slow = sum(a.seconds for a in ours), sum(a.seconds for a in plain)
        forwards, most = sum(a.stats.forwards for a in ours), sum(a.stats.forwards for a in plain)
        verdict = "[green]the same tokens[/]" if same else "[yellow]near-ties fell the other way[/]"
        console.print(
            f"answers in {seconds:.1f} s instead of {slow:.1f} s ({slow / max(seconds, 1e-9):.1f}×), "
            f"{forwards} forwards instead of {most}, {verdict}"
        )
