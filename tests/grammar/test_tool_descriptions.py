"""Tools as people write them: every way to describe a parameter reaches the schema, every callable is read."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import functools
import random
from collections.abc import Callable
from typing import Annotated, Any, Literal, Optional, TypedDict

import pydantic
import pytest
from pydantic import Field

from mmspec_agent.core.errors import MMSpecError, OptionError, ToolError
from mmspec_agent.grammar.docstrings import read_docstring
from mmspec_agent.grammar.tools import Tool, read_tools


def read(tool: Any) -> Tool:
    return read_tools([tool])[0]


def properties(tool: Any) -> dict[str, Any]:
    return dict(read(tool).parameters["properties"])


def required(tool: Any) -> list[str]:
    return sorted(read(tool).parameters.get("required", []))


# -- how a parameter is described -------------------------------------------------------------------------------


def field_inside_annotated(q: Annotated[str, Field(description="what to find", min_length=3)]) -> None: ...


def field_as_default(q: str = Field(description="what to find", min_length=3)) -> None: ...


def text_inside_annotated(q: Annotated[str, "what to find", Field(min_length=3)]) -> None: ...


def docstring_and_constraint(q: Annotated[str, Field(min_length=3)]) -> None:
    """Find.

    Args:
        q: what to find
    """


class PydanticTool(pydantic.BaseModel):
    """Find something."""

    q: str = Field(description="what to find", min_length=3)


@dataclasses.dataclass
class DataclassTool:
    """Find something."""

    q: Annotated[str, Field(description="what to find", min_length=3)]


@pytest.mark.parametrize(
    "tool",
    [
        field_inside_annotated,
        field_as_default,
        text_inside_annotated,
        docstring_and_constraint,
        PydanticTool,
        DataclassTool,
    ],
    ids=lambda tool: str(tool.__name__),
)
def test_description_and_bounds_are_kept_however_they_are_written(tool: Any) -> None:
    assert properties(tool)["q"] == {"type": "string", "minLength": 3, "description": "what to find"}
    assert required(tool) == ["q"]


def test_what_stands_at_the_type_goes_before_the_docstring() -> None:
    def find(
        a: Annotated[int, Field(description="from the field")], b: Annotated[int, "from the text"], c: int
    ) -> None:
        """Find.

        Args:
            a: from the docstring
            b: from the docstring
            c: from the docstring
        """

    texts = {name: body["description"] for name, body in properties(find).items()}
    assert texts == {"a": "from the field", "b": "from the text", "c": "from the docstring"}


def test_a_class_is_described_by_its_own_words_alone() -> None:
    class Bare(pydantic.BaseModel):
        x: int

    @dataclasses.dataclass
    class BareData:
        x: int

    assert read(Bare).description == ""
    assert read(BareData).description == ""
    assert read(PydanticTool).description == "Find something."


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Place(TypedDict):
    city: str
    zip: int


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (Literal["a", "b"], {"enum": ["a", "b"], "type": "string"}),
        (Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}),  # noqa: UP045
        (list[str], {"items": {"type": "string"}, "type": "array"}),
        (Annotated[float, Field(gt=0)], {"exclusiveMinimum": 0, "type": "number"}),
    ],
)
def test_annotations_become_schemas(annotation: Any, expected: dict[str, Any]) -> None:
    def tool(x: Any) -> None: ...

    tool.__annotations__["x"] = annotation
    assert properties(tool)["x"] == expected


def test_enums_typed_dicts_and_models_as_parameters() -> None:
    def tool(colour: Colour, place: Place, model: PydanticTool, some: list[Place] | None = None) -> None: ...

    shown = read(tool).parameters
    assert set(shown["$defs"]) == {"Colour", "Place", "PydanticTool"}
    assert required(tool) == ["colour", "model", "place"]


def test_names_that_pydantic_keeps_for_itself() -> None:
    def tool(schema: str, copy: int, model_config: bool, _hidden: str, json: str = "x") -> None: ...

    assert sorted(properties(tool)) == ["_hidden", "copy", "json", "model_config", "schema"]
    assert required(tool) == ["_hidden", "copy", "model_config", "schema"]


# -- what may be a tool -----------------------------------------------------------------------------------------


def plain(a: int, b: str = "x") -> str:
    """Do it.

    Args:
        a: first
        b: second
    """
    return f"{a}{b}"


class Methods:
    def method(self, a: int, b: str = "x") -> None:
        """Do it."""

    @classmethod
    def of_class(cls, a: int, b: str = "x") -> None:
        """Do it."""

    @staticmethod
    def static(a: int, b: str = "x") -> None:
        """Do it."""

    def __call__(self, a: int, b: str = "x") -> None:
        """Do it."""


async def asynchronous(a: int, b: str = "x") -> None:
    """Do it."""


@functools.wraps(plain)
def decorated(*args: Any, **kwargs: Any) -> Any:
    return plain(*args, **kwargs)


def three(z: float, a: int, b: str = "x") -> None:
    """Do it."""


class WithConstructor:
    """Do it."""

    def __init__(self, a: int, b: str = "x") -> None: ...


class LangChainLike:
    name = "find"
    description = "Do it."

    class args_schema(pydantic.BaseModel):
        a: int
        b: str = "x"


class McpLike:
    name = "find"
    description = "Do it."
    inputSchema = {  # noqa: RUF012
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "string", "default": "x"}},
        "required": ["a"],
    }


CALLABLES: list[Any] = [
    plain,
    Methods().method,
    Methods.method,
    Methods.of_class,
    Methods.static,
    Methods(),
    asynchronous,
    decorated,
    functools.partial(three, 1.0),
    functools.partial(three, z=1.0),
    WithConstructor,
    LangChainLike(),
    McpLike(),
    {"name": "find", "description": "Do it.", "input_schema": McpLike.inputSchema},
    {"name": "find", "description": "Do it.", "inputSchema": McpLike.inputSchema},
    {"type": "function", "name": "find", "description": "Do it.", "parameters": McpLike.inputSchema, "strict": True},
    {"type": "function", "function": {"name": "find", "description": "Do it.", "parameters": McpLike.inputSchema}},
]


@pytest.mark.parametrize("tool", CALLABLES, ids=lambda tool: type(tool).__name__)
def test_every_form_of_tool_is_read_alike(tool: Any) -> None:
    assert read(tool).description == "Do it."
    assert {name: body["type"] for name, body in properties(tool).items()} == {"a": "integer", "b": "string"}
    assert required(tool) == ["a"]


def test_an_unknown_return_type_does_no_harm_and_an_unknown_parameter_is_named() -> None:
    def good(a: int) -> Any: ...

    good.__annotations__["return"] = "pd.DataFrame"
    assert required(good) == ["a"]

    def bad(a: int) -> None: ...

    bad.__annotations__["a"] = "Unknowable"
    with pytest.raises(ToolError, match="parameter 'a', 'Unknowable'"):
        read(bad)


def test_types_of_the_scope_a_tool_was_written_in() -> None:
    class Local(pydantic.BaseModel):
        x: int

    def tool(local: Local) -> Local:
        return Local(x=local.x)

    assert required(tool) == ["local"]


def test_defaults_that_json_cannot_show(recwarn: pytest.WarningsRecorder) -> None:
    def tool(a: Any = object(), b: Callable[..., Any] = print) -> None: ...  # noqa: B008

    with pytest.raises(ToolError, match="no JSON Schema"):
        read(tool)

    def other(a: Any = object()) -> None: ...  # noqa: B008

    assert required(other) == []
    assert not recwarn.list


@pytest.mark.parametrize(
    "tools",
    [plain, {"name": "find"}, "find", b"find", 5, 5.0, PydanticTool, read(plain), Methods(), print],
    ids=lambda value: f"{type(value).__name__}-{str(value)[:12]}",
)
def test_tools_that_are_no_list_are_an_option_error(tools: Any) -> None:
    with pytest.raises(OptionError, match="list"):
        read_tools(tools)


@pytest.mark.parametrize("tool", [None, 5, "x", [], lambda a: a, {}, {"function": 3}, print, dict, int, type, object()])
def test_what_is_no_tool_is_an_error_of_ours(tool: Any) -> None:
    with pytest.raises(MMSpecError):
        read_tools([tool])


def test_tools_out_of_any_iterable() -> None:
    assert [tool.name for tool in read_tools(tool for tool in (plain, three))] == ["plain", "three"]
    assert asyncio.iscoroutinefunction(read_tools((asynchronous,))[0].function)


# -- docstrings -------------------------------------------------------------------------------------------------

WORDS = ("the", "name", "of", "a", "city", "or: so", "(in metres)", "such as x", "0.5", "an order's id", "see y")


def google(title: str, entries: dict[str, str], rest: str) -> str:
    lines = [
        f"    {name}{kind}: {text}"
        for (name, text), kind in zip(entries.items(), ("", " (int)", " (str, optional)") * 9)
    ]
    return f"{title}:\n" + "\n".join(line.replace("\n", "\n        ") for line in lines) + rest


def numpy_style(title: str, entries: dict[str, str], rest: str) -> str:
    lines = [f"{name} : int\n    " + text.replace("\n", "\n    ") for name, text in entries.items()]
    return f"{title}\n{'-' * len(title)}\n" + "\n".join(lines) + rest


def sphinx(form: str, entries: dict[str, str], rest: str) -> str:
    return "\n".join(form.format(name) + " " + text.replace("\n", "\n    ") for name, text in entries.items()) + rest


def dashed(form: str, entries: dict[str, str], rest: str) -> str:
    lines = [f"    {form.format(name)} {text}" for name, text in entries.items()]
    return "Args:\n" + "\n".join(line.replace("\n", "\n        ") for line in lines) + rest


STYLES: dict[str, tuple[Callable[[str, dict[str, str], str], str], str, str]] = {
    **{
        title: (google, title, "\n\nReturns:\n    int: what: it is\n\nNote:\n    mind: this\n")
        for title in (
            "Args",
            "args",
            "Arguments",
            "Parameters",
            "Params",
            "Keyword Args",
            "Keyword Arguments",
            "Other Parameters",
        )
    },
    **{
        f"numpy {title}": (
            numpy_style,
            title,
            "\n\nReturns\n-------\nx : int\n    what it is\n\nNotes\n-----\nmind : this\n",
        )
        for title in ("Parameters", "Other Parameters")
    },
    **{
        form: (dashed, form, "\n\nReturns:\n    int: what: it is\n")
        for form in ("{} -", "{} --", "{} –", "{} —", "{} (int) --", "{} (str, optional) -", "*{} -")
    },
    "sphinx": (sphinx, ":param {}:", "\n:returns: what: it is\n:raises ValueError: never\n"),
    "sphinx typed": (sphinx, ":param int {}:", "\n:return: it\n"),
    "epytext": (sphinx, "@param {}:", "\n@return: it\n"),
}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("seed", range(8))
def test_every_style_gives_back_what_was_written(style: str, seed: int) -> None:
    rng = random.Random(f"{style}{seed}")
    names = rng.sample(["city", "limit", "deep", "x", "order_id", "returns", "kind"], rng.randint(1, 5))
    entries = {}
    for name in names:
        lines = [" ".join(rng.choices(WORDS, k=rng.randint(2, 5))) for _ in range(rng.randint(1, 3))]
        entries[name] = "\n".join(lines)
    build, title, rest = STYLES[style]
    text = f"Summary line.\n\nMore of it.\n\n{build(title, entries, rest)}"
    described = read_docstring(text, names)
    assert described.parameters == {name: " ".join(body.split()) for name, body in entries.items()}
    assert described.summary == "Summary line.\n\nMore of it."


@pytest.mark.parametrize(
    "text", ["", "One line.", "Two: parts.\n\nAnd: more of it.", "Warning: hot\n\nx: y", "a\n  b:\n c"]
)
def test_a_docstring_of_no_style_is_all_summary(text: str) -> None:
    described = read_docstring(text, ["city"])
    assert described.parameters == {}
    assert " ".join(described.summary.split()) == " ".join(text.split())
