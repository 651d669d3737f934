"""`mmspec call`: one function call, or one JSON document, with every token coloured by state and by who paid."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from mmspec_agent.core.errors import OptionError

if TYPE_CHECKING:
    from rich.console import Console

    from mmspec_agent.reply import Reply, TokenInfo

SKIPPED, DRAFTED, TARGET, REFUSAL = "skipped", "drafted", "target", "refusal"

PAYERS = {
    SKIPPED: ("cyan", "the only legal token: no forward at all"),
    DRAFTED: ("bold green", "guessed, and verified in a forward that was run anyway"),
    TARGET: ("bold red", "the model's own token, one a forward"),
    REFUSAL: ("magenta", "refusal text in place of a banned phrase"),
}
STATES = {
    "START": "dim",
    "KEY_NAME": "bold blue",
    "COLON": "bright_black",
    "VALUE_START": "bright_black",
    "STRING": "green",
    "NUMBER": "bright_yellow",
    "LITERAL": "bright_magenta",
    "OBJECT": "bold cyan",
    "ARRAY": "bold magenta",
    "COMMA": "yellow",
    "END": "bold",
    "TEXT": "default",
    "REASONING": "italic",
    "REFUSAL": "red",
}


def register(app: typer.Typer) -> None:
    """Add the command `call` to the command line."""
    app.command("call")(call)


def call(
    question: Annotated[str, typer.Argument(help="What the user asks.")],
    tools: Annotated[
        Path | None, typer.Option(help='JSON file: a list of tools (OpenAI or MCP), {"tools": […]}, or one tool.')
    ] = None,
    schema: Annotated[Path | None, typer.Option(help="JSON file: the JSON Schema of the document to write.")] = None,
    tool_choice: Annotated[str, typer.Option(help="none, auto, required, or a tool's name.")] = "required",
    parallel: Annotated[bool, typer.Option(help="Whether one reply may hold several calls.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
    model: Annotated[str, typer.Option(help="reference-lm, a Hub id or a folder.")] = "reference-lm",
    dtype: Annotated[str, typer.Option(help="bf16, fp16, fp32, or auto (as stored).")] = "auto",
    system: Annotated[str | None, typer.Option(help="The system message.")] = None,
    family: Annotated[
        str | None,
        typer.Option(help="How calls are written: hermes, llama3, mistral, json, … (default: the template's)."),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer; it is closed within these.")] = 192,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Same seed, same answer.")] = 0,
) -> None:
    """Let a model call a function, or fill a schema; see which tokens cost a forward and which did not."""
    options = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    options |= _form(tools, schema, tool_choice, parallel, family)
    from rich.console import Console

    from mmspec_agent.engine import Engine

    from .console import quiet_libraries
    from .progress import Bars

    quiet_libraries()
    with Bars() as bars:
        bars.stage(f"loading {model}")
        engine = Engine.from_pretrained(model, dtype=dtype)
    reply = engine.session(system=system).send(question, **options)
    if as_json:
        typer.echo(json.dumps(as_dict(reply, engine.tokenizer), ensure_ascii=False))
    else:
        show(reply, engine.tokenizer, Console(highlight=False))


def _form(
    tools: Path | None, schema: Path | None, tool_choice: str, parallel: bool, family: str | None
) -> dict[str, Any]:
    """Options of the request; OptionError if neither or both of tools and schema are given."""
    if (tools is None) == (schema is None):
        raise OptionError("mmspec call takes either --tools FILE or --schema FILE, one of them")
    if schema is not None:
        return {"response_format": _read(schema, "--schema")}
    assert tools is not None
    offered = _read(tools, "--tools")
    if isinstance(offered, dict):
        offered = offered["tools"] if isinstance(offered.get("tools"), list) else [offered]
    if not isinstance(offered, list):
        raise OptionError(f"--tools {tools}: accepted is a JSON list of tools, not {type(offered).__name__}")
    return {"tools": offered, "tool_choice": tool_choice, "parallel_tool_calls": parallel, "tool_format": family}


def _read(path: Path, option: str) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OptionError(f"{option} {path}: not a readable JSON file ({error})") from error


def payer(source: str) -> str:
    """Who paid for a token: sources of drafters (``grammar:string0``) are all drafts."""
    return {"forced": SKIPPED, TARGET: TARGET, REFUSAL: REFUSAL}.get(source, DRAFTED)


def spelled(reply: "Reply", tokenizer: Any) -> list[tuple[str, "TokenInfo"]]:
    """Each token of the reply with the whole characters it completes; the end-of-sequence token is left out."""
    from mmspec_agent.text_stream import Detokenizer

    detokenizer = Detokenizer(tokenizer, skip_special_tokens=False)
    tokens = reply.tokens
    if tokens and tokens[-1].id == tokenizer.eos_token_id:
        tokens = tokens[:-1]
    return [(detokenizer.add([token.id]), token) for token in tokens]


def show(reply: "Reply", tokenizer: Any, console: "Console") -> None:
    """The reply twice, by who paid and by state, each with its legend; then what it cost."""
    tokens = spelled(reply, tokenizer)
    _print(console, "by who paid", tokens, lambda t: payer(t.source), lambda name: PAYERS[name][0], _paid_by)
    _print(console, "by state", tokens, lambda t: t.state, lambda name: STATES.get(name, "default"), _in_state)
    for made in reply.tool_calls:
        console.print(Text.assemble(("\n→ ", "dim"), (made.name, "bold"), f"({_arguments(made.arguments)})"))
    console.print(cost(reply), style="dim", markup=False, soft_wrap=True)
    for name, note in reply.notes.items():
        console.print(f"{name}: {note}", style="yellow", markup=False)


def cost(reply: "Reply") -> str:
    """Tokens, forwards and rows in one line."""
    stats = reply.stats
    return (
        f"\n{stats.emitted} tokens in {stats.forwards} forwards "
        f"({stats.emitted / max(1, stats.forwards):.1f} a forward); "
        f"{stats.decode_rows} rows after the prompt's {stats.prompt_tokens} tokens, {stats.drafted} drafted and "
        f"{stats.accepted} of them right; {stats.prefill_seconds:.2f} s for prompt and first forward, "
        f"{stats.decode_seconds:.2f} s after it; ended by {reply.finish_reason}"
    )


def _print(
    console: "Console",
    title: str,
    tokens: "Sequence[tuple[str, TokenInfo]]",
    group: "Callable[[TokenInfo], str]",
    style: Callable[[str], str],
    explain: "Callable[[str, Sequence[TokenInfo]], str]",
) -> None:
    """One rendering of the tokens, and a legend line for each group that occurs."""
    console.print(f"{title}:", style="dim")
    console.print(Text("").join(Text(text, style(group(token))) for text, token in tokens), soft_wrap=True)
    groups: dict[str, list[TokenInfo]] = {}
    for _, token in tokens:
        groups.setdefault(group(token), []).append(token)
    for name, members in groups.items():
        console.print(Text.assemble((f"  ■ {name}", style(name)), f"  {explain(name, members)}"), soft_wrap=True)


def _paid_by(name: str, members: "Sequence[TokenInfo]") -> str:
    drafters = Counter(token.source.partition(":")[0] for token in members)
    parts = ", ".join(f"{drafter} {count}" for drafter, count in drafters.most_common())
    return f"{len(members)}: {PAYERS[name][1]}" + (f" ({parts})" if name == DRAFTED else "")


def _in_state(name: str, members: "Sequence[TokenInfo]") -> str:
    return str(len(members))


def _arguments(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items())


def as_dict(reply: "Reply", tokenizer: Any) -> dict[str, Any]:
    """The reply for ``--json``: calls, text, parsed object, every token, counts."""
    return {
        "tool_calls": [made._asdict() for made in reply.tool_calls],
        "text": reply.text,
        "parsed": reply.parsed,
        "finish_reason": reply.finish_reason,
        "tokens": [
            {"id": token.id, "text": text, "state": token.state, "source": token.source, "paid_by": payer(token.source)}
            for text, token in spelled(reply, tokenizer)
        ],
        "paid_by": dict(Counter(payer(token.source) for token in reply.tokens)),
        "stats": reply.stats.as_dict(),
        "notes": reply.notes,
    }
