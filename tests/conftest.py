"""``--clock``: runs the tests under a clock that lies, to find tests whose outcome depends on how fast the machine is.

The engine measures its forwards and drafts by what they cost, so anything that counts forwards or accepted drafts
may depend on the machine without saying so. Under every clock below, tokens and outcomes have to stay as they are.
"""

from __future__ import annotations

import random
import re
import sys
import time
import types
from collections.abc import Callable

import pytest

from mmspec_agent.core.controller import Controller, StepTimes

COSTS: dict[str, Callable[[int], float]] = {
    "dear": lambda rows: 0.02 * rows,  # each row costs a whole step: drafts never pay
    "free": lambda rows: 0.02,  # rows cost nothing: drafts always pay
    "stalled": lambda rows: 0.02 if rows == 1 else 60.0,  # every draft meets a machine that slept
}
MEASURING = ("perf_counter", "process_time", "thread_time")
"""Functions of ``time`` by which the package measures; what it waits by (``monotonic``, ``sleep``) stays true."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--clock", choices=["true", "noisy", *COSTS], default="true", help="the clock that tests run by")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Workers that run tests side by side have to find them under the same names: none may hold an address."""
    addressed = [item.nodeid for item in items if re.search(r"\b0x[0-9a-f]{5,}", item.nodeid)]
    if addressed:
        raise pytest.UsageError(f"names of tests differ from process to process: {addressed[:5]}; give them ids")


class NoisyTime(types.ModuleType):
    """``time``, where between any two looks something else ran: most often nothing, now and then for seconds."""

    def __init__(self, seed: int) -> None:
        super().__init__("time")
        self._random, self._late = random.Random(seed), 0.0

    def __getattr__(self, name: str) -> object:
        return getattr(time, name) if name not in MEASURING else lambda: self._delayed(getattr(time, name))

    def _delayed(self, look: Callable[[], float]) -> float:
        self._late += self._random.lognormvariate(-6.0, 3.0)
        return look() + self._late


@pytest.fixture(autouse=True)
def _clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("own_clock"):
        return
    name = request.config.getoption("--clock")
    if name == "noisy":
        noisy = NoisyTime(len(request.node.nodeid))
        for module in [m for n, m in sys.modules.items() if n.startswith("mmspec_agent")]:
            if getattr(module, "time", None) is time:
                monkeypatch.setattr(module, "time", noisy)
            for look in MEASURING:
                if getattr(module, look, None) is getattr(time, look):
                    monkeypatch.setattr(module, look, getattr(noisy, look))
    elif name in COSTS:
        monkeypatch.setattr(Controller, "observe", _observing(COSTS[name], Controller.observe))


def _observing(cost: Callable[[int], float], observe: Callable[..., None]) -> Callable[..., None]:
    def observed(self: Controller, tree: object, pending: int, accepted: int, emitted: int, times: StepTimes) -> None:
        seconds = cost(pending + len(tree))  # type: ignore[arg-type]
        told = StepTimes(0.0, seconds, 0.0) if type(self) is Controller else times  # others bring their own
        observe(self, tree, pending, accepted, emitted, told)

    return observed
