"""An agent that loops: the model picks a tool, the tool runs, its result goes back, and every call is valid JSON.

Three local tools (a calculator, a file search, a query of a SQLite table) are plain Python functions. The session
keeps its KV, so each turn computes only what is new, and earlier calls serve as drafts of the next one.
"""

import ast
import operator
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pydantic

from mmspec_agent import Engine

FOLDER = Path(tempfile.mkdtemp())
(FOLDER / "invoice_miller.txt").write_text("Invoice for Miller, 12 lamps, paid.")
(FOLDER / "invoice_rossi.txt").write_text("Invoice for Rossi, 3 chairs, open.")
(FOLDER / "notes.txt").write_text("Call the carpenter about the chairs.")

ORDERS = sqlite3.connect(":memory:")
ORDERS.execute("create table orders (customer text, item text, amount integer, price real)")
ORDERS.executemany(
    "insert into orders values (?, ?, ?, ?)", [("Miller", "lamp", 12, 49.5), ("Rossi", "chair", 3, 80.0)]
)

OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def calculate(expression: str) -> str:
    """Calculate an arithmetic expression.

    Args:
        expression: For example 3 * 4.5
    """

    def value(node: ast.expr) -> float:
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return float(OPERATORS[type(node.op)](value(node.left), value(node.right)))
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            return node.value
        raise ValueError(f"not arithmetic: {ast.unparse(node)}")

    return f"{value(ast.parse(expression, mode='eval').body):g}"


def search_files(word: str) -> str:
    """Search the folder for files that contain a word.

    Args:
        word: The word to search for.
    """
    found = [path.name for path in sorted(FOLDER.iterdir()) if word.lower() in path.read_text().lower()]
    return ", ".join(found) or "no file"


def find_orders(customer: str) -> str:
    """Find the orders of a customer in the database.

    Args:
        customer: Name of the customer.
    """
    rows = ORDERS.execute("select item, amount, price from orders where customer = ?", [customer]).fetchall()
    return "; ".join(f"{amount} x {item} at {price:g}" for item, amount, price in rows) or "no orders"


class Answer(pydantic.BaseModel):
    """What the agent reports in the end."""

    customer: str
    item: str
    amount: int


TOOLS = {tool.__name__: tool for tool in (calculate, search_files, find_orders)}
STEPS = (
    "Find the orders of customer Miller in the database.",
    "Calculate 12 * 49.5",
    "Search the folder for files that contain the word lamps.",
    "Calculate 3 * 80",
    "Search the folder for files that contain the word chairs.",
    "Find the orders of customer Rossi in the database.",
)


def run(name: str, arguments: dict[str, Any]) -> str:
    """The tool's result, or its error as text: the model may have written nonsense, the loop goes on."""
    try:
        return TOOLS[name](**arguments)
    except (ValueError, SyntaxError, ArithmeticError, sqlite3.Error) as error:
        return f"error: {error}"


def main() -> None:
    """Each step: one call by the model, one result by the tool."""
    engine = Engine.from_pretrained("reference-lm")
    session = engine.session(
        tools=list(TOOLS.values()), tool_choice="required", parallel_tool_calls=False, max_new_tokens=80
    )
    news: list[dict[str, Any]] = []
    tokens = forwards = 0
    for step in STEPS:
        reply = session.send([*news, {"role": "user", "content": step}])
        call = reply.tool_calls[0]
        result = run(call.name, call.arguments)
        news = [{"role": "tool", "name": call.name, "tool_call_id": call.id, "content": result}]
        stats = reply.stats
        tokens, forwards = tokens + stats.emitted, forwards + stats.forwards
        print(f"> {step}\n  {call.name}({call.arguments}) -> {result}")
        print(f"  [{stats.emitted} tokens in {stats.forwards} forwards;", end=" ")
        print(f"{stats.reused_tokens} of {stats.prompt_tokens} prompt tokens kept from before]")
    question = {"role": "user", "content": "What did Rossi order? Answer as JSON with customer, item and amount."}
    reply = session.send([*news, question], tool_choice="none", response_format=Answer)
    print(f"> {question['content']}\n  {reply.parsed!r}")
    tokens, forwards = tokens + reply.stats.emitted, forwards + reply.stats.forwards
    print(f"\n{len(STEPS)} calls and an answer: {tokens} tokens in {forwards} forwards, all of it valid JSON")


if __name__ == "__main__":
    main()
