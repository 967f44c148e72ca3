"""Triton programs: scale search of a group, and rounding it with feedback under several scales.

The arithmetic is that of `grid.search` and `grid.ldlq`, and each operation is rounded as torch
rounds it on a CPU: divisions are IEEE's, and `group_kernel` forbids fused multiply-adds. Only sums
over columns may be added in another order. Tiles are (SIZE, ROWS), the SIZE columns of a group for
ROWS rows of the weight, as panels everywhere in `grid`.

GRID is (bits, symmetric, signed, stored), where stored is the dtype of stored scales (fp32, fp16,
bf16), and the least and largest of them. Numbers are fp32, codes uint8.
"""

import triton
import triton.language as tl


@triton.jit
def _nearest(values):
    """Nearest integers, halves to even; |values| < 2**22: fp32 has no fractions from 2**23 on."""
    return (values + 12582912.0) - 12582912.0


@triton.jit
def _steps(scaled, zeros, TOP: tl.constexpr):
    """`affine.snap` of values in units of the scale; zeros broadcast to them."""
    return _nearest(tl.minimum(tl.maximum(scaled, -zeros), TOP - zeros))


@triton.jit
def _storable(scales, STORED: tl.constexpr):
    """`AffineGrid.storable`; STORED is the name of the dtype, and its limits."""
    sizes = tl.minimum(tl.maximum(tl.abs(scales), STORED[1]), STORED[2])
    if STORED[0] == "fp16":
        sizes = sizes.to(tl.float16).to(tl.float32)
    if STORED[0] == "bf16":  # in integers: Triton's interpreter does not round halves to even
        bits = sizes.to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
        sizes = bits.to(tl.float32, bitcast=True)
    return tl.where(scales == 0, 1.0, tl.where(scales < 0, -sizes, sizes))


@triton.jit
def _span(panel, BITS: tl.constexpr, SYMMETRIC: tl.constexpr, SIGNED: tl.constexpr):
    """`AffineGrid.span` before the scales are made storable; zeros are 2**(BITS - 1) if symmetric.

    Then the bounds -zeros and TOP - zeros are those of every grid.
    """
    HALF: tl.constexpr = 1 << (BITS - 1)
    TOP: tl.constexpr = (1 << BITS) - 1
    low, high = tl.min(panel, 0), tl.max(panel, 0)
    middle = tl.full(low.shape, HALF, tl.float32)
    if SYMMETRIC:
        if SIGNED:
            return tl.where(high > -low, high, low) * (-1 / HALF), middle
        return tl.div_rn(tl.maximum(high, -low), middle - 0.5), middle
    low, high = tl.minimum(low, 0.0), tl.maximum(high, 0.0)
    scales = tl.div_rn(high - low, middle * 2 - 1)
    nothing = (low == 0) & (scales == 0)  # 0 / 0 in a group of zeros
    zeros = tl.where(nothing, middle, _nearest(tl.div_rn(-low, scales)))
    scales = tl.where(zeros < 1, tl.div_rn(high, middle * 2 - 2), scales)
    return scales, tl.minimum(tl.maximum(zeros, 1.0), TOP)


@triton.jit
def _offer(
    error, scale, zero, scales, zeros, panel, importance, TOP: tl.constexpr, STORED: tl.constexpr
):
    """`_ScaleSearch.offer`: the best error, scale and zero with the offered ones among them."""
    scales = _storable(scales, STORED)
    scaled = panel * tl.div_rn(1.0, scales)[None, :]
    residual = scaled - _steps(scaled, zeros[None, :], TOP)
    errors = tl.sum(importance * (residual * residual), 0) * scales * scales
    better = errors < error
    error, scale = tl.where(better, errors, error), tl.where(better, scales, scale)
    return error, scale, tl.where(better, zeros, zero)


@triton.jit
def _refit(error, scale, zero, zeros, panel, importance, TOP: tl.constexpr, STORED: tl.constexpr):
    """`_ScaleSearch.refit`: offers the least-squares scale of the steps of the best one."""
    steps = _steps(panel * tl.div_rn(1.0, scale)[None, :], zeros[None, :], TOP)
    power = tl.sum(importance * (steps * steps), 0)
    match = tl.sum(importance * (steps * panel), 0)
    scales = tl.where(power > 0, tl.div_rn(match, power), scale)
    return _offer(error, scale, zero, scales, zeros, panel, importance, TOP, STORED)


