import json
from collections.abc import Callable
from pathlib import Path

import pytest

from quantkit.cli.commands.fit import frontier_table
from quantkit.results.fit_result import Fit, FitPoint

Command = Callable[..., tuple[int, str, str]]
QUICK = ("--samples", "4", "--bits", "4", "--group-size", "32,channel")


def test_a_table_and_what_is_shipped(
    quantkit: Command, tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folder = str(tiny_checkpoint())
    code, out, _ = quantkit("fit", folder, "--size", "500kB", "-o", str(tmp_path / "a"), *QUICK)
    assert code == 0
    assert "KL expected" in out
    assert "of 500,000 bytes" in out
    arguments = ("fit", folder, "--size", "500kB", "-o", str(tmp_path / "b"), *QUICK, "--json")
    code, out, _ = quantkit(*arguments)
    found = json.loads(out)
    assert found["bytes"] <= 500_000
    assert found["evaluation"]["fit"]["budget_bytes"] == 500_000


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (("--size", "nothing"), 2, "not a valid size"),
        (("--size", "5GB", "--bits", "four"), 2, "--bits four"),
        (("--size", "5GB", "--bits", "9"), 2, "--bits 9"),
        (("--size", "5GB", "--bits", ""), 2, "--bits"),
        (("--size", "5GB", "--engine", "vlm"), 2, "vllm"),
    ],
)
def test_says_what_is_wrong(
    quantkit: Command, tmp_path: Path, options: tuple[str, ...], code: int, says: str
) -> None:
    given = ("fit", "nowhere", "-o", str(tmp_path / "out"), *options)
    found, _, err = quantkit(*given)
    assert found == code
    assert says in err


def test_the_table_names_what_was_built() -> None:
    point = FitPoint(bytes=4_700_000, kl=0.006, measured_kl=0.007, name="W4 g32 sym")
    mixed = FitPoint(bytes=5_100_000, kl=0.001, measured_kl=0.002)
    found = Fit(
        budget_bytes=5_200_000, bytes=5_100_000, engine="vllm", shipped="mixed", why="x", gap=0,
        windows=16, mixed=mixed, uniform=point, frontier=[FitPoint(bytes=9_000_000, kl=0)],
        uniforms=[point.model_copy(update={"measured_kl": None})],
    )  # fmt: skip
    lines = str(frontier_table(found)).splitlines()
    assert [line.split("  ")[0] for line in lines[1:]] == [
        "W4 g32 sym built",
        "mixed, built",
        "mixed",
    ]
