"""From a name to a model that can be used: a reference model, a local folder, or any repository on the Hub."""

import difflib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mmspec_agent.core.errors import ModelError, ModelNotFound, OptionError

from . import catalog
from .home import home

if TYPE_CHECKING:
    import torch

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_HUB_TIMEOUT_SECONDS = 5.0

DTYPES = {
    "auto": "auto",
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "fp16": "float16",
    "float16": "float16",
    "half": "float16",
    "fp32": "float32",
    "float32": "float32",
    "float": "float32",
}

OPTIONS = frozenset(
    {
        "attn_implementation",
        "cache_dir",
        "code_revision",
        "device_map",
        "force_download",
        "local_files_only",
        "max_memory",
        "offload_folder",
        "proxies",
        "quantization_config",
        "revision",
        "subfolder",
        "token",
        "trust_remote_code",
    }
)
# What the tokenizer and the configuration take too; the rest concerns weights alone.
_SHARED = frozenset(
    {
        "cache_dir",
        "code_revision",
        "force_download",
        "local_files_only",
        "proxies",
        "revision",
        "subfolder",
        "token",
        "trust_remote_code",
    }
)


class Location(NamedTuple):
    """Where a model is: a folder on this machine, or an id on the Hub."""

    path: str
    is_local: bool


class LoadedModel(NamedTuple):
    """A model ready for use. `processor` is None where the model reads text alone."""

    model: Any
    tokenizer: Any
    processor: Any | None
    location: Location


def locate(name: str | Path) -> Location:
    """Where the model `name` is, without loading it.

    `name` is a reference name (`reference-lm`), an existing folder, or a Hub id. A folder wins over a Hub id of
    the same spelling, a reference name over both. Raises ModelNotFound.
    """
    text = str(name)
    if (reference := catalog.offline_model(text)) is not None:
        if not reference.is_ready():
            raise ModelNotFound(f"{text} is not on this machine yet ({home()}). {_how_to_get(text)}")
        return Location(str(reference.folder()), True)
    folder = Path(text).expanduser()
    if text and folder.is_dir():
        _require_checkpoint(folder)
        return Location(str(folder), True)
    if folder.is_file():
        raise ModelNotFound(f"{folder} is a file; give the folder that holds config.json.{_gguf_hint(folder)}")
    if isinstance(name, Path) or not _HUB_ID.fullmatch(text):
        raise ModelNotFound(f"There is no folder {text!r}, and it is not a Hub id either. {_accepted(text)}")
    return Location(text, False)


def load(
    name: str | Path,
    *,
    dtype: "str | torch.dtype | None" = None,
    device: "str | torch.device | None" = None,
    **options: Any,
) -> LoadedModel:
    """Load model and tokenizer (and processor, where pictures can be read) of `name`.

    `dtype`: a torch dtype or its name, or "auto" (the default: as stored). `device`: where the weights go; CUDA if
    there is one, else the CPU. `options` go to `from_pretrained` as they are (see OPTIONS). The model is in eval mode.
    Raises ModelNotFound, OptionError, ModelError.
    """
    unknown = sorted(set(options) - OPTIONS)
    if unknown:
        raise OptionError(f"Unknown option {unknown[0]!r} for loading a model. Accepted: {', '.join(sorted(OPTIONS))}.")
    if options.get("device_map", "") is None:
        del options["device_map"]
    if device is not None and "device_map" in options:
        raise OptionError("device and device_map both say where the weights go: give one of them.")
    torch_dtype = resolve_dtype(dtype)
    location = locate(name)
    if not location.is_local and "local_files_only" not in options and not _hub_answers(location, options.get("token")):
        # Otherwise each file would be retried for half a minute before the Hub's own cache is looked at.
        options["local_files_only"] = True
    shared = {key: value for key, value in options.items() if key in _SHARED}
    try:
        return _load(location, torch_dtype, device, options, shared)
    except (OSError, ValueError, ImportError) as error:
        if isinstance(error, ModelError):
            raise
        raise _translated(location, error) from error


def load_model(
    name: str | Path, *, dtype: "str | torch.dtype | None" = None, device_map: Any = None, **options: Any
) -> tuple[Any, Any]:
    """Model and what turns messages into its input: the processor if there is one, else the tokenizer; see `load`."""
    loaded = load(name, dtype=dtype, device_map=device_map, **options)
    return loaded.model, loaded.tokenizer if loaded.processor is None else loaded.processor


