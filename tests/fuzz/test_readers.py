"""Readers of files from anybody return, or raise an error that people can read: never another.

QUANTKIT_FUZZ multiplies the number of examples; 100 takes some minutes.
"""

import contextlib
import json
import os
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quantkit.checkpoint import reader, sane_config, strict_json
from quantkit.checkpoint.header import parse_header
from quantkit.checkpoint.stored import TensorInfo
from quantkit.checkpoint.survey import survey
from quantkit.core import registry
from quantkit.core.errors import QuantkitError
from quantkit.core.facts import LinearFacts
from quantkit.model.quantized import quantized_form
from quantkit.planning.model.config import read_architecture, read_as_llama
from quantkit.recipes import document
from quantkit.recipes.schema import recipe_of

TIMES = int(os.environ.get("QUANTKIT_FUZZ", "1"))
NAMES = {
    name: TensorInfo("BF16", (64, 64), "model.safetensors", 0, 8192)
    for name in ("model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight")
} | {
    "model.layers.0.mlp.up_proj.weight": TensorInfo(
        "F8_E4M3", (64, 64), "model.safetensors", 8192, 12288
    ),
    "model.layers.0.mlp.up_proj.weight_scale": TensorInfo(
        "F32", (), "model.safetensors", 12288, 12292
    ),
}
HEADER = {
    "__metadata__": {"format": "pt"},
    "a.weight": {"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12]},
    "b": {"dtype": "F32", "shape": [], "data_offsets": [12, 16]},
}
INDEX = {
    "metadata": {"total_size": 16},
    "weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"},
}
CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 64,
    "head_dim": 16,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "layer_types": ["full_attention"],
    "sliding_window": None,
    "text_config": None,
}
BLOCKS: tuple[dict[str, Any], ...] = (
    {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False,
     "dynamic": {"-:.*q_proj": {}, "+:up": {"bits": 8}}},
    {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm",
     "modules_to_not_convert": ["q_proj"], "dynamic": {"-:up": {}}},
    {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
     "bnb_4bit_use_double_quant": True, "llm_int8_skip_modules": ["lm_head"]},
    {"quant_method": "compressed-tensors", "format": "pack-quantized",
     "quantization_status": "compressed", "ignore": ["lm_head", "re:.*up"],
     "kv_cache_scheme": None, "transform_config": {}, "sparsity_config": {},
     "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": None,
                                   "output_activations": None,
                                   "weights": {"num_bits": 4, "type": "int", "strategy": "group",
                                               "group_size": 32, "symmetric": True}}}},
    {"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["lm_head"],
     "kv_cache_quant_algo": "FP8"},
    {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"},
)  # fmt: skip
RECIPE = """\
name: own
method: gptq
format: gptq
scheme: {bits: 4, group_size: 64, symmetric: true}
options: {damp: 0.05}
overrides:
- {match: "*.down_proj", bits: 8}
- {match: "re:.*q_proj", skip: true}
calibration: {text: default, samples: 8}
gates: ["kl.mean < 0.1"]
engines: [vllm]
"""
STRANGE: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, -1, 0, 1, 2**31, 2**63, 10**30, -0.5, 1e308, "", "x" * 300, "\ud800", "\x00",
     "\x1b[2J", "re:(", "..", "/etc/passwd", [], {}, [[]], {"": None}, [None, 7], "int", "float",
     "weight"]
)  # fmt: skip
ATOMS = st.one_of(STRANGE, st.integers(), st.floats(), st.text(max_size=20), st.booleans())
VALUES = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
EDITS = st.lists(
    st.tuples(
        st.sampled_from(["insert", "delete", "replace", "repeat", "cut"]),
        st.integers(0, 2**16),
        st.integers(1, 40),
        st.binary(max_size=8)
        | st.sampled_from([b"{", b"}", b"[", b'"', b"\\u0000", b"- ", b": ", b"&a", b"*a", b"!!",
                           b"%", b"\xff", b"-1", b"9" * 40, b"1e999", b"NaN", b"\n", b"\t"]),
    ),
    min_size=1,
    max_size=8,
)  # fmt: skip


def edited(data: bytes, edits: list[tuple[str, int, int, bytes]]) -> bytes:
    """The bytes after some edits."""
    for kind, where, length, new in edits:
        at = where % (len(data) + 1)
        if kind == "insert":
            data = data[:at] + new + data[at:]
        elif kind == "delete":
            data = data[:at] + data[at + length :]
        elif kind == "replace":
            data = data[:at] + new + data[at + len(new) :]
        elif kind == "repeat":
            data = data[:at] + data[at : at + length] * 3 + data[at + length :]
        else:
            data = data[:at]
    return data


