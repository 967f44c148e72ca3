import pytest
import torch

from quantkit.core.scheme import Scheme
from quantkit.grid.affine import AffineGrid
from quantkit.grid.nearest import importance_of, nearest

BITS = (2, 3, 4, 8)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("group_size", [32, 64, None])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("searched", [True, False])
def test_what_lies_on_the_grid_comes_back(
    bits: int, group_size: int | None, symmetric: bool, searched: bool
) -> None:
    """quantize(dequantize(q)) == q, groups touching the ends of their range."""
    generator = torch.Generator().manual_seed(bits)
    codes = torch.randint(0, 1 << bits, (24, 128), generator=generator).view(24, -1, 32)
    codes[..., 0], codes[..., 1] = 0, (1 << bits) - 1
    scheme = Scheme(bits=bits, group_size=group_size, symmetric=symmetric)
    grid = AffineGrid(bits, symmetric, torch.bfloat16)
    groups = scheme.groups(128)
    scales = torch.exp2(torch.randint(-9, -4, (24, groups), generator=generator).float())
    weight = ((codes.view(24, groups, -1) - (1 << (bits - 1))) * scales[..., None]).view(24, 128)
    again = nearest(weight, torch.ones(128) if searched else None, scheme, grid)
    assert torch.equal(again.dequantize(), weight)
    once_more = nearest(again.dequantize(), torch.ones(128) if searched else None, scheme, grid)
    assert torch.equal(once_more.codes, again.codes)
    assert torch.equal(once_more.scales, again.scales)


def test_dead_groups_are_zeros_under_scale_one() -> None:
    weight = torch.zeros(3, 64)
    for symmetric in (True, False):
        grid = AffineGrid(4, symmetric, torch.float16)
        scheme = Scheme(group_size=32, symmetric=symmetric)
        qtensor = nearest(weight, torch.ones(64), scheme, grid)
        assert (qtensor.scales == 1).all()
        assert torch.equal(qtensor.dequantize(), weight)


def test_channels_never_seen_still_count() -> None:
    assert (importance_of(torch.tensor([0.0, 4.0, 0.0])) > 0).all()
    assert torch.equal(importance_of(torch.zeros(3)), torch.ones(3))


def test_smaller_groups_and_more_bits_lose_less() -> None:
    generator = torch.Generator().manual_seed(9)
    weight = torch.randn(64, 256, generator=generator)
    importance = torch.rand(256, generator=generator) ** 3

    def lost(bits: int, group_size: int | None) -> float:
        grid = AffineGrid(bits, symmetric=True, dtype=torch.float32)
        qtensor = nearest(weight, importance, Scheme(bits=bits, group_size=group_size), grid)
        return float(((qtensor.dequantize() - weight).square() @ importance).sum())

    by_bits = [lost(bits, 64) for bits in BITS]
    assert by_bits == sorted(by_bits, reverse=True)
    by_size = [lost(4, size) for size in (None, 128, 64, 32)]
    assert by_size == sorted(by_size, reverse=True)
