"""Hugging Face's ``generate`` over the engine's loop: its signature, its processors, its return values.

``model.generate`` itself prepares configuration, processors and stopping criteria and calls
``custom_generate``; so every option means what it means in transformers.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from transformers import (
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
    StopStringCriteria,
)
from transformers.generation.utils import GenerateDecoderOnlyOutput

from mmspec_agent.core.cache import user_cache_problem
from mmspec_agent.core.errors import MMSpecError, OptionError
from mmspec_agent.core.sampling import Processing
from mmspec_agent.core.visual.rope_state import rope_state_kept
from mmspec_agent.core.visual.unread import is_neutral

from .batch import Batch, BatchRules
from .inputs import check_mask, check_positions, checked_ids, unpadded
from .option_table import CONFIG_NAMES, Way, refuse, unsupported
from .option_values import check_values, checked_allowed
from .picture_options import picture_names, pictures_of_batch, refuse_other_media
from .text_checks import check_strings

if TYPE_CHECKING:
    from .engine import Engine

_PREPARED = {
    "attention_mask",
    "position_ids",
    "use_cache",
    "logits_to_keep",
    "cache",
    "tokenizer",
    "next_sequence_length",
}
"""Model arguments that generate prepares and the engine replaces by its own."""


class ConstraintSlot:
    """Marks, in transformers' list of processors, the place of the constraint's mask: before the warpers."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores


def chat_processing(
    model: PreTrainedModel,
    config: GenerationConfig,
    prompt_length: int,
    keep_logprobs: bool,
    *,
    prompt_ids: torch.Tensor | None = None,
    logits_processor: Sequence[Any] = (),
    prefix_allowed_tokens_fn: Callable[[int, torch.Tensor], Any] | None = None,
    top_logprobs: int = 0,
) -> Processing:
    """The processors of a generation config and of the caller, split at the constraint's place.

    ``prompt_ids`` [1, length] is what processors that look at the prompt alone are built with.
    """
    model._prepare_special_tokens(config, True, device=model.device)
    processors = model._get_logits_processor(
        generation_config=config,
        input_ids_seq_length=prompt_length,
        encoder_input_ids=prompt_ids,
        prefix_allowed_tokens_fn=prefix_allowed_tokens_fn,
        logits_processor=LogitsProcessorList([*logits_processor, ConstraintSlot()]),
        device=model.device,
        model_kwargs={},
    )
    at = next(i for i, p in enumerate(processors) if isinstance(p, ConstraintSlot))
    return Processing(
        tuple(processors[:at]),
        tuple(processors[at + 1 :]),
        greedy=not config.do_sample,
        keep_logprobs=keep_logprobs,
        top_logprobs=top_logprobs,
    )


def generate(engine: Engine, inputs: Any, options: dict[str, Any]) -> Any:
    """``model.generate`` through ``engine``: checks what was given, then lets transformers prepare it."""
    ids = checked_ids(
        inputs if inputs is not None else options.pop("input_ids", None),
        engine.target.vocab_size,
        engine.target.context_limit,
    )
    # Kept from transformers, which would run the vision tower itself, on every call.
    names = picture_names(engine)
    refuse_other_media(engine, options)
    refuse(options, Way.GENERATE, allowed=names)
    check_values(options, engine.target.vocab_size)
    if (allowed := options.get("prefix_allowed_tokens_fn")) is not None:
        options["prefix_allowed_tokens_fn"] = checked_allowed(allowed, engine.target.vocab_size)
    check_mask(options.get("attention_mask"), ids)
    own = {name: options.pop(name, None) for name in ("streamer", "seed", "stop_strings", "tokenizer")}
    _take_stop_strings(engine, own, options)
    visual = {name: options.pop(name) for name in names if options.get(name) is not None}
    passes = engine.vision.encoder.passes if visual else 0
    started = False

    def decode(model: PreTrainedModel, input_ids: torch.Tensor, **kwargs: Any) -> Any:
        nonlocal started
        started = True
        return custom_generate(engine, model, input_ids, **{**kwargs, **own, **visual})

    if own["streamer"] is not None:
        own["streamer"].put(ids.cpu())
    with rope_state_kept(engine.model), _option_errors(lambda: started):
        result = engine.model.generate(ids, custom_generate=decode, **options)
    if visual and engine.last_stats is not None:
        engine.last_stats.vision_passes = engine.vision.encoder.passes - passes
    return result


