"""What stands between an engine and a model that changes: checked at creation, looked at before every request."""

from __future__ import annotations

from mmspec_agent.core.hf_target import HFTarget
from mmspec_agent.core.probe import check_target, refuse_training
from mmspec_agent.core.weights import ModelWatch, weights_digest


class ModelGuard:
    """Knows whether held KV rows still belong to the model; errors as ``check_target``."""

    def __init__(self, target: HFTarget) -> None:
        self._target = target
        check_target(target)
        self._watch = ModelWatch(target.model)
        self._checked = True
        self._digest: tuple[int, str] | None = None

    def look(self) -> None:
        """Before a request: if the model changed, every row computed before is void.

        ModelError in training mode. Where modules, hooks or the configuration changed, the model is checked again as
        at creation, and may be refused.
        """
        if self._watch.training:
            refuse_training(self._target.model)
        change = self._watch.changed()
        if change:
            self._target.forget()
        if change.structure or not self._checked:
            self._checked = False
            self._target.read_config()
            check_target(self._target)
            self._watch = ModelWatch(self._target.model)
            self._checked = True

    @property
    def digest(self) -> str:
        """Hash of all weights, adapters and configuration; computed once for as long as nothing changes."""
        if self._digest is None or self._digest[0] != self._target.epoch:
            self._digest = (self._target.epoch, weights_digest(self._target.model))
        return self._digest[1]
