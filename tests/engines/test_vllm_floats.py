"""Each linear of a float layout in vLLM's CPU build, against our own decode of the same file.

FP8 of channels runs there as it is, blocks and tensors of FP8 (activations in 16 bits) where the
processor has AMX. NVFP4 and MXFP8 are computed by vLLM's own emulation. Of the others, which only
GPUs have kernels for, what vLLM's config and weight loading read is compared with the file.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import linear as multiply

import quantkit
from quantkit.grid.activation import inputs_change
from quantkit.model.open import open_model
from quantkit.model.opened import OpenModel
from tests.engines.conftest import interpreter

AMX = "amx_tile" in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
PARTS = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""What vLLM joins."""
WITH_AMX = ("fp8-block", "fp8-block+fp8", "fp8-static+modelopt")

SERVED: dict[str, tuple[str, bool, float]] = {
    "fp8": ("float32", True, 1e-6),
    "mxfp8": ("bfloat16", False, 4e-3),
    "nvfp4": ("bfloat16", True, 3e-2),
    "fp8+modelopt": ("bfloat16", True, 8e-3),
    "mxfp8+modelopt": ("bfloat16", False, 4e-3),
    "nvfp4+modelopt": ("bfloat16", True, 3e-2),
} | (dict.fromkeys(WITH_AMX, ("bfloat16", False, 4e-3)) if AMX else {})
"""Recipe, and the format where it is not compressed-tensors -> dtype, whether activations are
rounded, bound on the relative error of an output."""
READ = (
    *("fp8-static", "mxfp4", "nvfp4-w4a16", "nvfp4-w4a16+modelopt", "w5", "w6", "w7"),
    *(() if AMX else WITH_AMX),
)
ONE = ("weight_global_scale", "weight_scale_2", "input_global_scale", "input_scale")
"""Tensors that are the same in all linears that vLLM joins."""


@pytest.fixture(scope="module")
def folders(
    tiny_checkpoint_cache: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    interpreter("vllm")  # skips before any work
    source = tiny_checkpoint_cache("llama", dtype="bfloat16", hidden_size=256, head_dim=64)
    root, found = tmp_path_factory.mktemp("floats"), {}
    for name in (*SERVED, *READ):
        start, _, output = name.partition("+")
        recipe = (
            quantkit.build_recipe("rtn", format="compressed-tensors", bits=int(name[1:]))
            if name.startswith("w")
            else quantkit.build_recipe(start, format=output or None, samples=2, sequence_length=32)
        )
        found[name] = root / name
        quantkit.quantize(str(source), found[name], recipe=recipe, evaluate=False)
    return found


@pytest.fixture(scope="module")
def read(
    folders: dict[str, Path],
    run_script: Callable[..., None],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, dict[str, torch.Tensor]]:
    folder = tmp_path_factory.mktemp("read")
    job = {
        name: {
            "folder": str(path),
            "dtype": SERVED[name][0] if name in SERVED else "bfloat16",
            "served": name in SERVED,
        }
        for name, path in folders.items()
    }
    (folder / "job.json").write_text(json.dumps(job))
    run_script("vllm", "linears_in_vllm.py", str(folder / "job.json"))
    return {name: load_file(folder / f"{name}.safetensors") for name in folders}


def parts_of(joined: str) -> list[str]:
    """The linears of the file that vLLM joins to one."""
    place, _, last = joined.rpartition(".")
    return [f"{place}.{part}" for part in PARTS.get(last, (last,))]


@pytest.mark.parametrize("name", SERVED)
def test_computes_what_our_own_decode_computes(
    name: str, folders: dict[str, Path], read: dict[str, dict[str, torch.Tensor]]
) -> None:
    _, rounded, bound = SERVED[name]
    model, tensors = open_model(folders[name]), read[name]
    inputs = [key.removesuffix(".input") for key in tensors if key.endswith(".input")]
    assert len(inputs) == 8
    for linear in inputs:
        x, found = tensors[f"{linear}.input"].float(), tensors[f"{linear}.output"].float()
        assert off(found, expected(model, linear, x, rounded=rounded)) < bound, linear
        if rounded:  # or else the bound says nothing of activations
            assert off(found, expected(model, linear, x, rounded=False)) > bound, linear


def expected(model: OpenModel, linear: str, x: torch.Tensor, *, rounded: bool) -> torch.Tensor:
    parts = [model.qtensor(part) for part in parts_of(linear)]
    change = inputs_change(parts[0]) if rounded else None
    return multiply(change(x) if change else x, torch.cat([part.dequantize() for part in parts]))


def off(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("name", [*SERVED, *READ])
def test_reads_what_the_file_says(
    name: str, folders: dict[str, Path], read: dict[str, dict[str, torch.Tensor]]
) -> None:
    """Tensors of joined linears one after the other; a scale of all scales is the same in all."""
    stored = load_file(folders[name] / "model.safetensors")
    found = {key: t for key, t in read[name].items() if not key.endswith((".input", ".output"))}
    linears = {key.rpartition(".")[0] for key in found}
    assert len(linears) == 8
    for joined in linears:
        beside = {key.rpartition(".")[2] for key in found if key.startswith(f"{joined}.")}
        first = parts_of(joined)[0]
        in_file = {key.rpartition(".")[2] for key in stored if key.startswith(f"{first}.")}
        assert beside == in_file, joined
        for suffix in beside - {"weight_shape"}:
            parts = [stored[f"{part}.{suffix}"] for part in parts_of(joined)]
            wanted = torch.cat([part if part.ndim else part[None] for part in parts])
            assert torch.equal(found[f"{joined}.{suffix}"].float(), wanted.float()), (
                f"{joined}.{suffix}"
            )
            if suffix in ONE:
                assert len(set(wanted.tolist())) == 1
