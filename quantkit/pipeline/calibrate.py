"""Token windows for a prepared model, and remarks on them."""

from dataclasses import replace
from pathlib import Path

from quantkit.calibration.text import read_documents
from quantkit.calibration.tokens import Calibration, tokenize
from quantkit.core.recipe import CalibrationSpec, Recipe
from quantkit.model.opened import context_length
from quantkit.pipeline.folder import ModelFolder


def calibrate(folder: ModelFolder, wanted: CalibrationSpec) -> Calibration | None:
    """The recipe's calibration text as the model's tokens; None where it asks for no samples.

    Windows are no longer than the model's context.

    Raises:
        InputError: the tokenizer or the text is missing, or the text is too short.
    """
    if wanted.samples == 0:
        return None
    tokenizer = folder.tokenizer
    length = min(wanted.sequence_length, context_length(folder.model))
    documents = read_documents(wanted.text)
    found = tokenize(documents, tokenizer, wanted.samples, length, wanted.text)
    return replace(found, ledger=replace(found.ledger, source=text_label(wanted.text)))


def text_label(text: str) -> str:
    """The name of a calibration text for an artifact: without the path to it."""
    path = Path(text)
    return path.resolve().name if path.exists() else text


def shareable(recipe: Recipe) -> Recipe:
    """The recipe for stored results: it names the calibration text without its path."""
    text = text_label(recipe.calibration.text)
    return replace(recipe, calibration=replace(recipe.calibration, text=text))


def calibration_remarks(calibration: Calibration, wanted: CalibrationSpec) -> tuple[str, ...]:
    """Remarks where the calibration differs from the `wanted` one."""
    found = calibration.ledger
    remarks = []
    if found.samples < wanted.samples:
        remarks.append(
            f"the calibration text fills only {found.samples} of {wanted.samples} windows"
        )
    if found.sequence_length < wanted.sequence_length:
        remarks.append(
            f"calibration windows have {found.sequence_length} tokens, not "
            f"{wanted.sequence_length}: the model's context is shorter"
        )
    if found.chat_template_failed:
        remarks.append(
            f"the chat template failed on {found.chat_template_failed} calibration conversations, "
            "which were used as plain text"
        )
    return tuple(remarks)
