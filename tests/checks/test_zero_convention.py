"""Zero points of the other version of GPTQ."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.checks.conftest import Folder, codes, verified

Copied = Callable[..., Folder]
Q = "model.layers.1.self_attn.q_proj"
Sources = Callable[[str], Path]


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize(("form", "label"), [("gptq", "gptq_v2"), ("gptq_w8", "gptq_v2")])
def test_symmetric_ones_under_the_other_label(
    copied: Copied, form: str, label: str, own: bool
) -> None:
    folder = copied(form) if own else copied(form).foreign()
    folder.block(checkpoint_format=label, format=label)
    found = verified(folder)
    assert found.counts["zero-convention"] == 14
    assert set(found.counts) - {"sum-differs"} == {"zero-convention"}


def test_version_2_under_the_label_of_version_1(copied: Copied) -> None:
    folder = copied("gptq").foreign()

    def plant(words: torch.Tensor) -> torch.Tensor:
        return torch.full_like(words, -0x77777778)

    folder.change(f"{Q}.qzeros", plant)
    assert codes(folder) == [("zero-convention", f"{Q}.qzeros")]


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("form", ["gptq_v2", "awq", "pack_asym"])
@pytest.mark.parametrize("shift", [-1, 1])
def test_asymmetric_ones_by_the_source_or_our_hashes(
    copied: Copied, sources: Sources, form: str, shift: int, own: bool
) -> None:
    folder = copied(form) if own else copied(form).foreign()
    name = f"{Q}.{'weight_zero_point' if form == 'pack_asym' else 'qzeros'}"
    step = 0x11111111 * shift
    folder.change(name, lambda words: words + step)
    source = None if own else str(sources("llama"))
    assert codes(folder, source=source) == [("zero-convention", Q)]


@pytest.mark.parametrize("shift", [-1, 1])
def test_asymmetric_ones_by_themselves(copied: Copied, shift: int) -> None:
    folder = copied("gptq_v2").foreign()
    folder.change(f"{Q}.qzeros", lambda words: words + 0x11111111 * shift)
    assert codes(folder) == [("zero-convention", Q)]
