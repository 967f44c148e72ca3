"""Token windows for a prepared model."""

from dataclasses import replace
from pathlib import Path

from quantkit.calibration.text import read_documents
from quantkit.calibration.tokens import Calibration, load_tokenizer, tokenize
from quantkit.model.open import context_length
from quantkit.pipeline.prepare import Prepared


def calibrate(prepared: Prepared, *, trust_remote_code: bool = False) -> Calibration | None:
    """The recipe's calibration text as the model's tokens; None where the recipe wants no samples.

    Windows are no longer than the model's context.

    Raises:
        InputError: no tokenizer, no such text, or too little of it.
    """
    wanted = prepared.plan.recipe.calibration
    if wanted.samples == 0:
        return None
    folder = prepared.model.checkpoint.folder
    tokenizer = load_tokenizer(folder, trust_remote_code=trust_remote_code)
    length = min(wanted.sequence_length, context_length(prepared.model))
    documents = read_documents(wanted.text)
    found = tokenize(documents, tokenizer, wanted.samples, length, wanted.text)
    path = Path(wanted.text)
    label = path.name if path.exists() else wanted.text
    return replace(found, ledger=replace(found.ledger, source=label))
