"""Hugging Face's ``generate`` over the engine's loop: its signature, its processors, its return values.

``model.generate`` itself prepares configuration, processors and stopping criteria and calls
``custom_generate``; so every option means what it means in transformers.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers import GenerationConfig, GenerationMixin, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.generation.logits_process import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)
from transformers.generation.utils import GenerateDecoderOnlyOutput

from mmspec_agent.core.cache import user_cache_problem
from mmspec_agent.core.errors import OptionError, PromptError, UnsupportedOption
from mmspec_agent.core.noise import ReplyNoise
from mmspec_agent.core.sampling import Draw, IdBuffer, Processing, Processor, Sampler
from mmspec_agent.core.visual.placing import Placed

from .options import REFUSED

if TYPE_CHECKING:
    from .engine import Engine

_IGNORED = {
    "attention_mask",
    "position_ids",
    "use_cache",
    "logits_to_keep",
    "cache",
    "tokenizer",
    "return_dict",
    "next_sequence_length",
}
"""Model arguments that generate prepares and the engine replaces by its own."""

_PER_ROW = (
    RepetitionPenaltyLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    EncoderNoRepeatNGramLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
)


class ConstraintSlot:
    """Marks, in transformers' list of processors, the place of the constraint's mask: before the warpers."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores


def chat_processing(
    model: PreTrainedModel, config: GenerationConfig, prompt_length: int, keep_logprobs: bool
) -> Processing:
    """The processors of a generation config, split at the constraint's place."""
    model._prepare_special_tokens(config, True, device=model.device)
    processors = model._get_logits_processor(
        generation_config=config,
        input_ids_seq_length=prompt_length,
        encoder_input_ids=None,
        logits_processor=LogitsProcessorList([ConstraintSlot()]),
        device=model.device,
        model_kwargs={},
    )
    at = next(i for i, p in enumerate(processors) if isinstance(p, ConstraintSlot))
    return Processing(
        tuple(processors[:at]),
        tuple(processors[at + 1 :]),
        greedy=not config.do_sample,
        keep_logprobs=keep_logprobs,
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
    **model_kwargs: Any,
) -> Any:
    """The decoding method that ``model.generate(..., custom_generate=engine.custom_generate)`` calls.

    Rows of a batch decode one after another, each with its own cache and noise; left padding is cut off. With
    sampling, the seed is drawn from torch's generator unless given, so ``torch.manual_seed`` governs it.
    """
    if model is not engine.model:
        raise OptionError(
            f"custom_generate belongs to an engine around another model ({type(engine.model).__name__}); "
            "build an Engine around this one"
        )
    engine.check_model()
    visual = _check_inputs(generation_config, logits_processor, model_kwargs)
    _check_ids(input_ids, engine.target.vocab_size)
    if streamer is not None and input_ids.shape[0] > 1:
        raise UnsupportedOption("a streamer needs a batch of one row; call generate per row")
    if seed is None:
        seed = int(torch.randint(0, 2**62, ())) if generation_config.do_sample else 0
    mask = model_kwargs.get("attention_mask")
    keep = bool(
        generation_config.return_dict_in_generate
        and (generation_config.output_scores or generation_config.output_logits)
    )
    prompts = [_unpadded(input_ids[row], None if mask is None else mask[row]) for row in range(input_ids.shape[0])]
    pictures = _pictures(engine, prompts, visual, model_kwargs.get("position_ids"))
    rows = []
    for row, ids in enumerate(prompts):
        # Processors and criteria see the padding, as in transformers: lengths and penalties count it.
        shown = IdBuffer(input_ids[row].tolist(), input_ids.device)
        own = _processors_of_row(logits_processor, row, len(prompts))
        processing = Processing(own, (), not generation_config.do_sample, keep_scores=keep)
        sampler = Sampler(processing, ReplyNoise(seed, row=row), shown)
        rows.append(_decode_row(engine, ids, sampler, stopping_criteria, generation_config, streamer, pictures[row]))
    if streamer is not None:
        streamer.end()
    return _assemble(input_ids, rows, generation_config)


def _processors_of_row(processors: LogitsProcessorList, row: int, rows: int) -> tuple[Processor, ...]:
    """A batch's processors for one row: those of transformers that hold something per row are cut to it."""
    own = []
    for processor in processors:
        if isinstance(processor, _PER_ROW):
            processor = copy.copy(processor)
        if isinstance(processor, RepetitionPenaltyLogitsProcessor):
            if isinstance(processor.prompt_ignore_length, torch.Tensor):
                processor.prompt_ignore_length = processor.prompt_ignore_length[row : row + 1]
        elif isinstance(processor, EncoderRepetitionPenaltyLogitsProcessor):
            at = row * len(processor.encoder_input_ids) // rows
            processor.encoder_input_ids = processor.encoder_input_ids[at : at + 1]
        elif isinstance(processor, EncoderNoRepeatNGramLogitsProcessor):
            at = row * len(processor.generated_ngrams) // rows
            processor.generated_ngrams, processor.batch_size = processor.generated_ngrams[at : at + 1], 1
        elif isinstance(processor, PrefixConstrainedLogitsProcessor):
            allowed = processor._prefix_allowed_tokens_fn
            processor._prefix_allowed_tokens_fn = lambda _, ids, allowed=allowed: allowed(row, ids)
        own.append(processor)
    return tuple(own)


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


