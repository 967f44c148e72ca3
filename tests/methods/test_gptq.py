from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from quantkit.core.errors import QuantkitError
from quantkit.core.method import Solved
from quantkit.core.scheme import Scheme
from quantkit.methods import gptq, rtn
from quantkit.methods.gptq import GptqOptions
from quantkit.methods.rtn import RtnOptions
from quantkit.stats.inputs import InputStats
from tests.methods.solving import quantized

BF16 = torch.bfloat16
W4 = Scheme()
DEFAULTS = GptqOptions()
VARIANTS = [
    GptqOptions(),
    GptqOptions(search="weighted"),
    GptqOptions(search="minmax"),
    GptqOptions(order="natural"),
    GptqOptions(order="full"),
    GptqOptions(sweeps=2),
    GptqOptions(scale_free_damping=True),
    GptqOptions(sink=0),
    GptqOptions(signed=False),
]
SCHEMES = [
    Scheme(bits=bits, group_size=size, symmetric=symmetric)
    for bits, size, symmetric in product((2, 3, 4, 8), (32, 64, None), (True, False))
]


def solve(
    weights: list[torch.Tensor],
    stats: InputStats,
    scheme: Scheme = W4,
    options: Any = DEFAULTS,
    method: Any = gptq,
) -> list[Solved]:
    found: list[Solved] = quantized(method, weights, stats, scheme, BF16, options)
    return found


def total(solved: list[Solved]) -> float:
    return sum(s.loss for s in solved if s.loss is not None)


def row_losses(solved: Solved, weight: torch.Tensor, stats: InputStats) -> torch.Tensor:
    error = (solved.qtensor.dequantize() - weight).double()
    return ((error @ stats.hessian.double()) * error).sum(1)


@pytest.mark.parametrize("scheme", SCHEMES, ids=Scheme.label)
def test_no_row_loses_more_than_by_rounding(
    scheme: Scheme, weights: list[torch.Tensor], stats: InputStats
) -> None:
    rounded = solve(weights, stats, scheme, RtnOptions(), rtn)
    for ours, theirs, weight in zip(solve(weights, stats, scheme), rounded, weights, strict=True):
        better = row_losses(ours, weight, stats)
        assert (better <= row_losses(theirs, weight, stats) * (1 + 1e-4)).all()


def test_without_that_promise_single_rows_may_lose_more(
    weights: list[torch.Tensor], stats: InputStats
) -> None:
    """Otherwise the test above could not fail."""
    options = GptqOptions(keep_better_rows=False, search="minmax", sink=100)
    scheme = Scheme(bits=2, group_size=None)
    rounded = solve(weights, stats, scheme, RtnOptions(), rtn)
    plain = solve(weights, stats, scheme, options)
    worse = [
        row_losses(ours, weight, stats) > row_losses(theirs, weight, stats)
        for ours, theirs, weight in zip(plain, rounded, weights, strict=True)
    ]
    assert torch.cat(worse).any()


@pytest.mark.parametrize(("bits", "share"), [(2, 0.45), (3, 0.4), (4, 0.4)])
def test_share_of_the_loss_of_rounding(
    bits: int, share: float, weights: list[torch.Tensor], stats: InputStats
) -> None:
    scheme = Scheme(bits=bits)
    ours = total(solve(weights, stats, scheme, GptqOptions(sink=0)))
    theirs = total(solve(weights, stats, scheme, RtnOptions(), rtn))
    assert ours < share * theirs


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_loss_is_the_relative_output_error(
    options: GptqOptions, weights: list[torch.Tensor], stats: InputStats
) -> None:
    for solved, weight in zip(solve(weights, stats, options=options), weights, strict=True):
        whole = ((weight.double() @ stats.hessian.double()) * weight).sum()
        expected = float(row_losses(solved, weight, stats).sum() / whole)
        assert solved.loss == pytest.approx(expected, rel=1e-4)
        assert expected < 0.05
        assert not solved.notes


