"""What the README shows works: Python blocks run in their order, commands exist and run, links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mmspec_agent.models import catalog

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RUN_AT_ONCE = ("models list",)
"""Commands that end by themselves within seconds; of the others the options are checked."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def commands() -> list[str]:
    lines = [line.partition("#")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if line]


def reference_lm_is_here() -> bool:
    model = catalog.offline_model("reference-lm")
    return model is not None and model.is_ready()


def test_every_block_is_of_a_language_that_is_tested() -> None:
    assert set(re.findall(r"^```(\w+)$", README, re.MULTILINE)) <= {"python", "sh"}
    assert len(re.findall(r"^```", README, re.MULTILINE)) % 2 == 0


@pytest.mark.slow
@pytest.mark.reference
@pytest.mark.skipif(not reference_lm_is_here(), reason="reference-lm is not here: mmspec models get reference-lm")
def test_python_blocks_run_one_after_another(tmp_path: Path) -> None:
    script = tmp_path / "readme.py"
    script.write_text("\n".join(blocks("python")), encoding="utf-8")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=580)
    assert done.returncode == 0, done.stderr
    assert "prompt tokens were kept from the turn before" in done.stdout


@pytest.mark.parametrize("command", [c for c in commands() if c.startswith("make ")])
def test_make_targets_exist(command: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{command.split()[1]}:", makefile, re.MULTILINE)


@pytest.mark.parametrize("command", [c for c in commands() if c.startswith("mmspec ")])
def test_commands_exist_with_their_options(command: str) -> None:
    from typer.testing import CliRunner

    from mmspec_agent.cli.main import build

    words = command.split()[1:]
    names = [word for word in words if not word.startswith("-")]
    arguments = words if " ".join(names) in RUN_AT_ONCE else [*names, "--help"]
    result = CliRunner().invoke(build(), arguments)
    assert result.exit_code == 0, result.output
    for option in (word for word in words if word.startswith("--")):
        assert option in result.output


def test_commands_are_all_of_a_kind_that_is_checked() -> None:
    assert all(command.startswith(("make ", "mmspec ")) for command in commands())


def test_files_that_are_named_exist() -> None:
    for name in re.findall(r"\]\(([\w./-]+)\)", README):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"`(\w+\.py)`", README):
        assert (ROOT / "examples" / name).exists(), name
