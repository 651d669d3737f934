"""Values of generation options that transformers would ignore, or fail on with an error of Python's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import torch

from mmspec_agent.core.errors import OptionError


def is_integer(value: Any, least: int | None = None) -> bool:
    """Whether ``value`` is a whole number (bool is not), not below ``least``."""
    return isinstance(value, Integral) and not isinstance(value, bool) and (least is None or int(value) >= least)


def is_number(value: Any) -> bool:
    """Whether ``value`` is a finite real number (bool is not)."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _between(low: float, high: float, *, without_high: bool = False) -> Callable[[Any], bool]:
    return lambda value: is_number(value) and low <= value <= high and not (without_high and value == high)


def _ids(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(is_integer(item, 0) for item in value)


def _words(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(_ids(word) and len(word) for word in value)


def _end_ids(value: Any) -> bool:
    listed = value if isinstance(value, (list, tuple)) else [value]
    whole = isinstance(value, torch.Tensor) and not value.is_floating_point()
    return whole or (bool(len(listed)) and all(is_integer(item) for item in listed))


def _callables(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(callable(item) for item in value)


_COUNT = (lambda value: is_integer(value, 1), "a positive integer")
_LENGTH = (lambda value: is_integer(value, 0), "an integer >= 0")
_FACTOR = (lambda value: is_number(value) and value > 0, "a positive number")
_SHARE = (_between(0, 1), "a number from 0 to 1")
_SMALL_SHARE = (_between(0, 1, without_high=True), "a number from 0 (off) up to, but not, 1")
_FLAG = (lambda value: isinstance(value, bool), "True or False")
_TOKEN = (lambda value: is_integer(value, 0), "a token id")
_TOKENS = (_ids, "a list of token ids")

ACCEPTED: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("max_new_tokens", "max_length", "num_return_sequences", "num_beams"), _COUNT),
    **dict.fromkeys(("min_length", "min_new_tokens", "no_repeat_ngram_size", "top_k"), _LENGTH),
    "encoder_no_repeat_ngram_size": _LENGTH,
    "max_time": (lambda value: is_number(value) and value >= 0, "a number of seconds"),
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty"), _FACTOR),
    "temperature": (lambda value: is_number(value) and value >= 0, "a number >= 0"),
    **dict.fromkeys(("top_p", "min_p", "top_h", "typical_p"), _SHARE),
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff"), _SMALL_SHARE),
    **dict.fromkeys(("do_sample", "renormalize_logits", "remove_invalid_values", "use_cache"), _FLAG),
    **dict.fromkeys(("output_scores", "output_logits", "return_dict_in_generate"), _FLAG),
    **dict.fromkeys(("output_attentions", "output_hidden_states"), _FLAG),
    "eos_token_id": (_end_ids, "a token id, or a list of them"),
    "forced_bos_token_id": _TOKEN,
    "forced_eos_token_id": (lambda value: is_integer(value, 0) or _ids(value), "a token id, or a list of them"),
    **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens"), _TOKENS),
    "bad_words_ids": (_words, "a list of lists of token ids, none of them empty"),
    **dict.fromkeys(("logits_processor", "stopping_criteria"), (_callables, "a list of callables")),
    "prefix_allowed_tokens_fn": (callable, "a function of row and ids that returns the allowed ids"),
    "streamer": (lambda value: hasattr(value, "put") and hasattr(value, "end"), "an object with put and end"),
    "seed": (is_integer, "an integer"),
}
"""What is accepted of an option, as a test and in words; None is always accepted."""


def check_values(options: Mapping[str, Any], vocab_size: int | None = None) -> None:
    """OptionError for a value outside what is accepted, or a token id without a row in the model."""
    for name, value in options.items():
        if value is None or name not in ACCEPTED:
            continue
        test, accepted = ACCEPTED[name]
        if not test(value):
            raise OptionError(f"{name}={value!r:.80}: accepted is {accepted}")
        if vocab_size is not None and name in ("forced_bos_token_id", "forced_eos_token_id", "bad_words_ids"):
            _check_range(name, value, vocab_size)


def _check_range(name: str, value: Any, vocab_size: int) -> None:
    highest = max(_flat(value), default=0)
    if highest >= vocab_size:
        raise OptionError(f"{name} holds {highest}; accepted are ids from 0 to {vocab_size - 1}, the model's rows")


def _flat(value: Any) -> list[int]:
    return [id_ for item in value for id_ in _flat(item)] if isinstance(value, (list, tuple)) else [int(value)]


def checked_allowed(
    allowed_tokens: Callable[[int, torch.Tensor], Any], vocab_size: int
) -> Callable[[int, torch.Tensor], Any]:
    """``prefix_allowed_tokens_fn`` whose answers are checked: OptionError unless they are ids of the model."""

    def checked(row: int, ids: torch.Tensor) -> Any:
        allowed = allowed_tokens(row, ids)
        listed = allowed.tolist() if hasattr(allowed, "tolist") else allowed
        if not isinstance(listed, (list, tuple, set, range)) or not listed:
            raise OptionError(f"prefix_allowed_tokens_fn returned {allowed!r:.80}; accepted is a list of token ids")
        if not all(is_integer(token, 0) and token < vocab_size for token in listed):
            raise OptionError(
                f"prefix_allowed_tokens_fn returned {allowed!r:.80}; accepted are ids from 0 to {vocab_size - 1}"
            )
        return allowed if not isinstance(allowed, (set, range)) else list(allowed)

    return checked