def _take_stop_strings(engine: Engine, own: dict[str, Any], options: dict[str, Any]) -> None:
    """Move stop strings out of the generation config: transformers would ask for the tokenizer it does not hand on."""
    config = options.get("generation_config")
    if config is not None and getattr(config, "stop_strings", None) is not None:
        options["generation_config"] = copy.deepcopy(config)
        options["generation_config"].stop_strings = None
        own["stop_strings"] = own["stop_strings"] if own["stop_strings"] is not None else config.stop_strings
    if engine.model.generation_config.stop_strings is not None:
        raise unsupported(
            "stop_strings",
            "in the model's own generation_config transformers asks for a tokenizer that it does not hand on; set "
            "model.generation_config.stop_strings = None and give stop_strings=[…] with the call",
        )


def custom_generate(
    engine: Engine,
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    streamer: Any = None,
    seed: int | None = None,
    stop_strings: Sequence[str] | str | None = None,
    tokenizer: Any = None,
    **model_kwargs: Any,
) -> Any:
    """The decoding method that ``model.generate(..., custom_generate=engine.custom_generate)`` calls.

    The rows of a batch agree on each token before any goes on; left padding is cut off before the forwards. With
    sampling, the seed is drawn from torch's generator unless given, so ``torch.manual_seed`` governs it.
    """
    if model is not engine.model:
        raise OptionError(
            f"custom_generate belongs to an engine around another model ({type(engine.model).__name__}); "
            "build an Engine around this one"
        )
    engine.check_model()
    visual = _check_inputs(engine, generation_config, model_kwargs)
    input_ids = checked_ids(input_ids, engine.target.vocab_size, None)
    mask = model_kwargs.get("attention_mask")
    check_mask(mask, input_ids)
    prompts = unpadded(input_ids, mask)
    if not visual:
        check_positions(model_kwargs.get("position_ids"), input_ids, mask)
    times = generation_config.num_return_sequences or 1
    call = {"input_ids": input_ids, "attention_mask": mask}
    pictures = pictures_of_batch(engine, prompts, visual, model_kwargs.get("position_ids"), times, call)
    if stop_strings is not None:
        stopping_criteria = StoppingCriteriaList([*stopping_criteria, _stop_criterion(engine, stop_strings, tokenizer)])
    cache = _cache_to_fill(generation_config, model_kwargs)
    rules = _rules(generation_config, logits_processor, stopping_criteria, streamer, seed, cache is not None)
    limit = (generation_config.max_length or input_ids.shape[1] + 20) - input_ids.shape[1]
    batch = engine.decode_batch(prompts, pictures, input_ids, rules, max(limit, 1))
    if streamer is not None:
        streamer.end()
    if cache is not None:
        _fill(cache, batch, prompts)
    return _output(batch, generation_config, cache)


def _rules(
    config: GenerationConfig,
    processors: LogitsProcessorList,
    criteria: StoppingCriteriaList,
    streamer: Any,
    seed: int | None,
    keeps_all: bool,
) -> BatchRules:
    check_values({"seed": seed, "streamer": streamer})
    if seed is None:
        seed = int(torch.randint(0, 2**62, ())) if config.do_sample else 0
    pad_id = None
    if any(hasattr(criterion, "eos_token_id") for criterion in criteria):
        if config._pad_token_tensor is None:
            raise OptionError("a criterion with an end-of-sequence id needs pad_token_id: give one with the call")
        pad_id = int(config._pad_token_tensor)
    keep = bool(config.return_dict_in_generate)
    return BatchRules(
        tuple(processors),
        criteria,
        bool(config.do_sample),
        seed,
        pad_id,
        keep_scores=bool(keep and config.output_scores),
        keep_logits=bool(keep and config.output_logits),
        keeps_all=keeps_all,
        streamer=streamer,
    )


class CustomGenerate:
    """``engine.custom_generate``: what transformers' ``generate`` calls in place of its own loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: torch.Tensor,
        *,
        seed: int | None = None,
        stop_strings: Sequence[str] | str | None = None,
        token_healing: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Decode. Named arguments are those that transformers hands on because this signature names them."""
        given = callers_arguments()
        names = ("assistant_model", "synced_gpus", "negative_prompt_ids", "negative_prompt_attention_mask")
        refuse({"token_healing": token_healing, **{name: given.get(name) for name in names}}, Way.CUSTOM)
        kwargs.setdefault("streamer", given.get("streamer"))
        kwargs.update(seed=seed, stop_strings=stop_strings)
        return custom_generate(self._engine, model, input_ids, **kwargs)


