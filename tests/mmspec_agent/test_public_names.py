"""What users import comes from the package itself: complete, loaded late, known to type checkers and completion."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import mmspec_agent
from mmspec_agent.core import errors

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").glob("*.py"))]


def names_for_type_checkers() -> dict[str, str]:
    tree = ast.parse(Path(str(mmspec_agent.__file__)).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def test_every_name_is_the_one_that_type_checkers_see() -> None:
    seen = names_for_type_checkers()
    assert sorted(seen) == sorted(mmspec_agent.__all__)
    for name, module in seen.items():
        assert getattr(mmspec_agent, name) is getattr(import_module(f"mmspec_agent.{module}"), name)


def test_every_error_and_warning_is_exported() -> None:
    own = {n for n, v in vars(errors).items() if isinstance(v, type) and v.__module__ == errors.__name__}
    assert own <= set(mmspec_agent.__all__)


def test_completion_shows_what_is_not_loaded_yet() -> None:
    script = (
        "import sys, mmspec_agent as m\n"
        "assert set(m.__all__) <= set(dir(m))\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Enginee"):
        _ = mmspec_agent.Enginee


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_documents_import_from_the_package_itself(path: Path) -> None:
    inner = re.findall(r"^\s*(?:from|import) mmspec_agent\.[\w.]+", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert inner == []
