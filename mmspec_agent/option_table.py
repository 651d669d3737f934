"""What becomes of every option of transformers' ``generate``: honoured, refused with a reason, or without meaning.

One row a name, with a verdict for each of the three ways in. A test walks the table; ``docs/options.md`` is written
from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from mmspec_agent.core.errors import UnsupportedOption


class Way(StrEnum):
    """A way into the engine."""

    CHAT = "chat"
    """``engine.chat``, ``stream`` and ``session``."""
    GENERATE = "generate"
    """``engine.generate``."""
    CUSTOM = "custom_generate"
    """``model.generate(..., custom_generate=engine.custom_generate)``."""


class Kind(StrEnum):
    """Where transformers takes a name from."""

    CONFIG = "GenerationConfig"
    ARGUMENT = "argument of generate"
    MODEL = "argument of the model"


class Status(StrEnum):
    """What the engine does about an option."""

    HONOURED = "honoured"
    REFUSED = "refused"
    MEANINGLESS = "without meaning"


class Verdict(NamedTuple):
    """A status and, where it is not plain, what holds."""

    status: Status
    note: str = ""


class Rule(NamedTuple):
    """The verdicts about one name.

    ``neutral``: values of a refused option that ask for nothing. ``refused_values``: values that are refused although
    the option is otherwise honoured or without meaning, each with the reason.
    """

    name: str
    kind: Kind
    verdicts: Mapping[Way, Verdict]
    neutral: tuple[Any, ...] = ()
    refused_values: Mapping[str, str] = {}

    def refusal(self, way: Way, value: Any) -> str | None:
        """Why ``value`` cannot be given; None if it can."""
        if value is None:
            return None
        if isinstance(value, str) and value in self.refused_values:
            return self.refused_values[value]
        verdict = self.verdicts[way]
        if verdict.status is not Status.REFUSED or _is_one_of(value, self.neutral):
            return None
        return verdict.note


def _is_one_of(value: Any, accepted: Sequence[Any]) -> bool:
    """Whether a plain value is among ``accepted``; tensors and other objects never are."""
    return isinstance(value, (bool, int, float, str)) and value in accepted


def _rules(
    kind: Kind,
    status: Status,
    names: str,
    note: str = "",
    *,
    neutral: tuple[Any, ...] = (),
    chat: Verdict | None = None,
) -> list[Rule]:
    """The same verdict for several names, by all ways; ``chat`` may have one of its own."""
    verdict = Verdict(status, note)
    ways = {Way.CHAT: chat or verdict, Way.GENERATE: verdict, Way.CUSTOM: verdict}
    return [Rule(name, kind, ways, neutral) for name in names.split()]


_HONOURED, _REFUSED, _MEANINGLESS = Status.HONOURED, Status.REFUSED, Status.MEANINGLESS

_ONE_SEQUENCE = "beam search keeps several sequences; a draft tree verifies one"
_DRAFTS_ITSELF = "the engine drafts by itself; give drafters=[…] to the engine"
_SAMPLING = "acts with sampling, as in transformers"
_BEAMS_ONLY = "a setting of beam search, which is refused"
_ASSISTED_ONLY = "a setting of transformers' own assisted decoding, which is refused"
_OWN_CACHE = "the engine keeps its KV rows in an arena of its own; the tokens are the same"
_REPLY = Verdict(_REFUSED, "chat returns a Reply; logprobs=True and top_logprobs say how likely its tokens were")
_MESSAGES = Verdict(_REFUSED, "chat makes its ids from the messages; use engine.generate for ids of your own")
_NO_ROW_A_TOKEN = "a tree's forward has no row of its own for each emitted token"

_CONFIG = [
    *_rules(
        Kind.CONFIG, _HONOURED, "max_new_tokens", chat=Verdict(_HONOURED, "256 where neither call nor model says it")
    ),
    *_rules(
        Kind.CONFIG, _HONOURED, "max_length", chat=Verdict(_HONOURED, "the smaller of it and max_new_tokens holds")
    ),
    *_rules(Kind.CONFIG, _HONOURED, "min_length min_new_tokens max_time eos_token_id"),
    *_rules(Kind.CONFIG, _HONOURED, "pad_token_id", chat=Verdict(_MEANINGLESS, "one reply is never padded")),
    *_rules(
        Kind.CONFIG,
        _HONOURED,
        "do_sample",
        chat=Verdict(_HONOURED, "temperature decides; without one it is the model's own, or 1"),
    ),
    *_rules(
        Kind.CONFIG,
        _HONOURED,
        "temperature",
        _SAMPLING,
        chat=Verdict(_HONOURED, "0 (the default, whatever the model's own configuration says) is greedy"),
    ),
    *_rules(Kind.CONFIG, _HONOURED, "top_k top_p min_p top_h typical_p epsilon_cutoff eta_cutoff", _SAMPLING),
    *_rules(
        Kind.CONFIG,
        _HONOURED,
        "repetition_penalty encoder_repetition_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size "
        "bad_words_ids sequence_bias suppress_tokens begin_suppress_tokens forced_bos_token_id forced_eos_token_id "
        "exponential_decay_length_penalty remove_invalid_values renormalize_logits watermarking_config",
    ),
    Rule(
        "stop_strings",
        Kind.CONFIG,
        {
            Way.CHAT: Verdict(_HONOURED, "found in the answer, special tokens included; also as stop"),
            Way.GENERATE: Verdict(_HONOURED),
            Way.CUSTOM: Verdict(
                _HONOURED,
                "as an argument, with the engine's tokenizer; transformers refuses them in a generation_config before "
                "the engine is called, so use engine.generate there",
            ),
        },
    ),
    *_rules(Kind.CONFIG, _REFUSED, "num_beams num_beam_groups", _ONE_SEQUENCE, neutral=(1,)),
    *_rules(Kind.CONFIG, _REFUSED, "constraints force_words_ids", _ONE_SEQUENCE),
    *_rules(
        Kind.CONFIG,
        _REFUSED,
        "penalty_alpha",
        "contrastive search needs the hidden states of every candidate",
        neutral=(0,),
    ),
    *_rules(Kind.CONFIG, _REFUSED, "dola_layers", "DoLa contrasts layers of the target"),
    *_rules(
        Kind.CONFIG,
        _REFUSED,
        "guidance_scale",
        "classifier-free guidance runs a second forward of the target per token",
        neutral=(1,),
    ),
    *_rules(Kind.CONFIG, _REFUSED, "token_healing", "it changes the prompt; heal it before the call", neutral=(False,)),
    *_rules(
        Kind.CONFIG,
        _REFUSED,
        "prompt_lookup_num_tokens assistant_early_exit assistant_ensemble_weight speculation_type",
        _DRAFTS_ITSELF,
    ),
    *_rules(Kind.CONFIG, _REFUSED, "use_mtp is_assistant", _DRAFTS_ITSELF, neutral=(False,)),
    *_rules(Kind.CONFIG, _REFUSED, "output_attentions output_hidden_states", _NO_ROW_A_TOKEN, neutral=(False,)),
    *_rules(
        Kind.CONFIG,
        _REFUSED,
        "continuous_batching_config",
        "it belongs to transformers' generate_batch",
    ),
    *_rules(
        Kind.CONFIG, _HONOURED, "output_scores output_logits return_dict_in_generate", chat=_REPLY, neutral=(False,)
    ),
    *_rules(
        Kind.CONFIG,
        _HONOURED,
        "num_return_sequences",
        chat=Verdict(_REFUSED, "chat returns one reply; use engine.generate for several"),
        neutral=(1,),
    ),
    *_rules(Kind.CONFIG, _MEANINGLESS, "length_penalty early_stopping diversity_penalty low_memory", _BEAMS_ONLY),
    *_rules(
        Kind.CONFIG,
        _MEANINGLESS,
        "num_assistant_tokens num_assistant_tokens_schedule assistant_confidence_threshold assistant_lookbehind "
        "target_lookbehind max_matching_ngram_size",
        _ASSISTED_ONLY,
    ),
    *_rules(Kind.CONFIG, _MEANINGLESS, "use_cache cache_config max_cache_len prefill_chunk_size", _OWN_CACHE),
    Rule(
        "cache_implementation",
        Kind.CONFIG,
        {
            way: Verdict(_MEANINGLESS, _OWN_CACHE + "; with return_dict_in_generate it is the kind returned")
            for way in Way
        },
        refused_values={
            "quantized": "a quantized cache changes the tokens",
            "paged": "transformers hands such a call to generate_batch, past the engine",
        },
    ),
    *_rules(Kind.CONFIG, _MEANINGLESS, "compile_config disable_compile", "transformers compiles static caches only"),
    *_rules(Kind.CONFIG, _MEANINGLESS, "bos_token_id", "it stands for a prompt that is missing; the engine needs one"),
    *_rules(Kind.CONFIG, _MEANINGLESS, "decoder_start_token_id", "for encoder-decoder models, which are refused"),
    *_rules(Kind.CONFIG, _MEANINGLESS, "_from_model_config transformers_version", "where a configuration came from"),
]

_ARGUMENTS = [
    *_rules(Kind.ARGUMENT, _HONOURED, "inputs", chat=_MESSAGES),
    *_rules(
        Kind.ARGUMENT,
        _HONOURED,
        "generation_config",
        chat=Verdict(_REFUSED, "give its values by name; the model's own generation_config is read as it is"),
    ),
    *_rules(
        Kind.ARGUMENT,
        _HONOURED,
        "logits_processor stopping_criteria prefix_allowed_tokens_fn",
        "called once per token with all rows, as in transformers",
        chat=Verdict(_HONOURED, "called once per token of the reply with ids [1, length], the prompt's included"),
    ),
    *_rules(
        Kind.ARGUMENT, _HONOURED, "streamer", chat=Verdict(_REFUSED, "read engine.stream instead; it yields the text")
    ),
    *_rules(
        Kind.ARGUMENT,
        _HONOURED,
        "tokenizer",
        "the one that stop strings are spelled by",
        chat=Verdict(_REFUSED, "chat uses the engine's tokenizer"),
    ),
    *_rules(Kind.ARGUMENT, _HONOURED, "seed", "the engine's own: fixes the noise of sampling"),
    *_rules(Kind.ARGUMENT, _REFUSED, "assistant_model", _DRAFTS_ITSELF),
    Rule(
        "assistant_tokenizer",
        Kind.ARGUMENT,
        {
            Way.CHAT: Verdict(_REFUSED, _DRAFTS_ITSELF),
            Way.GENERATE: Verdict(_REFUSED, _DRAFTS_ITSELF),
            Way.CUSTOM: Verdict(_MEANINGLESS, "it belongs to an assistant_model, which is refused"),
        },
    ),
    *_rules(Kind.ARGUMENT, _REFUSED, "synced_gpus", "the engine decodes on one device", neutral=(False,)),
    *_rules(
        Kind.ARGUMENT,
        _REFUSED,
        "negative_prompt_ids negative_prompt_attention_mask",
        "they belong to classifier-free guidance, which is refused",
    ),
    Rule(
        "custom_generate",
        Kind.ARGUMENT,
        {
            Way.CHAT: Verdict(_REFUSED, "chat decodes by itself"),
            Way.GENERATE: Verdict(_REFUSED, "engine.generate is one already; call model.generate with it"),
            Way.CUSTOM: Verdict(_HONOURED, "it is what calls the engine"),
        },
    ),
    *_rules(
        Kind.ARGUMENT,
        _MEANINGLESS,
        "trust_remote_code",
        "it allows code from the Hub in place of generate, which is not used",
        chat=Verdict(_REFUSED, "it belongs to the loading of a model"),
        neutral=(False,),
    ),
]

_MODEL = [
    *_rules(Kind.MODEL, _HONOURED, "input_ids", chat=_MESSAGES),
    *_rules(Kind.MODEL, _HONOURED, "attention_mask", "ones, with zeros for left padding", chat=_MESSAGES),
    *_rules(
        Kind.MODEL,
        _HONOURED,
        "position_ids",
        "where they say what the attention mask implies; others are refused by name",
        chat=_MESSAGES,
    ),
    *_rules(
        Kind.MODEL,
        _HONOURED,
        "cache past_key_values cache_params",
        "an empty cache, which is filled as transformers fills it; one that holds tokens is refused by name",
        chat=Verdict(_REFUSED, "a session keeps KV rows over calls"),
    ),
    *_rules(Kind.MODEL, _MEANINGLESS, "logits_to_keep", "only the last row's logits choose a token", chat=_MESSAGES),
    *_rules(
        Kind.MODEL,
        _REFUSED,
        "inputs_embeds",
        "drafts are looked up by id; give input_ids (pictures go in as pixel_values)",
    ),
    *_rules(Kind.MODEL, _REFUSED, "labels", "generate computes no loss"),
    *_rules(
        Kind.MODEL,
        _REFUSED,
        "token_type_ids",
        "a text model's segments have no place in a draft tree; leave them out (return_token_type_ids=False)",
    ),
    *_rules(Kind.MODEL, _REFUSED, "cache_position", "the engine places its rows by itself"),
    *_rules(
        Kind.MODEL,
        _REFUSED,
        "return_dict output_router_logits num_items_in_batch",
        "the engine reads the logits of its forwards and nothing else",
    ),
]

TABLE: Mapping[str, Rule] = {rule.name: rule for rule in (*_CONFIG, *_ARGUMENTS, *_MODEL)}
"""Every name that transformers' ``generate`` takes on decoder-only models."""

