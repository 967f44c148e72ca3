"""Finds and removes evaluation text that also occurs in the calibration text."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from quantkit.core.errors import InputError
from quantkit.eval.text import EvaluationText

GRAM = 13
GRAM_CHARACTERS = 50
DOCUMENT_SHARE = 0.01
TOTAL_SHARE = 0.001

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
Hashes = NDArray[np.uint64]
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Overlap:
    """Fraction of tokens in runs of `gram` tokens that also occur in the calibration text.

    `documents`: fractions of the evaluation documents in order; `total`: that of all tokens.
    """

    gram: int
    documents: tuple[float, ...]
    total: float


def gram_length(tokenizer: Any, ids: Sequence[int] | Ids) -> int:
    """13 tokens, or with short tokens as many as contain 50 characters of this text.

    13 tokens of a usual vocabulary are about 50 characters, which two texts rarely share by chance
    (13-grams as in GPT-3, arXiv 2005.14165, appendix C). 13 single bytes are two words.
    """
    characters = len(tokenizer.decode(list(ids))) / max(1, len(ids))
    return max(GRAM, int(GRAM_CHARACTERS / max(characters, 1.0)) + 1)


def measure_overlap(
    calibration: Ids, documents: Sequence[Sequence[Ids]], gram: int = GRAM
) -> Overlap:
    """The overlap of each document with the calibration text.

    `calibration` is (samples, length) int64; a document is a list of windows (length,) int64. Runs
    do not cross the borders of rows and windows.
    """
    known = np.sort(gram_hashes(calibration, gram), axis=None)
    covered, tokens = [], []
    for windows in documents:
        covered.append(sum(int(_covered(window, known, gram).sum()) for window in windows))
        tokens.append(sum(len(window) for window in windows))
    shares = tuple(c / max(1, n) for c, n in zip(covered, tokens, strict=True))
    return Overlap(gram, shares, sum(covered) / max(1, sum(tokens)))


def gram_hashes(ids: Ids, gram: int) -> Hashes:
    """Hashes (..., length - gram + 1) uint64 of the runs of `gram` tokens in `ids` (..., length).

    A polynomial hash of the mixed ids modulo 2^64 (Karp and Rabin, IBM J. Res. Dev. 31, 1987). Two
    different runs collide with a probability of about 2^-60, a million runs and a million others
    with one of about 1e-6.
    """
    length = ids.shape[-1] - gram + 1
    if length < 1:
        return np.empty((*ids.shape[:-1], 0), dtype=np.uint64)
    mixed = _mixed(ids.astype(np.uint64))
    hashes = np.zeros((*ids.shape[:-1], length), dtype=np.uint64)
    for offset in range(gram):
        hashes *= _MULTIPLIER  # wraps, as it should
        hashes += mixed[..., offset : offset + length]
    return hashes


def without_overlap(
    text: EvaluationText, calibration: Ids, tokenizer: Any, *, allow: bool = False
) -> EvaluationText:
    """The text without documents above 1 % overlap, which `notes` lists.

    `allow` keeps and lists them. The protocol gets the overlap of the remaining text.

    Raises:
        InputError: without `allow`, if the rest has more than 0.1 % overlap or is empty.
    """
    documents = _windows(text)
    gram = gram_length(tokenizer, documents[0][0])
    found = measure_overlap(calibration, documents, gram)
    seen = [i for i, share in enumerate(found.documents) if share > DOCUMENT_SHARE]
    names = _named(text, found, seen)
    if allow:
        note = f"seen in calibration, but scored: {names}"
        return _stating(text, found.total, note if seen else None)
    left = [document for i, document in enumerate(documents) if i not in seen]
    rest = measure_overlap(calibration, left, gram).total
    if not left or rest > TOTAL_SHARE:
        raise InputError(
            f"{found.total:.2%} of the evaluation text was seen in calibration",
            why=f"both contain the same runs of {gram} tokens: {names or 'in many documents'}",
            hint="another --text, or --set allow_overlap=true to accept figures that are too good",
        )
    note = f"seen in calibration, left out: {names}"
    return _stating(_without(text, set(seen)), rest, note if seen else None)


def _windows(text: EvaluationText) -> list[list[Ids]]:
    """The token ids of each document's windows, without what fills them up."""
    documents: list[list[Ids]] = [[] for _ in text.documents]
    rows = zip(text.tokens, text.spans, text.clusters, strict=True)
    for row, (_, stop), document in rows:
        documents[document].append(row[: stop + 1].numpy())
    return documents


def _stating(text: EvaluationText, share: float, note: str | None) -> EvaluationText:
    before = text.protocol.get("overlap_13gram_fraction") or 0.0
    stated = dict(text.protocol) | {"overlap_13gram_fraction": max(share, before)}
    return replace(text, protocol=stated, notes=(*text.notes, *([note] if note else [])))


def _covered(ids: Ids, known: Hashes, gram: int) -> NDArray[np.bool_]:
    """Mask (length,) of the tokens within a known run."""
    hashes = gram_hashes(ids, gram)
    places = np.searchsorted(known, hashes).clip(max=max(0, len(known) - 1))
    hit = known[places] == hashes if len(known) else np.zeros(len(hashes), dtype=bool)
    edges = np.zeros(len(ids) + 1, dtype=np.int64)
    edges[: len(hit)] += hit
    edges[gram : gram + len(hit)] -= hit
    return np.cumsum(edges[:-1]) > 0


def _mixed(ids: Hashes) -> Hashes:
    """Ids spread over 64 bits (the finalizer of splitmix64): near ids become unlike."""
    mixed = (ids + np.uint64(1)) * _MULTIPLIER
    for shift, multiplier in zip((30, 27), _MIX, strict=True):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * multiplier
    return mixed ^ (mixed >> np.uint64(31))


def _named(text: EvaluationText, found: Overlap, indices: Iterable[int], most: int = 5) -> str:
    """The documents with the largest overlap, by name and share."""
    ordered = sorted(indices, key=lambda i: -found.documents[i])
    shown = [f"{text.documents[i].id} ({found.documents[i]:.0%})" for i in ordered[:most]]
    rest = len(ordered) - most
    return ", ".join([*shown, *([f"{rest} more"] if rest > 0 else [])])


def _without(text: EvaluationText, dropped: set[int]) -> EvaluationText:
    if not dropped:
        return text
    kept = [i for i in range(len(text.documents)) if i not in dropped]
    rows = [row for row, document in enumerate(text.clusters) if document not in dropped]
    tokens = text.tokens[torch.tensor(rows)]
    number = {document: place for place, document in enumerate(kept)}
    digest = hashlib.sha256(tokens.numpy().astype("<i8").tobytes()).hexdigest()
    changed = {"tokens_sha256": digest, "documents": len(kept), "windows": len(rows)}
    return replace(
        text,
        tokens=tokens,
        spans=tuple(text.spans[row] for row in rows),
        clusters=tuple(number[text.clusters[row]] for row in rows),
        documents=tuple(text.documents[i] for i in kept),
        protocol=dict(text.protocol) | changed,
    )
