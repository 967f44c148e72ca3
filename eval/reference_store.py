"""A reference computed once and kept in a folder: `index.json`, weights of the head, or none.

Form `hidden` holds what the last block gives at every scored position, in the model's own dtype,
and the norm and head that follow: the comparison is the same as with the model. Form `topk` holds
the likeliest tokens with their log probabilities and a few samples of the rest: it is smaller, can
be given away without a single weight, and its KL is an estimate with an error and proven bounds.

A folder belongs to one content of the weights, one set of token ids, one protocol and one dtype;
`index.json` states them and the SHA-256 of every other file.
"""

import hashlib
import json
from pathlib import Path
from typing import Final, Literal

import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from quantkit.checkpoint.claim import MARKER
from quantkit.checkpoint.filenames import CONFIG
from quantkit.checkpoint.files import inside, read_json, sha256
from quantkit.checkpoint.reader import open_checkpoint
from quantkit.checkpoint.shards import TensorSpec
from quantkit.checkpoint.writer import ArtifactWriter
from quantkit.core.errors import InputError, IntegrityError, RefusedError
from quantkit.eval.scoring import Reference, ReferenceScores, Side
from quantkit.eval.stored_forms import TopKScores, hidden_side, hidden_tensors, topk_tensors
from quantkit.eval.text import EvaluationText
from quantkit.eval.topk import KEPT, SAMPLES
from quantkit.model.opened import OpenModel
from quantkit.results.schema import Subject

INDEX = "index.json"
SCHEMA: Final = "quantkit.reference/1"
HEAD_CONFIG = f"head/{CONFIG}"

CPU = torch.device("cpu")
Form = Literal["hidden", "topk"]


class StoreIndex(BaseModel):
    """`index.json`: what the folder holds and what it belongs to."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    schema_version: Literal["quantkit.reference/1"] = SCHEMA
    form: Form
    key: str
    reference: Subject
    dtype: str
    protocol: str
    tokens_sha256: str
    vocabulary_sha256: str
    files: dict[str, str]


def store_key(weights_sha256: str, text: EvaluationText, dtype: str, form: Form = "hidden") -> str:
    """The name of a stored reference: the same for the same bytes, tokens, protocol and dtype."""
    parts = [
        SCHEMA, form, KEPT, SAMPLES, weights_sha256, dtype,
        text.protocol["name"], text.protocol["tokens_sha256"], list(text.spans),
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def is_store(folder: Path) -> bool:
    """Whether the folder contains a stored reference."""
    if not (folder / INDEX).is_file():
        return False
    found = read_json(inside(folder, INDEX))
    return isinstance(found, dict) and str(found.get("schema_version")).startswith(
        SCHEMA.partition("/")[0]
    )


def write_store(
    output: Path,
    reference: Reference,
    model: OpenModel,
    text: EvaluationText,
    form: Form = "hidden",
) -> Path:
    """A computed reference as a new folder; `model` is what it was computed from.

    Raises:
        InputError: the output exists. ResourceError: not enough disk. RefusedError: it was read
            from a store itself.
    """
    side = reference.scores
    if not isinstance(side, Side):
        raise RefusedError(
            "a stored reference cannot be saved again", hint="the original model as --reference"
        )
    writing = hidden_tensors(side, text, model) if form == "hidden" else topk_tensors(side, text)
    floor = [] if reference.floor is None else [TensorSpec.like("floor", reference.floor)]
    with ArtifactWriter(output, [*floor, *writing.specs]) as writer:
        for name, tensor in writing.tensors:
            writer.add(name, tensor)
        if reference.floor is not None:
            writer.add("floor", reference.floor)
        writer.finish_weights()
        writer.write_json(CONFIG, {"quantkit_reference": form})
        if form == "hidden":
            writer.write_json(HEAD_CONFIG, model.checkpoint.config)
        found = (p for p in writer.folder.rglob("*.*") if p.is_file())
        paths = sorted(p for p in found if p.name != MARKER)
        index = StoreIndex(
            form=form,
            key=store_key(str(reference.subject.sha256), text, reference.dtype, form),
            reference=reference.subject.model_copy(update={"form": form}),
            dtype=reference.dtype,
            protocol=text.protocol["name"],
            tokens_sha256=reference.tokens_sha256,
            vocabulary_sha256=reference.vocabulary_sha256,
            files={p.relative_to(writer.folder).as_posix(): sha256(p) for p in paths},
        )
        writer.write_json(INDEX, index.model_dump(mode="json"))
        return writer.publish()


def read_store(folder: Path, text: EvaluationText, device: torch.device = CPU) -> Reference:
    """The reference that a folder holds, for comparisons on `text`, computed on `device`.

    Raises:
        InputError: it is no such folder, or belongs to another text or protocol.
        IntegrityError: a file is not what it was when it was written.
    """
    index = _checked_index(folder)
    for what, stored, own in (
        ("protocol", index.protocol, text.protocol["name"]),
        ("SHA-256 of the token ids", index.tokens_sha256, text.protocol["tokens_sha256"]),
    ):
        if stored != own:
            raise InputError(
                f"the stored reference `{folder.name}` belongs to another text",
                why=f"its {what} is {stored[:32]}, that of this evaluation {own[:32]}",
                hint="the --text, --protocol, --sequence-length and --windows it was made with",
            )
    checkpoint = open_checkpoint(folder)
    scores: ReferenceScores = (
        hidden_side(checkpoint, folder / "head", getattr(torch, index.dtype), text, device)
        if index.form == "hidden"
        else TopKScores(checkpoint, len(text.spans))
    )
    floor = checkpoint.tensor("floor") if "floor" in checkpoint.names else None
    return Reference(
        scores, index.reference, index.dtype, index.vocabulary_sha256, index.tokens_sha256, floor
    )


def _checked_index(folder: Path) -> StoreIndex:
    try:
        index = StoreIndex.model_validate(read_json(inside(folder, INDEX)))
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(
            f"`{folder}` contains no stored reference",
            why=f"{INDEX}, {'.'.join(map(str, first['loc']))}: {first['msg']}",
            hint="the folder that quantkit eval --save-reference made",
        ) from None
    for name, expected in index.files.items():
        if sha256(inside(folder, name)) != expected:
            raise IntegrityError(
                f"`{name}` of the stored reference has changed",
                why=f"its SHA-256 differs from that in {INDEX}",
                hint="make the reference again",
            )
    return index
