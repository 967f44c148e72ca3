"""Which tensors of an artifact hold its quantized linears, to read these as dense ones."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import torch

from quantkit.checkpoint.coded import Coded, Coding
from quantkit.checkpoint.dtypes import TORCH_DTYPES
from quantkit.core.facts import LinearFacts
from quantkit.core.format import KEY_SCALE, VALUE_SCALE, Format
from quantkit.core.scheme import Scheme
from quantkit.model.skeleton import Skeleton, is_linear, linear_facts
from quantkit.model.weight_map import WeightMap


def format_codes(
    skeleton: Skeleton,
    weights: WeightMap,
    output: Format,
    dtype: str,
    scheme: Callable[[str], Scheme | None],
) -> Coding:
    """The quantized linears of an artifact in format `output`, of a model of `dtype`.

    `scheme` gives the scheme of a linear by its module name, None where it is dense.
    """
    coded = dict(_coded(skeleton, weights, output, dtype, scheme))
    linears = {name.removesuffix(".weight") for name in coded}
    stored = {name for place in weights.places.values() for name in place.names}
    beside = {n for n in stored.union(weights.unused) if _within(n, linears)}
    coding = Coding(coded, (), output.name)
    left = {n for n in beside - coding.parts if not n.endswith(".bias")}
    left |= {n for n in weights.unused if n.rpartition(".")[2] in (KEY_SCALE, VALUE_SCALE)}
    return replace(coding, dropped=tuple(sorted(left)))


def _coded(
    skeleton: Skeleton,
    weights: WeightMap,
    output: Format,
    dtype: str,
    scheme: Callable[[str], Scheme | None],
) -> Iterator[tuple[str, Coded]]:
    """The weight of each quantized linear, by its stored name, with the tensors that it is in."""
    for path, module in skeleton.model.named_modules():
        found = scheme(path) if is_linear(module) else None
        if found is None:
            continue
        facts = linear_facts(path, module)
        suffixes = output.layout(found, facts, dtype)
        parts = {suffix: weights.stored_as(f"{path}.{suffix}") for suffix in suffixes}
        shape = (facts.out_features, facts.in_features)
        shape = shape[::-1] if facts.transposed else shape
        decode = partial(_weight, output, found, facts)
        yield f"{weights.modules[path]}.weight", Coded(parts, shape, decode)


def _within(name: str, linears: set[str]) -> bool:
    """Whether a stored tensor belongs to one of `linears`: `X.g_idx`, `X.weight.absmax`."""
    words = name.split(".")
    return any(".".join(words[:count]) in linears for count in range(1, len(words)))


def _weight(
    output: Format,
    scheme: Scheme,
    facts: LinearFacts,
    parts: Mapping[str, torch.Tensor],
    dtype: str,
) -> torch.Tensor:
    """The weight in `dtype` and the module's shape: Conv1D's is (in_features, out_features)."""
    weight = output.decode(parts, scheme, facts).dequantize(TORCH_DTYPES[dtype])
    return weight.T.contiguous() if facts.transposed else weight
