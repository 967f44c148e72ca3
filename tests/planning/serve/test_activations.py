from collections.abc import Callable

import pytest

from quantkit.planning.model.weights import PlannedModel
from quantkit.planning.serve.activations import activation_peak

Planned = Callable[..., PlannedModel]


def test_llama_3_8b_brackets_what_was_measured(planned: Planned) -> None:
    """8192 tokens: 67 MB in, 705 between, 67 of residual; 1.35 GB with the sampler's logits."""
    architecture = planned("Llama-3-8B").architecture
    assert activation_peak(architecture, 8192, 0).bytes == 8192 * (4 * 4096 + 6 * 14336)
    low, high = (activation_peak(architecture, 8192, rows).bytes for rows in (256, 1024))
    assert low < 1.26 * 2**30 < high


@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("Llama-3-70B", 6 * 28672),
        ("Falcon-7B", 4 * 18176),  # no gate
        ("Qwen3-30B-A3B", 8 * (6 * 768 + 2 * 2048)),  # a copy of the state for each expert
        ("DeepSeek-V3", 8 * (6 * 2048 + 2 * 7168) + 6 * 2048),  # and an expert for all
    ],
)
def test_the_widest_layer_decides(planned: Planned, name: str, width: int) -> None:
    architecture = planned(name).architecture
    expected = 100 * (4 * architecture.hidden + width)
    assert activation_peak(architecture, 100, 0).bytes == expected


def test_ranks_share_what_lies_between_and_not_the_residual(planned: Planned) -> None:
    architecture = planned("Llama-3-70B").architecture
    one, two = (activation_peak(architecture, 1000, 0, t).bytes for t in (1, 2))
    assert one - two == 1000 * 6 * 28672 // 2
    moe = planned("Qwen3-30B-A3B").architecture
    one, two = (activation_peak(moe, 1000, 0, t).bytes for t in (1, 2))
    assert one - two == 1000 * 8 * 6 * 768 // 2
