import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quantkit.cli.render.figures import evaluation_lines
from quantkit.results.kl_level import kl_level
from quantkit.results.schema import (
    Divergence,
    EvalResult,
    Perplexity,
    Protocol,
    Subject,
)

Call = Callable[..., tuple[int, str, str]]
RESULT = EvalResult(
    artifact=Subject(name="out"),
    protocol=Protocol(
        name="qk@1", text="smoke", tokens_sha256="t", windows=16, sequence_length=512
    ),
    tokens=8192,
    perplexity=Perplexity(
        value=28.31234, standard_error=0.91, log_ratio=0.0182, log_ratio_standard_error=0.0019
    ),
    kl=Divergence(
        mean=0.0912, standard_error=0.0031, p99=0.7, p999=1.21, max=3.14, floor_mean=1e-5
    ),
    top1_agreement=0.8712,
    top1_standard_error=0.004,
    detectable={"kl_relative": 0.031, "log_ratio": 0.0053},
)


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    seen: dict[str, Any] = {}

    def evaluate(artifact: str, **arguments: Any) -> EvalResult:
        seen.update(arguments, artifact=artifact)
        return RESULT

    monkeypatch.setattr("quantkit.api.evaluation.evaluate", evaluate)
    return seen


def test_options_are_handed_on_and_figures_are_lines(
    quantkit: Call, called: dict[str, Any]
) -> None:
    flags = (
        "--reference ref --text t.txt --protocol wikitext2-2048 --sequence-length 64 --windows 4 "
        "--save-reference kept --set reference_form=topk --set allow_overlap=true --triage "
        "--set kv_cache=fp8 --tasks a,b --gate kl.mean<1 --baseline old.json --device cpu "
        "--max-ram 9GB "
        "--trust-remote-code"
    )
    code, out, _ = quantkit("eval", "out", *flags.split())
    assert code == 0
    del called["report"]
    assert called == {
        "artifact": "out",
        "reference": "ref",
        "text": "t.txt",
        "protocol": "wikitext2-2048",
        "sequence_length": 64,
        "windows": 4,
        "save_reference": Path("kept"),
        "reference_form": "topk",
        "device": "cpu",
        "max_ram": "9GB",
        "max_vram": None,
        "trust_remote_code": True,
        "tasks": ["a", "b"],
        "gates": ["kl.mean<1"],
        "baseline": "old.json",
        "allow_overlap": True,
        "triage": True,
        "speed": False,
        "engine": None,
        "kv_cache": "fp8",
    }
    assert out.splitlines() == [
        "KL     0.0912 +- 0.0031 nats   p99 0.7   p99.9 1.2   max 3.1   noise 1e-05",
        "top-1  87.12 +- 0.40 %   PPL 28.31 +- 0.91   1.84 +- 0.19 % above the original's",
        "on 8192 tokens of smoke, protocol qk@1; detectable: KL 3.1 %, PPL 0.53 %",
    ]
    assert all(len(line) <= 80 for line in out.splitlines())


def test_json_has_the_figures_that_scripts_read(quantkit: Call, called: dict[str, Any]) -> None:
    code, out, _ = quantkit("eval", "out", "--json")
    found = json.loads(out)
    assert code == 0
    assert called["reference"] is None
    assert (called["sequence_length"], called["windows"]) == (None, None)
    assert EvalResult.model_validate(found) == RESULT
    assert found["perplexity"]["value"] == 28.31234
    assert {"mean", "standard_error", "median", "p99", "max"} <= set(found["kl"])
    assert found["top1_agreement"] == 0.8712
    assert (found["tokens"], found["protocol"]["name"]) == (8192, "qk@1")


def test_the_result_is_written_as_well(
    quantkit: Call, called: dict[str, Any], tmp_path: Path
) -> None:
    assert called is not None
    path = tmp_path / "eval.json"
    for _ in range(2):  # the second time over the first
        assert quantkit("eval", "out", "-o", str(path))[0] == 0
        assert EvalResult.model_validate_json(path.read_bytes()) == RESULT


def test_without_a_reference_there_is_only_perplexity() -> None:
    found = {"perplexity": {"value": 2.0, "standard_error": None}, "tokens": 3, "notes": ["a note"]}
    assert evaluation_lines(found) == ["PPL 2", "on 3 tokens", "a note"]


def test_how_large_a_kl_is_stands_below_it_with_what_to_try() -> None:
    kl = Divergence(mean=0.2, floor_mean=1e-5)
    artifact = Subject(name="a", bytes=2_000_000)
    large = RESULT.model_copy(update={"kl": kl, "artifact": artifact})
    lines = evaluation_lines(large.model_copy(update={"kl_level": kl_level(large)}).to_dict())
    assert "KL 0.2 is large: 0.1 or more" in lines
    assert any(line.startswith("try: quantkit fit MODEL -o OUT --size ") for line in lines)


def test_figures_that_are_no_measurement_are_called_so() -> None:
    perplexity = {"value": None, "standard_error": None}
    found = {"perplexity": perplexity, "tokens": 3, "notes": ["NaN"], "status": "invalid"}
    assert evaluation_lines(found)[-2:] == ["these figures are not valid:", "NaN"]


@pytest.mark.parametrize("flags", ["--windows 0", "--sequence-length 1", "--windows x"])
def test_a_window_needs_tokens(flags: str, quantkit: Call, called: dict[str, Any]) -> None:
    assert quantkit("eval", "out", *flags.split())[0] == 2
    assert not called