def callers_arguments() -> dict[str, Any]:
    """The arguments of the ``model.generate`` that is calling us, also those it does not hand on.

    transformers drops streamer and assistant_model on the way to a callable custom_generate, silently; a thread
    that reads from the streamer would wait for ever.
    """
    code = inspect.unwrap(GenerationMixin.generate).__code__
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return {} if frame is None else frame.f_locals


def _check_inputs(engine: Engine, config: GenerationConfig, model_kwargs: dict[str, Any]) -> dict[str, Any]:
    """Refuse by name what cannot be honoured; returns the inputs that carry pictures."""
    problem = user_cache_problem(model_kwargs.get("cache"))
    if problem is not None:
        raise unsupported(
            "cache", f"it is {problem}; the engine keeps its own KV arena; use engine.session() to keep KV over calls"
        )
    chosen = {name: getattr(config, name, None) for name in CONFIG_NAMES}
    refuse(chosen, Way.CUSTOM)
    check_values(chosen, engine.target.vocab_size)
    given = {name: value for name, value in model_kwargs.items() if name not in _PREPARED and value is not None}
    given = {name: value for name, value in given.items() if value is not False and not _is_empty(value)}
    given = {name: value for name, value in given.items() if not is_neutral(name, value)}
    refuse_other_media(engine, given)
    sees = engine.vision_or_none is not None
    refuse(given, Way.CUSTOM, allowed=picture_names(engine))
    if given and not sees:
        name = min(given)
        raise unsupported(name, "the engine's forwards give the model ids, positions and mask, and nothing else")
    return given


def _is_empty(value: Any) -> bool:
    return isinstance(value, Mapping) and not value


def _stop_criterion(engine: Engine, strings: Sequence[str] | str, tokenizer: Any) -> StopStringCriteria:
    """transformers' own criterion; it drops the tokenizer on the way to a custom_generate, so it is built here."""
    tokenizer = tokenizer if tokenizer is not None else engine.tokenizer
    if tokenizer is None:
        raise OptionError(
            "stop_strings need a tokenizer: give one to the Engine, or call engine.generate(…, tokenizer=…)"
        )
    listed = [strings] if isinstance(strings, str) else strings
    if not isinstance(listed, (list, tuple)) or not listed or not all(isinstance(s, str) and s for s in listed):
        raise OptionError(f"stop_strings={strings!r:.80}: accepted is a text, or a list of texts, none of them empty")
    check_strings(listed, "stop_strings")
    return StopStringCriteria(tokenizer=tokenizer, stop_strings=list(listed))


def _cache_to_fill(config: GenerationConfig, model_kwargs: Mapping[str, Any]) -> Any:
    """The cache that transformers would hand back, or that the caller passed in; None if nobody sees one."""
    cache = model_kwargs.get("cache")
    if cache is None or not (config.return_dict_in_generate or getattr(cache, "_is_user_defined", False)):
        return None
    return cache


def _fill(cache: Any, batch: Batch, prompts: Sequence[Sequence[int]]) -> None:
    """Write the rows of every token but the last into transformers' own kind of cache, left-padded by zeros."""
    new = batch.ids.shape[1] - 1
    lengths = [new - (batch.prompt_length - len(prompt)) for prompt in prompts]
    stored = [row.decoder.sequence.arena.read(0, n) for row, n in zip(batch.rows, lengths)]  # type: ignore[attr-defined]
    for layer in range(len(stored[0].layers)):
        keys, values = (_padded([rows.layers[layer][part] for rows in stored], new) for part in (0, 1))
        cache.update(keys, values, layer)


def _padded(parts: Sequence[torch.Tensor], length: int) -> torch.Tensor:
    """One tensor [rows, heads, length, width] of ``parts`` [1, heads, n, width], zeros before the shorter ones."""
    whole = parts[0].new_zeros((len(parts), parts[0].shape[1], length, parts[0].shape[3]))
    for row, part in enumerate(parts):
        whole[row, :, length - part.shape[2] :] = part[0]
    return whole


def _output(batch: Batch, config: GenerationConfig, cache: Any) -> Any:
    """What transformers returns."""
    if not config.return_dict_in_generate:
        return batch.ids
    return GenerateDecoderOnlyOutput(
        sequences=batch.ids,
        scores=batch.scores if config.output_scores else None,
        logits=batch.logits if config.output_logits else None,
        cache=cache,
    )


@contextmanager
def _option_errors(started: Callable[[], bool]) -> Iterator[None]:
    """What transformers raises about options, before any decoding has ``started``, as OptionError."""
    try:
        yield
    except Exception as error:
        if started() or isinstance(error, MMSpecError):
            raise
        raise OptionError(f"transformers refuses these options: {error}") from error
