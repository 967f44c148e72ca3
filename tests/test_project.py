"""What the project promises as a whole: its layout, its package and its surface."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import quantkit

ROOT = Path(__file__).parents[1]
LINKS = ("cli", "eval", "recipes")
PACKAGE_FOLDERS = ("quantkit", *LINKS)
NOT_SHIPPED = ("text/written/",)  # what default.jsonl is built from
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PUBLIC = [
    "Progress",
    "QuantkitError",
    "Recipe",
    "Scheme",
    "__version__",
    "build_recipe",
    "demo",
    "doctor",
    "dry_run",
    "evaluate",
    "fit",
    "generate",
    "list_recipes",
    "load_recipe",
    "plan",
    "quantize",
    "report",
    "resume",
    "sweep",
    "verify",
]
WITH_TORCH = {"triton"}  # its CUDA builds bring it along, and nothing else needs it
# modules whose distribution has another name, or comes with another
DISTRIBUTIONS = {
    "numpy": "transformers",
    "pydantic_core": "pydantic",
    "ruamel": "ruamel.yaml",
    "tokenizers": "transformers",
}


def sources(*folders: str) -> Iterator[Path]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "__pycache__" not in path.parts and not (ROOT / folder / path.name).is_symlink():
                yield path


def requirement(text: str) -> str:
    return re.split(r"[<>=\[; ]", text)[0].lower().replace("_", "-")


def child_output(code: str, folder: Path) -> str:
    """Stdout of a Python process that runs `code` in `folder`."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", LINKS)
def test_the_links_into_the_package_resolve(name: str) -> None:
    link = ROOT / "quantkit" / name
    assert link.is_symlink(), "this checkout has no symlinks: git config core.symlinks true"
    assert link.resolve() == ROOT / name
    assert (link / "__init__.py").is_file()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy as pip builds it, without network."""
    base = tmp_path_factory.mktemp("wheel")
    copy = base / "source"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in PACKAGE_FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignored)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    options = ["--no-build-isolation", "--wheel-dir", str(base), str(copy)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = base.glob("*.whl")
    return built


def test_the_wheel_holds_every_file_of_the_package_and_nothing_beside_it(wheel: Path) -> None:
    expected = set()
    for folder in PACKAGE_FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            name = path.relative_to(ROOT).as_posix()
            if (
                path.is_file()
                and "__pycache__" not in name
                and not any(n in name for n in NOT_SHIPPED)
            ):
                expected.add(name if folder == "quantkit" else f"quantkit/{name}")
    packed = set(zipfile.ZipFile(wheel).namelist())
    information = {name for name in packed if ".dist-info/" in name}
    assert packed - information == expected
    assert any(name.endswith("licenses/LICENSE") for name in information)


def test_the_wheel_runs_away_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = (
        "import sys; sys.path.insert(0, '.'); import quantkit; from quantkit.cli.main import run\n"
        "assert run(['recipes', 'show', 'gptq-w3']) == 0; print(quantkit.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "bits: 3" in done.stdout
    assert Path(done.stdout.splitlines()[-1]).parent == tmp_path / "quantkit"


def test_the_public_names_are_these_and_all_there() -> None:
    assert quantkit.__all__ == PUBLIC
    assert dir(quantkit) == sorted(PUBLIC)
    for name in PUBLIC:
        assert getattr(quantkit, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        quantkit.nothing  # noqa: B018 - reading it is the test


def test_no_public_name_is_a_subpackage() -> None:
    folders = {path.name for path in (ROOT / "quantkit").iterdir() if path.is_dir()}
    assert not folders & set(PUBLIC)


def test_importing_loads_nothing_and_changes_nothing(tmp_path: Path) -> None:
    code = (
        "import os, sys; before = dict(os.environ); import quantkit\n"
        "assert dict(os.environ) == before\n"
        "print(sorted(m for m in sys.modules if m.startswith('quantkit')))\n"
        "quantkit.list_recipes()\n"
        "assert not {'torch', 'numpy', 'transformers', 'typer', 'rich'} & set(sys.modules)\n"
    )
    assert child_output(code, tmp_path) == "['quantkit']\n"


def test_the_version_is_stated_once_and_told_twice() -> None:
    assert PROJECT["version"] == quantkit.__version__


def test_what_is_imported_is_declared_and_what_is_declared_is_imported() -> None:
    imported = set()
    for path in sources(*PACKAGE_FOLDERS):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.split(".")[0])
    foreign = imported - sys.stdlib_module_names - {"quantkit"}
    names = {DISTRIBUTIONS.get(name, name).replace("_", "-") for name in foreign}
    declared = {requirement(text) for text in PROJECT["dependencies"]}
    optional = {
        requirement(text)
        for extra, texts in PROJECT["optional-dependencies"].items()
        if extra != "test"
        for text in texts
    }
    assert declared | WITH_TORCH <= names
    assert names <= declared | optional | WITH_TORCH


def test_every_dependency_is_pinned_for_the_tests() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {requirement(line) for line in lines if "==" in line}
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *extras["test"], *extras["parquet"]]
    assert {requirement(text) for text in wanted} <= pinned


def test_ci_runs_the_command_that_the_readme_names() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    commands = [line for line in script.splitlines() if line and not line.startswith("#")]
    assert commands[-1] == "make test"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make test" in readme
    assert "make demo" in readme
    assert "pip install quantkit\n" not in readme


def test_every_make_target_is_phony_or_a_file_and_told_by_help() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = set(re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)[0].split())
    told = set(re.findall(r"^(\w+):.*## \w", text, re.MULTILINE))
    assert told == phony
