"""What every engine of the registry owes its callers."""

from itertools import product

import pytest

from quantkit.core import registry
from quantkit.core.engine import Engine
from quantkit.core.facts import LinearFacts
from quantkit.core.scheme import Scheme

SCHEMES = [
    *(
        Scheme("int", bits, size, symmetric)
        for bits, size, symmetric in product((2, 3, 4, 8), (16, 32, 64, 128, None), (True, False))
    ),
    Scheme("int", 8, None, activation="int8-token"),
    Scheme("nf4", 4, 64),
]
LINEARS = [
    LinearFacts("model.layers.0.mlp.up_proj", 256, 128),
    LinearFacts("model.layers.0.mlp.experts.3.up_proj", 256, 128),
    LinearFacts("transformer.h.0.mlp.c_fc", 256, 128, transposed=True),
]


@pytest.fixture(params=registry.names("engines"))
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = registry.load("engines", request.param, "ENGINE")
    return found


def test_an_engine_goes_by_its_file_name(engine: Engine) -> None:
    assert engine.name in registry.names("engines")
    assert engine.summary
    assert any(letter.isdigit() for letter in engine.versions)


def test_refusals_are_sentences_with_at_most_one_hint(engine: Engine) -> None:
    verdicts = [
        engine.refuses(output, scheme, linear)
        for output, scheme, linear in product(registry.names("formats"), SCHEMES, LINEARS)
    ]
    faults = {fault for fault in verdicts if fault is not None}
    assert faults
    assert None in verdicts
    for fault in faults:
        assert len(fault) > 30
        assert fault.count("; try: ") <= 1


def test_four_bits_symmetric_load_everywhere(engine: Engine) -> None:
    scheme, linear = Scheme("int", 4, 64), LINEARS[0]
    loads = [o for o in registry.names("formats") if engine.refuses(o, scheme, linear) is None]
    assert {"gptq", "gptq-v2", "awq"} <= set(loads)


def test_a_linear_that_is_not_divided_has_no_slice_to_refuse(engine: Engine) -> None:
    for output, scheme, linear in product(registry.names("formats"), SCHEMES, LINEARS):
        assert engine.refuses_slice(output, scheme, linear, linear) is None


def test_every_engine_has_kernels_for_some_gpu_and_says_for_which_not(engine: Engine) -> None:
    scheme = Scheme("int", 4, 128)
    verdicts = [
        engine.refuses_gpu("gptq", scheme, capability)
        for capability in ("6.1", "7.5", "8.9", "9.0", "12.0", "gfx942", "metal")
    ]
    assert None in verdicts
    assert all(len(fault) > 30 for fault in verdicts if fault is not None)