@triton.jit
def search(
    panels,
    importances,
    scales,
    zeros,
    n,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    GRID: tl.constexpr,
    FRACTIONS: tl.constexpr,
    REFITS: tl.constexpr,
):
    """Finds the scales and zeros of ROWS rows of an expert, as `search._ScaleSearch`.

    panels: (experts, SIZE, n); importances: (experts, SIZE); scales and zeros: (experts, n). Zeros
    are not written where the grid is symmetric.
    """
    SYMMETRIC: tl.constexpr = GRID[1]
    SIGNED: tl.constexpr = GRID[2]
    STORED: tl.constexpr = GRID[3]
    TOP: tl.constexpr = (1 << GRID[0]) - 1
    expert = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < n
    columns = tl.arange(0, SIZE)
    panels += expert * SIZE * n
    panel = tl.load(panels + columns[:, None] * n + rows[None, :], inside[None, :], other=0.0)
    importance = tl.load(importances + expert * SIZE + columns)[:, None]
    span, middle = _span(panel, GRID[0], SYMMETRIC, SIGNED)
    span = _storable(span, STORED)
    error, scale, zero = tl.full((ROWS,), float("inf"), tl.float32), span, middle
    for i in tl.static_range(len(FRACTIONS)):
        error, scale, zero = _offer(
            error, scale, zero, span * FRACTIONS[i], middle, panel, importance, TOP, STORED
        )
        if SYMMETRIC and SIGNED:
            error, scale, zero = _offer(
                error, scale, zero, span * -FRACTIONS[i], middle, panel, importance, TOP, STORED
            )
    for _ in range(REFITS):
        error, scale, zero = _refit(error, scale, zero, zero, panel, importance, TOP, STORED)
        if not SYMMETRIC:
            below, above = tl.maximum(zero - 1, 1.0), tl.minimum(zero + 1, TOP)
            error, scale, zero = _refit(error, scale, zero, below, panel, importance, TOP, STORED)
            error, scale, zero = _refit(error, scale, zero, above, panel, importance, TOP, STORED)
    tl.store(scales + expert * n + rows, scale, inside)
    if not SYMMETRIC:
        tl.store(zeros + expert * n + rows, zero, inside)


@triton.jit(do_not_specialize_on_alignment=["best_scales", "best_zeros"])
def trials(
    weights,
    targets,
    couplings,
    pivots,
    scales,
    zeros,
    codes,
    best_scales,
    best_zeros,
    n,
    d,
    weight_expert,
    weight_row,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    GRID: tl.constexpr,
    FACTORS: tl.constexpr,
):
    """Rounds ROWS rows of an expert's group under each scale and keeps the best of each row.

    All but `scales` and `zeros`, (experts, n), are the group's parts of tensors of d columns:
    weights (.., SIZE, n), with strides of their own; targets and codes (.., SIZE, n), couplings
    (.., SIZE, SIZE), pivots (.., SIZE), best scales and zeros (.., n). Targets become errors.
    """
    STORED: tl.constexpr = GRID[3]
    TOP: tl.constexpr = (1 << GRID[0]) - 1
    expert = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < n
    columns = tl.arange(0, SIZE)
    here = columns[:, None] * n + rows[None, :]
    targets += expert * d * n
    codes += expert * d * n
    weights += expert * weight_expert + rows
    couplings += expert * d * d + columns
    pivot = tl.load(pivots + expert * d + columns)[:, None]
    centre = tl.load(scales + expert * n + rows, inside, other=1.0)
    if GRID[1]:
        zero = tl.full((ROWS,), 1 << (GRID[0] - 1), tl.float32)
    else:
        zero = tl.load(zeros + expert * n + rows, inside, other=1.0)
    loss, scale = tl.full((ROWS,), float("inf"), tl.float32), centre
    steps = tl.zeros((SIZE, ROWS), tl.float32)
    for i in tl.static_range(len(FACTORS)):
        tried = _storable(centre * FACTORS[i], STORED)
        inverse = tl.div_rn(1.0, tried)
        moved = tl.load(targets + here, inside[None, :], other=0.0) * inverse[None, :]
        for k in range(SIZE):
            j = SIZE - 1 - k
            # Registers have no index; a sum with one term that is not 0 takes line j out, exactly.
            target = tl.sum(tl.where(columns[:, None] == j, moved, 0.0), 0)
            weight = tl.load(weights + j * weight_row, inside, other=0.0)
            error = weight * inverse - _steps(target, zero, TOP)
            shares = tl.load(couplings + j * d, columns < j, other=0.0)
            moved += shares[:, None] * error[None, :]
        found = _steps(moved, zero[None, :], TOP)  # line j did not move after its turn
        residual = moved - found
        cost = tl.sum(pivot * (residual * residual), 0) * (tried * tried)
        better = (cost < loss) | (i == 0)
        loss, scale = tl.where(better, cost, loss), tl.where(better, tried, scale)
        steps = tl.where(better[None, :], found, steps)
    weight = tl.load(weights[None, :] + columns[:, None] * weight_row, inside[None, :], other=0.0)
    errors = tl.fma(-steps, scale[None, :], weight)  # as `addcmul` on a CPU
    tl.store(targets + here, errors, inside[None, :])
    tl.store(codes + here, (steps + zero[None, :]).to(tl.uint8), inside[None, :])
    first = expert * (d // SIZE) * n
    tl.store(best_scales + first + rows, scale, inside)
    if not GRID[1]:
        tl.store(best_zeros + first + rows, zero, inside)