def resolve_dtype(dtype: "str | torch.dtype | None") -> "str | torch.dtype":
    """A torch dtype, or "auto", from what a user may write; raises OptionError."""
    import torch

    if isinstance(dtype, torch.dtype):
        if not dtype.is_floating_point:
            raise OptionError(f"dtype {dtype} cannot hold weights. Accepted: {', '.join(DTYPES)}.")
        return dtype
    text = "auto" if dtype is None else str(dtype).removeprefix("torch.")
    if text not in DTYPES:
        raise OptionError(f"Unknown dtype {dtype!r}. Accepted: {', '.join(DTYPES)}.")
    found: torch.dtype | str = "auto" if DTYPES[text] == "auto" else getattr(torch, DTYPES[text])
    return found


def _load(location: Location, dtype: Any, device: Any, options: dict[str, Any], shared: dict[str, Any]) -> LoadedModel:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    config = AutoConfig.from_pretrained(location.path, **shared)
    sees = reads_pictures(config)
    family = AutoModelForImageTextToText if sees else AutoModelForCausalLM
    tokenizer, processor = _readers(location.path, sees, shared)
    model = family.from_pretrained(location.path, config=config, dtype=dtype, **options)
    if "device_map" not in options and not getattr(model, "is_quantized", False):
        model = model.to(_default_device() if device is None else device)
    return LoadedModel(model.eval(), tokenizer, processor, location)


def _hub_answers(location: Location, token: Any) -> bool:
    """Whether the Hub can be reached at all, whatever it says about this repository."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        HfApi(token=token).model_info(location.path, timeout=_HUB_TIMEOUT_SECONDS)
    except (HfHubHTTPError, ValueError):
        return True
    except Exception:  # the kind depends on the HTTP library: name resolution, refusal, time-out, offline mode
        return False
    return True


def reads_pictures(config: Any) -> bool:
    """Whether a configuration belongs to a model of pictures and text, judged by the class it was saved from."""
    from transformers import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    saved_as = (getattr(config, "architectures", None) or [""])[0]
    return type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING and not saved_as.endswith("ForCausalLM")


def _readers(path: str, sees: bool, shared: dict[str, Any]) -> tuple[Any, Any | None]:
    """Tokenizer and processor. A vision model saved without its processor can still be used for text."""
    from transformers import AutoConfig, AutoTokenizer

    from .processors import load_processor

    if sees:
        try:
            processor: Any = load_processor(path, AutoConfig.from_pretrained(path, **shared), **shared)
        except (OSError, ValueError):
            processor = None
        if getattr(processor, "tokenizer", None) is not None:
            return processor.tokenizer, processor
    return AutoTokenizer.from_pretrained(path, **shared), None


def _default_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _require_checkpoint(folder: Path) -> None:
    if (folder / "config.json").is_file():
        return
    raise ModelNotFound(
        f"{folder} holds no config.json, so it is not a model folder of transformers.{_gguf_hint(folder)}"
    )


def _gguf_hint(path: Path) -> str:
    is_gguf = path.suffix == ".gguf" or (path.is_dir() and any(path.glob("*.gguf")))
    if not is_gguf:
        return ""
    return " GGUF files are read by `mmspec models get reference-lm --from FILE` for that model; convert others first."


def _translated(location: Location, error: Exception) -> ModelError:
    """transformers' many ways to say that a model cannot be had, as one of ours."""
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if location.is_local:
        return ModelError(f"The model in {location.path} cannot be loaded: {reason}")
    if isinstance(error, OSError):
        return ModelNotFound(
            f"{location.path!r} is not a folder here and could not be fetched from the Hugging Face Hub: {reason}\n"
            f"{_accepted(location.path)}"
        )
    return ModelError(f"The model {location.path!r} cannot be loaded: {reason}")


def _accepted(given: str) -> str:
    close = difflib.get_close_matches(given, catalog.names(), n=1)
    guess = f"Did you mean {close[0]!r}? " if close else ""
    return (
        f"{guess}Accepted: {', '.join(catalog.names())}, a folder with config.json, or a Hub id such as "
        f"'HuggingFaceTB/SmolLM2-135M-Instruct'. {_how_to_get('reference-lm')}"
    )


def _how_to_get(name: str) -> str:
    return f"`mmspec models get {name}` fetches {'it' if name != 'reference-lm' else 'a small model'} for offline use."
