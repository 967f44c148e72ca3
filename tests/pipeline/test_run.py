"""Whole runs on tiny models: what is scored is what is shipped, and the same bytes every time."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import quantkit
from quantkit import quantize
from quantkit.checkpoint.reader import open_checkpoint
from quantkit.core.errors import InputError, QuantkitError, RefusedError
from quantkit.model.open import open_model
from quantkit.model.structure import trace_structure
from quantkit.pipeline.blockloop import quantize_blocks
from quantkit.pipeline.groups import SolverConfig
from quantkit.pipeline.prepare import parts_of, prepare

QUICK: dict[str, Any] = {"samples": 4, "sequence_length": 64}
RECIPES: dict[str, dict[str, Any]] = {
    "rtn": {"method": "rtn"},
    "gptq": {"method": "gptq"},
    "gptq-3": {"method": "gptq", "bits": 3},
    "gptq-v2": {"method": "gptq", "format": "gptq_v2", "symmetric": False},
    "gptq-ct": {"method": "gptq", "format": "compressed-tensors"},
    "gptq-channel": {"method": "gptq", "group_size": "channel"},
    "awq": {"method": "awq"},
    "awq-ct": {"method": "awq", "format": "compressed-tensors"},
    "nf4": {"method": "nf4"},
    "smoothquant": {"method": "smoothquant"},
}


def recipe(name: str, **changes: Any) -> quantkit.Recipe:
    return quantkit.build_recipe(None, **(RECIPES[name] | QUICK | changes))


@pytest.fixture(params=sorted(RECIPES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def hashes(folder: Path) -> dict[str, str]:
    """sha256 of every file but the manifest, whose seconds differ, and the sums over it."""
    left_out = {"quantkit.json", "SHA256SUMS"}
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in left_out
    }


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_the_written_file_decodes_to_the_weights_the_run_went_on_with(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path, name: str, dtype: str
) -> None:
    folder = tiny_checkpoint("llama", dtype=dtype)
    result = quantize(str(folder), tmp_path / "out", recipe=recipe(name), evaluate=False)
    prepared = prepare(open_model(folder), recipe(name))
    model, solver = (
        prepared.model,
        SolverConfig(prepared.method, prepared.options, prepared.plan.schemes),
    )
    from quantkit.calibration.text import read_documents
    from quantkit.calibration.tokens import load_tokenizer, tokenize

    ids = tokenize(read_documents("default"), load_tokenizer(folder), 4, 64, "default").input_ids
    artifact = open_model(tmp_path / "out")
    structure = trace_structure(model.skeleton)
    seen = 0
    for state in quantize_blocks(model, structure, solver, ids):
        for linear, solved in state.solved.items():
            seen += 1
            decoded = artifact.qtensor(linear)
            assert torch.equal(decoded.codes, solved.qtensor.codes), linear
            assert torch.equal(decoded.dequantize(), solved.qtensor.dequantize()), linear
    assert seen == len(result.modules) == 14


def test_every_family_runs_and_stays_near_the_original(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path, family: str
) -> None:
    folder = tiny_checkpoint(family, dtype="bfloat16")
    quantize(
        str(folder),
        tmp_path / "out",
        recipe=recipe("gptq", bits=8, format="gptq"),
        evaluate=False,
    )
    ids = torch.randint(2, 250, (2, 64), generator=torch.Generator().manual_seed(0))
    before, after = open_model(folder), open_model(tmp_path / "out")
    change = after.hidden_states(ids).float() - before.hidden_states(ids).float()
    assert change.norm() < 0.06 * before.hidden_states(ids).float().norm()
    assert change.norm() > 0


@pytest.mark.long
def test_same_inputs_same_bytes_for_threads_shards_and_hash_seed(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    script = (
        "import sys, torch, quantkit; torch.set_num_threads(int(sys.argv[3]))\n"
        "for method in ('gptq', 'awq'):\n"
        "    r = quantkit.build_recipe(None, method=method, samples=4, sequence_length=64)\n"
        "    quantkit.quantize(sys.argv[1], sys.argv[2] + method, recipe=r, evaluate=False)"
    )
    found = []
    for run, (threads, shards) in enumerate([(1, 1), (2, 5)]):
        source = tiny_checkpoint("llama", dtype="bfloat16", shards=shards)
        folder = shutil.copytree(source, tmp_path / str(run) / "model")  # cards name the folder
        out = tmp_path / str(run) / "out-"
        command = [sys.executable, "-c", script, str(folder), str(out), str(threads)]
        environment = {**os.environ, "PYTHONHASHSEED": str(run)}
        subprocess.run(command, check=True, env=environment)
        found.append([hashes(tmp_path / str(run) / f"out-{m}") for m in ("gptq", "awq")])
    assert found[0] == found[1]


def test_awq_and_smoothquant_scales_fold_without_a_change_of_the_function(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path, family: str
) -> None:
    """With 8 bits per weight and folded scales the output is that of plain rounding, nearly."""
    if family == "gpt2":
        pytest.skip("no format that holds Conv1D takes W8A8")
    folder = tiny_checkpoint(family, dtype="float32")
    ids = torch.randint(2, 250, (2, 64), generator=torch.Generator().manual_seed(0))
    reference = open_model(folder).hidden_states(ids)
    quantize(str(folder), tmp_path / "out", recipe=recipe("smoothquant"), evaluate=False)
    artifact = open_model(tmp_path / "out")
    changed = {
        name
        for name in artifact.checkpoint.names
        if "norm" in name
        and not torch.equal(artifact.checkpoint.tensor(name), open_checkpoint(folder).tensor(name))
    }
    assert changed, "no norm was rescaled"
    drift = (artifact.hidden_states(ids) - reference).norm() / reference.norm()
    assert drift < 0.05


def test_the_ledger_names_every_source_tensor_once(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tiny_checkpoint("qwen2", dtype="bfloat16")
    quantize(str(folder), tmp_path / "out", recipe=recipe("awq"), evaluate=False)
    manifest = json.loads((tmp_path / "out" / "quantkit.json").read_text())
    assert set(manifest["tensors"]) == set(open_checkpoint(folder).names)
    assert set(manifest["tensors"].values()) == {"quantized", "rescaled", "copied"}


def test_overrides_leave_modules_as_they_are(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tiny_checkpoint("llama", dtype="bfloat16")
    settings = ['overrides=[{match: "*.down_proj", skip: true}]']
    quantize(
        str(folder), tmp_path / "out", recipe=recipe("gptq", settings=settings), evaluate=False
    )
    artifact = open_model(tmp_path / "out")
    name = "model.layers.0.mlp.down_proj"
    assert artifact.scheme(name) is None
    assert torch.equal(
        artifact.parameter(f"{name}.weight"), open_model(folder).parameter(f"{name}.weight")
    )


@pytest.mark.parametrize(
    ("changes", "error", "code", "tried"),
    [
        ({"method": "gtpq"}, InputError, 2, "gptq"),
        ({"bits": 9}, InputError, 2, "8"),
        ({"group_size": 48}, RefusedError, 4, "--group-size 128"),
        ({"symmetric": False, "format": "gptq"}, RefusedError, 4, "gptq-v2"),
        ({"settings": ["options.dampp=0.1"]}, InputError, 2, "damp"),
        ({"settings": ['overrides=[{match: "*.nothing", skip: true}]']}, InputError, 2, "*"),
        ({"method": "nf4", "format": "gptq"}, RefusedError, 4, "bitsandbytes"),
        (
            {"settings": ['overrides=[{match: "*.down_proj", bits: 8}]']},
            RefusedError,
            4,
            "compressed-tensors",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(
    tiny_checkpoint: Callable[..., Path],
    tmp_path: Path,
    changes: dict[str, Any],
    error: type[QuantkitError],
    code: int,
    tried: str,
) -> None:
    folder = tiny_checkpoint("llama", dtype="bfloat16")
    with pytest.raises(error) as caught:
        quantize(str(folder), tmp_path / "out", recipe=quantkit.build_recipe(None, **changes))
    assert caught.value.exit_code == code
    assert tried in str(caught.value.hint)
    assert not list(tmp_path.iterdir())
    with pytest.raises(error):
        quantkit.dry_run(str(folder), recipe=quantkit.build_recipe(None, **changes))


def test_an_output_inside_the_model_is_refused(tiny_checkpoint: Callable[..., Path]) -> None:
    folder = tiny_checkpoint("llama", dtype="bfloat16")
    before = sorted(folder.iterdir())
    with pytest.raises(InputError, match="is inside the model's folder"):
        quantize(str(folder), folder / "out", recipe=recipe("rtn"))
    assert sorted(folder.iterdir()) == before


def test_nan_in_a_weight_is_named_and_nothing_is_left(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    folder = tiny_checkpoint("llama", dtype="bfloat16", private=True)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = float("nan")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(QuantkitError, match=r"model\.layers\.1\.mlp\.(up|down)_proj"):
        quantize(str(folder), tmp_path / "out", recipe=recipe("gptq"), evaluate=False)
    assert not list(tmp_path.iterdir())


def test_an_existing_output_is_left_alone(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").write_text("mine")
    with pytest.raises(QuantkitError) as caught:
        quantize(str(tiny_checkpoint("llama")), tmp_path / "out")
    assert caught.value.hint
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["file"]


def manifest_of_run(folder: Path, out: Path, **changes: Any) -> dict[str, Any]:
    quantize(str(folder), out, recipe=recipe("gptq", **changes), evaluate=False)
    found: dict[str, Any] = json.loads((out / "quantkit.json").read_text())
    return found


def test_two_manifests_differ_by_what_was_measured_and_tell_no_path(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    found = []
    for place in ("here", "there"):
        text = tmp_path / place / "mine.txt"
        text.parent.mkdir()
        text.write_text("The ferry left at nine. " * 40)
        folder = tiny_checkpoint("llama", dtype="bfloat16")
        manifest = manifest_of_run(folder, text.parent / "out", calibration=str(text))
        assert str(tmp_path) not in json.dumps(manifest)
        planned, measured = manifest.pop("planned"), manifest.pop("measured")
        assert measured["seconds"] > 0
        assert planned["bytes"] == manifest["bytes"]
        found.append(manifest)
    assert found[0] == found[1]
    assert found[0]["recipe"]["calibration"]["text"] == "mine.txt"


def test_windows_that_a_text_does_not_fill_and_a_context_that_is_short_are_told(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    text = tmp_path / "short.txt"
    text.write_text("a" * 1200)
    manifest = manifest_of_run(
        tiny_checkpoint("llama"),
        tmp_path / "out",
        calibration=str(text),
        samples=9,
        sequence_length=1024,
    )
    told = "\n".join(manifest["remarks"])
    assert "2 of 9 windows" in told
    assert "512 tokens, not 1024" in told


def test_no_samples_means_that_no_input_is_looked_at(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folder = str(tiny_checkpoint("llama"))
    wanted = recipe("rtn", samples=0)
    result = quantize(folder, tmp_path / "out", recipe=wanted, evaluate=False)
    assert {module["loss"] for module in result.modules} == {None}
    with pytest.raises(InputError, match="needs calibration text"):
        quantize(folder, tmp_path / "other", recipe=recipe("gptq", samples=0))


def test_nothing_is_folded_into_a_linear_that_is_left_out(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tiny_checkpoint("llama", dtype="bfloat16", num_key_value_heads=4)
    settings = ['overrides=[{match: "re:.*(q|k|v|up|gate)_proj", skip: true}]']
    wanted = recipe("awq", settings=settings, format="compressed-tensors")
    quantize(str(folder), tmp_path / "out", recipe=wanted, evaluate=False)
    before, after = open_checkpoint(folder), open_checkpoint(tmp_path / "out")
    left = [name for name in before.names if name in after.names and "norm" not in name]
    assert any("v_proj" in name for name in left)
    assert all(torch.equal(before.tensor(name), after.tensor(name)) for name in left)


@pytest.mark.parametrize(
    ("method", "settings", "told"),
    [
        ("nf4", ["scheme.activation=int8-token"], "activations"),
        ("nf4", ["scheme.symmetric=false"], "zero point"),
        ("gptq", ["scheme.double_quant=true"], "double quantization"),
    ],
)
def test_a_scheme_that_contradicts_itself_is_refused(
    tiny_checkpoint: Callable[..., Path], method: str, settings: list[str], told: str
) -> None:
    wanted = quantkit.build_recipe(method=method, settings=settings)
    with pytest.raises(RefusedError, match=told):
        quantkit.dry_run(str(tiny_checkpoint("llama")), recipe=wanted)


@pytest.mark.parametrize(
    ("method", "setting", "told"),
    [
        ("gptq", "options.search=minimaks", "'minmax'"),
        ("gptq", "options.order=x", "'natural'"),
        ("gptq", "options.damp=-0.1", "a number >= 0"),
        ("gptq", "options.signed=1", "boolean"),
        ("smoothquant", "options.alpha=7", "from 0 to 1"),
        ("smoothquant", "options.alpha=true", "number"),
    ],
)
def test_an_option_that_cannot_be_is_told_before_the_model_is_looked_for(
    method: str, setting: str, told: str
) -> None:
    wanted = quantkit.build_recipe(method=method, settings=[setting])
    with pytest.raises(InputError) as caught:
        quantkit.dry_run("org/no-such-model", recipe=wanted)
    assert told in str(caught.value)


def test_an_option_without_a_default_value_can_be_set() -> None:
    wanted = quantkit.build_recipe(method="smoothquant", settings=["options.alpha=0.5"])
    assert parts_of(wanted)[-1].alpha == 0.5


def test_sizes_stated_by_overrides_do_not_count_for_auto(
    tiny_checkpoint: Callable[..., Path],
) -> None:
    folder = tiny_checkpoint("llama", intermediate_size=200)
    override = 'overrides=[{match: "*.down_proj", group_size: channel}]'
    wanted = quantkit.build_recipe(method="gptq", format="compressed-tensors", settings=[override])
    schemes = quantkit.dry_run(str(folder), recipe=wanted).schemes
    sizes = {name.rsplit(".", 1)[-1]: scheme.group_size for name, scheme in schemes.items()}
    assert sizes["down_proj"] is None
    assert sizes["up_proj"] == 128
