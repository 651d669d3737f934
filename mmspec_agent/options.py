"""Options of a request: names and meaning of transformers and of the OpenAI API; an unknown one is an error."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from transformers import GenerationConfig

from mmspec_agent.core.errors import OptionError
from mmspec_agent.grammar.choice import is_free

from .option_table import TABLE, Way, unsupported
from .option_values import check_values, is_integer, is_number
from .text_checks import check_strings

Trace = str | Callable[[dict[str, Any]], None] | None

ALIASES = {
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "stop": "stop_strings",
}


@dataclass(frozen=True)
class ChatOptions:
    """Options of ``chat`` and ``stream``; everything else goes to transformers' GenerationConfig by name.

    ``mode``: "coupled" (same tokens as plain decoding) or "rejection" (same law, §3.3; ``beta`` flattens the
    proposal, ``gamma`` <= 1). ``lossy_gamma`` > 1 accepts more than the target's law allows and is reported.
    ``speculate=False`` is the loop without drafts, ``skip_forced=False`` without Rule A. ``trace``: a path for JSON
    lines, or a callable. ``tool_format``: how calls are written, a name of ``grammar.families.FAMILIES`` (None: as
    the chat template says). ``repeated_tool_calls=False``: a reply ends behind a call that repeats an earlier one
    of it, and that call is left out. ``lossy_visual_tokens``: compress each picture to so many tokens, or
    to a share of them, which changes answers and is reported. ``allow_remote``: fetch pictures from http(s) URLs;
    ``allow_local``: read paths in messages.

    As in the OpenAI API: ``frequency_penalty``, ``presence_penalty``, ``logit_bias`` (by token id or by a text of one
    token), ``logprobs`` with ``top_logprobs``, and ``prediction``, a text that is expected to come back and is
    offered as a draft. As in transformers: ``logits_processor``, ``stopping_criteria``,
    ``prefix_allowed_tokens_fn``, ``continue_final_message`` (go on with the last message, an assistant's), and
    ``chat_template_kwargs`` (``{"enable_thinking": False}``, say). ``docs/options.md`` lists every other name.
    """

    max_new_tokens: int = 256
    temperature: float = 0.0
    seed: int = 0
    stop_strings: tuple[str, ...] = ()
    logprobs: bool = False
    mode: str = "coupled"
    beta: float = 0.7
    gamma: float = 1.0
    lossy_gamma: float | None = None
    speculate: bool = True
    skip_forced: bool = True
    trace: Trace = None
    cancelled: Callable[[], bool] | None = None
    tools: Sequence[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool = True
    repeated_tool_calls: bool = True
    tool_format: str | None = None
    response_format: Any = None
    json_style: str = "spaced"
    unsupported: str = "refuse"
    compliance: Any = None
    lossy_visual_tokens: int | float | None = None
    allow_remote: bool = False
    allow_local: bool = True
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[Any, float] | None = None
    top_logprobs: int = 0
    logits_processor: Sequence[Callable[..., Any]] = ()
    stopping_criteria: Sequence[Callable[..., Any]] = ()
    prefix_allowed_tokens_fn: Callable[..., Any] | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None
    continue_final_message: bool = False
    prediction: Any = None
    generation: Mapping[str, Any] | None = None
    given: frozenset[str] = frozenset()
    """The options that the call or its session named, as against defaults."""

    @classmethod
    def of(cls, **options: Any) -> ChatOptions:
        """Checked options. OptionError names the unknown one and the nearest known."""
        own = {f.name for f in fields(cls)} - {"generation", "given"}
        known = set(GenerationConfig().to_dict())
        chosen: dict[str, Any] = {}
        generation: dict[str, Any] = {}
        for given, value in options.items():
            name = ALIASES.get(given, given)
            if name in chosen:
                raise OptionError(f"{given} and {name} are two names of one option; give one of them")
            if name in own:
                chosen[name] = value
            elif name in known or name in TABLE:
                if (reason := TABLE[name].refusal(Way.CHAT, value)) is not None:
                    raise unsupported(given, reason)
                if value is not None:
                    generation[name] = value
            else:
                raise unknown_option(given, own | known | set(ALIASES))
        check_values({**chosen, **generation})
        chosen = {name: value for name, value in chosen.items() if value is not None}
        chosen["stop_strings"] = _stops(chosen.get("stop_strings", ()))
        result = cls(**chosen, generation=generation, given=frozenset((*chosen, *generation)))
        result.check()
        return result

    def check(self) -> None:
        """OptionError for values outside what is accepted."""
        for name, (test, accepted) in _ACCEPTED.items():
            value = getattr(self, name)
            if value is not None and not test(value):
                raise OptionError(f"{name}={value!r:.80}: accepted is {accepted}")
        for name in ("tools", "tool_choice", "tool_format", "response_format", "chat_template_kwargs", "prediction"):
            check_strings(getattr(self, name), name)
        sampling = dict(self.generation or {}).get("do_sample")
        if sampling is not None and "temperature" in self.given and sampling != (self.temperature > 0):
            raise OptionError(
                f"do_sample={sampling} and temperature={self.temperature} contradict each other: temperature 0 is "
                "greedy, a positive one samples; give one of the two"
            )
        if self.top_logprobs and not self.logprobs:
            raise OptionError("top_logprobs needs logprobs=True")
        if self.prediction is not None and not self.speculate:
            raise OptionError("a prediction is a draft: it needs speculate=True")
        if self.continue_final_message and (self.response_format is not None or not is_free(self.tool_choice)):
            raise OptionError(
                "continue_final_message goes on with a text as it is; response_format and a tool_choice other than "
                "'auto' or 'none' shape a whole answer. Give one of them"
            )

    @property
    def predicted_text(self) -> str | None:
        """The text that is expected to come back."""
        return _text_of(self.prediction)


def _stops(value: Any) -> tuple[str, ...]:
    listed = (value,) if isinstance(value, str) else value
    fits = isinstance(listed, (list, tuple, set, frozenset)) and all(isinstance(s, str) and s for s in listed)
    if not fits:
        raise OptionError(f"stop={value!r:.80}: accepted is a text, or a list of texts, none of them empty")
    check_strings(listed, "stop")
    return tuple(listed)


def _text_of(prediction: Any) -> str | None:
    """The text of OpenAI's ``{"type": "content", "content": …}``, or a text as it is; None for other things."""
    if isinstance(prediction, Mapping) and prediction.get("type") == "content":
        prediction = prediction.get("content")
    if isinstance(prediction, (list, tuple)):
        texts = [part.get("text") if isinstance(part, Mapping) else None for part in prediction]
        prediction = "".join(texts) if all(isinstance(text, str) for text in texts) else None  # type: ignore[arg-type]
    return prediction if isinstance(prediction, str) else None


def _is_bias(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        (is_integer(key, 0) or isinstance(key, str)) and is_number(bias) and -100 <= bias <= 100
        for key, bias in value.items()
    )


_FLAG = (lambda value: isinstance(value, bool), "True or False")
_PENALTY = (lambda value: is_number(value) and -2 <= value <= 2, "a number from -2 to 2")
_LIST = (lambda value: isinstance(value, Sequence) and not isinstance(value, (str, bytes)), "a list")

_ACCEPTED: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "max_new_tokens": (lambda value: is_integer(value, 1), "a positive integer"),
    "temperature": (lambda value: is_number(value) and value >= 0, "a number >= 0 (0 is greedy)"),
    "seed": (is_integer, "an integer"),
    "mode": (lambda value: value in ("coupled", "rejection"), "'coupled' or 'rejection'"),
    "beta": (lambda value: is_number(value) and 0 < value <= 1, "a number in (0, 1]"),
    "gamma": (lambda value: is_number(value) and 0 < value <= 1, "a number in (0, 1]; above 1 is lossy_gamma"),
    "lossy_gamma": (lambda value: is_number(value) and value > 0, "a positive number"),
    "json_style": (lambda value: value in ("spaced", "compact"), "'spaced' or 'compact'"),
    "unsupported": (lambda value: value in ("refuse", "validate"), "'refuse' or 'validate'"),
    "lossy_visual_tokens": (
        lambda value: is_number(value) and value > 0 and not (isinstance(value, float) and value >= 1),
        "a number of tokens, or a share below 1.0",
    ),
    **dict.fromkeys(
        ("logprobs", "speculate", "skip_forced", "parallel_tool_calls", "repeated_tool_calls", "allow_remote"), _FLAG
    ),
    **dict.fromkeys(("allow_local", "continue_final_message"), _FLAG),
    **dict.fromkeys(("frequency_penalty", "presence_penalty"), _PENALTY),
    "logit_bias": (_is_bias, "a dict of token ids, or texts of one token, to numbers from -100 to 100"),
    "top_logprobs": (lambda value: is_integer(value, 0) and value <= 20, "an integer from 0 to 20"),
    "chat_template_kwargs": (
        lambda value: isinstance(value, Mapping) and all(isinstance(key, str) for key in value),
        "a dict of names that the chat template reads",
    ),
    "prediction": (
        lambda value: bool(_text_of(value)),
        "a text that is not empty, or {'type': 'content', 'content': a text}",
    ),
    "trace": (lambda value: callable(value) or isinstance(value, (str, Path)), "a path, or a callable"),
    "cancelled": (callable, "a callable that says whether to stop"),
    "tools": _LIST,
    "tool_format": (lambda value: isinstance(value, str), "a text"),
}


def unknown_option(name: str, known: set[str]) -> OptionError:
    """The error for a name that nobody knows."""
    close = difflib.get_close_matches(name, sorted(known), n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return OptionError(f"unknown option {name!r}{hint} Accepted are the options of ChatOptions and GenerationConfig.")
