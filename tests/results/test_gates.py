from typing import Any

import pytest

from quantkit.core.gate import FIGURES, parse_gate
from quantkit.results.decision import missed
from quantkit.results.figures import by_domain, figure_value
from quantkit.results.gates import judge
from quantkit.results.schema import (
    Divergence,
    Documents,
    EngineSpeed,
    EvalResult,
    LocalSpeed,
    Memory,
    Perplexity,
    Protocol,
    Speed,
    Subject,
    TaskResult,
    TrueTokenChange,
)

DOCUMENTS = Documents(
    id=[str(i) for i in range(8)],
    domain=["prose"] * 4 + ["code"] * 4,
    n=[100] * 8,
    sum_nll=[310.0, 290.0, 305.0, 295.0, 110.0, 90.0, 105.0, 95.0],
    sum_nll_reference=[300.0] * 4 + [95.0] * 4,
    sum_kl_nats=[1.0, 1.1, 0.9, 1.0, 5.0, 5.1, 4.9, 5.0],
    top1_hits=[95] * 8,
)


SPEED = Speed(
    local=[
        LocalSpeed(
            batch=1,
            context_tokens=512,
            kernel="k",
            threads=2,
            repeats=10,
            prefill_tokens_per_s=1000,
            prefill_ci95=(990, 1010),
            decode_tokens_per_s=50,
            decode_ci95=(49, 51),
            prefill_ratio=0.9,
            decode_ratio=1.8,
            ttft_p50_ms=1,
            itl_p50_ms=2,
            itl_p95_ms=3,
            itl_p99_ms=4,
        )
    ],
    engine=[
        EngineSpeed(
            engine="vllm",
            concurrency=16,
            requests=64,
            failed_requests=0,
            input_tokens=128,
            output_tokens=64,
            output_tokens_per_s=300,
            ttft_p50_ms=1,
            ttft_p99_ms=2,
            itl_p50_ms=3,
            itl_p99_ms=4,
            tpot_excl_first_p50_ms=5,
        )
    ],
)


def task(name: str, recovery: float, half: float) -> TaskResult:
    return TaskResult(
        name=name,
        questions=400,
        accuracy=0.8 * recovery,
        reference_accuracy=0.8,
        right_to_wrong=9,
        wrong_to_right=7,
        mcnemar_p=0.8,
        recovery=recovery,
        recovery_ci95=(recovery - half, recovery + half),
        detectable_fraction=0.03,
    )


def result(**parts: Any) -> EvalResult:
    """A result with every figure that a gate may name."""
    whole: dict[str, Any] = {
        "artifact": Subject(name="a", bytes=1000, bits_per_weight=4.5),
        "protocol": Protocol(
            name="documents", text="mine.jsonl", tokens_sha256="t", windows=8, sequence_length=101
        ),
        "tokens": 800,
        "perplexity": Perplexity(
            ci95=(6.93, 8.11),
            value=7.5,
            standard_error=0.3,
            log_ratio=0.03,
            log_ratio_ci95=(0.02, 0.04),
        ),
        "kl": Divergence(
            mean=0.03, ci95=(0.02, 0.04), median=0.01, p90=0.1, p99=0.2, p999=0.5, max=1.0
        ),
        "true_token_change": TrueTokenChange(mean=-0.01, rms=0.05),
        "top1_agreement": 0.95,
        "top1_ci95": (0.94, 0.96),
        "tasks": [task("arc", 0.99, 0.02), task("gsm8k", 0.96, 0.01)],
        "memory": Memory(
            planned_bytes=10,
            allocated_peak_bytes=30,
            reserved_peak_bytes=40,
            host_peak_rss_bytes=50,
            kv_bytes_per_token=60,
            fragmentation_fraction=0.02,
        ),
        "speed": SPEED,
        "engines": {"vllm": "passed", "sglang": "no 3-bit kernel"},
        "documents": DOCUMENTS,
        "environment": {"cpu": "some cpu"},
    }
    return EvalResult(**(whole | parts))


