"""Zero points that the config rules out."""

from collections.abc import Callable

import torch

from tests.checks.conftest import Folder, codes

Copied = Callable[..., Folder]
Q = "model.layers.1.self_attn.q_proj"


def test_one_that_is_not_the_middle_of_a_symmetric_weight(copied: Copied) -> None:
    folder = copied("gptq")

    def plant(words: torch.Tensor) -> torch.Tensor:
        words[0, 0] ^= 3
        return words

    folder.change(f"{Q}.qzeros", plant)
    assert codes(folder) == [("zero-points", f"{Q}.qzeros")]


def test_one_that_engines_read_differently(copied: Copied) -> None:
    folder = copied("gptq_v2").foreign()
    folder.block(checkpoint_format="gptq", format="gptq")

    def plant(words: torch.Tensor) -> torch.Tensor:
        words = words - 0x11111111
        words[0, 0] |= 15
        return words

    for name in list(folder.tensors()):
        if name.endswith(".qzeros"):
            folder.change(name, plant if name.startswith(Q) else lambda w: w - 0x11111111)
    assert codes(folder) == [("zero-points", f"{Q}.qzeros")]
