"""Options of a request: names and meaning of transformers and of the OpenAI API; an unknown one is an error."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from transformers import GenerationConfig

from mmspec_agent.core.errors import OptionError, UnsupportedOption

Trace = str | Callable[[dict[str, Any]], None] | None

ALIASES = {
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "stop": "stop_strings",
}

REFUSED = {
    "num_beams": "beam search keeps several sequences; draft trees verify one",
    "penalty_alpha": "contrastive search needs the hidden states of every candidate",
    "dola_layers": "DoLa contrasts layers of the target",
    "guidance_scale": "classifier-free guidance runs a second forward of the target per token",
    "prompt_lookup_num_tokens": "the engine drafts by itself; its n-gram drafter is on by default",
    "assistant_early_exit": "the engine drafts by itself",
    "assistant_model": "the engine drafts by itself; pass drafters=[…] to the engine",
    "constraints": "constrained beam search keeps several sequences",
    "force_words_ids": "constrained beam search keeps several sequences",
    "token_healing": "token healing changes the prompt; heal it before the call",
    "num_return_sequences": "chat returns one reply; use engine.generate for several",
}
"""Options of transformers that would be ignored or would change the answer, with the reason."""


@dataclass(frozen=True)
class ChatOptions:
    """Options of ``chat`` and ``stream``; everything else goes to transformers' GenerationConfig by name.

    ``mode``: "coupled" (same tokens as plain decoding) or "rejection" (same law, §3.3; ``beta`` flattens the
    proposal, ``gamma`` <= 1). ``lossy_gamma`` > 1 accepts more than the target's law allows and is reported.
    ``speculate=False`` is the loop without drafts, ``skip_forced=False`` without Rule A. ``trace``: a path for JSON
    lines, or a callable. ``tool_format``: how calls are written, a name of ``grammar.families.FAMILIES`` (None: as
    the chat template says). ``lossy_visual_tokens``: compress each picture to so many tokens, or
    to a share of them, which changes answers and is reported. ``allow_remote``: fetch pictures from http(s) URLs;
    ``allow_local``: read paths in messages.
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
    tool_format: str | None = None
    response_format: Any = None
    json_style: str = "spaced"
    unsupported: str = "refuse"
    compliance: Any = None
    lossy_visual_tokens: int | float | None = None
    allow_remote: bool = False
    allow_local: bool = True
    generation: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, **options: Any) -> ChatOptions:
        """Checked options. OptionError names the unknown one and the nearest known."""
        own = {f.name for f in fields(cls)} - {"generation"}
        known = set(GenerationConfig().to_dict())
        chosen: dict[str, Any] = {}
        generation: dict[str, Any] = {}
        for given, value in options.items():
            name = ALIASES.get(given, given)
            if name in own:
                chosen[name] = value
            elif name in REFUSED and value not in (None, 1, 1.0, False):
                raise UnsupportedOption(f"option {given!r} is not supported: {REFUSED[name]}")
            elif name in known:
                generation[name] = value
            else:
                raise unknown_option(given, own | known | set(ALIASES))
        if isinstance(chosen.get("stop_strings"), str):
            chosen["stop_strings"] = (chosen["stop_strings"],)
        chosen["stop_strings"] = tuple(chosen.get("stop_strings") or ())
        result = cls(**chosen, generation=generation)
        result.check()
        return result

    def check(self) -> None:
        """OptionError for values outside what is accepted."""
        checks = (
            ("max_new_tokens", isinstance(self.max_new_tokens, int) and self.max_new_tokens > 0, "a positive integer"),
            ("temperature", is_number(self.temperature) and self.temperature >= 0, "a number >= 0 (0 is greedy)"),
            ("seed", isinstance(self.seed, int), "an integer"),
            ("mode", self.mode in ("coupled", "rejection"), "'coupled' or 'rejection'"),
            ("beta", is_number(self.beta) and 0 < self.beta <= 1, "a number in (0, 1]"),
            ("gamma", is_number(self.gamma) and 0 < self.gamma <= 1, "a number in (0, 1]; above 1 is lossy_gamma"),
            ("json_style", self.json_style in ("spaced", "compact"), "'spaced' or 'compact'"),
            ("unsupported", self.unsupported in ("refuse", "validate"), "'refuse' or 'validate'"),
        )
        for name, ok, accepted in checks:
            if not ok:
                raise OptionError(f"{name}={getattr(self, name)!r}: accepted is {accepted}")
        kept = self.lossy_visual_tokens
        if kept is not None and (not is_number(kept) or kept <= 0 or (isinstance(kept, float) and kept >= 1)):
            raise OptionError(f"lossy_visual_tokens={kept!r}: accepted is a number of tokens, or a share below 1.0")
        if self.lossy_gamma is not None and not self.lossy_gamma > 0:
            raise OptionError(f"lossy_gamma={self.lossy_gamma!r}: accepted is a positive number")


def unknown_option(name: str, known: set[str]) -> OptionError:
    """The error for a name that nobody knows."""
    close = difflib.get_close_matches(name, sorted(known), n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return OptionError(f"unknown option {name!r}{hint} Accepted are the options of ChatOptions and GenerationConfig.")


def is_number(value: Any) -> bool:
    """Whether value is a real number (bool is not)."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
