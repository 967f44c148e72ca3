from collections.abc import Callable

import torch

from quantkit.core.facts import LinearFacts
from quantkit.core.scheme import Scheme
from quantkit.formats.gptq_v2 import FORMAT
from quantkit.grid.qtensor import QTensor


def test_holds_every_zero_point(random_qtensor: Callable[..., QTensor]) -> None:
    scheme = Scheme("int", 3, 32, symmetric=False)
    qtensor = random_qtensor(scheme, 32, 128)
    assert qtensor.zeros is not None
    qtensor.zeros.copy_((torch.arange(128) % 8).view(32, 4))
    found = FORMAT.decode(FORMAT.encode(qtensor, ""), scheme, LinearFacts("x", 32, 128))
    assert found.zeros is not None
    assert torch.equal(found.zeros, qtensor.zeros)
    assert FORMAT.check(scheme, LinearFacts("x", 32, 128)) is None
