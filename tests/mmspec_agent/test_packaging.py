"""What is built from this repository can be installed alone, and holds everything it should and nothing else."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("core", "grammar", "video", "mmspec_agent")
LINKED = ("core", "grammar", "video")
DOCUMENTS = ("pyproject.toml", "README.md", "LICENSE")
NEVER_IN_WHEEL = ("core/", "grammar/", "video/", "tests/", "examples/")

IMPORT_EVERYTHING = """
import importlib, importlib.util, pathlib, pkgutil, sys
import mmspec_agent
names = ["mmspec_agent"]
names += [module.name for module in pkgutil.walk_packages(mmspec_agent.__path__, "mmspec_agent.")]
for name in names:
    importlib.import_module(name)
home = pathlib.Path(mmspec_agent.__file__).parent
assert home.is_relative_to(sys.argv[1]), home
for name in ("core", "grammar", "video"):
    assert importlib.util.find_spec(name) is None, name
print(*names, sep="\\n")
"""


def listed_packages() -> dict[str, str]:
    """Every package of pyproject.toml with its folder, by setuptools' rule: the longest mapped parent counts."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    mapping: dict[str, str] = tool["package-dir"]
    folders = {}
    for package in tool["packages"]:
        parent = max((name for name in mapping if f"{package}.".startswith(f"{name}.")), key=len)
        folders[package] = mapping[parent] + package.removeprefix(parent).replace(".", "/")
    return folders


def folders_with_code() -> set[str]:
    """Folders below the four sources that hold Python files; links are not followed."""
    found = set()
    for source in SOURCES:
        for folder, _, names in os.walk(ROOT / source):
            if any(name.endswith(".py") for name in names):
                found.add(Path(folder).relative_to(ROOT).as_posix())
    return found


def copy_of_sources(target: Path) -> Path:
    """The repository as a file system without symbolic links has it: git leaves small text files in their place."""
    for source in SOURCES:
        shutil.copytree(
            ROOT / source,
            target / source,
            symlinks=True,
            ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"),
        )
    for name in LINKED:
        link = target / "mmspec_agent" / name
        if link.is_symlink():
            link.unlink()
            link.write_text(f"../{name}", encoding="utf-8")
    for name in DOCUMENTS:
        if (ROOT / name).exists():
            shutil.copy2(ROOT / name, target / name)
    return target


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution and the wheel that was built from it."""
    project = copy_of_sources(tmp_path_factory.mktemp("project"))
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(project / "dist"), str(project)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return project / "dist"


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def test_every_folder_with_code_is_listed_in_pyproject() -> None:
    assert set(listed_packages().values()) == folders_with_code()


def test_every_package_has_an_init_file() -> None:
    missing = [folder for folder in listed_packages().values() if not (ROOT / folder / "__init__.py").is_file()]
    assert not missing


@pytest.mark.parametrize("name", LINKED)
def test_the_installed_name_leads_to_the_top_level_folder(name: str) -> None:
    import importlib

    module = importlib.import_module(f"mmspec_agent.{name}")
    assert module.__file__ is not None
    assert Path(module.__file__).resolve() == (ROOT / name / "__init__.py").resolve()
    link = ROOT / "mmspec_agent" / name
    # A clone on a file system without links has a text file here, and imports all the same.
    assert os.readlink(link) == f"../{name}" if link.is_symlink() else link.read_text().strip() == f"../{name}"


@pytest.mark.slow
def test_wheel_holds_the_package_and_nothing_beside_it(built: Path) -> None:
    with zipfile.ZipFile(only(built, "*.whl")) as wheel:
        names = set(wheel.namelist())
    assert not [name for name in names if name.startswith(NEVER_IN_WHEEL)]
    assert "mmspec_agent/py.typed" in names
    assert "mmspec_agent/bench/data/text_prompts.jsonl" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    for package, folder in listed_packages().items():
        for path in (ROOT / folder).glob("*.py"):
            assert f"{package.replace('.', '/')}/{path.name}" in names


@pytest.mark.slow
def test_source_distribution_can_be_read_without_links(built: Path) -> None:
    with tarfile.open(only(built, "*.tar.gz")) as archive:
        members = archive.getmembers()
    names = {member.name.split("/", 1)[-1] for member in members}
    assert not [member.name for member in members if member.issym() or member.islnk()]
    assert {"pyproject.toml", "LICENSE", "core/__init__.py", "mmspec_agent/py.typed"} <= names
    assert "mmspec_agent/bench/data/text_prompts.jsonl" in names


@pytest.mark.slow
def test_installed_wheel_imports_whole_in_an_empty_environment(built: Path, tmp_path: Path) -> None:
    environment = tmp_path / "empty"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    scripts = environment / ("Scripts" if os.name == "nt" else "bin")
    python = scripts / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, str(only(built, "*.whl"))], check=True)
    # The dependencies are borrowed. A folder named in a .pth file is not searched for further .pth files,
    # so an editable install of this package in the borrowed folder stays out of sight.
    borrowed = Path(sysconfig.get_path("purelib"))
    (only(environment, "lib/python*/site-packages") / "dependencies.pth").write_text(f"{borrowed}\n")

    imported = subprocess.run(
        [str(python), "-I", "-c", IMPORT_EVERYTHING, str(environment)], capture_output=True, text=True, cwd=tmp_path
    )
    assert imported.returncode == 0, imported.stderr
    assert set(listed_packages()) <= set(imported.stdout.split())

    said = subprocess.run([str(scripts / "mmspec"), "--help"], capture_output=True, text=True, cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    assert "models" in said.stdout


def test_help_imports_neither_torch_nor_transformers() -> None:
    program = (
        "import sys; from mmspec_agent.cli.main import build; build(); "
        "print([name for name in ('torch', 'transformers', 'cv2') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