def test_ingredients_pay(weights: list[torch.Tensor], stats: InputStats) -> None:
    def loss(**changes: Any) -> float:
        options = GptqOptions(sink=0, keep_better_rows=False, **changes)
        return total(solve(weights, stats, options=options))

    best = loss()
    assert best < loss(search="weighted") < loss(search="minmax")
    assert best < loss(order="natural")
    assert loss(search="minmax") < loss(search="minmax", signed=False)


@pytest.mark.parametrize("order", ["group", "full", "natural"])
@pytest.mark.parametrize("scheme", [*SCHEMES[:8], Scheme("mxfp4", 4, 32)], ids=Scheme.label)
def test_no_row_loses_by_a_sweep(
    scheme: Scheme, order: Any, weights: list[torch.Tensor], stats: InputStats
) -> None:
    """The loss that falls is the damped one, so nearly; none is better than it by chance alone."""
    plain = GptqOptions(sink=0, damp=1e-4, keep_better_rows=False, order=order)
    before = solve(weights, stats, scheme, plain)
    after = solve(weights, stats, scheme, replace(plain, sweeps=1))
    for ours, theirs, weight in zip(after, before, weights, strict=True):
        better, worse = (row_losses(each, weight, stats) for each in (ours, theirs))
        assert (better <= worse * (1 + 1e-3)).all()
    share = 0.97 if scheme.group_size else 1.0  # one group alone has no others
    assert total(after) <= share * total(before)


def test_sink_term_spares_the_first_tokens(
    weights: list[torch.Tensor], make_inputs: Any, collect: Any
) -> None:
    x = make_inputs(192)
    mixing, plain = collect(x, mixes_tokens=True), collect(x)
    first = x[:, 0]

    def error(stats: InputStats, options: GptqOptions) -> float:
        solved = solve(weights, stats, options=options)
        errors = [s.qtensor.dequantize() - w for s, w in zip(solved, weights, strict=True)]
        return sum(float((e @ first.T).square().sum()) for e in errors)

    assert error(mixing, GptqOptions()) < 0.5 * error(mixing, GptqOptions(sink=0))
    assert error(plain, GptqOptions()) == error(mixing, GptqOptions(sink=0))


def test_scaling_the_hessian_changes_nothing(
    weights: list[torch.Tensor], stats: InputStats
) -> None:
    scaled = replace(stats, hessian=stats.hessian * 64, firsts=stats.firsts * 8)
    for a, b in zip(solve(weights, stats), solve(weights, scaled), strict=True):
        assert torch.equal(a.qtensor.codes, b.qtensor.codes)
        assert torch.equal(a.qtensor.scales, b.qtensor.scales)


def test_solved_together_or_alone(weights: list[torch.Tensor], stats: InputStats) -> None:
    for together, weight in zip(solve(weights, stats), weights, strict=True):
        alone = solve([weight], stats)[0].qtensor.codes
        assert (together.qtensor.codes != alone).float().mean() < 1e-3
        turned = solve([weight.flip(0)], stats)[0].qtensor.codes.flip(0)
        assert (turned != alone).float().mean() < 1e-3


def test_channels_may_be_named_otherwise(weights: list[torch.Tensor], stats: InputStats) -> None:
    """Whole rows share a scale: another order of channels is the same problem."""
    order = torch.randperm(192, generator=torch.Generator().manual_seed(1))
    other = replace(stats, hessian=stats.hessian[order][:, order], firsts=stats.firsts[:, order])
    scheme = Scheme(group_size=None)
    here = solve(weights, stats, scheme)
    there = solve([w[:, order] for w in weights], other, scheme)
    for a, b in zip(here, there, strict=True):
        assert a.loss == pytest.approx(b.loss, rel=1e-2)
        assert (a.qtensor.codes[:, order] != b.qtensor.codes).float().mean() < 0.01


def test_what_lies_on_the_grid_stays(stats: InputStats) -> None:
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 16, (20, 192), generator=generator)
    codes[:, ::32] = 0
    weight = (codes - 8) * 0.125
    (solved,) = solve([weight], stats)
    assert torch.equal(solved.qtensor.dequantize(), weight)
    assert solved.loss == 0


