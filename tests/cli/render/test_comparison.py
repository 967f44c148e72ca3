import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import quantkit as package
from quantkit.api.planning import PLANNED_RECIPES
from tests.cli.conftest import LLAMA_8B

Call = Callable[..., tuple[int, str, str]]
EMBEDDED = Path(package.__file__).parent / "model" / "embedded"


def test_two_models_are_compared_build_by_build(quantkit: Call, llama: str) -> None:
    code, out, _ = quantkit("plan", llama, "--against", str(EMBEDDED), "--gpu", "4090")
    assert code == 0
    lines = {line.split("  ")[0]: line for line in out.splitlines()}
    assert "embedded" in lines["build, GB"]
    assert "19.1" in lines["bf16"]
    both = json.loads(quantkit("plan", llama, "--against", str(EMBEDDED), "--json")[1])
    assert [document["model"] for document in both][1] == "embedded"


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The embedded model, quantized."""
    folder = tmp_path_factory.mktemp("comparison") / "rtn"
    settings = ["format=compressed-tensors", "calibration.samples=1"]
    recipe = package.build_recipe("rtn", settings=[*settings, "calibration.sequence_length=64"])
    package.quantize(str(EMBEDDED), folder, recipe=recipe, evaluate=False)
    return str(folder)


@pytest.mark.parametrize("place", [(), ("--gpu", "4090"), ("--gpu", "4090", "--engine", "sglang")])
def test_an_artifact_stands_beside_every_build(
    quantkit: Call, artifact: str, place: tuple[str, ...]
) -> None:
    def rows(*arguments: str) -> dict[str, list[str]]:
        code, out, _ = quantkit("plan", *arguments, *place)
        assert code == 0
        lines = [re.split("  +", line) for line in out.splitlines()]
        return {words[0]: words[1:] for words in lines if len(words) > 3}

    stored = "compressed-tensors"
    one = rows(artifact, "--against", str(EMBEDDED))
    assert len(one) == 2 + len(PLANNED_RECIPES)  # with the head
    assert float(one[f"{stored}, bf16"][2]) > (1 if place else 1.5)
    assert rows(str(EMBEDDED), "--against", artifact).keys() > {f"bf16, {stored}"}
    assert rows(artifact, "--against", artifact)[stored][2] == "1.0"


def test_builds_of_one_recipe_are_compared_whatever_their_groups(
    quantkit: Call, llama: str, tmp_path: Path
) -> None:
    other = tmp_path / "other" / "config.json"
    other.parent.mkdir()
    other.write_text(json.dumps(LLAMA_8B | {"intermediate_size": 14400, "torch_dtype": "float16"}))
    _, out, _ = quantkit("plan", llama, "--against", str(other))
    assert "\nbf16, f16  " in out
    assert "\nW4 g128 sym (gptq), W4 g64 sym (gptq)  " in out


def test_trainings_are_compared_by_what_a_gpu_needs(quantkit: Call, llama: str) -> None:
    _, alone, _ = quantkit("plan", llama, "--train", "full")
    need = re.findall(r"^([0-9.]+) GB on each GPU", alone, re.MULTILINE)
    _, out, _ = quantkit("plan", llama, "--train", "full", "--against", llama)
    assert re.split("  +", out.splitlines()[-1]) == ["full", *need, *need, "1.0"]
    assert "full, 1 GPU, zero 0" in out


def test_a_training_that_is_too_large_is_told_beside_one_that_fits(
    quantkit: Call, llama: str
) -> None:
    options = ("--train", "qlora", "--gpu", "4090", "--gpus", "2", "--context", "512")
    code, out, _ = quantkit("plan", llama, "--against", str(EMBEDDED), *options)
    assert code == 0
    assert "qlora, 2 x RTX 4090 24GB (25.3 GB), zero 0" in out
    row = re.split("  +", out.splitlines()[-1])
    assert (row[0], row[-2:]) == ("qlora", ["yes", "yes"])
    full = (*options, "--train", "full")
    _, alone, _ = quantkit("plan", llama, *full)
    (over,) = re.findall(r"does not fit: .*, ([0-9.]+) GB too many", alone)
    _, out, _ = quantkit("plan", llama, "--against", str(EMBEDDED), *full)
    row = re.split("  +", out.splitlines()[-1])
    assert (row[0], row[-2:]) == ("full", [f"{over} over", "yes"])