@st.composite
def changed(draw: st.DrawFn, *sources: Any) -> Any:
    """One of some values, with a few of its parts replaced, removed or added."""
    value = deepcopy(draw(st.sampled_from(sources)))
    for _ in range(draw(st.integers(1, 4))):
        at, inside = value, True
        while inside and at:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            key = draw(st.sampled_from(keys))
            inside = isinstance(at[key], dict | list) and bool(at[key]) and draw(st.booleans())
            if inside:
                at = at[key]
                continue
            kind = draw(st.integers(0, 4))
            if kind == 0:
                del at[key]
            elif kind == 1 and isinstance(at, dict):
                at[draw(st.text(max_size=6))] = deepcopy(draw(VALUES))
            else:
                at[key] = deepcopy(draw(VALUES))
    return value


def many(count: int) -> settings:
    return settings(max_examples=count * TIMES, database=None)


def read_header(raw: bytes) -> None:
    for size in (8 + len(raw) + 16, 8 + len(raw)):
        try:
            found = parse_header(raw, "a.safetensors", size)
        except QuantkitError:
            continue
        assert all(8 + len(raw) <= info.start <= info.end <= size for info in found.values())


@many(1500)
@given(EDITS)
def test_bytes_of_headers(edits: list[tuple[str, int, int, bytes]]) -> None:
    read_header(edited(json.dumps(HEADER).encode(), edits))


@many(800)
@given(changed(HEADER))
def test_values_of_headers(header: Any) -> None:
    read_header(json.dumps(header).encode("utf-8", "surrogatepass"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("indexed")


@many(500)
@given(changed(INDEX).map(lambda v: json.dumps(v).encode()), EDITS, st.booleans())
def test_indexes(
    folder: Path, raw: bytes, edits: list[tuple[str, int, int, bytes]], by_bytes: bool
) -> None:
    data = edited(json.dumps(INDEX).encode(), edits) if by_bytes else raw
    (folder / "model.safetensors.index.json").write_bytes(data)
    (folder / "config.json").write_bytes(data)
    survey(folder)
    try:
        found = reader.read_weight_map(folder)
        reader.shard_names(found)
        reader.check_index(found, NAMES)
    except QuantkitError:
        pass


def read_config(config: Any) -> None:
    if not isinstance(config, dict):
        return
    for read in (
        lambda: sane_config.require_sane(config, NAMES),
        lambda: read_architecture(config),
        lambda: read_as_llama(config),
        lambda: quantized_form(NAMES, config, "folder"),
        lambda: read_block(config.get("quantization_config")),
    ):
        with contextlib.suppress(QuantkitError):
            read()


def read_block(block: Any) -> None:
    """What formats say of a block: also one that is not theirs."""
    if not isinstance(block, dict):
        return
    for name in registry.names("formats"):
        output = registry.load("formats", name, "FORMAT")
        output.matches(block)
        for name_ in ("model.layers.0.self_attn.q_proj", "lm_head"):
            try:
                scheme = output.parse(block)(name_)
                if scheme is not None:
                    output.check(scheme, LinearFacts(name_, 64, 64))
                output.kv_cache_of(block)
            except QuantkitError:
                pass


@many(800)
@given(changed(CONFIG, {**CONFIG, "text_config": CONFIG}))
def test_values_of_configs(config: Any) -> None:
    read_config(config)


@many(800)
@given(changed(*BLOCKS))
@example({"quant_method": "gptq", "dynamic": [1]})
def test_quantization_blocks(block: Any) -> None:
    read_config({**CONFIG, "quantization_config": block})


@many(800)
@given(EDITS, st.sampled_from(BLOCKS))
def test_bytes_of_configs(edits: list[tuple[str, int, int, bytes]], block: dict[str, Any]) -> None:
    raw = edited(json.dumps({**CONFIG, "quantization_config": block}).encode(), edits)
    with contextlib.suppress(ValueError):
        read_config(strict_json.loads(raw, max_bytes=10**6, infinite=True))


@many(400)
@given(EDITS)
def test_bytes_of_recipes(edits: list[tuple[str, int, int, bytes]]) -> None:
    text = edited(RECIPE.encode(), edits).decode("utf-8", "replace")
    with contextlib.suppress(QuantkitError):
        recipe_of(document.parse(text, "own.yaml"))


@many(300)
@given(changed(document.parse(RECIPE, "own.yaml").data), st.text(max_size=30))
def test_values_of_recipes(data: Any, setting: str) -> None:
    for read in (
        lambda: recipe_of(document.parse(json.dumps(data), "own.yaml")),
        lambda: document.parse_value(setting, "--set x"),
    ):
        with contextlib.suppress(QuantkitError):
            read()