def test_more_bits_and_smaller_groups_lose_less(
    weights: list[torch.Tensor], stats: InputStats
) -> None:
    def loss(bits: int, size: int | None) -> float:
        return total(solve(weights, stats, Scheme(bits=bits, group_size=size)))

    by_bits = [loss(bits, 64) for bits in (2, 3, 4, 8)]
    assert by_bits == sorted(by_bits, reverse=True)
    by_size = [loss(4, size) for size in (None, 64, 32)]
    assert by_size == sorted(by_size, reverse=True)


@pytest.mark.parametrize(("rows", "features"), [(576, 192), (100, 320), (3, 130)])
@pytest.mark.parametrize("symmetric", [True, False])
def test_threads_change_no_bit(
    rows: int,
    features: int,
    symmetric: bool,
    make_inputs: Any,
    collect: Any,
    set_threads: Callable[[int], None],
) -> None:
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(rows, features, generator=generator)
    scheme = Scheme(group_size=None if features % 64 else 64, symmetric=symmetric)
    x = make_inputs(features, sequences=3)
    results = []
    for count in (1, 2):
        set_threads(count)
        results.append(solve([weight], collect(x, mixes_tokens=True), scheme)[0])
    one, two = results
    assert torch.equal(one.qtensor.codes, two.qtensor.codes)
    assert torch.equal(one.qtensor.scales, two.qtensor.scales)
    assert one.loss == two.loss


@pytest.mark.parametrize("damp", [0.0, 0.01])
@pytest.mark.parametrize("case", ["few", "one", "dead", "none", "equal", "large", "tiny"])
def test_poor_inputs_have_defined_results(
    case: str, damp: float, weights: list[torch.Tensor], make_inputs: Any, collect: Any
) -> None:
    x = make_inputs(192, sequences=2, length=48 if case == "few" else 200)
    match case:
        case "one":
            x = x[:1, :1]
        case "dead":
            x[..., ::3] = 0
        case "none":
            x = torch.zeros_like(x)
        case "equal":
            weights = [w[:1].repeat(8, 1) for w in weights]
        case "large":
            x = x * 1e12
        case "tiny":
            x = x * 1e-12
    stats = collect(x, mixes_tokens=True)
    for solved, weight in zip(
        solve(weights, stats, options=GptqOptions(damp)), weights, strict=True
    ):
        back = solved.qtensor.dequantize()
        assert torch.isfinite(back).all()
        assert not damp or (back - weight).square().sum() < 0.5 * weight.square().sum()
        assert solved.loss is not None
        assert 0 <= solved.loss < 0.1
        if case == "none":
            assert solved.notes[-1] == "rounded to nearest"
        elif damp:
            assert not solved.notes


def test_ladder_notes_each_step(
    weights: list[torch.Tensor], make_inputs: Any, collect: Any
) -> None:
    stats = collect(make_inputs(192, sequences=1, length=20))
    (solved, _) = solve(weights, stats, options=GptqOptions(damp=0))
    assert solved.notes[0] == "no Cholesky factor with damp 0 in float32"
    assert solved.notes[-1] != "rounded to nearest"


def test_it_needs_inputs(weights: list[torch.Tensor]) -> None:
    with pytest.raises(QuantkitError, match="needs calibration inputs"):
        quantized(gptq, weights, None, Scheme(), BF16, GptqOptions())


def test_golden_codes() -> None:
    """Integers in, integers out: a change of these is a change of the method."""
    columns = torch.arange(32)
    weight = torch.stack([(columns * 7 % 13 - 6.0) / 4, (columns * 5 % 17 - 3.0) / 8])
    x = torch.stack([torch.cos(columns * (t + 1) * 0.37) for t in range(64)])
    x = x + torch.eye(32).repeat(2, 1)
    stats = InputStats(x.T @ x, x[:1], x.abs().amax(0), x, 64, mixes_tokens=False)
    (solved,) = solve([weight], stats, Scheme(bits=3, group_size=32), GptqOptions(damp=0.01))
    assert ["".join(map(str, row)) for row in solved.qtensor.codes.tolist()] == [
        "05151637374740505162737374051516",
        "54204315310321531531042153204204",
    ]
    assert solved.qtensor.scales.tolist() == [[0.369140625], [-0.400390625]]
