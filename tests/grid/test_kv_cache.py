"""The scales that are tried for keys and values."""

import math

import pytest
import torch

from quantkit.grid.kv_cache import CacheScales, candidates, spanning

LARGEST = [0.0, 1e-30, 1e-4, 0.9, 1.0, 5.7, 448.0, 448.1, 9000.0, 3e38]


@pytest.mark.parametrize("largest", LARGEST)
def test_no_scale_that_is_tried_clips(largest: float) -> None:
    tried = candidates(largest)
    assert all(largest <= 448 * scale for scale in tried)
    assert tried[0] == spanning(largest)
    assert (1.0 in tried) == (largest <= 448)
    assert len(set(tried)) == len(tried)
    assert any(math.frexp(scale)[0] == 0.5 for scale in tried)


@pytest.mark.parametrize("largest", LARGEST)
def test_bf16_has_every_scale(largest: float) -> None:
    for scale in candidates(largest):
        assert torch.tensor(scale).bfloat16().item() == scale


def test_values_are_those_of_torchs_own_e4m3() -> None:
    states = torch.randn(2, 3, 5, 8, generator=torch.Generator().manual_seed(0))
    key, value = CacheScales(0.013, 0.5).change(states, 3 * states)
    for found, given, scale in ((key, states, 0.013), (value, 3 * states, 0.5)):
        expected = (given / scale).to(torch.float8_e4m3fn).float() * scale
        assert torch.equal(found, expected)
        assert not torch.equal(found, given)
