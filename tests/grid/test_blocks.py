import pytest
import torch

from quantkit.core.grid import rounding_of
from quantkit.core.scheme import Scheme
from quantkit.grid.blocks import block_scales, by_row, multiplied, rounded_to
from quantkit.grid.nearest import nearest

BLOCK = Scheme("fp8", 8, 128, rows=128)
SHAPES = [(128, 128), (256, 384), (200, 300), (1, 5), (129, 127)]


def weight_of(shape: tuple[int, int]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(shape, generator=generator) * torch.rand(shape[0], 1, generator=generator)


@pytest.mark.parametrize("shape", SHAPES)
def test_each_block_has_the_scale_that_it_would_have_alone(shape: tuple[int, int]) -> None:
    weight = weight_of(shape)
    importance = torch.rand(shape[1], generator=torch.Generator().manual_seed(2))
    grid = rounding_of(BLOCK, torch.float32, [weight])
    for known in (importance, None):
        scales = block_scales(weight, known, BLOCK, grid)
        assert scales.shape == (BLOCK.scale_rows(shape[0]), BLOCK.groups(shape[1]))
        for i, j in ((0, 0), (scales.shape[0] - 1, scales.shape[1] - 1)):
            part = weight[i * 128 : (i + 1) * 128, j * 128 : (j + 1) * 128]
            here = None if known is None else known[j * 128 : (j + 1) * 128]
            alone = block_scales(part, here, BLOCK, grid)
            torch.testing.assert_close(scales[i, j], alone[0, 0], rtol=0.1, atol=0)


@pytest.mark.parametrize("shape", SHAPES)
def test_values_times_scales(shape: tuple[int, int]) -> None:
    values = weight_of(shape)
    scales = torch.rand(BLOCK.scale_rows(shape[0]), BLOCK.groups(shape[1]))
    rows = by_row(scales, shape[0], BLOCK)
    expected = values * rows.repeat_interleave(128, 1)[:, : shape[1]]
    assert torch.equal(multiplied(values.clone(), scales, BLOCK), expected)


def test_rounding_under_given_scales_is_that_of_nearest() -> None:
    weight = weight_of((200, 300))
    grid = rounding_of(BLOCK, torch.float32, [weight])
    found = nearest(weight, None, BLOCK, grid)
    again = rounded_to(weight, found.scales, BLOCK, grid)
    assert torch.equal(again.codes, found.codes)
    error = (found.dequantize() - weight).abs() / weight.abs()
    assert error[weight.abs() > 0.01 * weight.abs().amax()].amax() <= 1 / 16 + 1e-6
