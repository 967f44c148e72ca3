"""Open a model folder: its weights now, its tokenizer when it is first used."""

from functools import cache, partial

from quantkit.calibration.tokens import load_tokenizer
from quantkit.checkpoint.stored import Source
from quantkit.core.session import Session
from quantkit.model.open import open_model
from quantkit.pipeline.folder import ModelFolder


def open_folder(source: Source, session: Session = Session()) -> ModelFolder:
    """Open the folder of `source`; raises what `open_model` raises."""
    tokenizer = cache(partial(load_tokenizer, source.folder, session))
    return ModelFolder(source, open_model(source.folder, session), tokenizer)
