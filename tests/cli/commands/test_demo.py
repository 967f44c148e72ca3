import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., tuple[int, str, str]]
ROWS = [
    {
        "recipe": "original",
        "bytes": 11_000_000,
        "bits_per_weight": 16.0,
        "perplexity": 5.0,
        "perplexity_standard_error": 0.11,
        "kl_mean": None,
        "kl_standard_error": None,
        "top1_agreement": None,
        "seconds": 0.0,
    },
    {
        "recipe": "gptq W4",
        "bytes": 3_210_000,
        "bits_per_weight": 4.53,
        "perplexity": 5.1,
        "perplexity_standard_error": 0.12,
        "kl_mean": 0.012,
        "kl_standard_error": 0.001,
        "top1_agreement": 0.951,
        "seconds": 3.2,
    },
]


def test_rows_become_one_table_or_one_document(
    quantkit: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def demo(output: Path | None, **arguments: Any) -> list[dict[str, Any]]:
        seen.update(arguments, output=output)
        return ROWS

    monkeypatch.setattr("quantkit.api.demo", demo)
    code, out, _ = quantkit("demo", "-o", "kept")
    assert code == 0
    assert seen["output"] == Path("kept")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines == [
        "recipe size bits/weight perplexity KL (nats) same top-1 time",
        "original 11 MB 16.00 5.00 +- 0.11 - - 0.0 s",
        "gptq W4 3.21 MB 4.53 5.10 +- 0.12 0.0120 +- 0.0010 95.1 % 3.2 s",
    ]
    assert json.loads(quantkit("demo", "--json")[1]) == ROWS
    assert seen["output"] is None
