"""Tools, a choice and a template, made into one request: prompt, constraint and reader (SYSTEM.md G4)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from mmspec_agent.core.constraint import ConstraintPlan
from mmspec_agent.core.errors import OptionError, ToolError

from .auto import AutoPlan
from .calls import MAX_PARALLEL, calls_plan
from .choice import ToolChoice, choose
from .constraint import GrammarPlan
from .either import EitherPlan
from .families import FAMILIES, Family, family_of
from .history import render_history, text_of
from .reading import CallReader
from .reasoning import ReasonedPlan
from .repeats import UnrepeatedPlan
from .schema import Separators, Unsupported
from .sections import Section, section_of
from .tools import Tool, read_tools
from .vocabulary import Vocabulary

_INTRODUCTION: Final = "You can call these functions:\n%TOOLS%\n\n"
_HOW: Final = (
    'To call a function, reply with JSON and nothing else: {"name": <its name>, "arguments": {<argument>: <value>}}.'
)
_SEVERAL: Final = " To call several, write one such line for each."
_MAY: Final = " If no function helps, answer in plain text."
_MAY_IN_FORMAT: Final = " If no function helps, answer in the format asked for."


@dataclass(frozen=True)
class Envelope:
    """All that a request with tools needs.

    ``plan`` is None for ``tool_choice="none"``; the prompt shows the tools all the same, so that it depends on the
    tools alone. ``template_tools``: what to pass to the chat template as ``tools`` (None where the prompt says it
    in a system message of ours). ``in_format``: what is no call is a document instead of free text.
    """

    tools: tuple[Tool, ...]
    family: Family
    choice: str
    plan: ConstraintPlan | None
    template_tools: list[dict[str, Any]] | None
    reasoning: Section | None = None
    reasoning_open: bool = False
    parallel: bool = True
    in_format: bool = False

    def messages(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The conversation as the template can render it: tools introduced, calls and results in its terms."""
        rendered = render_history(messages, self.family)
        if self.family.own_prompt and self.tools:
            return _with_system(rendered, self._introduction())
        return rendered

    def _introduction(self) -> str:
        # "none" says what "required" says: a loop that ends with a plain answer keeps its prefix, and so its KV.
        lines = "\n".join(json.dumps(tool.as_openai()["function"], ensure_ascii=False) for tool in self.tools)
        text = _INTRODUCTION.replace("%TOOLS%", lines) + _HOW
        may = _MAY_IN_FORMAT if self.in_format else _MAY
        return text + (_SEVERAL if self.parallel else "") + (may if self.choice == "auto" else "")

    def reader(self) -> CallReader:
        """A reader of one reply."""
        return CallReader(self.family, [tool.name for tool in self.tools], self.reasoning, self.reasoning_open)


def prepare(
    tokenizer: Any,
    tools: Sequence[Any],
    *,
    tool_choice: ToolChoice = "auto",
    parallel_tool_calls: bool = True,
    family: str | None = None,
    eos_ids: Sequence[int] | None = None,
    separators: Separators = "spaced",
    unsupported: Unsupported = "refuse",
    reasoning: bool | None = None,
    max_calls: int = MAX_PARALLEL,
    repeated_tool_calls: bool = True,
    document: GrammarPlan | None = None,
) -> Envelope:
    """Prompt, constraint and reader for ``tools``.

    ``tool_choice``: none, auto, required, a tool's name, or a dict of an API (see ``choose``);
    ``parallel_tool_calls``: up to ``max_calls`` calls in one reply, else one; ``repeated_tool_calls``: whether one
    reply may hold the same call twice; ``family``: a format of FAMILIES instead of the template's; ``reasoning``:
    whether the reply may open with an unconstrained reasoning section (None: as the template says);
    ``document``: under auto, what the reply is where it is no call, instead of free text. Raises ToolError,
    SchemaError, OptionError.
    """
    offered = read_tools(tools, separators=separators, unsupported=unsupported)
    form = _family(tokenizer, family)
    chosen = choose(offered, tool_choice)
    _check_names(offered, form)
    section = _section(tokenizer, reasoning)
    several = parallel_tool_calls if chosen.several is None else chosen.several
    parallel = several and form.parallel and max_calls > 1
    shown = None if form.own_prompt or not offered else [tool.as_openai() for tool in offered]
    envelope = Envelope(offered, form, chosen.mode, None, shown, section, False, parallel, document is not None)
    if chosen.mode == "none":
        return envelope
    vocabulary = Vocabulary.of(tokenizer, eos_ids)
    most = min(max_calls, MAX_PARALLEL) if parallel else 1
    plan = _plan(vocabulary, chosen.tools, form, chosen.mode, most, document)
    if most > 1 and not repeated_tool_calls:
        plan = UnrepeatedPlan(vocabulary, plan, replace(envelope, reasoning=None).reader)
    return replace(envelope, plan=plan if section is None else ReasonedPlan(vocabulary, plan, section))


def _plan(
    vocabulary: Vocabulary,
    tools: Sequence[Tool],
    family: Family,
    mode: str,
    most: int,
    document: GrammarPlan | None,
) -> ConstraintPlan:
    if mode == "required":
        return calls_plan(vocabulary, tools, family, most)
    if document is not None:
        return EitherPlan((calls_plan(vocabulary, tools, family, most), document))
    calls = calls_plan(vocabulary, tools, family, most, skip=family.trigger)
    return AutoPlan(vocabulary, calls, family.trigger.encode())


def _section(tokenizer: Any, wanted: bool | None) -> Section | None:
    """The reasoning section that a reply may begin with."""
    known = section_of(_template(tokenizer))
    if wanted is None:
        return known
    return (known or Section("<think>", "</think>")) if wanted else None


def _family(tokenizer: Any, name: str | None) -> Family:
    if name is None:
        return family_of(_template(tokenizer), getattr(tokenizer, "response_template", None))
    if name not in FAMILIES:
        raise OptionError(f"family={name!r} is unknown; accepted are {', '.join(FAMILIES)}.")
    return FAMILIES[name]


def _template(tokenizer: Any) -> str:
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, dict):
        template = template.get("tool_use") or template.get("default")
    return template or ""


def _check_names(tools: Sequence[Tool], family: Family) -> None:
    for tool in tools:
        if not re.fullmatch(family.name_pattern, tool.name):
            raise ToolError(
                f"Tool name {tool.name!r} is not legal for the {family.name} format; accepted is "
                f"{family.name_pattern}. Rename the tool."
            )


def _with_system(messages: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    if messages and messages[0].get("role") == "system":
        first = dict(messages[0])
        first["content"] = f"{text_of(first)}\n\n{text}"
        return [first, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]
