"""Answers asked for in a form: tool calls, a response format, banned phrases (SYSTEM.md G4, G6, C12).

Turns the options of a request into one constraint and one reader; the grammar folder does the work.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from mmspec_agent.core.compliance import ComplianceProcessor
from mmspec_agent.core.constraint import ConstraintPlan
from mmspec_agent.core.errors import MMSpecError, OptionError, OutputInvalid
from mmspec_agent.grammar.choice import is_free
from mmspec_agent.grammar.constraint import GrammarPlan
from mmspec_agent.grammar.envelope import Envelope, prepare
from mmspec_agent.grammar.reading import CallDelta, CallReader
from mmspec_agent.grammar.reasoning import ReasonedPlan
from mmspec_agent.grammar.repeats import without_repeats
from mmspec_agent.grammar.sections import is_closed, section_left_open
from mmspec_agent.grammar.types import OutputType, output_type
from mmspec_agent.grammar.vocabulary import Vocabulary

from .options import ChatOptions
from .prompts import Answer, AnswerReader
from .reasoning_reader import ReasoningReader
from .reply import TextPiece, ToolCall, ToolCallPiece


@dataclass(frozen=True)
class Form:
    """How the answer has to look, how the prompt says so, and how it is read; see ``for_prompt``."""

    messages: list[dict[str, Any]]
    template_options: Mapping[str, Any]
    plan: ConstraintPlan | None = None
    reader: AnswerReader | None = None
    vocabulary: Vocabulary | None = None
    compliance: ComplianceProcessor | None = None

    def for_prompt(self, text: str, tokenizer: Any, eos_ids: Sequence[int]) -> Form:
        """The form behind the rendered prompt ``text``: a reasoning section that it ends in is closed first."""
        form = self
        if self.plan is not None and self.reader is not None and self.vocabulary is not None:
            plan, section = self.plan, section_left_open(text)
            answer = plan.answer if isinstance(plan, ReasonedPlan) else plan
            if section is not None:
                plan = ReasonedPlan(self.vocabulary, answer, section, is_open=True)
            elif is_closed(text):
                plan = answer
            reader = self.reader
            if isinstance(plan, ReasonedPlan):
                reader = ReasoningReader(reader, plan.section, plan.is_open)
            form = replace(self, plan=plan, reader=reader)
        if self.compliance is None:
            return form
        return replace(form, plan=self.compliance.plan(tokenizer, form.plan, eos_ids))


def form_of(tokenizer: Any, eos_ids: Sequence[int], messages: list[dict[str, Any]], options: ChatOptions) -> Form:
    """The form that ``options`` ask for."""
    form = Form(messages, {})
    if tokenizer is None:
        return form  # rendering the prompt says what is missing
    wanted = None
    if options.response_format is not None:
        wanted = output_type(
            options.response_format,
            separators="compact" if options.json_style == "compact" else "spaced",
            unsupported="validate" if options.unsupported == "validate" else "refuse",
        )
    calls = _has_calls(messages)
    if options.tools or calls or not is_free(options.tool_choice):
        form = _with_tools(tokenizer, eos_ids, messages, options, wanted)
    if wanted is not None and form.plan is None:
        vocabulary = Vocabulary.of(tokenizer, eos_ids)
        plan = wanted.compile(vocabulary)
        form = replace(form, plan=plan, reader=_FormatReader(wanted, plan), vocabulary=vocabulary)
    if options.compliance is not None:
        form = replace(form, compliance=_checked_compliance(options.compliance))
    return form


def _has_calls(messages: Sequence[Mapping[str, Any]]) -> bool:
    return any(message.get("tool_calls") or message.get("role") == "tool" for message in messages)


def _with_tools(
    tokenizer: Any,
    eos_ids: Sequence[int],
    messages: list[dict[str, Any]],
    options: ChatOptions,
    wanted: OutputType | None,
) -> Form:
    """Calls as ``tool_choice`` says; under auto, what is no call is a document of ``wanted``, if there is one."""
    tools = list(options.tools or ())
    choice = options.tool_choice if options.tool_choice is not None else ("auto" if tools else "none")
    vocabulary = Vocabulary.of(tokenizer, eos_ids) if tools else None
    written = None if wanted is None or vocabulary is None else wanted.compile(vocabulary)
    envelope = prepare(
        tokenizer,
        tools,
        tool_choice=choice,
        parallel_tool_calls=options.parallel_tool_calls,
        repeated_tool_calls=options.repeated_tool_calls,
        family=options.tool_format,
        eos_ids=eos_ids,
        separators="compact" if options.json_style == "compact" else "spaced",
        unsupported="validate" if options.unsupported == "validate" else "refuse",
        document=written,
    )
    shown = {"tools": envelope.template_tools} if envelope.template_tools is not None else {}
    reader = None
    if envelope.plan is not None:
        document = _FormatReader(wanted, written) if wanted is not None and envelope.choice == "auto" else None
        reader = _ToolReader(envelope, document, options.repeated_tool_calls)
    return Form(envelope.messages(messages), shown, envelope.plan, reader, vocabulary)


def _checked_compliance(compliance: Any) -> ComplianceProcessor:
    if isinstance(compliance, ComplianceProcessor):
        return compliance
    raise OptionError(
        f"compliance={compliance!r:.80}: accepted is mmspec_agent.ComplianceProcessor(phrases, refusal=…)"
    )


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
    """Tool calls out of the text, as events and whole; ``document`` reads what is no call.

    ``repeats``: whether the same call may come twice; if not, a call is shown once it is known to be a new one.
    """

    def __init__(self, envelope: Envelope, document: _FormatReader | None = None, repeats: bool = True) -> None:
        self._envelope = envelope
        self._document = document
        self._repeats = repeats
        # The section is read by ReasoningReader.
        self._reader: CallReader = replace(envelope, reasoning=None).reader()
        self._ids: list[str] = []
        self._held: list[CallDelta] = []

    def feed(self, text: str) -> list[ToolCallPiece | TextPiece]:
        found = self._reader.feed(text)
        return [self._piece(piece) for piece in (found if self._repeats else self._new(found))]

    def finish(self, text: str, finish: str) -> Answer:
        self._reader.finish()
        read = self._reader.reply
        if not read.calls and self._document is not None:
            return self._document.finish(text, finish)
        kept = read.calls if self._repeats else without_repeats(read.calls)
        calls = tuple(ToolCall(c.id, c.name, Written.of(c.arguments, c.arguments_text)) for c in kept)
        dropped = {"repeated_tool_calls": len(read.calls) - len(kept)} if len(kept) < len(read.calls) else {}
        return Answer(read.content, calls, notes={**self._checked(calls), **dropped})

    def _new(self, pieces: Sequence[str | CallDelta]) -> list[str | CallDelta]:
        """The pieces of calls that are whole and new; the others wait."""
        shown = [piece for piece in pieces if isinstance(piece, str)]
        self._held += [piece for piece in pieces if isinstance(piece, CallDelta)]
        whole = self._reader.reply.calls
        new = {call.id for call in without_repeats(whole)}
        ready = {index for index, call in enumerate(whole) if call.id in new}
        released = [piece for piece in self._held if piece.index in ready]
        self._held = [piece for piece in self._held if piece.index >= len(whole)]
        return [*shown, *released]

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

    def __init__(self, wanted: OutputType, plan: GrammarPlan | None) -> None:
        self._wanted = wanted
        self._plan = plan

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
            parsed = self._wanted.parse(text)
        except MMSpecError as error:
            cut = finish == "stop" and isinstance(error, OutputInvalid) and not _is_json(text)
            return Answer(text, notes={**notes, "invalid": _cut(text) if cut else str(error)})
        # A regular expression's or a grammar's text is handed out as it is, so it is read once more.
        if schema is None and self._plan is not None and not self._plan.accepts(text.encode()):
            reason = _cut(text) if finish == "stop" else f"The reply is no whole text of the {self._wanted.kind}"
            return Answer(text, notes={**notes, "invalid": reason})
        return Answer(text, (), parsed, notes)


def _cut(text: str) -> str:
    return f"A stop string or a stopping criterion cut the document: {text[-60:]!r}"


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