@pytest.mark.parametrize("known", sorted(FIGURES))
def test_every_figure_that_a_gate_may_name_is_found_in_a_result(known: str) -> None:
    name = "vllm" if known.startswith("engines") else "gsm8k"
    figure = known.replace("bNxN", "b1x512").replace("cN", "c16").replace("NAME", name)
    assert figure_value(result(), figure).value is not None


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("kl.mean <= 0.04", "passed"),
        ("kl.mean < 0.04", "undecided"),
        ("kl.mean <= 0.03", "undecided"),
        ("kl.mean < 0.02", "failed"),
        ("kl.mean <= 0.02", "undecided"),
        ("kl.mean > 0.01", "passed"),
        ("kl.mean > 0.04", "failed"),
        ("top1_agreement >= 94%", "passed"),
        ("top1_agreement >= 95%", "undecided"),
        ("top1_agreement >= 97%", "failed"),
        ("perplexity.value <= 8.2", "passed"),
        ("perplexity.value <= 8", "undecided"),
        ("kl.p99 <= 0.2", "passed"),
        ("kl.p99 < 0.2", "failed"),
        ("artifact.bytes == 1000", "passed"),
        ("artifact.bytes <= 0.9 kB", "failed"),
        ("tasks.arc.recovery >= 0.97", "passed"),
        ("tasks.arc.recovery >= 0.99", "undecided"),
        ("tasks.worst.recovery >= 0.95", "passed"),
        ("tasks.worst.recovery >= 0.98", "failed"),
        ("tasks.recovery >= 0.95", "passed"),
        ("tasks.recovery >= 0.98", "undecided"),
        ("tasks.mmlu.recovery >= 0.9", "undecided"),
        ("speed.b1x512.decode_tokens_per_s >= 49", "passed"),
        ("speed.b4x512.decode_tokens_per_s >= 49", "undecided"),
        ("speed.c16.failed_requests == 0", "passed"),
        ('engines.vllm == "passed"', "passed"),
        ('engines.sglang == "passed"', "failed"),
        ('engines.gptqmodel == "passed"', "undecided"),
        ("kl.mean <= baseline", "undecided"),
    ],
)
def test_a_gate_is_decided_by_the_whole_interval(expression: str, expected: str) -> None:
    (outcome,) = judge([parse_gate(expression)], result())
    assert outcome.status == expected
    assert outcome.why or expected != "undecided"


def test_a_figure_without_an_interval_says_so_and_an_exact_one_does_not() -> None:
    guessed, exact = judge(
        [parse_gate("kl.p99 < 1"), parse_gate("artifact.bytes < 9999")], result()
    )
    assert "no interval" in guessed.why
    assert exact.why == ""


def test_every_domain_is_held_to_the_limit_on_its_own() -> None:
    found = result()
    assert figure_value(found, "kl.mean").value == 0.03
    prose, code = by_domain(found, "kl.mean").values()
    assert prose.value == pytest.approx(0.01)
    assert code.value == pytest.approx(0.05)
    outcomes = judge([parse_gate("kl.mean @domain <= 0.03")], found)
    assert [(o.expression, o.status) for o in outcomes] == [
        ("kl.mean <= 0.03 @domain:prose", "passed"),
        ("kl.mean <= 0.03 @domain:code", "failed"),
    ]


def test_the_small_text_may_fail_a_limit_but_passes_none() -> None:
    small = result().protocol.model_copy(update={"text": "smoke"})
    found = result(protocol=small)
    gates = [
        parse_gate(text) for text in ("kl.mean <= 1", "kl.mean < 0.01", "artifact.bytes < 9e9")
    ]
    assert [o.status for o in judge(gates, found)] == ["undecided", "failed", "passed"]


def test_figures_that_are_no_measurement_fail() -> None:
    found = result(status="invalid", kl=Divergence(mean=None), perplexity=Perplexity(value=None))
    gates = [parse_gate("kl.mean <= 1"), parse_gate("artifact.bytes == 1000")]
    assert [o.status for o in judge(gates, found)] == ["failed", "passed"]


def test_an_undecided_gate_is_missed_only_where_that_is_asked_for() -> None:
    open_ = judge([parse_gate("kl.mean <= 0.03")], result())
    failed = judge([parse_gate("kl.mean <= 0.01")], result())
    assert not missed(open_)
    assert missed(open_, "fail")
    assert missed(failed)
    assert not missed(judge([parse_gate("kl.mean <= 1")], result()), "fail")
