"""A fitted artifact, with several schemes and linears left as they are, in real engines."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from quantkit import build_recipe, fit, quantize
from quantkit.core.recipe import CalibrationSpec
from quantkit.model.open import open_model
from quantkit.model.opened import load_dense
from tests.engines.conftest import TOKENS, interpreter

BOUNDS = {"transformers": 1e-6, "vllm": 2e-2}


Make = Callable[[int, list[int], list[int | None]], Path]
FUSED = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attn.o_proj": ("self_attn.o_proj",),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.down_proj": ("mlp.down_proj",),
}
"""Linears as vLLM makes one of them."""


@pytest.fixture(scope="module")
def make(
    tiny_checkpoint_cache: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Make:
    def make(size: int, bits: list[int], group_sizes: list[int | None]) -> Path:
        result = fit(
            str(tiny_checkpoint_cache("llama", dtype="float16")),
            tmp_path_factory.mktemp("fitted") / "out",
            size=size,
            bits=bits,
            group_sizes=group_sizes,
            grids=["int"],
            calibration=CalibrationSpec(samples=4, sequence_length=64),
            device="cpu",
        )
        return result.output

    return make


@pytest.fixture(scope="module")
def fitted(make: Make) -> Path:
    """Four bits only, as vLLM's CPU build has no kernel for weights of eight bits alone."""
    return make(420_000, [4], [32, 128, None])


@pytest.fixture(scope="module")
def of_two_widths(make: Make) -> Path:
    return make(400_000, [4, 8], [32, 64])


@pytest.fixture(scope="module")
def of_many_kinds(
    tiny_checkpoint_cache: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Integers of odd widths beside floats, as overrides of a recipe."""
    folder = tmp_path_factory.mktemp("kinds") / "out"
    kinds = "[{match: '*.down_proj', grid: nvfp4, bits: 4, group_size: 16}"
    kinds += ", {match: '*.o_proj', bits: 3, group_size: channel}]"
    wanted = build_recipe(
        "gptq-compressed",
        bits=5,
        group_size=64,
        samples=2,
        sequence_length=64,
        settings=[f"overrides={kinds}"],
    )
    source = str(tiny_checkpoint_cache("llama", dtype="bfloat16"))
    quantize(source, folder, recipe=wanted, device="cpu", evaluate=False)
    return folder


def test_it_holds_several_schemes(fitted: Path) -> None:
    block = json.loads((fitted / "config.json").read_text())["quantization_config"]
    assert len(block["config_groups"]) > 1
    assert len(block["ignore"]) > 1


@pytest.mark.parametrize("engine", sorted(BOUNDS))
def test_predicts_what_our_own_decode_predicts(
    fitted: Path, run_script: Callable[[str, str, str], None], tmp_path: Path, engine: str
) -> None:
    assert difference(fitted, run_script, tmp_path, engine) < BOUNDS[engine]


def test_transformers_takes_floats_beside_integers_of_any_width(
    of_many_kinds: Path, run_script: Callable[[str, str, str], None], tmp_path: Path
) -> None:
    block = json.loads((of_many_kinds / "config.json").read_text())["quantization_config"]
    weights = [group["weights"] for group in block["config_groups"].values()]
    assert {(w["type"], w["num_bits"]) for w in weights} == {("int", 5), ("int", 3), ("float", 4)}
    assert difference(of_many_kinds, run_script, tmp_path, "transformers_bf16") < BOUNDS["vllm"]


def difference(
    folder: Path, run_script: Callable[[str, str, str], None], tmp_path: Path, engine: str
) -> float:
    """The largest between an engine's logits and those of our own decode."""
    python = engine.partition("_")[0]
    interpreter(python)
    job = {"engine": engine, "artifacts": {"fitted": str(folder)}, "tokens": TOKENS}
    (tmp_path / "job.json").write_text(json.dumps(job))
    run_script(python, "predict.py", str(tmp_path / "job.json"))
    answer = json.loads((tmp_path / "fitted.json").read_text())
    assert (answer["error"], answer.get("keys", [])) == ("", [])
    found = load_file(tmp_path / "fitted.safetensors")["logits"].float()
    with torch.no_grad():
        own = load_dense(open_model(folder)).eval()(torch.tensor(TOKENS)).logits.float()
    if engine == "vllm":  # log-probabilities, of all but the last
        own = own.log_softmax(-1)[:, :-1]
    return float((found - own).abs().max())


def held(tensors: Mapping[str, torch.Tensor], linear: str) -> list[int] | None:
    """Bits of its codes in the file, and inputs that share a scale; None where it is dense."""
    if f"{linear}.weight" in tensors:
        return None
    codes, scales = (tensors[f"{linear}.{part}"] for part in ("weight_packed", "weight_scale"))
    columns = int(tensors[f"{linear}.weight_shape"][1])
    return [32 * codes.shape[1] // columns, columns // scales.shape[1]]


def test_vllm_takes_each_linear_for_what_the_file_holds(
    of_two_widths: Path, run_script: Callable[[str, str, str], None], tmp_path: Path
) -> None:
    """Its CPU build has no kernel for weights of 8 bits alone: its reading of the config counts."""
    interpreter("vllm")
    tensors, expected = load_file(of_two_widths / "model.safetensors"), {}
    for block in ("model.layers.0", "model.layers.1"):
        for name, members in FUSED.items():
            found = [held(tensors, f"{block}.{member}") for member in members]
            assert all(scheme == found[0] for scheme in found)
            expected[f"{block}.{name}"] = found[0]
    assert {scheme[0] for scheme in expected.values() if scheme} == {4, 8}
    job = {"artifact": str(of_two_widths), "linears": list(expected)}
    (tmp_path / "job.json").write_text(json.dumps(job))
    run_script("vllm", "mixed_schemes.py", str(tmp_path / "job.json"))
    assert json.loads((tmp_path / "found.json").read_text()) == expected
