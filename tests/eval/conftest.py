from collections.abc import Callable
from typing import Any

import pytest
import torch

from quantkit.eval.text import EvaluationText, ScoredDocument


@pytest.fixture
def text_of_tokens() -> Callable[..., EvaluationText]:
    """A text of token ids (windows, length), each window a document scored as a whole."""

    def make(tokens: torch.Tensor, vocabulary: int = 256, **changes: Any) -> EvaluationText:
        windows, length = tokens.shape
        fields: dict[str, Any] = {
            "tokens": tokens,
            "spans": ((0, length - 1),) * windows,
            "clusters": tuple(range(windows)),
            "documents": tuple(ScoredDocument(f"{i}", "text") for i in range(windows)),
            "vocabulary": vocabulary,
            "vocabulary_sha256": "v",
            "protocol": {
                "name": "test", "text": "made", "tokens_sha256": "t",
                "windows": windows, "sequence_length": length - 1,
            },
        }  # fmt: skip
        return EvaluationText(**fields | changes)

    return make
