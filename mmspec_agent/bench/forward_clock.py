"""A clock on the target's forward, for any arm: how often it ran, for how many rows, and for how long."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self

from transformers import PreTrainedModel


class ForwardClock:
    """Counts forwards of a model inside a ``with`` block; its hooks are removed at the end.

    ``forwards``, ``rows`` (tokens given to the forwards, prompt included) and ``seconds`` since ``reset``.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._handles: list[Any] = []
        self._started = 0.0
        self.reset()

    def reset(self) -> None:
        """Start counting anew."""
        self.forwards = 0
        self.rows = 0
        self.seconds = 0.0

    def __enter__(self) -> Self:
        self._handles = [
            self._model.register_forward_pre_hook(self._before, with_kwargs=True),
            self._model.register_forward_hook(self._after),
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _before(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        self.rows += int(ids.shape[-1]) if ids is not None else 0
        self._started = time.perf_counter()

    def _after(self, module: Any, args: tuple[Any, ...], output: Any) -> None:
        self.seconds += time.perf_counter() - self._started
        self.forwards += 1
