"""Fitted builds: within the budget to the byte, better than uniform or the uniform itself."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quantkit import fit, plan, quantize
from quantkit.checkpoint.sizes import parse_size
from quantkit.checkpoint.source import resolve
from quantkit.core.errors import RefusedError
from quantkit.core.recipe import CalibrationSpec
from quantkit.model.embedded_model import FOLDER
from quantkit.model.open import open_model
from quantkit.pipeline.opening import open_folder
from quantkit.planning.serve.room import Budget
from quantkit.recipes.loader import build_recipe
from quantkit.results.fit_result import Fit
from quantkit.results.schema import EVAL_FILE, EvalResult
from quantkit.runs.fit.choose import legal_there, pose, start_with, want
from quantkit.runs.fit.problem import read_bytes
from quantkit.runs.fit.schemes import schemes_of
from quantkit.runs.produce import QuantizeResult

pytestmark = pytest.mark.long

SMALL = CalibrationSpec(samples=8, sequence_length=128)
BLOCKS = 4_718_592
"""Weights of the embedded model's linears; all else takes 2.1 MB."""


def fitted(
    output: Path, size: int | str | None, model: Path = FOLDER, **options: Any
) -> QuantizeResult:
    return fit(str(model), output, size=size, calibration=SMALL, device="cpu", **options)


def record(result: QuantizeResult) -> Fit:
    assert result.evaluation is not None
    assert result.evaluation.fit is not None
    return result.evaluation.fit


