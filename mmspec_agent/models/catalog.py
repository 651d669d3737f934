"""The models known by a short name: what `mmspec models` lists, and what an error may offer."""

import importlib
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol, cast

from .progress import Progress

_MODULES = {
    "reference-lm": "mmspec_agent.models.reference_lm",
    "reference-vlm": "mmspec_agent.models.reference_vlm",
}


class OfflineModel(Protocol):
    """What a module of a named model offers (SYSTEM.md M8)."""

    SUMMARY: str

    def folder(self) -> Path:
        """Where the ready model is or would be."""

    def is_ready(self) -> bool:
        """Whether `folder()` can be loaded as it stands."""

    def fetch(self, source: Path | None, hub: bool, progress: Progress) -> Path:
        """Make the model ready and return its folder; raises ModelFetchError."""


def names() -> tuple[str, ...]:
    """The short names this installation can serve."""
    return tuple(name for name in _MODULES if offline_model(name) is not None)


def offline_model(name: str) -> OfflineModel | None:
    """The module of a named model, imported on first use; None for any other name."""
    if name not in _MODULES or find_spec(_MODULES[name]) is None:
        return None
    module = importlib.import_module(_MODULES[name])
    return cast(OfflineModel, module) if hasattr(module, "fetch") else None
