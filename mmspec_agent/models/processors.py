"""Processors of vision-language models on machines without torchvision (SYSTEM.md M8).

The processors of SmolVLM, Qwen-VL, LLaVA-OneVision and InternVL bring a part for videos that cannot even be built
without torchvision. Pictures need none of it: image processors fall back to Pillow.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mmspec_agent.core.errors import ModelError


class NoVideoPart:
    """Stands where the video part would be: SmolVLM's template code reads these two even without videos."""

    num_frames = None
    fps = None


def load_processor(path: str, config: Any, **options: Any) -> Any:
    """transformers' processor of a model; where its video part cannot be built, the same processor without it.

    ModelError if it needs packages that are missing even so.
    """
    from transformers import AutoProcessor

    try:
        return AutoProcessor.from_pretrained(path, **options)
    except (ImportError, ValueError) as error:
        if not isinstance(error, ImportError) and "torchvision" not in str(error):
            raise
        kind = _processor_class(str(config.model_type))
        if kind is None:
            raise _missing(path, error) from error
    try:
        with _words_for_numbers():
            return without_video(kind).from_pretrained(path, **options)
    except ImportError as error:
        raise _missing(path, error) from error


def without_video(kind: type[Any]) -> type[Any]:
    """A processor class that neither loads nor asks for its video part."""

    def get_attributes(cls: Any, /) -> list[str]:
        return [name for name in kind.get_attributes() if name != "video_processor"]

    def from_args_and_dict(cls: Any, /, args: Any, processor_dict: dict[str, Any], **options: Any) -> Any:
        return super(made, cls).from_args_and_dict(args, {**processor_dict, "video_processor": None}, **options)

    made: type[Any] = type(
        kind.__name__,
        (kind,),
        {
            "__doc__": f"{kind.__name__} for pictures and text.",
            "video_processor": NoVideoPart(),
            "get_attributes": classmethod(get_attributes),
            "from_args_and_dict": classmethod(from_args_and_dict),
        },
    )
    return made


def _processor_class(model_type: str) -> type[Any] | None:
    import transformers
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    name = PROCESSOR_MAPPING_NAMES.get(model_type)
    found: type[Any] | None = getattr(transformers, name, None) if name else None
    return found


@contextmanager
def _words_for_numbers() -> Iterator[None]:
    """SmolVLM refuses to be built without num2words, which only its text for videos uses."""
    from transformers.models.smolvlm import processing_smolvlm as module

    before = module.num2words
    if before is None:
        module.num2words = str
    try:
        yield
    finally:
        module.num2words = before


def _missing(path: str, error: Exception) -> ModelError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return ModelError(
        f"the processor of {path} needs a package that is missing: {reason} (pip install torchvision, in the build "
        "that belongs to your torch, brings what most of them lack)"
    )