def stored(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> QuantizeResult:
    """Between the best 4-bit and the least 8-bit recipe."""
    options: dict[str, Any] = {"bits": [4, 8], "grids": ["int"], "group_sizes": [32, None]}
    return fitted(tmp_path_factory.mktemp("fit") / "out", "5.8MB", **options)


def test_the_files_fit_to_the_byte(mixed: QuantizeResult) -> None:
    found = record(mixed)
    assert found.bytes == mixed.bytes == stored(mixed.output) <= 5_800_000
    assert found.bytes > 5_700_000


def test_is_better_than_the_best_uniform_build_and_says_how_it_knows(
    mixed: QuantizeResult,
) -> None:
    found = record(mixed)
    assert found.shipped == "mixed"
    assert found.mixed is not None
    assert found.uniform is not None
    assert found.uniform.name == "W4 g32 sym"
    assert found.uniform.bytes <= found.budget_bytes
    assert found.mixed.measured_kl is not None
    assert found.uniform.measured_kl is not None
    assert found.mixed.measured_kl < 0.6 * found.uniform.measured_kl
    assert found.mixed.kl < 0.6 * found.uniform.kl
    assert found.difference == pytest.approx(
        found.mixed.measured_kl - found.uniform.measured_kl, rel=1e-4
    )
    assert found.gap < 1e-4


def test_linears_that_engines_fuse_are_alike(mixed: QuantizeResult) -> None:
    model = open_model(mixed.output)
    schemes = set()
    for index in range(6):
        block = f"model.layers.{index}"
        for together in (["q", "k", "v"], ["gate", "up"]):
            part = "self_attn" if "q" in together else "mlp"
            alike = {model.scheme(f"{block}.{part}.{kind}_proj") for kind in together}
            assert len(alike) == 1
            schemes |= alike
    assert len(schemes) > 1
    assert mixed.evaluation is not None
    assert mixed.evaluation.engines["vllm"] == "passed"


def test_the_choice_lies_in_the_artifact(mixed: QuantizeResult) -> None:
    result = EvalResult.model_validate_json((mixed.output / EVAL_FILE).read_text())
    assert result.fit == record(mixed)
    manifest = json.loads((mixed.output / "quantkit.json").read_text())
    assert Fit.model_validate(manifest["evaluation"]["fit"]) == record(mixed)
    assert list(mixed.output.parent.iterdir()) == [mixed.output]


def test_the_report_shows_the_frontier(mixed: QuantizeResult) -> None:
    page = (mixed.output / "report.html").read_text()
    assert "Bits for a budget" in page
    found = record(mixed)
    assert page.count("mixed, built") == 1
    assert all(point.name in page for point in found.uniforms)


def test_the_frontier_falls(mixed: QuantizeResult) -> None:
    points = record(mixed).frontier
    assert [p.bytes for p in points] == sorted({p.bytes for p in points})
    assert [p.kl for p in points] == sorted((p.kl for p in points), reverse=True)
    assert points[-1].kl == 0
    for uniform in record(mixed).uniforms:
        under = [point for point in points if point.bytes <= uniform.bytes]
        over = next(point for point in points if point.bytes > uniform.bytes)
        assert not under or over.kl <= uniform.kl


def test_the_recipe_makes_the_same_weights(mixed: QuantizeResult, tmp_path: Path) -> None:
    recipe = build_recipe(str(mixed.output))
    assert recipe == build_recipe(f"{mixed.output}/quantkit.json")
    again = quantize(str(FOLDER), tmp_path / "out", recipe=recipe, device="cpu", evaluate=False)
    hashes = [{m["name"]: m["codes_sha256"] for m in run.modules} for run in (again, mixed)]
    assert hashes[0] == hashes[1]


def test_fits_beside_the_cache_of_a_gpu_by_the_plans_own_rules(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    """On a made-up card on which the model as it is would take half as much again as is left."""
    folder = tiny_checkpoint(dtype="bfloat16")
    serving = plan(str(folder), gpu="24GB@1GB/s", context=256, batch=2).serving
    assert serving is not None
    ample = serving.chosen
    assert ample is not None
    assert ample.deployment is not None
    left = ample.deployment.available - ample.deployment.cache.bytes + ample.bytes
    memory = 24 * 10**9 - round((left - ample.bytes / 1.5) / 0.92)
    gpu = f"{memory}B@1GB/s"
    result = fitted(
        tmp_path / "out", None, folder, gpu=gpu, context=256, batch=2, bits=[4], group_sizes=[32]
    )
    found = record(result)
    assert found.served is not None
    assert found.bytes <= found.budget_bytes == pytest.approx(ample.bytes / 1.5, abs=100)
    serving = plan(str(tmp_path / "out"), gpu=gpu, context=256, batch=2).serving
    assert serving is not None
    planned = serving.builds[0]
    assert planned.bytes == found.bytes
    assert planned.fits
    small = f"{memory - round(ample.bytes / 1.8)}B@1GB/s"  # half of it is embedding and head
    with pytest.raises(RefusedError) as caught:
        fitted(tmp_path / "no", None, folder, gpu=small, context=256, batch=2, bits=[8])
    assert "do not fit" in str(caught.value)
    assert "a larger GPU" in caught.value.hint
    assert "--size" not in caught.value.hint


def test_a_uniform_recipe_that_is_as_good_is_shipped(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tiny_checkpoint()
    options: dict[str, Any] = {"bits": [4], "group_sizes": [None]}
    with pytest.raises(RefusedError, match="do not fit") as refused:
        fitted(tmp_path / "small", 1000, folder, **options)
    least = parse_size(str(refused.value.hint).split()[1].rstrip(","))
    found = record(fitted(tmp_path / "out", least, folder, **options))
    assert found.shipped == "uniform"
    assert found.why == "no mixed build has a lower expected KL"
    assert found.bytes <= least


def test_floats_and_every_width_share_a_file_that_the_engine_takes(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tiny_checkpoint(dtype="bfloat16")
    result = fitted(tmp_path / "out", stored(folder) * 5 // 8, folder, group_sizes=[32, None])
    found = record(result)
    assert found.bytes == result.bytes == stored(result.output) <= found.budget_bytes
    names = {point.name for point in found.uniforms}
    assert {"NVFP4", "W2 g32 sym", "W3 channel sym", "W7 g32 sym"} <= names
    assert result.evaluation is not None
    assert result.evaluation.engines["vllm"] == "passed"


def test_widths_that_an_engine_does_not_serve_are_not_offered(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    original = open_folder(resolve(str(tiny_checkpoint(dtype="bfloat16"))))
    budget = Budget("sglang", size=stored(original.source.folder) * 5 // 8)
    problem = pose(want(original, tmp_path, budget, schemes_of(), SMALL))
    offered = {scheme for choice in problem.choices for scheme in choice.schemes if scheme}
    assert {(s.grid, s.bits) for s in offered} == {("int", 4), ("int", 8), ("nvfp4", 4)}


@pytest.mark.parametrize(("gpu", "left_out"), [("h100", set()), ("b200", {"mxfp4", "mxfp8"})])
def test_no_grid_is_offered_whose_activations_the_engine_rounds_too(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path, gpu: str, left_out: set[str]
) -> None:
    """The loss of that is not measured."""
    original = open_folder(resolve(str(tiny_checkpoint(dtype="bfloat16"))))
    schemes = schemes_of(grids=("fp8", "mxfp8", "mxfp4", "nvfp4"))
    budget = Budget("vllm", gpu=gpu, context=64)
    wanted = want(original, tmp_path, budget, schemes, SMALL)
    assert wanted.room is not None
    prepared = start_with(original.model, "vllm", schemes, SMALL)
    known = {name: prepared.model.weights.modules[name] for name in prepared.plan.schemes}
    check = legal_there(wanted.room, prepared, known)
    linear = next(d.linear for d in prepared.plan.dispositions if d.linear.name in known)
    assert {scheme.grid for scheme in schemes if check(scheme, linear)} == left_out


def test_what_fits_as_it_is_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="fits without quantization"):
        fitted(tmp_path / "out", "12MB", bits=[8], group_sizes=[None])
    assert not (tmp_path / "out").exists()


def test_an_engine_without_mixed_files_gets_the_best_uniform_one(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tiny_checkpoint()
    whole = stored(folder)
    options: dict[str, Any] = {"engine": "gptqmodel", "bits": [4, 8], "group_sizes": [64]}
    result = fitted(tmp_path / "out", whole * 3 // 5, folder, **options)
    found = record(result)
    assert (found.shipped, found.uniform and found.uniform.name) == ("uniform", "W8 g64 sym")
    assert result.recipe["format"] == "gptq"
    assert found.frontier == []


def test_a_token_reads_two_of_eight_experts_and_all_else() -> None:
    assert read_bytes(1000, [(400, 8), (400, 8)], active=2) == 200 + 2 * 100
    assert read_bytes(1000, [(400, 2)], active=4) == 1000
