import json
from collections.abc import Callable
from typing import Any

import pytest

from quantkit.cli.figures import evaluation_lines
from quantkit.eval.metric import Figure
from quantkit.eval.session import Evaluation

Call = Callable[..., tuple[int, str, str]]
FIGURES: dict[str, Figure] = {
    "perplexity": {"value": 28.31234, "standard_error": 0.91},
    "reference_perplexity": {"value": 27.7, "standard_error": 0.9},
    "kl": {
        "mean": 0.0912,
        "standard_error": 0.0031,
        "median": 0.04,
        "p99": 0.7,
        "max": 3.1,
        "noise_floor": 1e-5,
    },
    "top1_agreement": 0.8712,
}


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    seen: dict[str, Any] = {}

    def evaluate(artifact: str, **arguments: Any) -> Evaluation:
        seen.update(arguments, artifact=artifact)
        return Evaluation(FIGURES, tokens=8176, windows=16, protocol={"stride": 512})

    monkeypatch.setattr("quantkit.api.evaluate", evaluate)
    return seen


def test_options_are_handed_on_and_figures_are_lines(
    quantkit: Call, called: dict[str, Any]
) -> None:
    flags = "--reference ref --text t.txt --sequence-length 64 --windows 4 --trust-remote-code"
    code, out, _ = quantkit("eval", "out", *flags.split())
    assert code == 0
    del called["report"]
    assert called == {
        "artifact": "out",
        "reference": "ref",
        "text": "t.txt",
        "sequence_length": 64,
        "windows": 4,
        "trust_remote_code": True,
    }
    assert out.splitlines() == [
        "perplexity 28.31 +- 0.91, of the original 27.7",
        "KL from the original 0.0912 +- 0.0031 nats per token "
        "(median 0.04, p99 0.7, max 3.1, noise floor 1e-05)",
        "same likeliest token 87.1 %",
        "on 8176 tokens",
    ]


def test_json_has_the_figures_that_scripts_read(quantkit: Call, called: dict[str, Any]) -> None:
    code, out, _ = quantkit("eval", "out", "--json")
    found = json.loads(out)
    assert code == 0
    assert called["reference"] is None
    assert found["perplexity"] == FIGURES["perplexity"]
    assert {"mean", "standard_error", "median", "p99", "max"} <= set(found["kl"])
    assert found["top1_agreement"] == FIGURES["top1_agreement"]
    assert (found["tokens"], found["protocol"]) == (8176, {"stride": 512})


def test_without_a_reference_there_is_only_perplexity() -> None:
    found = {"perplexity": {"value": 2.0, "standard_error": None}, "tokens": 3, "notes": ["a note"]}
    assert evaluation_lines(found) == ["perplexity 2", "on 3 tokens", "a note"]


def test_figures_that_are_no_measurement_are_called_so() -> None:
    perplexity = {"value": None, "standard_error": None}
    found = {"perplexity": perplexity, "tokens": 3, "notes": ["NaN"], "status": "invalid"}
    assert evaluation_lines(found)[-2:] == ["these figures are no measurement:", "NaN"]


@pytest.mark.parametrize("flags", ["--windows 0", "--sequence-length 1", "--windows x"])
def test_a_window_needs_tokens(flags: str, quantkit: Call, called: dict[str, Any]) -> None:
    assert quantkit("eval", "out", *flags.split())[0] == 2
    assert not called