def refuse(options: Mapping[str, Any], allowed: Sequence[str] = ()) -> None:
    """UnsupportedOption for options that transformers knows and the engine cannot honour."""
    for name, reason in REFUSED.items():
        value = options.get(name)
        if name not in allowed and value is not None and not any(value is x or value == x for x in (1, 1.0, False)):
            raise UnsupportedOption(f"option {name!r} is not supported: {reason}")


def _check_inputs(
    config: GenerationConfig, processors: LogitsProcessorList, model_kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Refuse by name what cannot be honoured; returns the inputs that carry pictures."""
    problem = user_cache_problem(model_kwargs.get("cache"))
    if problem is not None:
        raise UnsupportedOption(
            f"cache={problem}: the engine keeps its own KV arena; use engine.session() to keep KV over calls"
        )
    for name in ("output_attentions", "output_hidden_states"):
        if config.return_dict_in_generate and getattr(config, name, None):
            raise UnsupportedOption(f"option {name!r} is not supported: a tree forward has no row per emitted token")
    refuse({name: getattr(config, name, None) for name in REFUSED}, allowed=("num_return_sequences",))
    for processor in processors:
        if isinstance(processor, UnbatchedClassifierFreeGuidanceLogitsProcessor):
            raise UnsupportedOption(f"option 'guidance_scale' is not supported: {REFUSED['guidance_scale']}")
    return {k: v for k, v in model_kwargs.items() if k not in _IGNORED and v is not None}


def _check_ids(ids: torch.Tensor, vocab_size: int) -> None:
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocab_size:
        raise PromptError(
            f"input_ids hold {low if low < 0 else high}; accepted are ids from 0 to {vocab_size - 1}, the model's rows"
        )


def _pictures(
    engine: Engine, prompts: Sequence[list[int]], inputs: dict[str, Any], position_ids: torch.Tensor | None
) -> list[tuple[Placed, ...]]:
    """The pictures of each row; OptionError for inputs that are none."""
    given = {name: value for name, value in inputs.items() if value != {}}
    if not given:
        return [()] * len(prompts)
    if engine.vision_or_none is None:
        raise OptionError(f"generate got inputs it does not know: {', '.join(sorted(given))}")
    with engine.exclusive():
        return engine.vision.pictures_of_rows(prompts, given, position_ids)


def _unpadded(ids: torch.Tensor, mask: torch.Tensor | None) -> list[int]:
    if mask is None:
        return [int(i) for i in ids.tolist()]
    kept = torch.nonzero(mask).reshape(-1)
    if not len(kept):
        raise PromptError("a row of attention_mask is all zeros: nothing to decode from")
    if int(kept[-1]) + 1 != len(ids) or int(kept[-1]) - int(kept[0]) + 1 != len(kept):
        raise PromptError("attention_mask has gaps or right padding; accepted is left padding (padding_side='left')")
    return [int(i) for i in ids[kept[0] :].tolist()]


def _decode_row(
    engine: Engine,
    ids: list[int],
    sampler: Sampler,
    criteria: StoppingCriteriaList,
    config: GenerationConfig,
    streamer: Any,
    pictures: tuple[Placed, ...],
) -> list[Draw]:
    if not ids:
        raise PromptError("the prompt is empty; pass at least one token (the tokenizer's bos, say)")
    draws: list[Draw] = []
    scores: tuple[torch.Tensor, ...] | None = () if config.return_dict_in_generate and config.output_scores else None
    limit = (config.max_length or sampler.ids.length + 20) - sampler.ids.length

    def stop(draw: Draw) -> str | None:
        nonlocal scores
        draws.append(draw)
        if streamer is not None:
            streamer.put(torch.tensor([draw.token]))
        if scores is not None and draw.scores is not None:
            scores += (draw.scores,)
        return "stop" if bool(criteria(sampler.ids.view(), scores).all()) else None

    engine.decode_ids(ids, sampler, stop, max(limit, 1), pictures)
    return draws


def _assemble(input_ids: torch.Tensor, rows: Sequence[list[Draw]], config: GenerationConfig) -> Any:
    """Rows padded on the right to one tensor, as transformers returns them."""
    longest = max(map(len, rows))
    pad = config._pad_token_tensor
    pad_id = int(pad) if pad is not None else 0
    new = torch.full((len(rows), longest), pad_id, dtype=torch.long, device=input_ids.device)
    for row, draws in enumerate(rows):
        new[row, : len(draws)] = torch.tensor([d.token for d in draws])
    sequences = torch.cat([input_ids, new], dim=1)
    if not config.return_dict_in_generate:
        return sequences
    return GenerateDecoderOnlyOutput(
        sequences=sequences,
        scores=_stack(rows, longest, lambda d: d.scores) if config.output_scores else None,
        logits=_stack(rows, longest, lambda d: d.logits) if config.output_logits else None,
    )


def _stack(
    rows: Sequence[list[Draw]], longest: int, pick: Callable[[Draw], torch.Tensor | None]
) -> tuple[torch.Tensor, ...]:
    """Per emitted token [rows, V]; rows that ended earlier repeat their last scores."""
    steps = []
    for at in range(longest):
        tensors = [pick(draws[min(at, len(draws) - 1)]) for draws in rows]
        steps.append(torch.cat([t for t in tensors if t is not None]))
    return tuple(steps)
