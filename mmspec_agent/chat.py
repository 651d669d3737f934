"""One chat request from messages to reply, as a stream of events."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from transformers import StoppingCriteriaList

from mmspec_agent.core.compliance import FREE_STATES
from mmspec_agent.core.decode import Decoder, Emitted, OpenDrafter, Request, Step
from mmspec_agent.core.drafters.prediction import PredictionDrafter, PredictionState
from mmspec_agent.core.errors import PromptError
from mmspec_agent.core.memory import check_request
from mmspec_agent.core.noise import ReplyNoise
from mmspec_agent.core.sampling import IdBuffer, Sampler
from mmspec_agent.core.stats import DecodeStats
from mmspec_agent.core.trace import open_trace
from mmspec_agent.core.visual.compress import LOSSY_NAME as VISUAL_TOKENS
from mmspec_agent.core.visual.placing import Placed
from mmspec_agent.grammar.reasoning import REASONING

from .chat_rules import (
    StopCheck,
    eos_ids,
    merged_config,
    processing,
    room,
    stop_strings,
    template_options,
)
from .conversation import Conversation
from .options import ChatOptions
from .pictures import PictureRules, extract
from .prompts import Answer, Prompt, flatten_text, normalise_messages, render
from .reply import Done, Event, ReasoningPiece, Reply, StepPiece, TextPiece, TokenInfo, ToolCallPiece
from .structured import form_of
from .text_stream import Stopped, TextStream

if TYPE_CHECKING:
    from .engine import Engine


class ChatRun:
    """A request being served: owns its text, its options and its place in the conversation."""

    def __init__(
        self, engine: Engine, conversation: Conversation, messages: Sequence[Any] | str, options: ChatOptions
    ) -> None:
        self._engine = engine
        self._conversation = conversation
        self._options = options
        self._config = merged_config(engine.model, options)
        self._eos_ids = eos_ids(self._config)
        self._continued = ""
        self._prompt = self._render(messages)
        # Markers of tool calls are special tokens in some families; their reader needs to see them.
        stops = stop_strings(self._config, options)
        self._text = TextStream(engine.tokenizer, stops, self._prompt.reader is None)
        self._prediction: PredictionState | None = None
        self._tokens: list[TokenInfo] = []
        self._cut = False
        self._state = ""

    def events(self) -> Iterator[Event]:
        """Decode; an early close leaves the conversation usable, with what was decoded."""
        decoder = self._decoder()
        prompt_length = len(self._conversation.tokens)
        finish: str | None = None
        self._state = decoder.request.constraint.state if decoder.request.constraint is not None else ""
        for step in decoder.steps():
            self._tokens += [_info(e) for e in step.emitted]
            said = [e for e in step.emitted if e.token not in self._eos_ids]
            stopped = self._text.add([e.token for e in said], [self._is_guarded(e) for e in said])
            yield StepPiece(tuple(_info(e) for e in step.emitted), step.record)
            self._keep_segments()
            finish = step.finish
            if stopped is not None:
                self._stop(stopped, prompt_length, decoder)
                finish = "stop"
                break
            yield from self._pieces(self._text.piece(self._held_back(decoder, step)))
        yield from self._pieces(self._text.finish(stopped=stopped is not None))
        yield Done(self._reply(decoder, finish or "length"))

    def _is_guarded(self, emitted: Emitted) -> bool:
        """Whether a token belongs to a tool call, or to the reasoning before an answer in a form.

        Stop strings end what is said, never these. A token's state is the one behind it, so that the token which
        closes the section is known by the state before.
        """
        before, self._state = self._state, emitted.state
        if REASONING in (before, emitted.state):
            return self._prompt.reader is not None
        return bool(self._options.tools) and emitted.state not in FREE_STATES

    @property
    def prompt(self) -> Prompt:
        """The rendered prompt, with the constraint and the reader of its answer."""
        return self._prompt

    def _pieces(self, text: str) -> Sequence[TextPiece | ToolCallPiece | ReasoningPiece]:
        if not text:
            return ()
        return [TextPiece(text)] if self._prompt.reader is None else self._prompt.reader.feed(text)

    def _render(self, messages: Sequence[Any] | str) -> Prompt:
        engine, options = self._engine, self._options
        rules = PictureRules(options.allow_remote, options.allow_local)
        shown, pictures = extract(normalise_messages(messages), rules)
        vision = engine.vision if pictures else engine.vision_or_none
        normal = flatten_text(shown, keep_pictures=vision is not None)
        if vision is not None:
            normal = vision.without_written_placeholders(normal)
        form = form_of(engine.tokenizer, sorted(self._eos_ids), normal, options)
        self._continued = _continued(form.messages) if options.continue_final_message else ""
        template = getattr(engine.processor, "chat_template", None) or getattr(engine.tokenizer, "chat_template", "")
        shown_options = {**template_options(options, template), **form.template_options}
        if vision is None:
            text = render(engine.tokenizer, form.messages, **shown_options)
            form = form.for_prompt(text, engine.tokenizer, sorted(self._eos_ids))
            return Prompt(text, form.messages, form.plan, form.reader)
        text, inputs = vision.render(form.messages, pictures, options.lossy_visual_tokens, **shown_options)
        form = form.for_prompt(text, engine.tokenizer, sorted(self._eos_ids))
        return Prompt(text, form.messages, form.plan, form.reader, inputs)

    def _encode(self) -> tuple[list[int], tuple[Placed, ...]]:
        """Ids of the prompt, and where its pictures lie among them."""
        tokenizer, vision = self._engine.tokenizer, self._engine.vision_or_none
        if vision is None:
            return self._conversation.encode(tokenizer, self._prompt.text), ()
        return self._conversation.encode_with_pictures(vision, tokenizer, self._prompt.text, self._prompt.pictures)

    def _see(self, stats: DecodeStats) -> None:
        """Bring the prompt's pictures into the cache, from what is stored or through the vision tower."""
        vision = self._engine.vision_or_none
        if vision is not None:
            vision.absorb(self._conversation, stats, self._options.cancelled)

    def _keep_segments(self) -> None:
        vision = self._engine.vision_or_none
        if vision is not None:
            self._conversation.save_segments(vision)

    def _decoder(self) -> Decoder:
        engine, options, conversation = self._engine, self._options, self._conversation
        ids, placed = self._encode()
        if not ids:
            raise PromptError("the prompt is empty after the chat template; pass at least one message with text")
        limit = room(self._config, options, len(ids), engine.target.context_limit)
        if engine.target.length_rule is not None:
            engine.target.length_rule.check(type(engine.model).__name__, [len(ids)], len(ids), limit)
        check_request(engine.target, engine.memory_budget, len(ids), limit, engine.controller.max_nodes)
        config = copy.deepcopy(self._config)
        config.max_length = len(ids) + limit
        shown = IdBuffer(ids, engine.target.device)
        rules = processing(engine.model, engine.tokenizer, config, options, shown.view().clone())
        conversation.rendered = ""
        reused = conversation.reuse(ids, placed)
        criteria = StoppingCriteriaList(options.stopping_criteria)
        request = Request(
            conversation.tokens,
            Sampler(rules, ReplyNoise(options.seed), shown),
            StopCheck(shown, self._eos_ids, limit, criteria, config.max_time),
            limit,
            self._prompt.plan.open(limit) if self._prompt.plan is not None else None,
            mode=options.mode,
            beta=options.beta,
            gamma=options.lossy_gamma or options.gamma,
            cancelled=options.cancelled,
            skip_forced=options.skip_forced,
            placeholder_ids=engine.target.placeholder_ids,
            vocab_size=engine.target.vocab_size,
        )
        drafters = [*conversation.drafters, *self._predicting()] if options.speculate else []
        decoder = Decoder(conversation.sequence, request, drafters, engine.controller, trace=open_trace(options.trace))
        decoder.stats.prompt_tokens, decoder.stats.reused_tokens = len(ids), reused
        self._see(decoder.stats)
        if options.lossy_gamma is not None:
            decoder.stats.lossy.append(f"lossy_gamma={options.lossy_gamma}")
        if options.lossy_visual_tokens is not None and placed:
            given = f"{VISUAL_TOKENS}={options.lossy_visual_tokens}"
            others = [name for name in decoder.stats.lossy if name != VISUAL_TOKENS]
            decoder.stats.lossy = [*others, given]
        return decoder

    def _predicting(self) -> list[OpenDrafter]:
        """The drafter of the text that is expected to come back, if there is one."""
        text = self._options.predicted_text
        if text is None:
            return []
        ids = self._engine.tokenizer.encode(text, add_special_tokens=False)
        drafter = PredictionDrafter(tuple(int(i) for i in ids))
        self._prediction = drafter.open()
        return [OpenDrafter(drafter, self._prediction)]

    def _stop(self, stopped: Stopped, prompt_length: int, decoder: Decoder) -> None:
        """A stop string ended the reply inside a step: what came behind it is forgotten."""
        del self._tokens[stopped.tokens :]
        self._conversation.keep_tokens(prompt_length + stopped.tokens)
        self._cut = True
        decoder.stats.emitted = stopped.tokens

    def _held_back(self, decoder: Decoder, step: Step) -> int:
        constraint = decoder.request.constraint
        return constraint.held_back if constraint is not None and step.finish is None else 0

    def _reply(self, decoder: Decoder, finish: str) -> Reply:
        text = self._text.text
        # After a stop string the ids say more than the text: the next prompt has to be encoded anew.
        self._conversation.rendered = "" if self._cut else self._prompt.text + text
        reader = self._prompt.reader
        answer = Answer(text) if reader is None else reader.finish(text, finish)
        if answer.tool_calls and finish == "stop":
            finish = "tool_calls"
        logprobs = tuple(t.logprob or 0.0 for t in self._tokens) if self._options.logprobs else None
        if self._prediction is not None:
            decoder.stats.prediction_accepted = self._prediction.accepted
            decoder.stats.prediction_rejected = self._prediction.rejected
        return Reply(
            answer.text,
            [t.id for t in self._tokens],
            finish,
            decoder.stats,
            tuple(self._tokens),
            answer.tool_calls,
            answer.parsed,
            logprobs,
            {**decoder.stats.notes, **answer.notes},
            tuple(t.top_logprobs for t in self._tokens) if self._options.top_logprobs else None,
            self._continued,
            answer.reasoning,
        )


def _info(emitted: Emitted) -> TokenInfo:
    draw = emitted.draw
    return TokenInfo(emitted.token, emitted.source, emitted.state, draw.logprob, draw.top_logprobs)


def _continued(messages: Sequence[dict[str, Any]]) -> str:
    """The text of the last message, which is gone on with. PromptError unless it is an assistant's."""
    last = messages[-1]
    if last["role"] != "assistant" or not isinstance(last["content"], str) or not last["content"]:
        raise PromptError(
            f"continue_final_message goes on with the last message, which is of role {last['role']!r}; accepted is an "
            "assistant's message with a text"
        )
    return last["content"]
