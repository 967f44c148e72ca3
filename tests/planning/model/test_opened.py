import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import quantkit
from quantkit.core.errors import InputError, RefusedError
from quantkit.core.serving import Degrees, Load
from quantkit.planning.model.opened import open_model
from quantkit.planning.model.weights import PlannedModel, recipe_build, stored_build, weigh
from quantkit.planning.run.quantization import plan_quantization
from quantkit.planning.serve.place import named_place
from quantkit.recipes.loader import build_recipe
from tests.planning.conftest import serving_of


def tensor_bytes(folder: Path) -> int:
    """Bytes of all tensors, by safetensors itself."""
    from safetensors import safe_open

    total = 0
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            total += sum(file.get_tensor(key).nbytes for key in file.keys())  # noqa: SIM118
    return total


def test_a_folder_is_read_by_its_headers(family: str, tiny_checkpoint: Callable[..., Path]) -> None:
    folder = tiny_checkpoint(family, shards=2)
    model = open_model(str(folder))
    assert model.inventory.origin == "safetensors headers"
    assert model.name == folder.name
    assert sum(weigh(model, stored_build(model)).values()) == tensor_bytes(folder)


def test_a_config_alone_is_enough(tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    folder = tiny_checkpoint("llama")
    whole = open_model(str(folder))
    shutil.copy(folder / "config.json", tmp_path)
    for name in (tmp_path, tmp_path / "config.json"):
        model = open_model(str(name))
        assert (model.inventory.origin, model.name) == ("config.json", tmp_path.name)
        assert weigh(model, stored_build(model)) == weigh(whole, stored_build(whole))


def test_experts_in_one_tensor_are_quantized_as_linears(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    """As `quantize` does it, whose files are of the planned size but for their headers."""
    folder = tiny_checkpoint("experts_fused", dtype="bfloat16")
    wanted = build_recipe("gptq", format="compressed-tensors", samples=2, sequence_length=32)
    model = open_model(str(folder))
    build = recipe_build(model, wanted)
    assert sum(weigh(model, stored_build(model)).values()) == tensor_bytes(folder)
    quantkit.quantize(str(folder), tmp_path / "out", recipe=wanted, evaluate=False)
    assert sum(weigh(model, build).values()) == tensor_bytes(tmp_path / "out")


def test_a_quantized_folder_is_planned_as_it_is(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tiny_checkpoint("llama")
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    quantized = tmp_path / "quantized"
    shutil.copytree(folder, quantized)
    (quantized / "config.json").write_text(json.dumps(config))
    model = open_model(str(quantized))
    assert stored_build(model).name == "gptq"
    dense = model.as_dense()
    assert dense.quantized is None
    assert weigh(dense, stored_build(dense)) == weigh(model, stored_build(model))
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="weight files are missing") as caught:
        open_model(str(tmp_path / "config.json"))
    assert "the config without its quantization_config" in str(caught.value.hint)
    del config["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert open_model(str(tmp_path / "config.json")).quantized is None


@pytest.mark.parametrize(("content", "match"), [("[]", "JSON object"), ("{", "cannot be read")])
def test_what_is_no_config_is_refused(tmp_path: Path, content: str, match: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(InputError, match=match):
        open_model(str(tmp_path))


@pytest.mark.parametrize("name", ["no such thing", "", "~nouser/x", "x" * 5000, "a\0b"])
def test_neither_folder_nor_hub_id(name: str) -> None:
    if name == "~nouser/x":
        assert not Path("~nouser").exists()
    with pytest.raises(InputError, match="neither a folder nor a hub id") as caught:
        open_model(name)
    assert len(str(caught.value)) < 1000


SIZES = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "vocab_size": 64,
}
LINEARS: dict[str, tuple[int, ...]] = {
    f"model.layers.0.mlp.{name}_proj.weight": (256, 256) for name in ("gate", "up", "down")
}


def open_tensors(
    folder: Path,
    shapes: dict[str, tuple[int, ...]],
    dtype: torch.dtype = torch.bfloat16,
    **more: Any,
) -> PlannedModel:
    """The model of a folder with tensors of these shapes."""
    save_file(
        {name: torch.zeros(shape, dtype=dtype) for name, shape in shapes.items()},
        folder / "model.safetensors",
    )
    (folder / "config.json").write_text(json.dumps(SIZES | more))
    return open_model(str(folder))


FORMATS: dict[str, dict[str, Any]] = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True},
    "gptq asymmetric": {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": False},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 16, "zero_point": True},
    "nf4": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "int8": {"quant_method": "bitsandbytes", "load_in_8bit": True},
    "hqq": {"quant_method": "hqq"},
    "fp8": {"quant_method": "fp8"},
}


@pytest.mark.parametrize(
    ("form", "engine", "gpu", "reason"),
    [
        ("gptq", "vllm", "4090", None),
        ("gptq", "sglang", "4090", None),
        ("gptq", "transformers", "m3 ultra", None),
        ("gptq", "sglang", "t4", "8.0"),
        ("gptq asymmetric", "vllm", "4090", "symmetric GPTQ only"),
        ("gptq asymmetric", "sglang", "4090", "symmetric GPTQ only"),
        ("awq", "vllm", "4090", "groups of 32, 64, 128"),
        ("nf4", "vllm", "4090", "does not load format `bitsandbytes`"),
        ("nf4", "sglang", "4090", None),
        ("nf4", "transformers", "4090", None),
        ("int8", "vllm", "4090", "no loader for bitsandbytes"),
        ("hqq", "vllm", "4090", "no loader for hqq"),
        ("fp8", "vllm", "4090", None),
    ],
)
def test_the_rules_of_engines_hold_for_files_that_are_quantized(
    tmp_path: Path, form: str, engine: str, gpu: str, reason: str | None
) -> None:
    model = open_tensors(tmp_path, LINEARS, quantization_config=FORMATS[form])
    (found,) = serving_of(model, (), named_place(gpu, engine, Degrees()), Load(64)).builds
    assert (found.fault is None) == (reason is None)
    assert (reason or "") in (found.fault or "")
    assert "--method" not in (found.fault or "")
    unread = form in ("int8", "hqq", "fp8")
    assert any("plan does not know" in note for note in model.notes) == unread
    if found.fault:
        option, other = found.fault.rpartition("; try: ")[2].split()
        assert option == "--engine"
        again = serving_of(model, (), named_place(gpu, other, Degrees()), Load(64))
        assert again.builds[0].fault is None


def test_a_block_in_the_text_config_is_read_as_vllm_reads_it(tmp_path: Path) -> None:
    """Transformers writes the block of a multimodal model at the top; some files have it inside."""
    text = SIZES | {"quantization_config": FORMATS["gptq asymmetric"]}
    model = open_tensors(tmp_path, LINEARS, text_config=text)
    assert (model.quantized, stored_build(model).name) == ("gptq", "gptq")
    (found,) = serving_of(model, (), named_place("4090", "vllm", Degrees()), Load(64)).builds
    assert "symmetric GPTQ only" in (found.fault or "")
    stated = open_tensors(tmp_path, LINEARS, text_config=text, quantization_config=FORMATS["awq"])
    assert stated.quantized == "awq"


def test_slices_of_quantized_files_are_those_of_their_linears(tmp_path: Path) -> None:
    """256 inputs on 4 ranks are half a group of 128; what bitsandbytes packed is not divided."""
    for form, engine, degree in (("gptq", "vllm", 4), ("nf4", "sglang", 2)):
        model = open_tensors(tmp_path, LINEARS, quantization_config=FORMATS[form])
        with pytest.raises(RefusedError, match=f"{degree} tensor-parallel ranks"):
            serving_of(model, (), named_place("4090", engine, Degrees(degree)), Load(64))


def test_a_dtype_that_the_config_does_not_name_is_that_of_the_files(tmp_path: Path) -> None:
    shapes = LINEARS | {"model.embed_tokens.weight": (64, 256)}
    for dtype, name in ((torch.float16, "F16"), (torch.float32, "F32")):
        model = open_tensors(tmp_path, shapes, dtype)
        assert (model.architecture.dtype, model.notes) == (name, ())
    alone = open_model(str(tmp_path / "config.json"))
    assert alone.architecture.dtype == "F32"
    assert "names no dtype" in alone.notes[0]
    stated = open_tensors(tmp_path, shapes, dtype=torch.float32, torch_dtype="bfloat16")
    assert stated.architecture.dtype == "BF16"


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", *LINEARS])
def test_an_empty_weight_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="is empty"):
        open_tensors(tmp_path, LINEARS | {name: (0, 256)})


def test_a_scale_of_a_whole_head_is_held_by_every_rank(tmp_path: Path) -> None:
    shapes = {"model.embed_tokens.weight": (64, 256), "lm_head.weight": (64, 256)}
    model = open_tensors(tmp_path, LINEARS | shapes | {"lm_head.weight_scale": ()})
    bare = sum(weigh(model, stored_build(model)).values())
    assert bare == 2 * (3 * 256 * 256 + 2 * 64 * 256) + 2
    halves = sum(weigh(model, stored_build(model), Degrees(2)).values())
    assert halves == 3 * 256 * 256 + 2 * 64 * 256 + 2


@pytest.mark.parametrize(
    ("shapes", "dtype", "match"),
    [
        (LINEARS, torch.bfloat16, "no embedding"),
        (LINEARS | {"model.embed_tokens.weight": (64, 256)}, torch.float64, "stored in F64"),
    ],
)
def test_a_run_needs_an_embedding_in_a_dtype_that_is_computed_in(
    tmp_path: Path, shapes: dict[str, tuple[int, ...]], dtype: torch.dtype, match: str
) -> None:
    model = open_tensors(tmp_path, shapes, dtype)
    with pytest.raises(RefusedError, match=match):
        plan_quantization(model, build_recipe("gptq"))


@pytest.mark.parametrize(
    ("block", "named"),
    [
        ({"quant_method": "awq", "bits": 4}, "awq"),
        ({"load_in_4bit": True}, "bitsandbytes"),
        ({}, None),
        ({"quant_method": "a" * 100_000}, None),
        ({"quant_method": "awq\nfits"}, None),
        ({"quant_method": 4}, None),
    ],
)
def test_the_format_of_a_quantized_model_is_a_word(
    tmp_path: Path, block: dict[str, Any], named: str | None
) -> None:
    if named is not None:
        model = open_tensors(tmp_path, LINEARS, quantization_config=block)
        assert stored_build(model).name == named
        return
    with pytest.raises(InputError, match="quant_method is") as caught:
        open_tensors(tmp_path, LINEARS, quantization_config=block)
    assert len(str(caught.value)) < 300


def test_extra_prediction_layers_are_named_and_not_counted(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SIZES))
    plain = open_model(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(SIZES | {"num_nextn_predict_layers": 1}))
    model = open_model(str(tmp_path))
    assert set(model.notes) - set(plain.notes) == {
        "not counted: 1 extra prediction layer(s), for speculative decoding"
    }
    assert model.kinds == plain.kinds
    block = {f"mtp.layers.0.mlp.{n}_proj.weight": (256, 256) for n in ("gate", "up")}
    stored = open_tensors(tmp_path, LINEARS | block)
    assert sum(weigh(stored, stored_build(stored)).values()) == 3 * 2 * 256 * 256
