"""`mmspec doctor`: what this machine and this model allow, and what bounds them (SYSTEM.md M6)."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from mmspec_agent.doctor import Diagnosis


def register(app: typer.Typer) -> None:
    """Add the command `doctor` to the command line."""
    app.command("doctor")(doctor)


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
    model: Annotated[str, typer.Option(help="reference-lm, a Hub id or a folder.")] = "reference-lm",
    dtype: Annotated[str, typer.Option(help="bf16, fp16, fp32, or auto (as stored).")] = "auto",
    repeats: Annotated[int, typer.Option(min=1, help="Forwards of each size; medians are shown.")] = 5,
) -> None:
    """Versions, threads, dtypes, the cost of a forward by draft nodes, and what the controller makes of it."""
    from rich.console import Console

    from mmspec_agent.doctor import busy, examine
    from mmspec_agent.engine import Engine

    from .console import quiet_libraries
    from .progress import Bars

    quiet_libraries()
    with Bars() as bars:
        bars.stage(f"loading {model}")
        engine = Engine.from_pretrained(model, dtype=dtype)
        diagnosis = examine(engine, model, bars, repeats)
    warning = busy()
    if as_json:
        typer.echo(json.dumps({**diagnosis.as_dict(), "warning": warning}))
        return
    show(Console(), diagnosis)
    if warning is not None:
        typer.echo(f"note: {warning}")


def show(console: "Console", diagnosis: "Diagnosis") -> None:
    """The diagnosis as text and two tables."""
    from rich.table import Table

    machine, model = diagnosis.environment, diagnosis.model
    console.print(f"[b]machine[/]  {machine['processor']}, {machine['cores']} cores, {machine['threads']} threads")
    console.print(
        f"         {machine['platform']}, vector code {machine['cpu_capability']}, GPU {machine['cuda'] or '-'}"
    )
    console.print("[b]versions[/] " + ", ".join(f"{k} {v}" for k, v in machine["packages"].items()))
    console.print("[b]dtypes[/]   " + ", ".join(f"{k} {v}" for k, v in diagnosis.dtypes.items()))
    console.print(
        f"[b]model[/]    {model['name']} ({model['class']}, {model['dtype']} on {model['device']}, "
        f"{model['weight_bytes'] / 1e6:.0f} MB, read at {model['weight_gigabytes_per_second']} GB/s or less)\n"
    )
    first = min(diagnosis.seconds.values())
    costs = Table("draft nodes", "forward, ms", "plain steps", title="cost of a forward", title_justify="left")
    for rows, seconds in diagnosis.seconds.items():
        costs.add_row(str(rows - 1), f"{1000 * seconds:.1f}", f"{seconds / first:.2f}")
    console.print(costs)
    choices = Table(
        "acceptance", "nodes", "tokens a step", "speed", title="what the controller will choose", title_justify="left"
    )
    for choice in diagnosis.choices:
        choices.add_row(
            f"{choice.acceptance:.2f}", str(choice.nodes), f"{choice.tokens_per_step:.2f}", f"{choice.speed:.2f}×"
        )
    console.print(choices)
    console.print(f"engine time outside the forward at 16 nodes: {diagnosis.engine_share:.1%} of a step")
    console.print(f"[b]verdict[/]  {diagnosis.verdict}", soft_wrap=True)
