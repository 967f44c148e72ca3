import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.core.errors import InputError
from quantkit.core.gate import parse_gate
from quantkit.results.baseline import against
from quantkit.results.file import read_result
from quantkit.results.gates import judge
from quantkit.results.schema import (
    Divergence,
    Documents,
    EngineSpeed,
    EvalResult,
    GateOutcome,
    LocalSpeed,
    Memory,
    Perplexity,
    Protocol,
    Speed,
    Subject,
)

TOKENS = 511
DOCUMENTS = 24


def result(scale: float = 1.0, **parts: Any) -> EvalResult:
    """A result whose documents have a KL that differs from one to the next, times `scale`."""
    generator = random.Random(7)
    each = [TOKENS * generator.uniform(0.005, 0.025) * scale for _ in range(DOCUMENTS)]
    nll = [TOKENS * generator.uniform(2.5, 3.5) for _ in range(DOCUMENTS)]
    mean = sum(each) / TOKENS / DOCUMENTS
    whole: dict[str, Any] = {
        "artifact": Subject(name="a", bytes=10**8),
        "protocol": Protocol(
            name="documents",
            text="mine.jsonl",
            tokens_sha256="tokens",
            windows=DOCUMENTS,
            sequence_length=TOKENS + 1,
        ),
        "reference": Subject(name="r", sha256="r"),
        "tokens": TOKENS * DOCUMENTS,
        "perplexity": Perplexity(value=20.0),
        "kl": Divergence(mean=mean, floor_mean=1e-12),
        "documents": Documents(
            id=[str(i) for i in range(DOCUMENTS)],
            domain=["prose", "code"] * (DOCUMENTS // 2),
            n=[TOKENS] * DOCUMENTS,
            sum_nll=nll,
            sum_nll_reference=nll,
            sum_kl_nats=each,
            top1_hits=[480] * DOCUMENTS,
        ),
        "top1_agreement": 480 / TOKENS,
        "memory": Memory(allocated_peak_bytes=4 << 30, reserved_peak_bytes=5 << 30),
        "environment": {"cpu": "some cpu", "driver": None},
    }
    return EvalResult(**(whole | parts))


def speed(decode: float, half: float = 0.01, **parts: Any) -> Speed:
    """One cell with a relative half-interval of `half`."""
    cell: dict[str, Any] = {
        "batch": 1,
        "context_tokens": 512,
        "kernel": "torchao",
        "threads": 1,
        "repeats": 10,
        "decode_tokens_per_s": decode,
        "decode_ci95": (decode * (1 - half), decode * (1 + half)),
    }
    return Speed(local=[LocalSpeed(**(cell | parts))])


def verdicts(new: EvalResult, old: EvalResult) -> dict[str, str]:
    return {o.expression.split()[0]: o.status for o in judge((), new, old)}


def outcome(new: EvalResult, old: EvalResult, figure: str) -> GateOutcome:
    return next(o for o in judge((), new, old) if o.expression.startswith(figure))


def test_the_same_result_passes_everything() -> None:
    found = result(speed=speed(50.0))
    assert set(verdicts(found, found).values()) == {"passed"}
    assert "memory.reserved_peak_bytes" not in verdicts(found, found)


def test_three_percent_more_kl_fails_and_is_named() -> None:
    found = outcome(result(1.03), result(), "kl.mean")
    assert found.status == "failed"
    assert "3.0% worse" in found.why


def test_less_kl_is_no_regression() -> None:
    assert verdicts(result(0.9), result())["kl.mean"] == "passed"


def test_a_difference_below_the_noise_floor_is_none() -> None:
    old = result()
    assert old.kl is not None
    noisy = Divergence(mean=old.kl.mean, floor_mean=old.kl.mean)
    assert verdicts(result(1.03), old.model_copy(update={"kl": noisy}))["kl.mean"] == "passed"


def test_one_byte_more_fails() -> None:
    larger = result(artifact=Subject(name="a", bytes=10**8 + 1))
    assert outcome(larger, result(), "artifact.bytes").status == "failed"
    smaller = result(artifact=Subject(name="a", bytes=10**8 - 1))
    assert outcome(smaller, result(), "artifact.bytes").status == "passed"


@pytest.mark.parametrize(("more", "status"), [(20 << 20, "passed"), (22 << 20, "failed")])
def test_memory_may_grow_by_half_a_percent(more: int, status: str) -> None:
    grown = result(memory=Memory(allocated_peak_bytes=(4 << 30) + more))
    assert outcome(grown, result(), "memory.allocated").status == status


@pytest.mark.parametrize(("more", "status"), [(16 << 20, "passed"), (17 << 20, "failed")])
def test_small_memory_may_grow_by_sixteen_mebibytes(more: int, status: str) -> None:
    old, new = (result(memory=Memory(host_peak_rss_bytes=size)) for size in (2**29, 2**29 + more))
    assert outcome(new, old, "memory.host").status == status
    elsewhere = new.model_copy(update={"environment": {"cpu": "another"}})
    assert outcome(elsewhere, old, "memory.host").why == "the machines differ"


def test_ten_percent_slower_fails() -> None:
    found = outcome(result(speed=speed(45)), result(speed=speed(50)), "speed.b1x512.decode")
    assert found.status == "failed"
    assert "10.0% worse" in found.why


def load(rate: float, **parts: Any) -> EvalResult:
    """A result of an engine under four users; its rate is known to 1 %."""
    cell: dict[str, Any] = {
        "engine": "vllm",
        "concurrency": 4,
        "requests": 16,
        "failed_requests": 0,
        "input_tokens": 512,
        "output_tokens": 128,
        "output_tokens_per_s": rate,
        "output_ci95": (0.99 * rate, 1.01 * rate),
    }
    return result(speed=Speed(engine=[EngineSpeed(**(cell | parts))]))


def test_an_engine_that_serves_ten_percent_less_fails_and_an_equal_one_passes() -> None:
    assert outcome(load(90.0), load(100.0), "speed.c4.output").status == "failed"
    assert outcome(load(99.5), load(100.0), "speed.c4.output").status == "passed"
    longer = outcome(load(90.0, input_tokens=64), load(100.0), "speed.c4.output")
    assert (longer.status, "lengths of requests" in longer.why) == ("undecided", True)


@pytest.mark.parametrize(
    ("new", "why"),
    [
        (result(speed=speed(45, kernel="bitsandbytes")), "the kernels or"),
        (result(speed=speed(45, threads=2)), "numbers of threads differ"),
        (result(speed=speed(45), environment={"cpu": "another"}), "the machines differ"),
        (result(speed=speed(45), environment={}), "does not name its machine"),
        (result(speed=speed(45, decode_ci95=None)), "no interval"),
        (result(), "not measured"),
    ],
)
def test_speed_is_compared_only_where_all_that_decides_it_agrees(new: EvalResult, why: str) -> None:
    found = outcome(new, result(speed=speed(50)), "speed")
    assert found.status == "undecided"
    assert why in found.why


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"protocol": result().protocol.model_copy(update={"tokens_sha256": "x"})}, "other tokens"),
        ({"reference": Subject(name="r", sha256="other")}, "another reference"),
        ({"documents": Documents()}, "no sums per document"),
    ],
)
def test_what_cannot_be_paired_is_undecided(change: dict[str, Any], why: str) -> None:
    found = outcome(result(**change), result(), "kl.mean")
    assert found.status == "undecided"
    assert why in found.why


