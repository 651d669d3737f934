"""The examples of function calls run as they stand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mmspec_agent.models import catalog

EXAMPLES = Path(__file__).parents[2] / "examples"
SAID = {
    "agent_loop.py": ["calculate({'expression': '12 * 49.5'}) -> 594", "find_orders(", "search_files(", "Answer("],
    "extract.py": ['"name": "Harbour Museum"', '"founded": 1962', "forwards"],
}


def reference_lm_is_here() -> bool:
    model = catalog.offline_model("reference-lm")
    return model is not None and model.is_ready()


@pytest.mark.slow
@pytest.mark.reference
@pytest.mark.skipif(not reference_lm_is_here(), reason="reference-lm is not here: mmspec models get reference-lm")
@pytest.mark.parametrize("name", sorted(SAID))
def test_example_runs_as_it_stands(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=580, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for part in SAID[name]:
        assert part in done.stdout
