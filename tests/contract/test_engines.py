"""What every engine of the registry owes its callers."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from quantkit.core import registry
from quantkit.core.engine import Engine
from quantkit.core.facts import LinearFacts
from quantkit.core.format import Format
from quantkit.core.rules import load_fault
from quantkit.core.scheme import Scheme

SCHEMES = [
    *(
        Scheme("int", bits, size, symmetric)
        for bits, size, symmetric in product((2, 3, 4, 8), (16, 32, 64, 128, None), (True, False))
    ),
    Scheme("int", 8, None, activation="int8-token"),
    Scheme("nf4", 4, 64),
    Scheme("fp8", 8, 128, activation="fp8-group128", rows=128),
    Scheme("fp8", 8, None, activation="fp8-token"),
]
FORMATS = [registry.load("formats", name, "FORMAT") for name in registry.names("formats")]
ENGINES = [registry.load("engines", name, "ENGINE") for name in registry.names("engines")]
LINEARS = [
    LinearFacts("model.layers.0.mlp.up_proj", 256, 128),
    LinearFacts("model.layers.0.mlp.experts.3.up_proj", 256, 128),
    LinearFacts("transformer.h.0.mlp.c_fc", 256, 128, transposed=True),
]


@pytest.fixture(params=registry.names("engines"))
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = registry.load("engines", request.param, "ENGINE")
    return found


def faults(engine: Engine, key: str) -> Iterator[str]:
    """What the entry `key` of the registry lacks, each as what is expected of it."""
    if engine.name != key:
        yield f"name is that of its file, `{key}`"
    if not engine.summary:
        yield "summary is the engine's name as people write it"
    if not any(letter.isdigit() for letter in engine.versions):
        yield "versions says which version the rules were checked against"
    known = [output.name for output in FORMATS]
    if not engine.formats or set(engine.formats) - set(known):
        yield f"formats are some of {', '.join(known)}"
        return
    for name in engine.formats:
        if "FOLDER" not in engine.usage(name):
            yield f"usage({name!r}) shows how FOLDER is loaded"
        output = next(output for output in FORMATS if output.name == name)
        held = product(SCHEMES, LINEARS)
        if all(output.check(*pair) or engine.refuses(name, *pair) for pair in held):
            yield f"it loads something of format {name}, which it lists"


def test_an_entry_is_complete(engine: Engine, request: pytest.FixtureRequest) -> None:
    assert list(faults(engine, request.node.callspec.params["engine"])) == []


@pytest.mark.parametrize(
    ("changes", "lacks"),
    [
        ({"name": "other"}, "name is"),
        ({"versions": "the newest"}, "versions"),
        ({"formats": ()}, "formats are"),
        ({"formats": ("gguf",)}, "formats are"),
        ({"usage": lambda _: "as always"}, "usage"),
        ({"refuses": lambda *_: "it loads nothing at all"}, "loads something"),
    ],
)
def test_the_contract_catches_what_is_incomplete(changes: dict[str, Any], lacks: str) -> None:
    found = list(faults(replace(ENGINES[0], **changes), ENGINES[0].name))
    assert any(lacks in fault for fault in found), found


def engine_faults(output: Format, engines: Sequence[Engine]) -> Iterator[str]:
    """What the engines do not say of a format."""
    listed = [engine.name for engine in engines if output.name in engine.formats]
    if not listed and not output.unloaded:
        yield (
            f"no engine loads format `{output.name}`: list it in `formats` of those in "
            "quantkit/engines that load it, or say in its file's `unloaded` why none is meant to"
        )
    if listed and output.unloaded:
        yield f"format `{output.name}` states `unloaded`, yet {', '.join(listed)} list it"


@pytest.mark.parametrize("output", FORMATS, ids=lambda output: output.name)
def test_a_format_is_loaded_by_an_engine_or_by_none_on_purpose(output: Format) -> None:
    assert list(engine_faults(output, ENGINES)) == []


def test_a_format_that_no_engine_lists_is_caught() -> None:
    new = replace(FORMATS[0], name="new")
    assert "list it in `formats`" in next(engine_faults(new, ENGINES))
    assert not list(engine_faults(replace(new, unloaded="for tests"), ENGINES))
    assert list(engine_faults(replace(FORMATS[0], unloaded="for tests"), ENGINES))


def test_rules_are_not_asked_about_a_format_that_is_not_listed(engine: Engine) -> None:
    def refuses(output: str, *_: object) -> None:
        assert output in engine.formats

    new = replace(FORMATS[0], name="new")
    for scheme in SCHEMES:
        fault = load_fault(replace(engine, refuses=refuses), new, scheme, LINEARS[0])
        assert fault is not None
        assert f"{engine.summary} does not load format `new`; try: " in fault


def test_the_format_that_a_refusal_proposes_is_loaded(engine: Engine) -> None:
    new = replace(FORMATS[0], name="new")
    by_name = {output.name: output for output in FORMATS}
    for scheme in SCHEMES:
        remedy = (load_fault(engine, new, scheme, LINEARS[0]) or "").partition("; try: ")[2]
        if match := re.fullmatch(r"(--method gptq )?--format (\S+)", remedy):
            asked = Scheme() if match[1] else scheme
            assert by_name[match[2]].check(asked, LINEARS[0]) is None
            assert load_fault(engine, by_name[match[2]], asked, LINEARS[0]) is None


def test_refusals_are_sentences_with_at_most_one_hint(engine: Engine) -> None:
    verdicts = [
        load_fault(engine, output, scheme, linear)
        for output, scheme, linear in product(FORMATS, SCHEMES, LINEARS)
    ]
    faults = {fault for fault in verdicts if fault is not None}
    assert faults
    assert None in verdicts
    for fault in faults:
        assert len(fault) > 30
        assert fault.count("; try: ") <= 1


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


def test_no_engine_is_promised_for_linears_that_blocks_share(engine: Engine) -> None:
    linear = LinearFacts("model.layers.2.shared_transf.self_attn.q_proj", 256, 256, shared=True)
    for name in engine.formats:
        output = registry.load("formats", name, "FORMAT")
        assert "share" in (load_fault(engine, output, Scheme(), linear) or "")


def test_no_engine_is_promised_for_linears_that_were_stored_merged(engine: Engine) -> None:
    linear = LinearFacts("model.layers.0.mlp.experts.0.up_proj", 256, 256, merged=True)
    for name in engine.formats:
        fault = load_fault(engine, registry.load("formats", name, "FORMAT"), Scheme(), linear)
        assert "merged" in (fault or "")


@pytest.mark.parametrize("kind", ["falcon", "kimi_linear"])
def test_transformers_is_not_promised_for_models_whose_code_it_breaks(kind: str) -> None:
    engine = registry.load("engines", "transformers", "ENGINE")
    linear = LinearFacts("model.layers.0.mlp.up_proj", 256, 256, model_type=kind)
    assert kind in str(engine.refuses("compressed-tensors", Scheme(), linear))
    other = LinearFacts("model.layers.0.mlp.up_proj", 256, 256, model_type="llama")
    assert engine.refuses("compressed-tensors", Scheme(), other) is None
