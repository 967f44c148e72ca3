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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from quantkit.checkpoint.files import inside, read_json, sha256
from quantkit.checkpoint.reader import CONFIG, Checkpoint, open_checkpoint
from quantkit.checkpoint.shards import TensorSpec
from quantkit.checkpoint.writer import DEFAULT_SHARD_SIZE, ArtifactWriter
from quantkit.core.errors import InputError, IntegrityError, RefusedError
from quantkit.eval.results import Subject
from quantkit.eval.scoring import ReferenceScores, Side, TokenScores, slices
from quantkit.eval.text import EvaluationText
from quantkit.eval.topk import KEPT, SAMPLES, TopK, compress, divergence
from quantkit.model.open import OpenModel
from quantkit.model.skeleton import build_skeleton, read_config

INDEX = "index.json"
SCHEMA = "quantkit.reference/1"
HEAD_CONFIG = f"head/{CONFIG}"

Form = Literal["hidden", "topk"]


@dataclass(frozen=True)
class Reference:
    """What a comparison needs of the original: computed once, it serves any number of artifacts."""

    scores: ReferenceScores
    subject: Subject
    dtype: str
    vocabulary_sha256: str
    tokens_sha256: str
    floor: torch.Tensor | None


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


def store_key(
    weights_sha256: str, text: EvaluationText, dtype: str, form: Form = "hidden"
) -> str:
    """The name of a stored reference: the same for the same bytes, tokens, protocol and dtype."""
    parts = [
        SCHEMA, form, KEPT, SAMPLES, weights_sha256, dtype,
        text.protocol["name"], text.protocol["tokens_sha256"], list(text.spans),
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def is_store(folder: Path) -> bool:
    """Whether the folder says that it is a stored reference."""
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
            "a stored reference cannot be stored again", hint="the original model as --reference"
        )
    writing = _hidden(side, text, model) if form == "hidden" else _topk(side, text)
    specs = [*_floor_specs(reference), *writing.specs]
    with ArtifactWriter(output, specs, DEFAULT_SHARD_SIZE) as writer:
        for name, tensor in writing.tensors:
            writer.add(name, tensor)
        if reference.floor is not None:
            writer.add("floor", reference.floor)
        writer.finish_weights()
        writer.write_json(CONFIG, {"quantkit_reference": form})
        if form == "hidden":
            writer.write_json(HEAD_CONFIG, model.checkpoint.config)
        paths = sorted(p for p in writer.folder.rglob("*.*") if p.is_file())
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


def read_store(folder: Path, text: EvaluationText) -> Reference:
    """The reference that a folder holds, for comparisons on `text`.

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
        _hidden_side(checkpoint, index, text)
        if index.form == "hidden"
        else TopKScores(checkpoint, text.spans)
    )
    floor = checkpoint.tensor("floor") if "floor" in checkpoint.names else None
    return Reference(
        scores, index.reference, index.dtype, index.vocabulary_sha256, index.tokens_sha256, floor
    )


@dataclass(frozen=True)
class _Writing:
    specs: list[TensorSpec]
    tensors: Iterator[tuple[str, torch.Tensor]]


def _floor_specs(reference: Reference) -> list[TensorSpec]:
    return [] if reference.floor is None else [TensorSpec.like("floor", reference.floor)]


def _hidden(side: Side, text: EvaluationText, model: OpenModel) -> _Writing:
    names = _head_parameters(model)
    row = side.rows(0, slice(0, 1))
    specs = [
        TensorSpec.like(name, torch.empty(shape, dtype=model.dtype, device="meta"))
        for name, shape in names.items()
    ]
    for window, (start, stop) in enumerate(text.spans):
        states = torch.empty(stop - start, row.shape[1], dtype=row.dtype, device="meta")
        specs.append(TensorSpec.like(f"hidden.{window}", states))

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        for name in names:
            yield name, model.parameter(name)
        for window, span in enumerate(text.spans):
            yield f"hidden.{window}", side.rows(window, slice(*span))

    return _Writing(specs, tensors())


def _head_parameters(model: OpenModel) -> dict[str, torch.Size]:
    """Parameters outside the blocks, less the input embedding where the head has weights of its
    own.
    """  # noqa: D205 - one line is not enough
    skeleton = model.skeleton
    network = skeleton.model
    inputs = network.get_input_embeddings()
    embedding = {name for name, module in network.named_modules() if module is inputs}
    return {
        name: parameter.shape
        for name, parameter in network.named_parameters(remove_duplicate=False)
        if not name.startswith(f"{skeleton.prefix}.") and name.rpartition(".")[0] not in embedding
    }


def _hidden_side(checkpoint: Checkpoint, index: StoreIndex, text: EvaluationText) -> Side:
    skeleton = build_skeleton(read_config(checkpoint.folder / Path(HEAD_CONFIG).parent))
    dtype: torch.dtype = getattr(torch, index.dtype)
    model = OpenModel(skeleton, checkpoint, None, dtype, dtype, torch.device("cpu"))
    states = _Cached(checkpoint)

    def rows(window: int, positions: slice) -> torch.Tensor:
        start = text.spans[window][0]
        found = states.window(window)["hidden"]
        return found[positions.start - start : positions.stop - start]

    return Side(rows, model.head(), text.vocabulary)


class _Cached:
    """The stored tensors of one window at a time, by the first part of their names."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._window = -1
        self._tensors: dict[str, torch.Tensor] = {}

    def window(self, window: int) -> dict[str, torch.Tensor]:
        if window != self._window:
            ending = f".{window}"
            names = [n for n in self._checkpoint.names if n.endswith(ending)]
            kept = (n for n in names if n.count(".") == 1)
            self._tensors = {n.removesuffix(ending): self._checkpoint.tensor(n) for n in kept}
            self._window = window
        return self._tensors


