from collections.abc import Callable

import pytest
import torch

from quantkit.eval.metric import Scores
from quantkit.eval.text import ScoredDocument


@pytest.fixture
def scores_of() -> Callable[..., Scores]:
    """Scores from tensors (documents, tokens), each row a document of one domain."""

    def make(
        nll: torch.Tensor | None = None,
        floor: torch.Tensor | None = None,
        domains: str = "",
        **beside: torch.Tensor,
    ) -> Scores:
        shape = next((x.shape for x in (nll, *beside.values()) if x is not None), (4, 5))
        documents, tokens = shape
        if "kl" in beside and "confidence" not in beside:
            beside["confidence"] = torch.full(shape, 0.4)
        return Scores(
            nll=(torch.ones(shape) if nll is None else nll).flatten(),
            document=torch.arange(documents).repeat_interleave(tokens),
            context=torch.arange(1, tokens + 1).repeat(documents),
            documents=tuple(
                ScoredDocument(f"{i}", domains[i] if domains else "text") for i in range(documents)
            ),
            beside={name: tensor.flatten() for name, tensor in beside.items()},
            floor=floor,
        )

    return make
