"""Every example runs as it stands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mmspec_agent.models import catalog

EXAMPLES = Path(__file__).parents[2] / "examples"
SAID = {
    "faster_generate.py": ["times as fast, same tokens: True"],
    "chat_session.py": ["of them kept from before", "(saved, resumed)", "prompt tokens were kept"],
    "own_drafter.py": ["forwards instead of", "the same tokens: True"],
}
UNHURRIED = """
import runpy, sys
import mmspec_agent.engine
from unhurried import Unhurried
mmspec_agent.engine.Controller = Unhurried
runpy.run_path(sys.argv[1], run_name="__main__")
"""
"""Runs an example with a controller that measures nothing: whether drafts pay depends on how busy the machine is."""


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


@pytest.mark.slow
@pytest.mark.reference
@pytest.mark.skipif(not reference_lm_is_here(), reason="reference-lm is not here: mmspec models get reference-lm")
def test_drafts_of_ones_own_are_accepted(tmp_path: Path) -> None:
    """As it stands the example may choose not to verify them, where a busy machine makes rows dear."""
    command = [sys.executable, "-c", UNHURRIED, str(EXAMPLES / "own_drafter.py")]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=580, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "'phrase'" in done.stdout
    assert "the same tokens: True" in done.stdout
