"""Screens for evaluation text: what an artifact was calibrated on is no test of it."""

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
    """`without_overlap` for `artifact`, if its manifest says what calibrated it.

    The text as it is, for a model that nobody calibrated; with a note, where that text is gone.
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
    """The same for an artifact in the making, whose calibration tokens are at hand.

    It never refuses: by then the work of hours is done, and a text that was seen is named.
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
    """Token ids (samples, length), or None; and where they cannot be had, a note that says why.

    Tokens are made again rather than kept in the artifact: the text that ships, and a file of that
    name in the current folder, cost a second to tokenize and give the very same ids (the manifest
    has their SHA-256), while hashes of 262,144 tokens would add 2 MB and say something of a text
    that may be private. A data set of the hub is not fetched for it.
    """
    ledger = manifest.get("calibration")
    if not isinstance(ledger, Mapping):
        return None, None
    try:
        return _made_again(ledger, tokenizer), None
    except QuantkitError as error:
        return None, f"whether this text was seen in calibration is not known: {error.what}"


def _made_again(ledger: Mapping[str, Any], tokenizer: Tokenizer) -> NDArray[np.int64]:
    source, samples, length = (ledger.get(k) for k in ("source", "samples", "sequence_length"))
    if type(source) is not str or type(samples) is not int or type(length) is not int:
        raise InputError("the manifest does not say what that was")
    if source != "default" and Path(source).name != source:
        raise InputError(f"`{source}` is not fetched again")
    if source != "default" and not Path(source).exists():
        raise InputError(f"`{source}` is not in this folder")
    found = tokenize(read_documents(source), tokenizer, samples, length, source)
    if found.ledger.sha256 != ledger.get("sha256"):
        raise InputError(f"`{source}` is not what it was")
    ids: NDArray[np.int64] = found.input_ids.numpy()
    return ids
