"""What every method of the registry owes its callers."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields, replace
from itertools import product
from typing import Any

import pytest
import torch

from quantkit.core import registry
from quantkit.core.errors import InputError
from quantkit.core.grid import Grid, rounding_of
from quantkit.core.method import GroupShape, Method
from quantkit.core.recipe import Recipe
from quantkit.core.scheme import Scheme
from quantkit.grid.rows import joined
from quantkit.recipes.loader import build_recipe, list_recipes, load_recipe
from quantkit.recipes.options import checked_options
from quantkit.stats.hessian import InputCollector
from quantkit.stats.inputs import InputStats
from tests.methods.solving import quantized, rescaled

METHODS = registry.names("methods")
GRIDS: list[Grid] = [registry.load("grids", name, "GRID") for name in registry.names("grids")]
PAIRS = {(grid.name, bits) for grid in GRIDS for bits in grid.bits}
SHAPES = ((96, 128), (33, 128), (1, 128))


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> Method:
    found: Method = registry.load("methods", request.param, "METHOD")
    return found


@pytest.fixture
def set_threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def stats() -> InputStats:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 150, 128, generator=generator) + torch.randn(4, 150, 1, generator=generator)
    x[..., 5] *= 30
    collector = InputCollector(mixes_tokens=True)
    collector.add(x.bfloat16())
    return collector.finish()


def weights() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def schemes(method: Method) -> list[Scheme]:
    bits = sorted(bits for grid, bits in method.pairs if grid == "int")
    examples = [scheme for grid in GRIDS for scheme in grid.examples if grid.name != "int"]
    others = [
        each.stored()
        for each in examples
        if (each.grid, each.bits) in method.pairs and each.activation is None
    ]
    sizes = (32, 64, 128, None)
    return [*others, *(Scheme("int", *each) for each in product(bits, sizes, (True, False)))]


def dtypes(scheme: Scheme) -> tuple[torch.dtype, ...]:
    if scheme.grid == "int":
        return torch.bfloat16, torch.float16
    return (getattr(torch, scheme.scale_dtype("bfloat16")),)


def faults(method: Method, key: str) -> Iterator[str]:
    """What the entry `key` of the registry lacks, each as what is expected of it."""
    if method.name != key:
        yield f"name is that of its file, `{key}`"
    if not (method.summary and method.paper):
        yield "summary and paper say what it does and where it is from"
    if not method.pairs or not set(method.pairs) <= PAIRS:
        yield f"grids are some of {sorted(PAIRS)}"
    yield from option_faults(method)
    yield from workspace_faults(method)


def option_faults(method: Method) -> Iterator[str]:
    shape: Any = method.options
    parameters = getattr(shape, "__dataclass_params__", None)
    if parameters is None:
        yield "options is a dataclass"
        return
    if not parameters.frozen:
        yield "options is frozen"
    own = fields(shape)
    if any(field.default is MISSING for field in own):
        yield "each option has a default"
        return
    defaults = {field.name: field.default for field in own}
    try:
        checked_options(method, Recipe("defaults", method.name, "gptq", options=defaults))
    except InputError as error:
        yield f"defaults are legal: {error.what}, {error.why}"
    for name in defaults:
        if not re.search(rf"\b{name}:", shape.__doc__ or ""):
            yield f"the docstring of the options says what `{name}:` does"


def workspace_faults(method: Method) -> Iterator[str]:
    """A rule counts no less than the codes that it gives back, and more for more weights."""
    sizes = []
    for outputs in ((64,), (4096,), (4096, 4096)):
        group = GroupShape(outputs, 2048, Scheme(), 2048, mixes_tokens=True, widened=True)
        size = method.workspace(group)
        if size < group.weights:
            yield "workspace counts at least a byte a code"
            return
        sizes.append(size)
    if not sizes[0] < sizes[1] < sizes[2]:
        yield "workspace grows with the weights"


def test_an_entry_is_complete(method: Method, request: pytest.FixtureRequest) -> None:
    key = request.node.callspec.params["method"]
    assert list(faults(method, key)) == []


@dataclass(frozen=True)
class _Illegal:
    """damp: not negative."""

    damp: float = -1.0


@dataclass(frozen=True)
class _Silent:
    """Says nothing of its options."""

    damp: float = 1.0


@dataclass(frozen=True)
class _Bare:
    """damp: without a default."""

    damp: float


@pytest.mark.parametrize(
    ("changes", "lacks"),
    [
        ({"name": "other"}, "name is"),
        ({"paper": ""}, "paper"),
        ({"grids": ()}, "grids"),
        ({"grids": (("int", 9),)}, "grids"),
        ({"options": dict}, "is a dataclass"),
        ({"options": _Bare}, "default"),
        ({"options": _Illegal}, "defaults are legal"),
        ({"options": _Silent}, "`damp:`"),
        ({"workspace": lambda _: 0}, "workspace counts"),
        ({"workspace": lambda _: 1 << 40}, "workspace grows"),
    ],
)
def test_the_contract_catches_what_is_incomplete(changes: dict[str, Any], lacks: str) -> None:
    complete: Method = registry.load("methods", "rtn", "METHOD")
    found = list(faults(replace(complete, **changes), "rtn"))
    assert any(lacks in fault for fault in found), found


@pytest.mark.parametrize("field", ["options", "workspace", "paper", "grids"])
def test_no_method_is_made_without(field: str) -> None:
    complete: Method = registry.load("methods", "rtn", "METHOD")
    stated = {f.name: getattr(complete, f.name) for f in fields(complete) if f.name != field}
    with pytest.raises(TypeError, match=field):
        Method(**stated)


def test_it_is_offered_without_a_recipe_file(method: Method) -> None:
    recipe = build_recipe(method=method.name)
    assert recipe.method == method.name
    assert (recipe.scheme.grid, recipe.scheme.bits) in method.pairs
    assert method.name in [info.name for info in list_recipes()]
    assert load_recipe(method.name) == recipe


def test_planning_knows_it_without_torch() -> None:
    program = (
        "import sys\n"
        "from quantkit.core import registry\n"
        "from quantkit.core.method import GroupShape\n"
        "from quantkit.core.scheme import Scheme\n"
        "for name in registry.names('methods'):\n"
        "    method = registry.load('methods', name, 'METHOD')\n"
        "    method.options(), method.workspace(GroupShape((64,), 64, Scheme()))\n"
        "    assert not {'torch', 'numpy'} & set(sys.modules), f'{name} loads torch'\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_quantized_weights_are_well_formed(method: Method, stats: InputStats) -> None:
    given = weights()
    for scheme in schemes(method):
        for dtype in dtypes(scheme):
            solved = quantized(method, given, stats, scheme, dtype, method.options())
            assert len(solved) == len(given)
            for one, weight in zip(solved, given, strict=True):
                qtensor = one.qtensor
                assert qtensor.scheme == scheme
                assert qtensor.codes.dtype == torch.uint8
                assert qtensor.codes.shape == weight.shape
                assert int(qtensor.codes.amax()) < 1 << scheme.bits
                assert qtensor.codes.is_contiguous()
                assert qtensor.scales.dtype == dtype
                assert torch.isfinite(qtensor.scales.float()).all()
                if not scheme.storage.flattened:
                    counts = scheme.scale_rows(len(weight)), scheme.groups(128)
                    assert qtensor.scales.shape == counts
                    assert (qtensor.scales.float() != 0).all()
                assert torch.isfinite(qtensor.dequantize()).all()
                assert (qtensor.zeros is None) == scheme.symmetric
                if qtensor.zeros is not None:
                    assert qtensor.zeros.dtype == torch.uint8
                    assert qtensor.zeros.shape == qtensor.scales.shape
                    assert int(qtensor.zeros.amin()) >= 1
                    assert int(qtensor.zeros.amax()) < 1 << scheme.bits
                assert (qtensor.nested is not None) == scheme.double_quant


def test_loss_is_the_relative_error_of_the_output(method: Method, stats: InputStats) -> None:
    hessian = stats.hessian.double()
    scheme = schemes(method)[-1]
    for one, weight in zip(
        quantized(method, weights(), stats, scheme, torch.float32, method.options()),
        weights(),
        strict=True,
    ):
        error = (one.qtensor.dequantize() - weight).double()
        whole = ((weight.double() @ hessian) * weight).sum()
        assert one.loss == pytest.approx(float(((error @ hessian) * error).sum() / whole), 1e-3)
        assert one.notes == ()


def test_rows_are_independent_where_it_says_so(method: Method, stats: InputStats) -> None:
    if not method.by_rows:
        return
    for scheme in (each for each in schemes(method) if each.rows == 1):
        for weight in weights():
            parts = [weight[:16], weight[16:40], weight[40:]]
            grid = rounding_of(scheme, torch.bfloat16, [weight])
            whole, *others = (
                method.quantize([rows], stats, scheme, grid, method.options())[0]
                for rows in (weight, *parts)
                if len(rows)
            )
            again = joined(others)
            assert torch.equal(again.qtensor.codes, whole.qtensor.codes)
            assert torch.equal(again.qtensor.scales, whole.qtensor.scales)
            assert again.loss == pytest.approx(whole.loss, 1e-4)


def test_arguments_stay_as_they_were(method: Method, stats: InputStats) -> None:
    given, kept = weights(), [stats.hessian.clone(), stats.firsts.clone(), stats.sample.clone()]
    for scheme in schemes(method)[:2]:
        quantized(method, given, stats, scheme, torch.bfloat16, method.options())
        if method.rescale is not None:
            rescaled(method, given, stats, scheme, method.options())
    assert all(torch.equal(a, b) for a, b in zip(given, weights(), strict=True))
    now = (stats.hessian, stats.firsts, stats.sample)
    assert all(torch.equal(a, b) for a, b in zip(now, kept, strict=True))


def test_same_inputs_same_bits(
    method: Method, stats: InputStats, set_threads: Callable[[int], None]
) -> None:
    for scheme in schemes(method)[-2:]:
        results = []
        for count in (1, 2, 1):
            set_threads(count)
            solved = quantized(method, weights(), stats, scheme, torch.bfloat16, method.options())
            s = method.rescale and rescaled(method, weights(), stats, scheme, method.options())
            results.append((solved, s))
            assert torch.get_num_threads() == count
        first, *others = results
        for solved, s in others:
            assert (s is None) == (first[1] is None)
            assert s is None or first[1] is None or torch.equal(s, first[1])
            for a, b in zip(solved, first[0], strict=True):
                assert torch.equal(a.qtensor.codes, b.qtensor.codes)
                assert torch.equal(a.qtensor.scales, b.qtensor.scales)
                assert a.loss == b.loss


def test_inputs_are_needed_only_where_it_says_so(method: Method) -> None:
    if method.needs_inputs:
        return
    for one in quantized(
        method, weights(), None, schemes(method)[0], torch.bfloat16, method.options()
    ):
        assert one.loss is None


def test_rescaling_helps_or_is_left_alone(method: Method, stats: InputStats) -> None:
    if method.rescale is None:
        return
    s = rescaled(method, weights(), stats, schemes(method)[-1], method.options())
    if s is not None:
        assert s.shape == (128,)
        assert s.dtype == torch.float32
        assert torch.isfinite(s).all()
        assert (s > 0).all()
        outer = s[:, None] * s
        changed = replace(stats, hessian=stats.hessian / outer, absmax=stats.absmax / s)
        solved = quantized(
            method,
            [w * s for w in weights()],
            changed,
            schemes(method)[-1],
            torch.bfloat16,
            method.options(),
        )
        assert all(one.loss is not None and one.loss < 0.05 for one in solved)