CONFIG_NAMES = frozenset(rule.name for rule in _CONFIG)


def refuse(options: Mapping[str, Any], way: Way, allowed: Iterable[str] = ()) -> None:
    """UnsupportedOption for the first of ``options`` that cannot be honoured by this way in."""
    for name, value in options.items():
        if name in TABLE and name not in allowed and (reason := TABLE[name].refusal(way, value)) is not None:
            raise unsupported(name, reason)


def unsupported(name: str, reason: str) -> UnsupportedOption:
    """The error for an option that is known and cannot be honoured."""
    return UnsupportedOption(f"option {name!r} is not supported: {reason}")


def as_markdown() -> str:
    """The table for ``docs/options.md``."""
    lines: list[str] = []
    for kind in Kind:
        lines += ["", f"## {kind[0].upper()}{kind[1:]}", "", "| option | chat | generate | custom_generate |"]
        lines.append("|---|---|---|---|")
        rules = sorted((rule for rule in TABLE.values() if rule.kind is kind), key=lambda rule: rule.name)
        lines += [_line(rule) for rule in rules if not rule.name.startswith("_")]
    return "\n".join(lines).strip() + "\n"


def _line(rule: Rule) -> str:
    cells = [_cell(rule.verdicts[way]) for way in Way]
    if cells[2] == cells[1]:
        cells[2] = "the same"
    refused = "".join(f"; {value!r} refused: {why}" for value, why in rule.refused_values.items())
    neutral = f"; {' or '.join(map(repr, rule.neutral))} may be given" if rule.neutral else ""
    cells = [c + (refused if c != "the same" else "") + (neutral if c.startswith(_REFUSED) else "") for c in cells]
    return f"| `{rule.name}` | {' | '.join(cells)} |"


def _cell(verdict: Verdict) -> str:
    return f"{verdict.status}: {verdict.note}" if verdict.note else str(verdict.status)
