"""SmoothQuant: 8-bit weights and activations, with outlier channels moved into the weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quantkit.core.method import GroupShape, Method, Solved
from quantkit.core.scheme import Scheme
from quantkit.grid.threads import one_thread
from quantkit.grid.workspace import FP32, copies, folding

if TYPE_CHECKING:
    import torch

    from quantkit.grid.rounding import Rounding
    from quantkit.stats.inputs import InputStats

ALPHAS = tuple(i / 10 for i in range(11))
ROWS = 256  # of all rows of a group, evenly spaced: enough to rank candidates


@dataclass(frozen=True)
class SmoothquantOptions:
    """Every ingredient can be switched off.

    rescale: fold channel scales into the producer. alpha: how much of the inputs' range goes into
        the weights, from 0 to 1; None searches it for each pair of producer and group.
    search: fit each row's scale to least weighted error, instead of spanning the row.
    """

    rescale: bool = True
    alpha: float | None = None
    search: bool = True

    def __post_init__(self) -> None:
        """Check that alpha is at most 1."""
        if self.alpha is not None and self.alpha > 1:
            raise ValueError(f"alpha must be from 0 to 1, not {self.alpha}")


@one_thread()
def rescale(
    weights: list[torch.Tensor],
    stats: InputStats,
    scheme: Scheme,
    grid: Rounding,
    options: SmoothquantOptions,
) -> torch.Tensor | None:
    """Channel scales, fp32 (in_features,), of least expected error, or None for none.

    Candidates are max|x|^alpha / max|w|^(1 - alpha) (SmoothQuant, arXiv 2211.10438, equation 4),
    with the geometric mean of their extremes normalized to 1. `weights` are fp32 (rows,
    in_features) and not modified.
    """
    if not options.rescale:
        return None
    import torch

    stacked = torch.cat(weights)
    inputs, columns = (_floored(r) for r in (stats.absmax, stacked.abs().amax(0)))
    alphas = ALPHAS if options.alpha is None else (options.alpha,)
    ratios = [inputs**alpha / columns ** (1 - alpha) for alpha in alphas]
    candidates = [ratio / (ratio.amax() * ratio.amin()).sqrt() for ratio in ratios]
    if options.alpha is not None:
        return candidates[0]
    plain = torch.ones_like(inputs)
    tried = [_expected_error(stacked, stats, scheme, grid, s) for s in (plain, *candidates)]
    expected = torch.stack(tried).cpu().tolist()  # one wait for the device
    best = min(range(len(expected)), key=expected.__getitem__)
    return candidates[best - 1] if best else None


def _floored(ranges: torch.Tensor) -> torch.Tensor:
    """Ranges of channels, fp32 (in_features,), with a lower bound for dead channels (all zeros)."""
    return ranges.clamp(min=(ranges.amax().double() * 1e-5).clamp(min=1e-30).float())


def _expected_error(
    weight: torch.Tensor, stats: InputStats, scheme: Scheme, grid: Rounding, s: torch.Tensor
) -> torch.Tensor:
    """Squared output error (fp32, one number) of weights on all tokens, plus that of inputs.

    `weight` is fp32 (rows, in_features), `s` fp32 (in_features,). The error of inputs is estimated
    from the sample, with errors of channels assumed independent: sum_j E[e_j^2] |w_j|^2.
    """
    from quantkit.grid.activation import int8_per_token
    from quantkit.grid.nearest import nearest
    from quantkit.grid.quadratic import row_losses

    rows = weight[:: -(-len(weight) // ROWS)]
    scaled = rows * s
    grid = grid.signs(signed=False).provisional([scaled])
    error = nearest(scaled, None, scheme, grid).dequantize() / s - rows
    of_weights = row_losses(error, stats.hessian).sum() * (len(weight) / len(rows))
    scaled = stats.sample.float() / s
    noise = (int8_per_token(scaled) - scaled).square().sum(0)
    of_inputs = noise @ (weight * s).square().sum(0) * (stats.tokens / len(scaled))
    return of_weights + of_inputs


@one_thread()
def quantize(
    weights: list[torch.Tensor],
    stats: InputStats | None,
    scheme: Scheme,
    grid: Rounding,
    options: SmoothquantOptions,
) -> list[Solved]:
    """Each (rescaled) weight, fp32 (rows, in_features), rounded by itself; none is modified.

    Scales are positive, as int8 kernels expect.
    """
    from quantkit.grid.nearest import round_each

    grid = grid.signs(signed=False)
    hessian = stats.hessian if stats else None
    return round_each(weights, hessian, scheme, grid, search=options.search)


def workspace(group: GroupShape) -> int:
    """Bytes: the larger of trying candidates on the sample, and of folding the best one."""
    sample = FP32 * group.sample * group.inputs
    trying = 3 * FP32 * group.weights + 4 * sample
    if group.device != "cpu":
        rows = 8 * FP32 * ROWS * group.inputs
        trying = FP32 * group.weights + rows + max(2 * FP32 * group.weights + sample, 5 * sample)
    return max(copies(group) + trying, folding(group))


METHOD = Method(
    name="smoothquant",
    summary="8-bit weights and activations, outlier channels folded into the producer",
    paper="SmoothQuant, arXiv 2211.10438, section 4; alpha by expected error",
    grids=(("int", 8),),
    needs_inputs=True,
    options=SmoothquantOptions,
    workspace=workspace,
    quantize=quantize,
    rescale=rescale,
)
