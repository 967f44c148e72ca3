"""A model folder opened once for a run: its weights and its tokenizer."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from quantkit.calibration.chat import Tokenizer
from quantkit.checkpoint.stored import Source
from quantkit.model.opened import OpenModel


@dataclass(frozen=True)
class ModelFolder:
    """Where a model comes from, its weights, and its tokenizer, which is loaded when first used."""

    source: Source
    model: OpenModel
    load_tokenizer: Callable[[], Tokenizer]

    @property
    def tokenizer(self) -> Tokenizer:
        """The folder's tokenizer.

        Raises:
            InputError: the tokenizer is missing or cannot be read.
            RefusedError: it is custom code that the session does not trust.
        """
        return self.load_tokenizer()

    def artifact(self, folder: Path, model: OpenModel) -> "ModelFolder":
        """An artifact made of this model, opened as `model`; it has the same tokenizer."""
        return replace(self, source=Source(folder), model=model)
