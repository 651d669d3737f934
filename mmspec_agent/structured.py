"""Answers asked for in a form: tool calls, a response format, banned phrases (SYSTEM.md G4, G6, C12).

Turns the options of a request into one constraint and one reader; the grammar folder does the work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from mmspec_agent.core.compliance import ComplianceProcessor
from mmspec_agent.core.constraint import ConstraintPlan
from mmspec_agent.core.errors import MMSpecError, OptionError
from mmspec_agent.grammar.envelope import Envelope, prepare
from mmspec_agent.grammar.reading import CallDelta, CallReader
from mmspec_agent.grammar.types import OutputType, output_type
from mmspec_agent.grammar.vocabulary import Vocabulary

from .options import ChatOptions
from .prompts import Answer, AnswerReader
from .reply import TextPiece, ToolCall, ToolCallPiece


@dataclass(frozen=True)
class Form:
    """How the answer has to look, how the prompt says so, and how it is read."""

    messages: list[dict[str, Any]]
    template_options: Mapping[str, Any]
    plan: ConstraintPlan | None = None
    reader: AnswerReader | None = None


def form_of(tokenizer: Any, eos_ids: Sequence[int], messages: list[dict[str, Any]], options: ChatOptions) -> Form:
    """The form that ``options`` ask for. OptionError if tools and response_format are both forced."""
    form = Form(messages, {})
    if tokenizer is None:
        return form  # rendering the prompt says what is missing
    calls = _has_calls(messages)
    if options.tools or calls or options.tool_choice not in (None, "none", "auto"):
        form = _with_tools(tokenizer, eos_ids, messages, options)
    if options.response_format is not None:
        if form.plan is not None:
            raise OptionError(
                "response_format and tools with tool_choice other than 'none' both shape the answer; give one of "
                "them, or tool_choice='none'"
            )
        form = _with_format(tokenizer, eos_ids, form, options)
    if options.compliance is not None:
        form = _with_compliance(tokenizer, eos_ids, form, options.compliance)
    return form


def _has_calls(messages: Sequence[Mapping[str, Any]]) -> bool:
    return any(message.get("tool_calls") or message.get("role") == "tool" for message in messages)


def _with_tools(tokenizer: Any, eos_ids: Sequence[int], messages: list[dict[str, Any]], options: ChatOptions) -> Form:
    tools = list(options.tools or ())
    choice = options.tool_choice if options.tool_choice is not None else ("auto" if tools else "none")
    envelope = prepare(
        tokenizer,
        tools,
        tool_choice=choice,
        parallel_tool_calls=options.parallel_tool_calls,
        family=options.tool_format,
        eos_ids=eos_ids,
        separators="compact" if options.json_style == "compact" else "spaced",
        unsupported="validate" if options.unsupported == "validate" else "refuse",
    )
    shown = {"tools": envelope.template_tools} if envelope.template_tools is not None else {}
    reader = _ToolReader(envelope) if envelope.plan is not None else None
    return Form(envelope.messages(messages), shown, envelope.plan, reader)


def _with_format(tokenizer: Any, eos_ids: Sequence[int], form: Form, options: ChatOptions) -> Form:
    wanted = output_type(
        options.response_format,
        separators="compact" if options.json_style == "compact" else "spaced",
        unsupported="validate" if options.unsupported == "validate" else "refuse",
    )
    if wanted is None:
        return form
    plan = wanted.compile(Vocabulary.of(tokenizer, eos_ids))
    return Form(form.messages, form.template_options, plan, _FormatReader(wanted))


def _with_compliance(tokenizer: Any, eos_ids: Sequence[int], form: Form, compliance: Any) -> Form:
    if not isinstance(compliance, ComplianceProcessor):
        raise OptionError(
            f"compliance={compliance!r:.80}: accepted is mmspec_agent.ComplianceProcessor(phrases, refusal=…)"
        )
    plan = compliance.plan(tokenizer, form.plan, eos_ids)
    return Form(form.messages, form.template_options, plan, form.reader)


class Written(dict[str, Any]):
    """Arguments of a call that remember how they were written, so that the next prompt repeats them exactly."""

    text: str | None = None

    @classmethod
    def of(cls, arguments: Mapping[str, Any], text: str) -> Self:
        """``arguments``, read from ``text``."""
        written = cls(arguments)
        written.text = text
        return written


class _ToolReader:
    """Tool calls out of the text, as events and whole."""

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope
        self._reader: CallReader = envelope.reader()
        self._ids: list[str] = []

    def feed(self, text: str) -> list[ToolCallPiece | TextPiece]:
        return [self._piece(piece) for piece in self._reader.feed(text)]

    def finish(self, text: str, finish: str) -> Answer:
        self._reader.finish()
        read = self._reader.reply
        calls = tuple(ToolCall(c.id, c.name, Written.of(c.arguments, c.arguments_text)) for c in read.calls)
        return Answer(read.content, calls, notes=self._checked(calls))

    def _piece(self, piece: str | CallDelta) -> ToolCallPiece | TextPiece:
        if isinstance(piece, str):
            return TextPiece(piece)
        if piece.id is not None:
            self._ids.append(piece.id)
        return ToolCallPiece(piece.index, self._ids[piece.index], piece.name, piece.arguments)

    def _checked(self, calls: Sequence[ToolCall]) -> dict[str, Any]:
        """What is wrong with finished calls by their schemas as given, and what the grammar does not enforce."""
        unenforced = {t.name: [tuple(u) for u in t.arguments.unenforced] for t in self._envelope.tools}
        open_ones = {name: found for name, found in unenforced.items() if found}
        invalid: dict[str, str] = {}
        tools = {tool.name: tool for tool in self._envelope.tools}
        for call in calls:
            try:
                tools[call.name].arguments.check_text(getattr(call.arguments, "text", None) or "{}")
            except MMSpecError as error:
                invalid[call.id] = str(error)
        if open_ones:
            return {"unenforced": open_ones, "invalid": invalid}
        return {"invalid": invalid} if invalid else {}


class _FormatReader:
    """A document that parses to an object. One that does not fit is never thrown away: ``invalid`` says why."""

    def __init__(self, wanted: OutputType) -> None:
        self._wanted = wanted

    def feed(self, text: str) -> list[ToolCallPiece | TextPiece]:
        return [TextPiece(text)]

    def finish(self, text: str, finish: str) -> Answer:
        schema = self._wanted.schema
        notes: dict[str, Any] = {}
        if schema is not None and schema.unenforced:
            notes["unenforced"] = [tuple(place) for place in schema.unenforced]
        if finish == "content_filter":
            return Answer(text, notes=notes)
        try:
            return Answer(text, (), self._wanted.parse(text), notes)
        except MMSpecError as error:
            return Answer(text, notes={**notes, "invalid": str(error)})
