"""The folder where converted models live: one for each user, outside the repository."""

import os
from pathlib import Path

VARIABLE = "MMSPEC_HOME"


def home() -> Path:
    """The user's model folder: `MMSPEC_HOME` if set, else `~/.cache/mmspec_agent`. It need not exist yet."""
    return Path(os.environ.get(VARIABLE) or Path("~/.cache/mmspec_agent")).expanduser().absolute()


def model_folder(name: str) -> Path:
    """Where the converted model `name` is or would be."""
    return home() / name


def is_complete(folder: Path) -> bool:
    """Whether `folder` can be loaded: configuration, weights and tokenizer are all there."""
    weights = (folder / "model.safetensors", folder / "model.safetensors.index.json")
    tokenizers = (folder / "tokenizer.json", folder / "tokenizer.model", folder / "vocab.json")
    return (folder / "config.json").is_file() and _any_file(weights) and _any_file(tokenizers)


def _any_file(candidates: tuple[Path, ...]) -> bool:
    return any(path.is_file() for path in candidates)
