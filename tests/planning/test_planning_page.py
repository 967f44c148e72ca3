"""What docs/planning.md shows is what the command prints."""

import importlib.util
import json
import re
import shlex
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from quantkit.cli.main import run

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "planning.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"```console\n\$ (quantkit .+)\n((?:.*\n)*?)```", PAGE)
NAMES = {"llama-3-8b": "Llama-3-8B", "llama-3-70b": "Llama-3-70B"}


@pytest.mark.parametrize(("command", "printed"), SHOWN, ids=[command for command, _ in SHOWN])
def test_commands_print_what_the_page_shows(
    command: str,
    printed: str,
    known_models: dict[str, dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for folder, name in NAMES.items():
        config = known_models[name]["config"] | {"max_position_embeddings": 8192}
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUANTKIT_CACHE", str(tmp_path / "no runs"))
    assert run(shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out == printed


def verdicts() -> ModuleType:
    spec = importlib.util.spec_from_file_location("verdicts", ROOT / "benchmarks" / "verdicts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.long
def test_the_table_of_verdicts_is_what_planning_says(tmp_path: Path) -> None:
    maker = verdicts()
    assert maker.HEAD in PAGE
    for name, config in maker.configs().items():
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert f"\n{maker.row(name, tmp_path / 'config.json')}" in PAGE
    times = re.findall(r"\| (\d\.\d\d) \| (\d\.\d\d) \|$", PAGE, re.MULTILINE)
    assert len(times) == len(maker.MODELS) == 10
    assert max(float(wall) for wall, _ in times) < 1
