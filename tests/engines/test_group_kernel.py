"""Triton's programs for a group of columns, in its interpreter and by its compiler for an H100."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import quantkit

PACKAGE = str(Path(quantkit.__file__).parents[1])


@pytest.fixture(scope="module")
def rounded(
    run_script: Callable[[str, str, str], None], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    found: dict[str, Any] = ask(run_script, "round_groups.py", tmp_path_factory.mktemp("rounded"))
    return found


def ask(run_script: Callable[[str, str, str], None], script: str, folder: Path) -> Any:
    (folder / "job.json").write_text(json.dumps({"package": PACKAGE}))
    run_script("vllm", script, str(folder / "job.json"))
    return json.loads((folder / "answer.json").read_text())


def test_all_bits_are_those_of_torch_once_sums_have_one_order(rounded: dict[str, Any]) -> None:
    """36 grids times 12 kinds of rows, zeros and 1e30 among them: codes, scales, zeros, errors."""
    assert len(rounded["groups"]) == 36
    assert [case["case"] for case in rounded["groups"] if not case["equal"]] == []


def test_the_order_of_sums_decides_ties_alone(rounded: dict[str, Any]) -> None:
    """Two rows in a thousand may get another scale, in fp32 its last bits: 1 of 2,160, 2e-4."""
    cases = rounded["groups"]
    assert sum(case["other rows"] for case in cases) <= 0.002 * sum(case["rows"] for case in cases)
    for case in cases:
        same = case["other rows"] == 0
        assert not same or case["worse"] <= (1 + 5e-4 if "float32" in case["case"] else 1), case


def test_experts_do_not_know_each_other(rounded: dict[str, Any]) -> None:
    """One of two has no tokens, so that its codes are the nearest ones."""
    assert rounded["experts"]["equal"] == [True] * 6


def test_groups_do_not_know_each_other(rounded: dict[str, Any]) -> None:
    assert rounded["side by side"]


def test_a_group_takes_few_launches(rounded: dict[str, Any]) -> None:
    assert rounded["experts"]["launches"] <= 12  # of two groups, what is done once included
    assert rounded["experts"]["launches of torch"] > 300  # else the count counts nothing


def test_whole_solves_are_those_of_torch(rounded: dict[str, Any]) -> None:
    """Both orders; whole rows and groups of 16, which torch's operators do either way."""
    assert rounded["solves"] == [[case, True] for case, _ in rounded["solves"]]
    assert len(rounded["solves"]) == 4


def test_what_programs_cannot_hold_is_left_to_torch(rounded: dict[str, Any]) -> None:
    taken = [case for case, programs in rounded["choices"].items() if programs]
    assert taken == ["32", "64", "128"]


def test_programs_fit_into_registers(
    run_script: Callable[[str, str, str], None], tmp_path: Path
) -> None:
    """An H100 has 65,536 registers and 48 KiB of shared memory that nobody has to ask for.

    Nothing is spilled, and multiply-adds are fused nowhere but in the errors, as on a CPU.
    """
    answers = ask(run_script, "compile_groups.py", tmp_path)
    assert len(answers) == 4
    for case, used in answers:
        assert used["STACK"] == used["LOCAL"] == 0, (case, used)
        assert used["REG"] * 32 * 8 <= 65536, (case, used)  # 8 warps, two for each scheduler
        assert used["shared"] <= 49152, (case, used)
        assert used["fused"] == (32 if case.startswith("trials") else 0), (case, used)
