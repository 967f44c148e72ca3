import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

import quantkit
from quantkit.core.errors import InputError, RefusedError
from quantkit.model.embedded_model import FOLDER
from quantkit.results.schema import EvalResult


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model in 4 bits, with its own evaluation in the manifest."""
    output = tmp_path_factory.mktemp("artifact") / "four-bits"
    recipe = quantkit.build_recipe("rtn", group_size=64, samples=1, sequence_length=64)
    quantkit.quantize(str(FOLDER), output, recipe=recipe)
    return output


def evaluate(artifact: Path, reference: Path | None = None, **options: object) -> EvalResult:
    return quantkit.evaluate(
        str(artifact),
        reference=str(reference) if reference else None,
        sequence_length=64,
        windows=6,
        **options,  # type: ignore[arg-type]  # as the caller states them
    )


def test_an_artifact_against_its_original(artifact: Path) -> None:
    stages: list[str] = []
    found = evaluate(artifact, FOLDER, report=lambda progress: stages.append(progress.stage))
    assert {"evaluate: forward", "evaluate: scores"} <= set(stages) <= {
        "plan", "evaluate", "evaluate: forward", "evaluate: scores",
    }  # fmt: skip
    assert found.kl is not None
    assert found.kl.mean is not None
    assert 1e-3 < found.kl.mean < 1
    assert found.artifact.name == "four-bits"
    assert (found.artifact.method, found.artifact.scheme) == ("rtn", "W4 g64 sym")
    assert found.artifact.bytes == sum(p.stat().st_size for p in artifact.glob("*.safetensors"))
    assert found.reference is not None
    assert found.reference.name == FOLDER.name
    assert found.artifact.sha256 != found.reference.sha256
    assert found.created_utc
    errors = found.block_relative_error
    assert len(errors) == 6
    assert all(error is not None and 0 < error < 0.1 for error in errors)
    assert str(artifact.parent) not in json.dumps(found.to_dict())


def test_the_manifest_s_evaluation_is_a_result_of_its_own(artifact: Path) -> None:
    stored = json.loads((artifact / "quantkit.json").read_text(encoding="utf-8"))["evaluation"]
    found = EvalResult.model_validate(stored)
    assert found.protocol.text == "smoke"
    assert found.artifact.name == "rtn"  # not the folder's name: the same inputs, the same bytes
    assert found.kl is not None
    assert found.created_utc == ""  # the same inputs give the same manifest
    card = (artifact / "README.md").read_text(encoding="utf-8")
    assert "KL(original, quantized), mean, nats per token" in card


@pytest.mark.parametrize("form", ["hidden", "topk"])
def test_a_saved_reference_takes_the_original_s_place(
    artifact: Path, tmp_path: Path, form: str
) -> None:
    kept = tmp_path / "kept"
    direct = evaluate(artifact, FOLDER, save_reference=kept, reference_form=form)
    found = evaluate(artifact, kept)
    assert found.reference is not None
    assert found.reference.sha256 == (direct.reference and direct.reference.sha256)
    assert found.reference.form == form
    assert found.kl is not None
    assert direct.kl is not None
    assert found.kl.mean is not None
    assert found.kl.floor_mean == direct.kl.floor_mean
    if form == "hidden":
        assert found.kl == direct.kl
    else:
        error = found.kl.sampling_standard_error
        assert error is not None
        assert math.isclose(found.kl.mean, direct.kl.mean or 0, abs_tol=4 * error)


def test_there_must_be_something_to_save(artifact: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs the original") as caught:
        evaluate(artifact, save_reference=tmp_path / "kept")
    assert caught.value.hint


def test_another_tokenizer_is_refused_before_any_work(
    tiny_checkpoint: Callable[..., Path], artifact: Path
) -> None:
    with pytest.raises(RefusedError, match="different vocabularies") as caught:
        evaluate(artifact, tiny_checkpoint())
    assert caught.value.exit_code == 4
    kept = tiny_checkpoint(private=True)
    tokens = json.loads((kept / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = tokens["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (kept / "tokenizer.json").write_text(json.dumps(tokens), encoding="utf-8")
    with pytest.raises(RefusedError, match="different vocabularies"):
        evaluate(kept, tiny_checkpoint())
