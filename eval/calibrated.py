"""The calibration tokens of an artifact, made again from what its manifest says of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.calibration.text import read_documents
from quantkit.calibration.tokens import Tokenizer, tokenize
from quantkit.core.errors import InputError, QuantkitError


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
