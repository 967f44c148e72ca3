from collections.abc import Callable

import pytest
import torch

from quantkit.eval.metric import Scores


@pytest.fixture
def scores_of() -> Callable[..., Scores]:
    """Scores with the given tensors, every window a cluster of its own."""

    def make(**tensors: torch.Tensor) -> Scores:
        windows = len(next(iter(tensors.values()), torch.ones(4, 5)))
        if "floor" in tensors:
            windows = len(tensors["kl"])
        nll = tensors.pop("nll", torch.ones(windows, 5))
        return Scores(nll, tuple(range(windows)), **tensors)

    return make
