"""The examples in CONTRIBUTING.md are entries that work, as a stranger would type them in."""

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import quantkit
from quantkit.cli.main import run
from quantkit.core import registry
from quantkit.core.format import Format
from quantkit.core.rules import unloaded
from quantkit.core.scheme import Scheme
from quantkit.grid.digest import codes_sha256
from quantkit.model.embedded_model import FOLDER
from quantkit.model.open import open_model
from quantkit.recipes import loader
from quantkit.recipes.loader import build_recipe, list_recipes, load_family, load_recipe

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
EXAMPLES = dict(
    re.findall(r"`([\w/.-]+)`, whole:\n\n```(?:python|yaml)\n(.*?\n)```\n", TEXT, re.DOTALL)
)


def test_every_folder_has_its_example() -> None:
    assert set(EXAMPLES) == {
        "quantkit/methods/absmax.py",
        "quantkit/grids/ternary.py",
        "quantkit/formats/plain.py",
        "quantkit/engines/mine.py",
        "quantkit/checks/plain_vocabulary.py",
        "eval/metrics/surprise.py",
        "cli/commands/formats.py",
        "recipes/ternary.yaml",
        "recipes/rtn-w8.yaml",
        "recipes/families/delicate.yaml",
    }


@pytest.fixture
def entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The examples in their registries."""
    added = []
    for path, text in EXAMPLES.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        if file.suffix == ".py":
            folder = "quantkit." + ".".join(Path(path).parent.parts).removeprefix("quantkit.")
            package = import_module(folder)
            monkeypatch.setattr(package, "__path__", [*package.__path__, str(file.parent)])
            added.append(f"{folder}.{file.stem}")
    for recipe in loader.SHIPPED.glob("*.yaml"):
        (tmp_path / "recipes" / recipe.name).write_bytes(recipe.read_bytes())
    monkeypatch.setattr(loader, "SHIPPED", tmp_path / "recipes")
    yield
    for module in added:
        sys.modules.pop(module, None)


@pytest.mark.usefixtures("entries")
def test_they_are_found_and_run(tmp_path: Path) -> None:
    assert {"absmax", "rtn-w8"} <= {info.name for info in list_recipes()}
    assert load_recipe("rtn-w8").scheme.bits == 8
    family = load_family("llama")
    assert family is not None
    output: Format = registry.load("formats", "plain", "FORMAT")
    assert "no engine loads format `plain`" in (unloaded(output) or "")

    settings = ["options.signed=true", "overrides=[{match: '*.0.*', skip: true}]"]
    recipe = build_recipe(
        method="absmax", format="plain", samples=2, sequence_length=64, settings=settings
    )
    serving = quantkit.plan(str(FOLDER), recipes=[recipe]).serving
    assert serving is not None
    assert unloaded(output) in serving.model.notes
    out = tmp_path / "out"
    result = quantkit.quantize(str(FOLDER), out, recipe=recipe, device="cpu", evaluate=False)
    assert not any(".down_proj" in module["name"] for module in result.modules)
    assert run(["formats", "--json"]) == 0
    assert run(["formats"]) == 0
    assert run(["formats", "--help"]) == 0
    found = quantkit.evaluate(str(out), windows=2, sequence_length=32)
    assert found.metrics["surprise.max"].unit == "nats"
    assert quantkit.verify(out).status == "sound"
    assert quantkit.generate(str(out), "Once", max_new_tokens=2)
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "No engine that quantkit knows loads this folder" in card
    assert "mine does not load it: Mine does not load format `plain`." in card


@pytest.mark.usefixtures("entries")
@pytest.mark.parametrize("output", ["gptq", "compressed-tensors"])
def test_a_grid_is_stored_as_one_that_formats_know(tmp_path: Path, output: str) -> None:
    recipe = build_recipe("ternary", method="rtn", format=output, samples=0)
    serving = quantkit.plan(str(FOLDER), recipes=[recipe]).serving
    assert serving is not None
    assert "ternary g128 (ternary)" in [build.name for build in serving.builds]
    result = quantkit.quantize(
        str(FOLDER), tmp_path / "out", recipe=recipe, device="cpu", evaluate=False
    )
    assert {module["scheme"] for module in result.modules} == {"ternary g128"}
    artifact = open_model(tmp_path / "out")
    for module in result.modules:
        qtensor = artifact.qtensor(module["name"])
        assert qtensor.scheme == Scheme("int", 2, 128)
        assert set(qtensor.codes.flatten().tolist()) == {1, 2, 3}
        assert codes_sha256(qtensor) == module["codes_sha256"]
    assert "ternary" not in (tmp_path / "out" / "config.json").read_text(encoding="utf-8")


@pytest.mark.usefixtures("entries")
def test_the_contracts_hold_for_them(tmp_path: Path) -> None:
    """In a process of its own: tests are parametrized by the registries as they are then."""
    plugin = tmp_path / "plugin.py"
    lines = ["from importlib import import_module"]
    for path in EXAMPLES:
        if path.startswith("quantkit/"):
            package = ".".join(Path(path).parent.parts)
            folder = str((tmp_path / path).parent)
            lines.append(f"import_module({package!r}).__path__.append({folder!r})")
    plugin.write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "plugin",
        "tests/contract",
        "tests/grids",
    ]
    command += ["-k", "absmax or plain or mine or ternary", "-p", "no:cacheprovider"]
    environment = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "OMP_NUM_THREADS": "1", "PATH": ""}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert re.search(r"(\d+) passed", done.stdout)
