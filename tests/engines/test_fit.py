"""A fitted artifact, with several schemes and linears left as they are, in real engines."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from quantkit import api
from quantkit.core.recipe import CalibrationSpec
from quantkit.model.open import load_dense, open_model
from tests.engines.conftest import TOKENS, interpreter

BOUNDS = {"transformers": 1e-6, "vllm": 2e-2}


@pytest.fixture(scope="module")
def fitted(
    tiny_checkpoint_cache: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Four bits only, as vLLM's CPU build has no kernel for weights of eight bits alone."""
    folder = tiny_checkpoint_cache("llama", dtype="float16")
    result = api.fit(
        str(folder),
        tmp_path_factory.mktemp("fitted") / "out",
        size=420_000,
        bits=[4],
        group_sizes=[32, 128, None],
        calibration=CalibrationSpec(samples=4, sequence_length=64),
        device="cpu",
    )
    return result.output


def test_it_holds_several_schemes(fitted: Path) -> None:
    block = json.loads((fitted / "config.json").read_text())["quantization_config"]
    assert len(block["config_groups"]) > 1
    assert len(block["ignore"]) > 1


@pytest.mark.parametrize("engine", sorted(BOUNDS))
def test_predicts_what_our_own_decode_predicts(
    fitted: Path, run_script: Callable[[str, str, str], None], tmp_path: Path, engine: str
) -> None:
    interpreter(engine)
    job = {"engine": engine, "artifacts": {"fitted": str(fitted)}, "tokens": TOKENS}
    (tmp_path / "job.json").write_text(json.dumps(job))
    run_script(engine, "predict.py", str(tmp_path / "job.json"))
    answer = json.loads((tmp_path / "fitted.json").read_text())
    assert (answer["error"], answer.get("keys", [])) == ("", [])
    found = load_file(tmp_path / "fitted.safetensors")["logits"]
    with torch.no_grad():
        own = load_dense(open_model(fitted)).eval()(torch.tensor(TOKENS)).logits.float()
    if engine == "vllm":  # log-probabilities, of all but the last
        own = own.log_softmax(-1)[:, :-1]
    assert (found - own).abs().max().item() < BOUNDS[engine]
