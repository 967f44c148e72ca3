"""The config states other bits, groups or zero points than the tensors have."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from quantkit.core.check import Check, Fault
from quantkit.core.facts import Layout
from quantkit.core.scheme import Scheme
from quantkit.model.declared import Declared, DeclaredLinear

BITS = (2, 3, 4, 5, 6, 7, 8)
GROUPS = (None, 16, 32, 64, 128, 256, 512, 1024)


def find(declared: Declared) -> Iterator[Fault]:
    """One fault for all linears that are stored in one other scheme than is stated."""
    beside = _beside(declared)
    found: dict[tuple[Scheme, Scheme], list[DeclaredLinear]] = {}
    for linear in declared.linears:
        if linear.scheme.grid != "int" or _fits(declared, linear, linear.scheme, beside):
            continue
        others = _others(linear.scheme)
        other = next((s for s in others if _fits(declared, linear, s, beside)), None)
        if other is not None:
            found.setdefault((linear.scheme, other), []).append(linear)
    for (stated, stored), linears in found.items():
        if stated.symmetric != stored.symmetric and len(linears) == 1 < len(declared.linears):
            continue  # a stray tensor rather than another scheme
        names = tuple(each.stored for each in linears)
        yield Fault(
            "config.json" if len(names) > 1 or len(declared.linears) == 1 else names[0],
            f"config.json states {stated.label()} for `{names[0]}`"
            + (f" and {len(names) - 1} more" if len(names) > 1 else "")
            + f", whose tensors are those of {stored.label()}",
            explains=names,
        )


def _others(stated: Scheme) -> Iterator[Scheme]:
    """Schemes that differ in one thing first, then in more."""
    for group in GROUPS:
        yield replace(stated, group_size=group)
    yield replace(stated, symmetric=not stated.symmetric)
    for bits in BITS:
        yield replace(stated, bits=bits)
    for bits in BITS:
        for group in GROUPS:
            yield replace(stated, bits=bits, group_size=group)


def _beside(declared: Declared) -> Mapping[str, Layout]:
    """All that is stored of each linear, by its stored name."""
    found: dict[str, Layout] = {}
    for name, info in declared.files.items():
        linear, _, part = name.rpartition(".")
        if part != "bias":
            found.setdefault(linear, {})[part] = (info.dtype, info.shape)
    return found


def _fits(
    declared: Declared, linear: DeclaredLinear, scheme: Scheme, beside: Mapping[str, Layout]
) -> bool:
    """Whether a linear has the tensors of a scheme, all of them and no others, by their shapes."""
    assert declared.format is not None
    facts = linear.facts
    if scheme.group_size and facts.in_features % scheme.group_size:
        return scheme == linear.scheme  # its own fault, if any, is another check's
    layout = declared.format.layout(scheme, facts, declared.model.dtype_name)
    stored = beside.get(linear.stored, {})
    same = set(stored) == set(layout)
    return same and all(stored[part][1] == shape for part, (_, shape) in layout.items())


CHECK = Check(
    "headers",
    "the quantization config states other bits, groups or zero points than the tensors have",
    "use the config.json that belongs to these weights",
    find,
)
