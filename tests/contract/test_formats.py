"""What every format of the registry owes its callers."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.checkpoint.dtypes import DTYPE_NAMES
from quantkit.core import registry
from quantkit.core.errors import InputError, QuantkitError, RefusedError
from quantkit.core.facts import STORED, LinearFacts, ModelFacts
from quantkit.core.format import Format
from quantkit.core.grid import Grid
from quantkit.core.scheme import Scheme
from quantkit.grid.digest import codes_sha256
from quantkit.grid.qtensor import QTensor

FORMATS = registry.names("formats")
GRIDS: list[Grid] = [registry.load("grids", name, "GRID") for name in registry.names("grids")]
SCHEMES = dict.fromkeys(
    [
        *(
            Scheme("int", bits, size, symmetric)
            for bits, size, symmetric in product((2, 3, 4, 8), (32, 64, 128, None), (True, False))
        ),
        *(Scheme("int", bits, 64) for bits in (5, 6, 7)),
        *(scheme.stored().read for grid in GRIDS for scheme in grid.examples),
    ]
)
SHAPES = [(32, 128), (96, 256), (40, 128), (1, 128)]
ODD_SHAPES = [(1, 32), (7, 64), (33, 96), (31, 33), (160, 224), (1000, 100), (5, 7)]
SKIPPED = "model.layers.1.mlp.down_proj"
LINEARS = [
    "model.layers.0.mlp.up_proj",
    "model.layers.0.mlp.down_proj",
    "model.layers.1.mlp.up_proj",
]


@pytest.fixture(params=FORMATS)
def output(request: pytest.FixtureRequest) -> Format:
    found: Format = registry.load("formats", request.param, "FORMAT")
    return found


def facts(scheme: Scheme, **changes: Any) -> ModelFacts:
    model = ModelFacts(
        schemes=dict.fromkeys(LINEARS, scheme),
        skipped=(SKIPPED, "lm_head"),
        head="lm_head",
        dtype="bfloat16",
        block_prefix="model.layers",
    )
    return replace(model, **changes)


def held(output: Format) -> list[tuple[Scheme, LinearFacts]]:
    linears = [LinearFacts(LINEARS[0], *shape) for shape in SHAPES]
    pairs = product(SCHEMES, linears)
    return [(scheme, linear) for scheme, linear in pairs if output.check(scheme, linear) is None]


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """torch compares no floats of 8 bits."""
    return tensor.reshape(-1).view(torch.uint8)


def assert_same(found: QTensor, expected: QTensor) -> None:
    assert found.scheme == expected.scheme
    pairs = [(found.codes, expected.codes)]
    if found.scheme.grid == "fp8":  # layouts of fp32 hold scales of 16 bits as they are
        pairs.append((found.scales.float(), expected.scales.float()))
    else:
        pairs.append((found.scales, expected.scales))
    for name in ("global_scale", "input_scale"):
        one_scale, other_scale = getattr(found, name), getattr(expected, name)
        assert (one_scale is None) == (other_scale is None)
        pairs += [] if one_scale is None else [(one_scale, other_scale)]
    assert (found.zeros is None) == (expected.zeros is None)
    assert (found.nested is None) == (expected.nested is None)
    if found.zeros is not None and expected.zeros is not None:
        pairs.append((found.zeros, expected.zeros))
    if found.nested is not None and expected.nested is not None:
        one, two = found.nested, expected.nested
        pairs += [(one.codes, two.codes), (one.absmax, two.absmax), (one.offset, two.offset)]
    for one_tensor, other in pairs:
        assert one_tensor.dtype == other.dtype
        assert one_tensor.shape == other.shape
        assert torch.equal(as_bytes(one_tensor), as_bytes(other))


def test_a_format_goes_by_its_file_name(output: Format) -> None:
    assert output.name in FORMATS
    underscored = output.name.replace("-", "_")
    assert registry.load("formats", underscored, "FORMAT") is output
    assert registry.load("formats", output.name, "FORMAT") is output
    assert output.summary


def test_every_scheme_is_held_by_some_format() -> None:
    formats = [registry.load("formats", name, "FORMAT") for name in FORMATS]
    linear = LinearFacts(LINEARS[0], 96, 256)
    for scheme in SCHEMES:
        assert any(f.check(scheme, linear) is None for f in formats), scheme


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_decode_gives_back_what_encode_got(
    output: Format, dtype: torch.dtype, random_qtensor: Callable[..., QTensor]
) -> None:
    assert held(output)
    for scheme, linear in held(output):
        shape = (linear.out_features, linear.in_features)
        qtensor = random_qtensor(scheme, *shape, dtype=dtype)
        tensors = output.encode(qtensor, "bfloat16")
        assert tensors.keys() == output.layout(scheme, linear, "bfloat16").keys()
        assert all(tensor.is_contiguous() for tensor in tensors.values())
        found = output.decode(tensors, scheme, linear)
        assert_same(found, qtensor)
        assert torch.equal(found.dequantize(), qtensor.dequantize())


@pytest.mark.parametrize("model", sorted(STORED))
@pytest.mark.parametrize("offset", [0.0, -1.17549435e-38, 1 / 3])
def test_layout_is_what_encode_gives(
    output: Format, model: str, offset: float, random_qtensor: Callable[..., QTensor]
) -> None:
    seen = 0
    for scheme, shape in product(SCHEMES, [*SHAPES, *ODD_SHAPES]):
        linear = LinearFacts("x", *shape)
        if output.check(scheme, linear) is not None:
            continue
        real = random_qtensor(scheme, *shape, dtype=getattr(torch, scheme.scale_dtype(model)))
        if real.nested is not None:
            real = replace(real, nested=replace(real.nested, offset=torch.tensor(offset)))
        found = {
            suffix: (DTYPE_NAMES[tensor.dtype], tuple(tensor.shape))
            for suffix, tensor in output.encode(real, model).items()
        }
        assert output.layout(scheme, linear, model) == found
        seen += shape in ODD_SHAPES
    assert seen


def test_files_are_laid_out_without_torch() -> None:
    program = (
        "import sys\n"
        "from quantkit.core import registry\n"
        "from quantkit.core.format import LinearFacts\n"
        "from quantkit.core.scheme import Scheme\n"
        "for name in registry.names('formats'):\n"
        "    output = registry.load('formats', name, 'FORMAT')\n"
        "    linear = LinearFacts('x', 128, 128)\n"
        "    floats = Scheme('fp8', 8, 128, activation='fp8-group128', rows=128)\n"
        "    known = (Scheme(), floats, Scheme('mxfp8', 8, 32), Scheme('nf4'))\n"
        "    held = [each for each in known if output.check(each, linear) is None]\n"
        "    assert all(output.layout(each, linear, 'bfloat16') for each in held)\n"
        "    assert held\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_config_block_tells_each_linear_its_scheme(output: Format) -> None:
    for scheme, _ in held(output):
        block = json.loads(json.dumps(output.config(facts(scheme))))
        assert block["quant_method"] == output.quant_method
        for name in LINEARS:
            found = output.parse(block)(name)
            if output.name == "awq":  # its block has no word for symmetric
                assert found == replace(scheme, symmetric=False)
            else:
                assert found == replace(scheme, group_size=found.group_size if found else None)
                assert scheme.kind.flattened or found == scheme
        assert output.parse(block)(SKIPPED) is None
        assert output.parse(block)("lm_head") is None


def test_a_weight_has_one_hash_in_all_formats(random_qtensor: Callable[..., QTensor]) -> None:
    """Read as an artifact is: with the scheme that the format's own config block states."""
    formats: list[Format] = [registry.load("formats", name, "FORMAT") for name in FORMATS]
    seen = 0
    for scheme, shape in product(SCHEMES, SHAPES):
        linear, qtensor = LinearFacts(LINEARS[0], *shape), random_qtensor(scheme, *shape)
        for output in formats:
            if output.check(scheme, linear) is not None:
                continue
            stated = output.parse(output.config(facts(scheme)))(linear.name)
            assert stated is not None
            found = output.decode(output.encode(qtensor, "bfloat16"), stated, linear)
            assert codes_sha256(found) == codes_sha256(qtensor), (output.name, scheme)
            seen += 1
    assert seen > 1.5 * len(SCHEMES)


