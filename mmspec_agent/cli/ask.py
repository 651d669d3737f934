"""`mmspec ask`: questions about pictures, from the terminal."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmspec_agent.core.errors import OptionError

PICTURE_SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif", ".heic", ".ppm"}
)

if TYPE_CHECKING:
    from rich.console import Console

    from mmspec_agent.reply import Reply
    from mmspec_agent.session import Session


def register(app: typer.Typer) -> None:
    """Add the command `ask` to the command line."""
    app.command("ask")(ask)


def ask(
    words: Annotated[
        list[str], typer.Argument(metavar="PICTURE... QUESTION", help="One or more picture files, then the question.")
    ],
    then: Annotated[
        list[str] | None, typer.Option("--then", help="A follow-up question; may be given several times.")
    ] = None,
    model: Annotated[str, typer.Option(help="reference-vlm, a Hub id or a folder.")] = "reference-vlm",
    dtype: Annotated[str, typer.Option(help="bf16, fp16, fp32, or auto (as stored).")] = "auto",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 160,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Same seed, same answer.")] = 0,
    allow_remote: Annotated[bool, typer.Option("--allow-remote", help="Fetch pictures from http(s) URLs.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a question, with what it cost.")] = False,
) -> None:
    """Ask about pictures. Follow-ups read neither the picture nor the conversation again."""
    from mmspec_agent.engine import Engine
    from mmspec_agent.pictures import PictureRules, load_picture

    from .console import quiet_libraries
    from .progress import Bars

    files, question = _split(words)
    # Before the model is loaded: a wrong path should not cost that time.
    rules = PictureRules(allow_remote, remote_hint="pass --allow-remote")
    pictures = [load_picture(_source(file), rules) for file in files]
    quiet_libraries()
    with Bars() as bars:
        bars.stage(f"loading {model}")
        engine = Engine.from_pretrained(model, dtype=dtype)
    session = engine.session(max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
    parts: list[dict[str, Any]] = [{"type": "image", "image": picture} for picture in pictures]
    first = {"role": "user", "content": [*parts, {"type": "text", "text": question}]}
    _converse(session, [(question, first), *((text, text) for text in then or ())], as_json)


def _converse(session: "Session", turns: list[tuple[str, Any]], as_json: bool) -> None:
    """Each question and its answer, on the screen or as a line of JSON."""
    from rich.console import Console

    console = Console(highlight=False)
    for text, message in turns:
        reply = _answer(session, message, console, as_json)
        if as_json:
            typer.echo(json.dumps({"question": text, "answer": reply.text, "stats": reply.stats.as_dict()}))
        else:
            console.print(f"\n{_cost(reply)}", style="dim", markup=False)


def _split(words: list[str]) -> tuple[list[str], str]:
    """The pictures and the question. OptionError if the last word is a picture too, or the first one the question."""
    *files, question = words
    missing = "a question" if _names_picture(question) else "a picture" if not files else ""
    if missing or not question.strip():
        raise OptionError(
            f"mmspec ask lacks {missing or 'a question'}; pictures come first and the question last: "
            f"mmspec ask {' '.join(files) or 'picture.png'} 'What is in it?'"
        )
    return files, question


def _names_picture(word: str) -> bool:
    """Whether a word is a picture's path or URL, be it there or not, rather than a question."""
    if word.lower().startswith(("http:", "https:", "file:", "data:")):
        return True
    if " " not in word and Path(word).suffix.lower() in PICTURE_SUFFIXES:
        return True
    try:
        return Path(word).expanduser().is_file()
    except (OSError, ValueError, RuntimeError):
        return False


def _source(file: str) -> str | Path:
    """A file that is there is read as one, whatever its name looks like."""
    return Path(file) if "://" not in file and not file.lower().startswith("data:") else file


def _answer(session: "Session", message: Any, console: "Console", quiet: bool) -> "Reply":
    """Stream one answer to the screen, unless it goes out as JSON."""
    from mmspec_agent.reply import Done, TextPiece

    for event in session.stream(message):
        if isinstance(event, TextPiece) and not quiet:
            console.print(event.text, end="", markup=False, soft_wrap=True)
        elif isinstance(event, Done):
            return event.reply
    raise AssertionError("a stream ends with Done")


def _cost(reply: "Reply") -> str:
    """One line: what was looked at, read and computed."""
    stats = reply.stats
    return (
        f"  vision tower ran {stats.vision_passes}×, {stats.prefilled_tokens} of {stats.prompt_tokens} prompt tokens "
        f"read, {stats.emitted} tokens in {stats.forwards} forwards, {stats.seconds:.2f} s"
    )
