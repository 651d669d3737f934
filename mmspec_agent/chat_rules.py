"""What rules one reply: the call's options over the model's own generation configuration."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import GenerationConfig, MaxTimeCriteria, PreTrainedModel, StoppingCriteriaList

from mmspec_agent.core.errors import ContextOverflow, OptionError
from mmspec_agent.core.penalties import LogitBias, SaidPenalty
from mmspec_agent.core.sampling import Draw, IdBuffer, Processing

from .generation import chat_processing
from .option_table import CONFIG_NAMES, Way, refuse
from .option_values import check_values, checked_allowed, is_integer
from .options import ChatOptions

_OWN_TEMPLATE_NAMES = ("messages", "conversation", "tools", "tokenize", "add_generation_prompt", "chat_template")


def merged_config(model: PreTrainedModel, options: ChatOptions) -> GenerationConfig:
    """The model's own generation configuration with the call's options over it.

    Chat is greedy unless the call says otherwise, whatever the model's configuration says; every other value of it
    counts. UnsupportedOption for what the engine cannot honour, wherever it was set.
    """
    config = copy.deepcopy(model.generation_config)
    given = dict(options.generation or {})
    temperature = float(options.temperature)
    if given.get("do_sample") and "temperature" not in options.given:
        temperature = float(config.temperature or 1.0)
    sampling = temperature > 0
    given.update(do_sample=sampling, temperature=temperature if sampling else None)
    defaults = {n: v for n, v in config._get_default_generation_params().items() if n != "max_length"}
    try:
        config.update(**defaults, defaults_only=True)
        config.update(**given)
    except Exception as error:  # transformers raises what Python raises on wrong types
        raise OptionError(f"the generation options do not fit together: {error}") from error
    chosen = {name: getattr(config, name, None) for name in CONFIG_NAMES}
    refuse(chosen, Way.GENERATE, allowed=("output_attentions", "output_hidden_states"))
    check_values(chosen, model.config.get_text_config(decoder=True).vocab_size)
    return config


def eos_ids(config: GenerationConfig) -> frozenset[int]:
    """The ids that end a reply."""
    eos = config.eos_token_id
    eos = eos.reshape(-1).tolist() if isinstance(eos, torch.Tensor) else eos
    if eos is None:
        return frozenset()
    return frozenset(int(one) for one in (eos if isinstance(eos, (list, tuple)) else [eos]))


def stop_strings(config: GenerationConfig, options: ChatOptions) -> tuple[str, ...]:
    """The texts that end a reply: the call's, else the model's own."""
    own = config.stop_strings or ()
    return options.stop_strings or ((own,) if isinstance(own, str) else tuple(own))


def room(config: GenerationConfig, options: ChatOptions, prompt_length: int, limit: int | None) -> int:
    """Tokens that the reply may have. ContextOverflow, or OptionError, if there is none left behind the prompt."""
    wanted = options.max_new_tokens
    if "max_new_tokens" not in options.given and config.max_new_tokens is not None:
        wanted = config.max_new_tokens
    elif "max_new_tokens" not in options.given and config.max_length is not None:
        wanted = config.max_length - prompt_length
    if "max_length" in options.given:
        wanted = min(wanted, config.max_length - prompt_length)
    if wanted <= 0:
        raise OptionError(
            f"max_length={config.max_length} leaves no room behind the prompt of {prompt_length} tokens; raise it, or "
            "give max_new_tokens, which counts new tokens only"
        )
    if limit is None:
        return int(wanted)
    if prompt_length >= limit:
        raise ContextOverflow(
            f"the prompt has {prompt_length} tokens, the model's context is {limit}; shorten the history"
        )
    return int(min(wanted, limit - prompt_length))


def processing(
    model: PreTrainedModel, tokenizer: Any, config: GenerationConfig, options: ChatOptions, prompt: torch.Tensor
) -> Processing:
    """The processors of a reply behind ``prompt`` [1, length]; ``config.max_length`` is set by now."""
    vocab_size = model.config.get_text_config(decoder=True).vocab_size
    own: list[Any] = []
    if options.frequency_penalty or options.presence_penalty:
        own.append(SaidPenalty(options.frequency_penalty, options.presence_penalty, prompt.shape[1]))
    if options.logit_bias:
        own.append(LogitBias(_biases(options.logit_bias, tokenizer, vocab_size)))
    allowed = options.prefix_allowed_tokens_fn
    try:
        return chat_processing(
            model,
            config,
            prompt.shape[1],
            options.logprobs,
            prompt_ids=prompt,
            logits_processor=[*own, *options.logits_processor],
            prefix_allowed_tokens_fn=None if allowed is None else checked_allowed(allowed, vocab_size),
            top_logprobs=options.top_logprobs,
        )
    except Exception as error:  # transformers raises what Python raises on wrong types
        given = ", ".join(f"{name}={value!r:.80}" for name, value in dict(options.generation or {}).items())
        raise OptionError(f"transformers refuses these generation options ({given}): {error}") from error


def _biases(biases: Mapping[Any, float], tokenizer: Any, vocab_size: int) -> dict[int, float]:
    """Biases by id. Keys are ids, ids in digits as in JSON, or texts that the tokenizer writes as one token."""
    found: dict[int, float] = {}
    for key, bias in biases.items():
        id_ = int(key) if is_integer(key) or key.isdecimal() else _single_token(key, tokenizer)
        if id_ is None or id_ >= vocab_size:
            raise OptionError(
                f"logit_bias has the key {key!r}; accepted are ids from 0 to {vocab_size - 1} and texts that the "
                "tokenizer writes as one token"
            )
        found[id_] = found.get(id_, 0.0) + float(bias)
    return found


def _single_token(text: str, tokenizer: Any) -> int | None:
    known = tokenizer.get_vocab().get(text)
    if known is not None:
        return int(known)
    ids = tokenizer.encode(text, add_special_tokens=False)
    return int(ids[0]) if len(ids) == 1 else None


def template_options(options: ChatOptions, template: Any) -> dict[str, Any]:
    """What the chat template gets beside the messages. OptionError for names that it does not read."""
    given = dict(options.chat_template_kwargs or {})
    text = str(template)
    for name in given:
        if name in _OWN_TEMPLATE_NAMES or not re.search(rf"\b{re.escape(name)}\b", text):
            raise OptionError(
                f"chat_template_kwargs has the name {name!r}; accepted are names that the model's chat template reads, "
                f"other than {', '.join(_OWN_TEMPLATE_NAMES)}"
            )
    if options.continue_final_message:
        given.update(continue_final_message=True, add_generation_prompt=False)
    return given


@dataclass
class StopCheck:
    """Called with each token of a reply, after it was added to ``ids``; says why the reply ends there."""

    ids: IdBuffer
    eos_ids: frozenset[int]
    room: int
    criteria: StoppingCriteriaList
    max_time: float | None
    emitted: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._clock: Callable[..., Any] | None = None if self.max_time is None else MaxTimeCriteria(self.max_time)

    def __call__(self, draw: Draw) -> str | None:
        self.emitted += 1
        asked = self._asked()
        if draw.token in self.eos_ids or asked:
            return "stop"
        late = self._clock is not None and bool(self._clock(self.ids.view(), None).all())
        return "length" if late or self.emitted >= self.room else None

    def _asked(self) -> bool:
        if not self.criteria:
            return False
        stopped = self.criteria(self.ids.view(), None)
        if not isinstance(stopped, torch.Tensor) or stopped.numel() != 1:
            raise OptionError("stopping_criteria returned no single flag; accepted is a boolean tensor [1] from each")
        return bool(stopped)