def test_a_figure_that_the_baseline_lacks_is_undecided() -> None:
    found = outcome(result(speed=speed(50)), result(), "speed")
    assert (found.status, found.why) == ("undecided", "the baseline does not contain it")


def test_what_is_no_measurement_fails() -> None:
    broken = result(status="invalid", kl=Divergence(mean=None), perplexity=Perplexity(value=None))
    assert outcome(broken, result(), "kl.mean").status == "failed"


def test_a_gate_may_allow_a_multiple_of_the_baseline() -> None:
    old, new = result(speed=speed(50)), result(1.03, speed=speed(45))
    expected = {
        "kl.mean <= baseline * 1.05": "passed",
        "kl.mean <= baseline * 1.01": "failed",
        "kl.mean <= baseline * 1.04 @domain": "passed",
        "perplexity.value <= baseline * 1.001": "passed",
        "artifact.bytes == baseline": "passed",
        "speed.b1x512.decode_tokens_per_s >= baseline * 0.8": "passed",
        "speed.b1x512.decode_tokens_per_s >= baseline * 0.9": "undecided",
        "kl.p99 <= baseline": "undecided",
    }
    for text, status in expected.items():
        outcomes = judge([parse_gate(text)], new, old)
        own = [o.status for o in outcomes if o.expression.startswith(text)]
        assert own == [status] * (2 if "domain" in text else 1), text


def test_two_perplexities_are_compared_by_their_ratio() -> None:
    old = result()
    worse = [nll + TOKENS * 0.02 for nll in old.documents.sum_nll]
    new = old.model_copy(update={"documents": old.documents.model_copy(update={"sum_nll": worse})})
    found = against(new, old, "perplexity.value")
    assert found.value is not None
    assert found.baseline is not None
    assert found.value / found.baseline == pytest.approx(1.0202, rel=1e-4)
    assert verdicts(new, old)["perplexity.value"] == "failed"


@given(st.lists(st.floats(-0.01, 0.01), min_size=DOCUMENTS, max_size=DOCUMENTS))
def test_a_shift_of_either_sign_is_not_called_worse_unless_its_interval_says_so(
    shifts: list[float],
) -> None:
    old = result()
    sums = [s + TOKENS * shift for s, shift in zip(old.documents.sum_kl_nats, shifts, strict=True)]
    documents = old.documents.model_copy(update={"sum_kl_nats": sums})
    found = against(old.model_copy(update={"documents": documents}), old, "kl.mean")
    assert found.interval is not None
    assert found.value is not None
    assert found.interval[0] <= found.value <= found.interval[1]
    mean = sum(sums) / TOKENS / DOCUMENTS
    assert found.value == pytest.approx(mean, abs=1e-9)


def test_a_baseline_is_a_result_or_an_input_error(tmp_path: Path) -> None:
    good = tmp_path / "old.json"
    good.write_text(result().model_dump_json(by_alias=True))
    assert read_result(good, EvalResult) == result()
    for name, text, message in (
        ("bad.json", "{", "is not JSON"),
        ("other.json", '{"schema": "x"}', "no valid evaluation result"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(InputError, match=message):
            read_result(tmp_path / name, EvalResult)
    with pytest.raises(InputError, match="contains no evaluation result"):
        read_result(tmp_path / "nowhere.json", EvalResult)