junk = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.text("re:(.*-+", max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("-:(", max_size=3), inner),
    max_leaves=4,
)


fields = st.dictionaries(
    st.sampled_from(["targets", "weights", "input_activations", "format"]), junk
)


@given(data=st.data())
@settings(deadline=None)
@pytest.mark.parametrize("name", FORMATS)
def test_a_strangers_block_is_read_or_refused(name: str, data: st.DataObject) -> None:
    output: Format = registry.load("formats", name, "FORMAT")
    block = output.config(facts(held(output)[0][0]))
    for key in data.draw(st.sets(st.sampled_from(sorted(block)), min_size=1)):
        block[key] = data.draw(junk)
    if "config_groups" in block and data.draw(st.booleans()):
        group = {"targets": ["Linear"], "weights": {}} | {data.draw(st.text()): data.draw(junk)}
        block["config_groups"] = {"group_0": group | data.draw(st.just({}) | fields)}
    try:
        found = output.parse(block)(LINEARS[0])
    except QuantkitError:
        return
    assert found is None or isinstance(found, Scheme)


def test_a_block_is_claimed_by_one_format(output: Format) -> None:
    for scheme, _ in held(output):
        block = output.config(facts(scheme))
        formats = [registry.load("formats", name, "FORMAT") for name in FORMATS]
        assert [f.name for f in formats if f.matches(block)] == [output.name]


def test_nothing_is_written_for_a_quantized_head(output: Format) -> None:
    scheme = held(output)[0][0]
    model = facts(scheme, schemes={"lm_head": scheme}, skipped=())
    with pytest.raises(RefusedError, match="lm_head"):
        output.config(model)
    with pytest.raises(RefusedError, match="no linear"):
        output.config(facts(scheme, schemes={}))


def test_refusals_name_the_format_or_the_size_and_a_way_out(output: Format) -> None:
    linears = [LinearFacts("x", *shape) for shape in [*SHAPES, (64, 100), (31, 33)]]
    for scheme, linear in product([*SCHEMES, Scheme("int", 9, 32), Scheme("nf4", 4, 48)], linears):
        fault = output.check(scheme, linear)
        if fault is not None:
            what, _, hint = fault.partition("; try: ")
            assert len(what) > 30
            assert "\n" not in fault
            assert "; try:" not in hint


@pytest.mark.parametrize("damage", ["missing", "shape", "dtype"])
def test_damaged_tensors_are_named(
    output: Format, damage: str, random_qtensor: Callable[..., QTensor]
) -> None:
    scheme, linear = held(output)[0]
    tensors = output.encode(random_qtensor(scheme, linear.out_features, linear.in_features), "")
    for suffix in set(tensors) - {"g_idx"}:
        broken = dict(tensors)
        if damage == "missing":
            del broken[suffix]
        elif damage == "shape":
            broken[suffix] = torch.cat([tensors[suffix], tensors[suffix]])
        else:
            broken[suffix] = tensors[suffix].to(torch.float64)
        with pytest.raises(InputError, match=linear.name):
            output.decode(broken, scheme, linear)
