import pytest

from quantkit.core import registry
from quantkit.core.facts import LinearFacts
from quantkit.core.rules import rules_of
from quantkit.core.scheme import Scheme

LINEAR = LinearFacts("layers.0.fc", 64, 128)


@pytest.mark.parametrize(
    ("method", "scheme", "hint"),
    [
        ("rtn", Scheme("int", 9), "--bits 8"),
        ("gptq", Scheme("nf4"), "--method nf4"),
        ("nf4", Scheme("int", 4), "--set scheme.grid=nf4"),
        ("smoothquant", Scheme("mxfp4", 4, 32), "--set scheme.grid=int"),
    ],
)
def test_a_method_proposes_what_it_does_or_who_does_it(
    method: str, scheme: Scheme, hint: str
) -> None:
    output = registry.load("formats", "compressed-tensors", "FORMAT")
    _, rule, *_ = rules_of(registry.load("methods", method, "METHOD"), output, ())
    what, _, found = (rule(scheme, LINEAR) or "").partition("; try: ")
    assert what == f"method {method} does not support {scheme.grid} with {scheme.bits} bits"
    assert found == hint


@pytest.mark.parametrize(
    ("output", "scheme", "hint"),
    [
        ("awq", Scheme("int", 8, 64), "--bits 4"),
        ("awq", Scheme("mxfp4", 4, 32), "--format compressed-tensors"),
        ("awq", Scheme("nf4", 4, 64), "--format bitsandbytes"),
        ("compressed-tensors", Scheme("nf4", 4, 64), "--format bitsandbytes"),
        ("bitsandbytes", Scheme("nf4", 4, 48), "--set scheme.grid=int"),
    ],
)
def test_a_format_that_does_not_hold_a_grid_names_one_that_does(
    output: str, scheme: Scheme, hint: str
) -> None:
    method = registry.load("methods", "rtn", "METHOD")
    rules = rules_of(method, registry.load("formats", output, "FORMAT"), ())
    assert (rules[2](scheme, LINEAR) or "").partition("; try: ")[2] == hint
