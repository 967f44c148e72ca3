import math
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.core.errors import InputError
from quantkit.core.gate import BY_DOMAIN, FIGURES, parse_gate
from quantkit.core.limit import UNITS, Gate

NUMBER = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e100, max_value=1e100)
OPERATORS = ("<=", ">=", "<", ">", "==")


@st.composite
def gates(draw: st.DrawFn) -> Gate:
    """Any gate that has a meaning."""
    known = draw(st.sampled_from(sorted(FIGURES)))
    figure = known.replace("NAME", "arc-easy").replace("N", str(draw(st.integers(1, 4096))))
    dimension = FIGURES[known]
    if dimension == "text":
        text = draw(st.text(st.characters(exclude_characters="\"'"), min_size=1))
        return Gate(figure, "==", text)
    units = ["", *(name for name, (meant, _) in UNITS.items() if meant == dimension)]
    value = draw(st.none() | NUMBER)
    unit = "" if value is None else draw(st.sampled_from(units))
    scopes: list[Literal["domain"] | None] = [None, "domain"] if figure in BY_DOMAIN else [None]
    scope = draw(st.sampled_from(scopes))
    return Gate(figure, draw(st.sampled_from(OPERATORS)), value, unit, draw(NUMBER), scope)


@given(gates())
def test_a_gate_is_read_back_equal(gate: Gate) -> None:
    assert parse_gate(str(gate)) == gate


@pytest.mark.parametrize(
    ("text", "figure", "limit"),
    [
        ("kl.mean <= 0.03", "kl.mean", 0.03),
        ("kl.mean<0.02", "kl.mean", 0.02),
        ("top1_agreement >= 93%", "top1_agreement", 0.93),
        ("memory.reserved_peak_bytes <= 12GiB", "memory.reserved_peak_bytes", 12 * 2**30),
        ("memory.reserved_peak_bytes <= 12 GB", "memory.reserved_peak_bytes", 12e9),
        ("speed.c16.itl_p99_ms <= 0.05 s * 2", "speed.c16.itl_p99_ms", 100.0),
        ("speed.b1x2048.decode_tokens_per_s > 1e2", "speed.b1x2048.decode_tokens_per_s", 100.0),
        ("tasks.worst.recovery >= .97", "tasks.worst.recovery", 0.97),
        ("tasks.gsm8k.accuracy >= 0.5", "tasks.gsm8k.accuracy", 0.5),
        ("speed.c16.itl_p99_ms <= baseline * 1.05", "speed.c16.itl_p99_ms", None),
        ('engines.vllm == "passed"', "engines.vllm", "passed"),
    ],
)
def test_limits_are_in_the_units_of_the_results(
    text: str, figure: str, limit: float | str | None
) -> None:
    gate = parse_gate(text)
    assert gate.figure == figure
    assert gate.limit == (pytest.approx(limit) if isinstance(limit, float) else limit)


@pytest.mark.parametrize("text", ["kl.mean @domain <= 0.06", "kl.mean <= 0.06 @ domain"])
def test_a_scope_stands_before_or_after(text: str) -> None:
    assert parse_gate(text) == Gate("kl.mean", "<=", 0.06, scope="domain")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a figure, found the end"),
        ("kl.mean", "expected <=, >=, <, > or ==, found the end"),
        ("kl.mean ~ 1", "cannot parse `~ 1`"),
        ("kl.mean < x", "expected a number or `baseline`, found `x`"),
        ("kl.mean < 1 2", "unexpected `2` at the end"),
        ("kl.mean < 1 GiB", "`GiB` is not a unit of this figure; use nats"),
        ("artifact.bits_per_weight < 5%", "use none"),
        ("kl.mean < 1e999", "must be finite"),
        ("memory.planned_bytes < 1e300 TiB * 1e300", "must be finite"),
        ("kl.mean < 1 @task", "@domain"),
        ("kl.p99 @domain < 1", "@domain, for kl.mean"),
        ("engines.vllm == passed", "a text in quotes"),
        ('engines.vllm >= "passed"', "text is compared with =="),
        ("kl.mean < __import__('os')", "cannot parse `('os')`"),
        ("kl.mean <", "the end"),
    ],
)
def test_an_invalid_gate_is_explained(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_gate(text)
    assert message in str(caught.value.why)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("figure", "near"),
    [
        ("kl.men", "kl.mean"),
        ("top_agreement", "top1_agreement"),
        ("speed.c16.itl_p98_ms", "speed.cN.itl_p99_ms"),
        ("memory.peak_bytes", "memory.reserved_peak_bytes"),
        ("tasks.gsm8k.recover", "tasks.NAME.recovery"),
    ],
)
def test_an_unknown_figure_lists_the_three_nearest(figure: str, near: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_gate(f"{figure} < 1")
    why = caught.value.why or ""
    assert near in why
    assert len(why.removeprefix("the nearest are ").split(", ")) == 3


@given(st.text(max_size=60))
def test_any_text_is_a_gate_or_an_input_error(text: str) -> None:
    try:
        gate = parse_gate(text)
    except InputError:
        return
    assert not isinstance(gate.limit, float) or math.isfinite(gate.limit)
