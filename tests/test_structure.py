"""The structure of the product: the bounds of `make structure`, and contracts that can break."""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[1]
# After the installed packages: tests see the installed quantkit, and `tools` of the checkout.
sys.path.append(str(ROOT))

from tools import structure  # noqa: E402

FOLDERS = ("quantkit", "cli", "eval", "recipes", "tests", "tools", "benchmarks")
PRODUCT = FOLDERS[:4]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
    "importlinter"
]["contracts"]
# a contract of pyproject.toml, a module, and an import there that the contract forbids
PLANTS = [
    ("data flows one way", "quantkit/results/file.py", "quantkit.eval.text"),
    ("data flows one way", "eval/text.py", "quantkit.runs.card"),
    ("algorithms know no files", "quantkit/grid/affine.py", "os"),
    ("no torch at start", "recipes/flags.py", "torch"),
    ("one gate to the weights", "quantkit/model/walk.py", "quantkit.checkpoint.tensors"),
    ("no other reader of weights", "quantkit/checkpoint/reader.py", "safetensors"),
    ("the page shows results and measures nothing", "eval/report/page.py", "quantkit.eval.text"),
    ("the terminal belongs to cli", "quantkit/runs/card.py", "rich"),
    ("methods do not know each other", "quantkit/methods/awq.py", "quantkit.methods.gptq"),
    ("formats do not know each other", "quantkit/formats/awq.py", "quantkit.formats.gptq"),
    ("engines do not know each other", "quantkit/engines/vllm.py", "quantkit.engines.sglang"),
    ("metrics do not know each other", "eval/metrics/kl.py", "quantkit.eval.metrics.perplexity"),
    ("checks do not know each other", "quantkit/checks/swapped.py", "quantkit.checks.transposed"),
    ("commands do not know each other", "cli/commands/fit.py", "quantkit.cli.commands.sweep"),
]
CYCLE = "import quantkit.core.gate\n"
REPORT = "from tools import structure; raise SystemExit(structure.main())"
FAULTS = (
    "from pathlib import Path; from tools import structure\n"
    "print(structure.faults_of(structure.read_imports(), Path()))"
)
Imports = dict[str, frozenset[str]]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The modules of the checkout, and what the tools read of it."""
    folder = tmp_path_factory.mktemp("structure")
    shutil.copy(ROOT / "pyproject.toml", folder)

    def others(_: str, names: list[str]) -> list[str]:
        return [n for n in names if n == "__pycache__" or ("." in n and not n.endswith(".py"))]

    for name in (*PRODUCT, "tools"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=others)
    return folder


@pytest.fixture
def planted(copy: Path) -> Iterator[Path]:
    """The copy, whose modules are as they were after the test."""
    kept = {path: path.read_bytes() for path in copy.rglob("*.py")}
    yield copy
    for path, content in kept.items():
        if path.read_bytes() != content:
            path.write_bytes(content)


def in_folder(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """A Python process in `folder`, which imports the modules there."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200"}
    environment.pop("PYTHONSAFEPATH", None)
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_no_bound_is_broken() -> None:
    done = in_folder(ROOT, REPORT)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    assert "largest cycle: 1\n" in done.stdout
    assert "faults: 0\n" in done.stdout


@pytest.mark.parametrize(
    ("path", "text", "fault"),
    [
        ("quantkit/core/errors.py", CYCLE, "modules import each other: quantkit.core.errors"),
        ("quantkit/core/errors.py", f"if TYPE_CHECKING:\n    {CYCLE}", "modules import each other"),
        ("quantkit/core/errors.py", f"def f() -> None:\n    {CYCLE}", "modules import each other"),
        ("quantkit/results/estimate.py", "import quantkit.checkpoint.source", "longest chain has"),
        ("quantkit/core/errors.py", "\n" * 400, "quantkit/core/errors.py has 4"),
        ("cli/options.py", "\n" * 20_000, "% of the lines, at most 20%"),
        ("cli/options.py", "def f() -> None:\n" + "    print()\n" * 61, "f has 61 lines"),
    ],
)
def test_a_broken_bound_is_named(planted: Path, path: str, text: str, fault: str) -> None:
    with (planted / path).open("a", encoding="utf-8") as file:
        file.write(text)
    done = in_folder(planted, FAULTS)
    assert fault in done.stdout, done.stderr


def test_a_broken_bound_fails_the_command(planted: Path) -> None:
    with (planted / "cli/options.py").open("a", encoding="utf-8") as file:
        file.write("\n" * structure.MAX_FILE_LINES)
    done = in_folder(planted, REPORT)
    assert done.returncode == 1, done.stderr
    assert "quantkit/cli/options.py has 4" in done.stdout


@pytest.mark.parametrize("folder", FOLDERS)
def test_files_and_functions_stay_small(folder: str) -> None:
    paths = [p for p in (ROOT / folder).rglob("*.py") if "__pycache__" not in p.parts]
    assert paths
    assert structure.size_faults(paths) == []


def test_every_contract_has_a_plant() -> None:
    assert {contract["name"] for contract in CONTRACTS} == {name for name, _, _ in PLANTS}


@pytest.mark.parametrize(("contract", "path", "module"), PLANTS)
def test_a_contract_breaks(planted: Path, contract: str, path: str, module: str) -> None:
    with (planted / path).open("a", encoding="utf-8") as file:
        file.write(f"import {module}\n")
    done = in_folder(planted, "from importlinter.cli import lint_imports_command as run; run()")
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{contract} BROKEN" in " ".join(done.stdout.split())


@st.composite
def layered(draw: st.DrawFn) -> Imports:
    """Imports without a cycle: each module imports some of those with a lower number."""
    count = draw(st.integers(1, 8))
    below = (st.frozensets(st.integers(0, max(0, n - 1)), max_size=n) for n in range(count))
    return {f"m{n}": frozenset(f"m{i}" for i in draw(some)) for n, some in enumerate(below)}


def chains(imports: Imports, module: str) -> Iterator[list[str]]:
    yield [module]
    for target in imports[module]:
        for chain in chains(imports, target):
            yield [module, *chain]


@given(layered())
def test_the_longest_chain_is_the_longest_of_all(imports: Imports) -> None:
    found = structure.longest_chain(imports)
    assert len(found) == max(len(chain) for m in imports for chain in chains(imports, m))
    assert all(b in imports[a] for a, b in pairwise(found))
    assert len(structure.largest_cycle(imports)) == 1


@given(layered(), st.data())
def test_a_cycle_is_found_and_has_an_end(imports: Imports, data: st.DataObject) -> None:
    chain = data.draw(st.sampled_from([c for m in sorted(imports) for c in chains(imports, m)]))
    closed = {**imports, chain[-1]: imports[chain[-1]] | {chain[0]}}
    assert set(structure.largest_cycle(closed)) >= set(chain) or len(chain) == 1
    assert structure.longest_chain(closed)


def test_lines_of_a_function_leave_out_its_signature(tmp_path: Path) -> None:
    path = tmp_path / "long.py"
    body = "    x = 1\n" * structure.MAX_FUNCTION_LINES
    path.write_text(f"def f(\n    a: int,\n    b: int,\n) -> None:\n{body}", encoding="utf-8")
    assert list(structure.long_functions(path)) == []
    path.write_text(f"def f() -> None:\n{body}    x = 2\n", encoding="utf-8")
    assert list(structure.long_functions(path)) == [("f", 1, structure.MAX_FUNCTION_LINES + 1)]
