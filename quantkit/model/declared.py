"""What config and headers of a folder say of its tensors, and where they contradict each other.

`open_model` refuses a folder at its first fault; `verify` names every one of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from quantkit.checkpoint.checkpoint import Checkpoint
from quantkit.checkpoint.coded import Coding
from quantkit.checkpoint.dtypes import TORCH_DTYPES
from quantkit.checkpoint.manifest import read_manifest
from quantkit.checkpoint.quantization import dense_dtype, quantization_block
from quantkit.checkpoint.reader import open_checkpoint
from quantkit.core.errors import InputError, QuantkitError, RefusedError
from quantkit.core.facts import Layout, LinearFacts
from quantkit.core.format import KEY_SCALE, VALUE_SCALE, Format
from quantkit.core.scheme import Scheme
from quantkit.core.session import Session
from quantkit.model.opened import OpenModel
from quantkit.model.quantized import stated_form
from quantkit.model.skeleton import (
    build_skeleton,
    is_linear,
    linear_facts,
    persistent_buffers,
    read_config,
    tied_to,
)
from quantkit.model.unclaimed import PASSED_OVER, passed_over
from quantkit.model.weight_map import Place, map_weights

DRAFT = re.compile(r"(^|\.)(mtp|nextn|eagle)(\.|_)")
"""In the names of layers that predict more tokens, which a model's class may lack."""


@dataclass(frozen=True)
class DeclaredLinear:
    """A linear that the config calls quantized.

    `stored`: its name in the files. `parts`: what the format stores of it -> the stored tensor,
    None where that is missing; `layout`: their dtypes and shapes.
    """

    path: str
    stored: str
    scheme: Scheme
    facts: LinearFacts
    layout: Layout
    parts: Mapping[str, str | None]

    def name(self, part: str) -> str:
        """The stored name of one part, or the one that it should have."""
        return self.parts[part] or f"{self.stored}.{part}"


@dataclass(frozen=True)
class Declared:
    """A folder, the model that its config describes, and each tensor's place in both.

    `linears`: quantized, and stored as such at least in part. `plain`: stored names of linears
    that the config calls quantized and that are stored as floats. `refused`: linears whose scheme
    cannot be read, and why. `dense`: each other tensor that the model loads -> its place and shape.
    """

    model: OpenModel
    coding: Coding | None
    linears: tuple[DeclaredLinear, ...]
    plain: tuple[str, ...]
    refused: Mapping[str, QuantkitError]
    dense: Mapping[str, tuple[Place | None, tuple[int, ...]]]
    manifest: Mapping[str, Any] = field(default_factory=dict)

    @property
    def checkpoint(self) -> Checkpoint:
        """The folder's files; `stored` has the tensors as they lie there."""
        return self.model.checkpoint

    @property
    def files(self) -> Mapping[str, Any]:
        """Every tensor as it is stored, codes included."""
        return self.checkpoint.stored or self.checkpoint.names

    @property
    def format(self) -> Format | None:
        """The format of quantized linears; None where weights are only decoded, or are plain."""
        return self.model.format

    @cached_property
    def used(self) -> frozenset[str]:
        """Every stored tensor that the model needs, or that its quantization does."""
        found = {name for place, _ in self.dense.values() if place for name in place.names}
        found |= {name for each in self.linears for name in each.parts.values() if name}
        if self.coding is not None:
            found |= self.coding.parts | set(self.coding.dropped)
        return frozenset(found)

    @cached_property
    def over(self) -> tuple[str, ...]:
        """Stored tensors that nothing in the config asks for."""
        ignored = getattr(self.model.skeleton.model, "_keys_to_ignore_on_load_unexpected", None)
        passed = (*PASSED_OVER, *(ignored or ()))
        scales = (KEY_SCALE, VALUE_SCALE) if self._cached_in_8_bits else ()
        text = self.model.text_config
        drafts = any(
            getattr(text, key, 0) for key in ("num_nextn_predict_layers", "mtp_num_layers")
        )
        depth = len(self.model.skeleton.blocks)
        left = []
        for name in sorted(set(self.files) - self.used):
            if passed_over(name, passed) or name.rpartition(".")[2] in scales:
                continue
            if drafts and (DRAFT.search(name) or _layer(name) >= depth):
                continue
            left.append(name)
        return tuple(left)

    @property
    def _cached_in_8_bits(self) -> bool:
        block = quantization_block(self.checkpoint.config) or {}
        try:
            return self.format is not None and self.format.kv_cache_of(block) is not None
        except RefusedError:
            return True