def _topk(side: Side, text: EvaluationText) -> _Writing:
    kept = min(KEPT, side.vocabulary)
    columns = {
        "ids": (torch.int32, kept),
        "log_p": (torch.float32, kept),
        "tail": (torch.float32, None),
        "sample_ids": (torch.int32, SAMPLES),
        "sample_log_p": (torch.float32, SAMPLES),
        "nll": (torch.float32, None),
    }
    specs = []
    for window, (start, stop) in enumerate(text.spans):
        for name, (dtype, width) in columns.items():
            shape = (stop - start,) if width is None else (stop - start, width)
            empty = torch.empty(shape, dtype=dtype, device="meta")
            specs.append(TensorSpec.like(f"{name}.{window}", empty))

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        for window in range(len(text.spans)):
            for name, tensor in _compressed(side, text, window).items():
                yield f"{name}.{window}", tensor

    return _Writing(specs, tensors())


def _compressed(side: Side, text: EvaluationText, window: int) -> dict[str, torch.Tensor]:
    """One window's rows; samples depend on the window alone, not on how it is sliced."""
    generator = torch.Generator().manual_seed(window)
    parts: dict[str, list[torch.Tensor]] = {}
    for positions in slices(text.spans[window], side.vocabulary):
        log_p = side.log_probs(window, positions)
        found = vars(compress(log_p, generator))
        targets = text.targets(window, positions).to(log_p.device)
        for name, tensor in {**found, "nll": -log_p.gather(1, targets[:, None])[:, 0]}.items():
            parts.setdefault(name, []).append(tensor)
    return {name: torch.cat(tensors) for name, tensors in parts.items()}


class TopKScores:
    """A stored reference of form `topk`, as `ReferenceScores`."""

    def __init__(self, checkpoint: Checkpoint, spans: tuple[tuple[int, int], ...]) -> None:
        """`spans` are the scored positions of each window."""
        if not all(f"sample_ids.{window}" in checkpoint.names for window in range(len(spans))):
            raise RefusedError(
                f"`{checkpoint.folder.name}` has no samples of the tail",
                why="without them the KL of a few hundred tokens is 10 % too low",
                hint="quantkit eval --save-reference, which keeps them",
            )
        self._states = _Cached(checkpoint)
        self._spans = spans

    def against(
        self, window: int, positions: slice, log_q: torch.Tensor, targets: torch.Tensor
    ) -> TokenScores:
        """Scores by their names in `Scores.beside`; `targets` were scored when it was stored."""
        del targets
        start = self._spans[window][0]
        part = slice(positions.start - start, positions.stop - start)
        stored = {k: v[part].to(log_q.device) for k, v in self._states.window(window).items()}
        nll = stored.pop("nll")
        kept = TopK(**stored)
        found = divergence(kept, log_q)
        return {
            "nll": nll,
            "kl": found.estimate,
            "lower": found.lower,
            "upper": found.upper,
            "variance": found.variance,
            "agreement": (kept.ids[:, 0] == log_q.argmax(dim=-1)).float(),
            "confidence": kept.log_p[:, 0].exp(),
        }


def _checked_index(folder: Path) -> StoreIndex:
    try:
        index = StoreIndex.model_validate(read_json(inside(folder, INDEX)))
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(
            f"`{folder}` is no stored reference",
            why=f"{INDEX}, {'.'.join(map(str, first['loc']))}: {first['msg']}",
            hint="the folder that quantkit eval --save-reference made",
        ) from None
    for name, expected in index.files.items():
        if sha256(inside(folder, name)) != expected:
            raise IntegrityError(
                f"`{name}` of the stored reference is not what was stored",
                why=f"its SHA-256 differs from that in {INDEX}",
                hint="make the reference again",
            )
    return index
