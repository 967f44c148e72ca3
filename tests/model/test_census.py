"""Types of transformers as `benchmarks/census.py` makes and judges them: every cause of refusal."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).parents[2]
CAUSES = {
    "experts stored one tensor each": "mixtral qwen3_moe deepseek_v3",
    "experts stored in one tensor": "gpt_oss ernie4_5_moe granitemoe phimoe",
    "experts outside the registry": "llama4 longcat_flash step3p7 jetmoe dbrx",
    "multimodal towers": "qwen2_5_vl gemma3 mllama internvl paligemma llava_onevision",
    "hybrids of unlike blocks": "jamba bamba nemotron_h qwen3_next lfm2 olmo_hybrid",
    "renamed tensors": "glm4v cohere2_moe minimax_m2",
    "blocks that share weights": "zamba2",
    "experts that only images reach": "ernie4_5_vl_moe",
    "nested lists of blocks": "modernbert-decoder",
    "inputs for each layer, linears called twice": "gemma3n_text gemma4_text",
    "keys and values of another layer": "gemma4 falcon_h1",
    "models that need images in every call": "blip-2 kosmos-2",
    "conv1d": "gpt2 openai-gpt",
    "islands of fp32": "glm4_moe mamba2",
    "buffers": "minimax bloom",
    "items handed from block to block": "zaya glm_moe_dsa",
    "weights that are read before their module is called": "kosmos-2.5",
}
DONE = [(kind, cause) for cause, kinds in CAUSES.items() for kind in kinds.split()]
REFUSED = {
    "bart": "of the linear weights",
    "blip": "token ids alone",
    "blt": "how wide",
    "pix2struct": "encoder-decoder",
    "inkling2_text": "from block to block",
    "cpmant": "from block to block",
    "hrm_text": "from block to block",
}


@pytest.fixture(scope="module")
def census() -> Any:
    """The module of the benchmark, which no package contains."""
    sys.path.insert(0, str(ROOT))
    try:
        spec = importlib.util.spec_from_file_location("census", ROOT / "benchmarks" / "census.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(ROOT))
    module.warm()
    return module


@pytest.fixture
def examined(census: Any, tmp_path: Path) -> Callable[[str], dict[str, Any]]:
    """What becomes of a type."""
    kinds = census.identifiers()
    return lambda kind: census.examine(kind, kinds[kind], tmp_path)


def test_forty_types_show_every_cause() -> None:
    assert len({kind for kind, _ in DONE}) >= 40


@pytest.mark.long
@pytest.mark.parametrize(("kind", "cause"), DONE)
def test_a_type_is_quantized_and_computes_what_transformers_computes(
    examined: Callable[[str], dict[str, Any]], kind: str, cause: str
) -> None:
    found = examined(kind)
    assert found["outcome"] == "done", (cause, found)
    assert max(found["difference"]) < 1e-3, "our blocks in fp32 against transformers"
    assert found["kl"] < 1e-3
    assert found["share"] >= 0.99, found["left"]


@pytest.mark.long
@pytest.mark.parametrize("kind", REFUSED)
def test_a_type_that_cannot_be_done_is_refused_with_its_reason(
    examined: Callable[[str], dict[str, Any]], kind: str, tmp_path: Path
) -> None:
    found = examined(kind)
    assert found["outcome"] == "refused"
    assert REFUSED[kind] in found["what"]
    assert not list(tmp_path.glob("out*")), "refused before anything is written"


@pytest.mark.long
def test_the_bound_on_kl_tells_two_linears_that_changed_places(
    census: Any, examined: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    assert examined("mixtral")["kl"] < 1e-3
    file = tmp_path / "out" / "model.safetensors"
    tensors = load_file(file)
    first, other = (f"model.layers.0.block_sparse_moe.experts.{i}.w1." for i in range(2))
    for suffix in ("weight_packed", "weight_scale"):
        pair = (tensors[first + suffix], tensors[other + suffix])
        tensors[other + suffix], tensors[first + suffix] = pair
    save_file(tensors, file)
    assert census.divergence(tmp_path / "model", tmp_path / "out") > 1e-3