def declare(folder: Path, session: Session = Session()) -> Declared:
    """What config and headers of a folder say; its headers are sound.

    Raises:
        InputError: the config describes no model, or tensors contradict each other.
        RefusedError: a format or an architecture that is not known.
    """
    checkpoint = open_checkpoint(folder)
    form = stated_form(checkpoint.names, checkpoint.config, folder)
    coding = form if isinstance(form, Coding) else None
    output = form if isinstance(form, Format) else None
    checkpoint = checkpoint.decoded(coding) if coding else checkpoint
    skeleton = build_skeleton(read_config(folder, session), session)
    weights = map_weights(skeleton.rules, checkpoint.names)
    dtype = _dtype(checkpoint)
    cpu = torch.device("cpu")
    model = OpenModel(skeleton, checkpoint, weights, output, dtype, dtype, cpu)
    linears, plain, refused = _linears(model)
    quantized = {each.path for each in linears} | set(refused)
    dense = dict(_dense(model, quantized))
    named = {each.path: each.stored for each in linears}
    plain = [named.get(path, model.weights.modules.get(path, path)) for path in plain]
    manifest = read_manifest(folder)
    return Declared(model, coding, tuple(linears), tuple(plain), refused, dense, manifest)


def _dtype(checkpoint: Checkpoint) -> torch.dtype:
    """That of the embedding where it has the usual name, else the config's."""
    known = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")
    for name, info in checkpoint.names.items():
        if name.endswith(known) and info.dtype in ("F32", "F16", "BF16"):
            return TORCH_DTYPES[info.dtype]
    return TORCH_DTYPES[dense_dtype(checkpoint.config)]


def _linears(
    model: OpenModel,
) -> tuple[list[DeclaredLinear], list[str], dict[str, QuantkitError]]:
    found: list[DeclaredLinear] = []
    plain: list[str] = []
    refused: dict[str, QuantkitError] = {}
    modules = model.weights.modules
    for path, module in model.skeleton.model.named_modules():
        if model.format is None or not is_linear(module):
            continue
        try:
            scheme = model.stated(path)
            if scheme is None:
                continue
            if model.scheme(path) is None:
                plain.append(path)
                continue
            facts = linear_facts(path, module)
            layout = model.format.layout(scheme, facts, model.dtype_name)
        except (InputError, RefusedError) as error:
            refused[path] = error
            continue
        places = {part: model.place(f"{path}.{part}") for part in layout}
        parts = {part: place.names[0] if place else None for part, place in places.items()}
        found.append(DeclaredLinear(path, modules.get(path, path), scheme, facts, layout, parts))
    return found, plain, refused


def _dense(
    model: OpenModel, quantized: set[str]
) -> Iterator[tuple[str, tuple[Place | None, tuple[int, ...]]]]:
    for path, module in model.skeleton.model.named_modules():
        for key, tensor in (*module.named_parameters(recurse=False), *persistent_buffers(module)):
            if key == "weight" and path in quantized:
                continue
            name = f"{path}.{key}" if path else key
            yield name, (model.place(name), tuple(tensor.shape))


def _layer(name: str) -> int:
    """The number of the first list in a name; -1 without one."""
    found = re.search(r"\.(\d+)\.", name)
    return int(found[1]) if found else -1


def tied_head(declared: Declared) -> tuple[str, str] | None:
    """Stored names of a head and of the embedding that it is tied to, if both are in the files."""
    skeleton = declared.model.skeleton
    head = f"{skeleton.head}.weight"
    source = tied_to(skeleton.model, head)
    places = declared.model.weights.places
    if not skeleton.head or source is None or head not in places or source not in places:
        return None
    return places[head].names[0], places[source].names[0]
