import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quantkit.results.schema import Subject, SweepResult, SweepRun
from quantkit.results.summary import Summary

Call = Callable[..., tuple[int, str, str]]
SWEPT = SweepResult(
    schema="quantkit.sweep/1",
    model=Subject(name="embedded"),
    runs=[
        SweepRun(
            key="original",
            label="original",
            family="ref",
            status="done",
            summary=Summary(bytes=11_000_000, perplexity=5.0, perplexity_standard_error=0.11),
        ),
        SweepRun(
            key="gptq-w4",
            label="gptq W4",
            family="gptq",
            status="done",
            summary=Summary(
                bytes=3_210_000,
                bits_per_weight=6.42,
                quantized_bits_per_weight=4.53,
                perplexity=5.1,
                perplexity_standard_error=0.12,
                kl_mean=0.012,
                kl_standard_error=0.001,
                top1_agreement=0.951,
            ),
            seconds=3.2,
        ),
        SweepRun(key="nf4", label="nf4", family="nf4", status="failed", why="no"),
    ],
)


def test_runs_become_one_table_or_one_document(
    quantkit: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def demo(output: Path | None, **arguments: Any) -> SweepResult:
        seen.update(arguments, output=output)
        return SWEPT

    monkeypatch.setattr("quantkit.api.evaluation.demo", demo)
    code, out, _ = quantkit("demo", "-o", "kept", "--page", "/tmp/page.html")
    assert code == 0
    assert seen["output"] == Path("kept")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines == [
        "recipe size bits (all) KL, nats same top-1 perplexity time",
        "original 11 MB - - - 5.00 +- 0.11 -",
        "gptq W4 3.21 MB 4.53 (6.42) 0.0120 +- 0.0010 95.1 % 5.10 +- 0.12 3.2 s",
        "nf4 - - - - - - no",
        "report: /tmp/page.html",
    ]
    assert json.loads(quantkit("demo", "--json")[1]) == SWEPT.to_dict()
    assert seen["output"] is None
