import json
from collections.abc import Callable
from pathlib import Path

import pytest

from quantkit.results.schema import Divergence, EvalResult, Perplexity, Protocol, Subject

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    result = EvalResult(
        schema="quantkit.eval/1",
        artifact=Subject(name="gptq 4 bits", bytes=3_000_000, method="gptq"),
        reference=Subject(name="Example", bytes=11_000_000),
        protocol=Protocol(name="p", text="t", tokens_sha256="0", windows=1, sequence_length=8),
        tokens=8,
        perplexity=Perplexity(value=5.0),
        kl=Divergence(mean=0.02, standard_error=0.001),
        top1_agreement=0.95,
    )
    (tmp_path / "eval.json").write_text(result.model_dump_json(by_alias=True), encoding="utf-8")
    return tmp_path


def test_the_verdict_is_told_and_the_page_is_where_it_says(quantkit: Call, measured: Path) -> None:
    output = measured / "report.html"
    code, out, _ = quantkit("report", str(measured), "-o", str(output))
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("gptq 4 bits takes 3.00 MB and keeps the top token on 95.0 %")
    assert "gptq 4 bits: No gates set. KL 0.0200 \u00b1.0020, 73 % smaller." in lines
    assert lines[-1].startswith(str(output))
    assert output.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_json_has_the_verdicts_and_a_fault_its_exit_code(quantkit: Call, measured: Path) -> None:
    output = measured / "report.csv"
    found = json.loads(quantkit("report", str(measured), "-o", str(output), "--json")[1])
    assert found["pick"] == "gptq 4 bits"
    assert found["bytes"] == output.stat().st_size
    assert list(found["verdicts"]) == ["gptq 4 bits"]
    assert quantkit("report", str(measured), "-o", "report.pdf")[0] == 2
    assert quantkit("report", str(measured / "absent"))[0] == 2


def test_the_report_needs_no_torch(child: Callable[..., "object"], measured: Path) -> None:
    code = (
        "import sys, quantkit; "
        f"quantkit.report([{str(measured)!r}], {str(measured / 'r.html')!r}); "
        "assert 'torch' not in sys.modules"
    )
    done = child(["-c", code])
    assert done.returncode == 0, done.stderr  # type: ignore[attr-defined]
