"""What every method of the registry owes its callers."""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from itertools import product

import pytest
import torch

from quantkit.core import options, registry
from quantkit.core.method import Method
from quantkit.core.scheme import Scheme
from quantkit.stats.hessian import InputCollector
from quantkit.stats.inputs import InputStats

METHODS = registry.names("methods")
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
    if ("nf4", 4) in method.grids:
        return [Scheme("nf4", 4, 64, double_quant=double) for double in (False, True)]
    bits = sorted(bits for grid, bits in method.grids if grid == "int")
    return [Scheme("int", *each) for each in product(bits, (32, 64, 128, None), (True, False))]


def dtypes(scheme: Scheme) -> tuple[torch.dtype, ...]:
    return (torch.float32,) if scheme.grid == "nf4" else (torch.bfloat16, torch.float16)


def test_what_it_can_be_told_is_known_without_it(method: Method) -> None:
    known = options.METHODS.get(method.name, method)
    assert (method.options, method.grids) == (known.options, known.grids)
    assert set(options.METHODS) <= set(METHODS)


def test_it_describes_itself(method: Method) -> None:
    assert method.name in METHODS
    assert method.summary
    assert method.paper
    assert method.grids <= set(product(("int",), (2, 3, 4, 8))) | {("nf4", 4)}
    assert is_dataclass(method.options)
    assert method.options() == method.options()
    assert all(hasattr(method.options(), field.name) for field in fields(method.options))


def test_quantized_weights_are_well_formed(method: Method, stats: InputStats) -> None:
    given = weights()
    for scheme in schemes(method):
        for dtype in dtypes(scheme):
            solved = method.quantize(given, stats, scheme, dtype, method.options())
            assert len(solved) == len(given)
            for one, weight in zip(solved, given, strict=True):
                qtensor = one.qtensor
                assert qtensor.scheme == scheme
                assert qtensor.codes.dtype == torch.uint8
                assert qtensor.codes.shape == weight.shape
                assert int(qtensor.codes.amax()) < 1 << scheme.bits
                assert qtensor.codes.is_contiguous()
                assert qtensor.scales.dtype == dtype
                assert torch.isfinite(qtensor.scales).all()
                if scheme.grid == "int":
                    assert qtensor.scales.shape == (len(weight), scheme.groups(128))
                    assert (qtensor.scales != 0).all()
                assert (qtensor.zeros is None) == (scheme.symmetric or scheme.grid == "nf4")
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
        method.quantize(weights(), stats, scheme, torch.float32, method.options()),
        weights(),
        strict=True,
    ):
        error = (one.qtensor.dequantize() - weight).double()
        whole = ((weight.double() @ hessian) * weight).sum()
        assert one.loss == pytest.approx(float(((error @ hessian) * error).sum() / whole), 1e-3)
        assert one.notes == ()


def test_arguments_stay_as_they_were(method: Method, stats: InputStats) -> None:
    given, kept = weights(), [stats.hessian.clone(), stats.firsts.clone(), stats.sample.clone()]
    for scheme in schemes(method)[:2]:
        method.quantize(given, stats, scheme, torch.bfloat16, method.options())
        if method.rescale is not None:
            method.rescale(given, stats, scheme, method.options())
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
            solved = method.quantize(weights(), stats, scheme, torch.bfloat16, method.options())
            s = method.rescale and method.rescale(weights(), stats, scheme, method.options())
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
    for one in method.quantize(
        weights(), None, schemes(method)[0], torch.bfloat16, method.options()
    ):
        assert one.loss is None


def test_rescaling_helps_or_is_left_alone(method: Method, stats: InputStats) -> None:
    if method.rescale is None:
        return
    s = method.rescale(weights(), stats, schemes(method)[-1], method.options())
    if s is not None:
        assert s.shape == (128,)
        assert s.dtype == torch.float32
        assert torch.isfinite(s).all()
        assert (s > 0).all()
        outer = s[:, None] * s
        changed = replace(stats, hessian=stats.hessian / outer, absmax=stats.absmax / s)
        solved = method.quantize(
            [w * s for w in weights()],
            changed,
            schemes(method)[-1],
            torch.bfloat16,
            method.options(),
        )
        assert all(one.loss is not None and one.loss < 0.05 for one in solved)
