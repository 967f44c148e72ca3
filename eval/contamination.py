"""Screens that remove calibration text from an evaluation text."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from quantkit.calibration.chat import Tokenizer
from quantkit.calibration.text import read_documents
from quantkit.calibration.tokens import tokenize
from quantkit.checkpoint.manifest import read_manifest
from quantkit.core.errors import InputError, QuantkitError
from quantkit.eval.overlap import without_overlap
from quantkit.eval.text import EvaluationText
from quantkit.pipeline.folder import ModelFolder


def screen_by_manifest(
    artifact: ModelFolder, *, allow: bool = False
) -> Callable[[EvaluationText], EvaluationText]:
    """`without_overlap` for `artifact`, whose manifest names its calibration text.

    Without calibration the text is unchanged; if the calibration text is missing, a note says so.
    """

    def screen(text: EvaluationText) -> EvaluationText:
        manifest = read_manifest(artifact.source.folder)
        if not manifest.get("calibration"):
            return text
        tokenizer = artifact.tokenizer
        calibration, note = calibration_again(manifest, tokenizer)
        if calibration is None:
            return replace(text, notes=(*text.notes, *([note] if note else [])))
        return without_overlap(text, calibration, tokenizer, allow=allow)

    return screen


def screen_by_tokens(
    input_ids: torch.Tensor | None, original: ModelFolder
) -> Callable[[EvaluationText], EvaluationText]:
    """As `screen_by_manifest`, for calibration tokens `input_ids` (samples, length) int64.

    It never refuses the text, so that a finished run is evaluated; overlapping documents are noted.
    """

    def screen(text: EvaluationText) -> EvaluationText:
        if input_ids is None:
            return text
        seen, tokenizer = input_ids.numpy(), original.tokenizer
        try:
            return without_overlap(text, seen, tokenizer)
        except InputError:
            return without_overlap(text, seen, tokenizer, allow=True)

    return screen


def calibration_again(
    manifest: Mapping[str, Any], tokenizer: Tokenizer
) -> tuple[NDArray[np.int64] | None, str | None]:
    """Token ids (samples, length) int64, or None; if they are unavailable, a note with the reason.

    Tokens are computed again instead of being stored in the artifact. The bundled text, or a file
    of that name in the current folder, takes a second to tokenize and gives the same ids (the
    manifest has their SHA-256); stored hashes of 262,144 tokens would take 2 MB and reveal parts of
    a private text. A hub dataset is not downloaded again.
    """
    ledger = manifest.get("calibration")
    if not isinstance(ledger, Mapping):
        return None, None
    try:
        return _made_again(ledger, tokenizer), None
    except QuantkitError as error:
        return None, f"the overlap with the calibration text is unknown: {error.what}"


def _made_again(ledger: Mapping[str, Any], tokenizer: Tokenizer) -> NDArray[np.int64]:
    source, samples, length = (ledger.get(k) for k in ("source", "samples", "sequence_length"))
    if type(source) is not str or type(samples) is not int or type(length) is not int:
        raise InputError("the manifest does not name the calibration text")
    if source != "default" and Path(source).name != source:
        raise InputError(f"`{source}` is not downloaded again")
    if source != "default" and not Path(source).exists():
        raise InputError(f"`{source}` is not in the current folder")
    found = tokenize(read_documents(source), tokenizer, samples, length, source)
    if found.ledger.sha256 != ledger.get("sha256"):
        raise InputError(f"`{source}` has changed")
    ids: NDArray[np.int64] = found.input_ids.numpy()
    return ids
