from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.grid import ldlq as module
from quantkit.grid.affine import AffineGrid
from quantkit.grid.ldlq import Candidates, Feedback, factor, ldlq, ldlq_known
from quantkit.grid.rounding import steps_of


def problem(seed: int, rows: int, features: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights (rows, features) and a correlated Hessian, float64."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, features, generator=generator, dtype=torch.float64)
    x = torch.randn(2 * features, features, generator=generator, dtype=torch.float64)
    x = x + 2 * torch.randn(2 * features, 1, generator=generator, dtype=torch.float64)
    return weight, x.T @ x


def feedback_of(hessian: torch.Tensor) -> Feedback:
    """In float64, and so that channel 0 is rounded first, as textbooks do."""
    order = torch.arange(len(hessian) - 1, -1, -1)
    lower = torch.linalg.cholesky(hessian[order][:, order])
    pivots = lower.diagonal()
    return Feedback(order, lower / pivots, pivots.square(), hessian.diagonal()[order])


def solve(
    weight: torch.Tensor, hessian: torch.Tensor, grid: AffineGrid, group_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and dequantized weights (rows, features) with spanning scales."""

    def span(targets: torch.Tensor, _: torch.Tensor) -> Candidates:
        scales, zeros = grid.span(targets)
        return scales[None], None if zeros is None else zeros[None]

    feedback = feedback_of(hessian)
    codes, scales, zeros = ldlq(weight.T[feedback.order], feedback, grid, group_size, span)
    spread = scales.repeat_interleave(group_size, 0)
    offset = float(1 << grid.bits - 1) if zeros is None else zeros.repeat_interleave(group_size, 0)
    return codes.flip(0).T, ((codes - offset) * spread).flip(0).T


def textbook(
    weight: torch.Tensor, hessian: torch.Tensor, grid: AffineGrid, group_size: int
) -> torch.Tensor:
    """GPTQ as published: upper Cholesky factor of the inverse, errors pushed to the right."""
    upper = torch.linalg.cholesky(torch.linalg.inv(hessian), upper=True)
    work, out = weight.clone(), torch.zeros_like(weight)
    scales, zeros = torch.ones(len(weight)), None
    for j in range(weight.shape[1]):
        if j % group_size == 0:
            scales, zeros = grid.span(work[:, j : j + group_size].T)
        out[:, j] = steps_of(work[:, j], scales, zeros, grid) * scales
        error = (work[:, j] - out[:, j]) / upper[j, j]
        work[:, j + 1 :] -= error[:, None] * upper[j, j + 1 :]
    return out


@pytest.mark.parametrize(("bits", "symmetric"), list(product((2, 3, 4, 8), (True, False))))
@pytest.mark.parametrize("group_size", [16, 48])
def test_codes_are_those_of_gptq(bits: int, symmetric: bool, group_size: int) -> None:
    weight, hessian = problem(bits, 20, 48)
    grid = AffineGrid(bits, symmetric, torch.float32)
    _, solved = solve(weight, hessian, grid, group_size)
    torch.testing.assert_close(solved, textbook(weight, hessian, grid, group_size))


@pytest.mark.parametrize("leaf", [1, 3, 16, 1000])
def test_blocks_change_nothing(leaf: int, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, hessian = problem(1, 37, 96)
    grid = AffineGrid(4, symmetric=True, dtype=torch.float32)
    expected, _ = solve(weight, hessian, grid, 32)
    monkeypatch.setattr(module, "LEAF", leaf)
    codes, _ = solve(weight, hessian, grid, 32)
    assert torch.equal(codes, expected)


def test_rows_do_not_know_each_other() -> None:
    weight, hessian = problem(2, 30, 64)
    grid = AffineGrid(3, symmetric=False, dtype=torch.float32)
    codes, _ = solve(weight, hessian, grid, 32)
    turned, _ = solve(weight.flip(0), hessian, grid, 32)
    alone, _ = solve(weight[:5], hessian, grid, 32)
    assert torch.equal(turned.flip(0), codes)
    assert torch.equal(alone, codes[:5])


def test_without_correlation_it_rounds_to_nearest() -> None:
    weight, hessian = problem(3, 10, 32)
    grid = AffineGrid(4, symmetric=True, dtype=torch.float32)
    codes, _ = solve(weight, hessian.diagonal().diag(), grid, 32)
    scales, _ = grid.span(weight.T)
    assert torch.equal(codes.T.double(), steps_of(weight.T, scales, None, grid) + 8)


def test_what_lies_on_the_grid_stays() -> None:
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 16, (6, 32), generator=generator)
    codes[:, 0] = 0
    weight = (codes - 8).double() * 0.125
    _, hessian = problem(4, 1, 32)
    grid = AffineGrid(4, symmetric=True, dtype=torch.bfloat16)
    _, solved = solve(weight, hessian, grid, 32)
    assert torch.equal(solved, weight)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=25)
def test_small_problems_against_all_solutions(seed: int) -> None:
    """Never below the optimum; and within Babai's bound s^2 / 4 sum D where nothing clips."""
    weight, hessian = problem(seed, 1, 5)
    grid = AffineGrid(2, symmetric=True, dtype=torch.float32)
    scale = grid.span(weight.T)[0][:1]

    def fixed(targets: torch.Tensor, _: torch.Tensor) -> Candidates:
        return scale.expand(1, targets.shape[1]), None

    feedback = feedback_of(hessian)
    codes, *_ = ldlq(weight.T[feedback.order], feedback, grid, 5, fixed)
    error = (codes.flip(0).T.double() - 2) * scale - weight
    loss = (error @ hessian @ error.T).item()
    every = torch.cartesian_prod(*[torch.arange(-2.0, 2.0, dtype=torch.float64)] * 5) * scale
    losses = torch.einsum("ni,ij,nj->n", every - weight, hessian, every - weight)
    assert loss >= losses.min().item() * (1 - 1e-9)
    wide = AffineGrid(8, symmetric=True, dtype=torch.float32)
    codes, *_ = ldlq(weight.T[feedback.order], feedback, wide, 5, fixed)
    error = (codes.flip(0).T.double() - 128) * scale - weight
    bound = scale.double().square() / 4 * feedback.pivots.sum()
    assert (error @ hessian @ error.T).item() <= bound.item() * (1 + 1e-9)


@pytest.mark.parametrize("symmetric", [True, False])
def test_known_scales_give_the_codes_that_trials_of_them_alone_give(*, symmetric: bool) -> None:
    weight, hessian = problem(7, 40, 96)
    grid = AffineGrid(3, symmetric=symmetric, dtype=torch.float32)
    feedback = feedback_of(hessian)
    columns = weight.T[feedback.order]
    spans = [grid.span(part) for part in torch.split(columns, 32)]
    scales = torch.stack([scale for scale, _ in spans])
    zeros = None if symmetric else torch.stack([z for _, z in spans if z is not None])
    turn = iter(reversed(spans))

    def spanning(_: torch.Tensor, _pivots: torch.Tensor) -> Candidates:
        scale, zero = next(turn)
        return scale[None], None if zero is None else zero[None]

    expected, *_ = ldlq(columns, feedback, grid, 32, spanning)
    groups = [position // 32 for position in range(96)]
    found = ldlq_known(columns, feedback, grid, groups, scales, zeros)
    assert torch.equal(found, expected)


def test_each_row_keeps_its_best_trial() -> None:
    weight, hessian = problem(6, 40, 32)
    grid = AffineGrid(3, symmetric=True, dtype=torch.float32)
    feedback = feedback_of(hessian)
    factors = (0.5, 0.7, 0.85, 1.0)

    def losses(*tried: float) -> torch.Tensor:
        def candidates(targets: torch.Tensor, _: torch.Tensor) -> Candidates:
            return torch.stack([grid.span(targets)[0] * f for f in tried]), None

        codes, scales, _ = ldlq(weight.T[feedback.order], feedback, grid, 32, candidates)
        error = ((codes - 4.0) * scales).flip(0).T.double() - weight
        return torch.einsum("ri,ij,rj->r", error, hessian, error)

    alone = torch.stack([losses(f) for f in factors])
    assert len(set(alone.argmin(0).tolist())) > 1
    torch.testing.assert_close(losses(*factors), alone.amin(0))


def test_no_factor_without_positive_definiteness() -> None:
    order = torch.arange(3)
    assert factor(torch.diag(torch.tensor([1.0, -1.0, 2.0])), order) is None
    assert factor(torch.full((3, 3), torch.nan), order) is None
    assert factor(torch.zeros(3, 3), order) is None
    assert factor(torch.eye(3), order) is not None
