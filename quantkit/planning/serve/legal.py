"""Which tensor-parallel degrees an engine takes a build of a model at."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from quantkit.core.engine import Engine
from quantkit.core.errors import RefusedError
from quantkit.core.facts import LinearFacts
from quantkit.core.format import Format
from quantkit.core.rules import load_fault
from quantkit.core.scheme import Scheme
from quantkit.core.serving import Degrees
from quantkit.planning.model.architecture import Attention, Experts, Stored
from quantkit.planning.model.kv import mixers
from quantkit.planning.model.parallel import Kind, rank_facts
from quantkit.planning.model.weights import Build, PlannedModel

LARGEST = 64
NUMBER = re.compile(r"\d+\.")


def require_legal(engine: Engine, model: PlannedModel, build: Build, degrees: Degrees) -> None:
    """Return where `engine` takes the build at these degrees.

    Raises:
        RefusedError: it does not; the legal degrees, and the nearest below, are named.
    """
    if fault := expert_fault(model, degrees.expert):
        raise RefusedError(
            f"{engine.name} does not run {build.name} on {degrees.expert} expert-parallel ranks",
            why=fault,
            hint="--set ep=1",
        )
    fault = degree_fault(engine, model, build, degrees)
    if fault is None:
        return
    legal = legal_degrees(engine, model, build, degrees)
    below = max((t for t in legal if t < degrees.tensor), default=1)
    fault, _, instead = fault.partition("; try: ")
    raise RefusedError(
        f"{engine.name} does not run {build.name} on {degrees.tensor} tensor-parallel ranks",
        why=f"{fault}; legal: {', '.join(map(str, legal))}",
        hint=instead or f"--tp {below}",
    )


def legal_degrees(engine: Engine, model: PlannedModel, build: Build, degrees: Degrees) -> list[int]:
    """Tensor-parallel degrees up to 64 at which `engine` takes a build, all else as it is."""
    return [
        tensor
        for tensor in range(1, LARGEST + 1)
        if degree_fault(engine, model, build, replace(degrees, tensor=tensor)) is None
    ]


def build_fault(
    engine: Engine, model: PlannedModel, build: Build, capability: str | None
) -> str | None:
    """Why `engine` does not load a build, or has no kernel for it on a GPU; None if it does."""
    stored = model.quantized if build.format is None else None
    model, build = as_ruled(model, build)
    if capability is not None and (fault := engine.refuses_gpu("", None, capability)):
        return fault
    if build.format is None:
        unknown = stored and engine.methods and stored not in engine.methods
        return f"{engine.summary} has no loader for {stored}" if unknown else None
    seen = set()
    for kind in model.kinds:
        for scheme in build.schemes_of(kind):
            key = scheme, kind.experts, NUMBER.sub("", kind.tensor.linear or "")
            if scheme is None or key in seen:
                continue
            seen.add(key)
            facts = kind.facts()
            fault = load_fault(engine, build.format, scheme, facts)
            if fault is None and capability is not None:
                fault = engine.refuses_gpu(build.format.name, scheme, capability)
            if fault is not None:
                return fault
    return None


def as_ruled(model: PlannedModel, build: Build) -> tuple[PlannedModel, Build]:
    """What rules are about: of a quantized checkpoint the linears that it was made of."""
    if build.format is None and model.original is not None:
        return model.original
    return model, build


def degree_fault(engine: Engine, model: PlannedModel, build: Build, degrees: Degrees) -> str | None:
    """Why `engine` does not take a build at these degrees, as a sentence; None if it does."""
    model, build = as_ruled(model, build)
    if fault := expert_fault(model, degrees.expert):
        return fault
    if degrees.tensor == 1:
        return None
    if engine.name == "transformers":
        return f"transformers places whole layers on GPUs; try: --tp 1 --set pp={degrees.tensor}"
    found = head_fault(model, degrees.tensor)
    return found or next(_slice_faults(engine, model, build, degrees), None)


def expert_fault(model: PlannedModel, ranks: int) -> str | None:
    """Why there are no experts for `ranks` ranks, or None."""
    blocks = [layer.feed_forward for layer in model.architecture.layers]
    fewest = min((block.count for block in blocks if isinstance(block, Experts)), default=0)
    if ranks == 1 or ranks <= fewest:
        return None
    return f"{fewest} experts do not divide among {ranks} ranks" if fewest else "it has no experts"


def head_fault(model: PlannedModel, tensor: int) -> str | None:
    """Why the heads do not divide among `tensor` ranks, or None.

    Query heads divide evenly; KV heads do, or are copied a whole number of times (vLLM's
    QKVParallelLinear, SGLang's likewise).
    """
    for mixer in dict.fromkeys(mixers(model.architecture)):
        heads = None if isinstance(mixer, Stored) else getattr(mixer, "heads", None)
        if heads is not None and heads % tensor:
            return f"{heads} query heads do not divide evenly among {tensor} ranks"
        if isinstance(mixer, Attention):
            kv = mixer.kv_heads
            if max(kv, tensor) % min(kv, tensor):
                return f"{kv} KV heads neither divide nor copy evenly among {tensor} ranks"
    return None


def _slice_faults(
    engine: Engine, model: PlannedModel, build: Build, degrees: Degrees
) -> Iterator[str]:
    kinds = {row.linear: kind for kind in model.kinds if kind.quantizable for row in kind.rows}
    seen = set()
    for kind in model.kinds:
        if not kind.quantizable:
            continue
        members = [kinds[name] for name in kind.tensor.fused] or [kind]
        whole, part = joined(members), joined(members, degrees)
        for scheme in build.schemes_of(kind):
            shapes = (whole.out_features, whole.in_features, part.out_features, part.in_features)
            if (shapes, scheme) in seen:
                continue
            seen.add((shapes, scheme))
            if fault := _slice_fault(engine, build, scheme, (whole, part), members, degrees):
                yield f"`{kind.tensor.linear}`: {fault}"


def kinds_by_linear(model: PlannedModel) -> dict[str, Kind]:
    """The kind of each quantizable linear, by its name."""
    return {t.linear: kind for kind in model.kinds for t in kind.linears if t.linear}


def joined(members: list[Kind], degrees: Degrees | None = None) -> LinearFacts:
    """The linear that an engine makes of fused ones, or a rank's slice of it."""
    facts = [kind.facts() if degrees is None else rank_facts(kind, degrees) for kind in members]
    return replace(facts[0], out_features=sum(f.out_features for f in facts))


def _slice_fault(
    engine: Engine,
    build: Build,
    scheme: Scheme | None,
    shapes: tuple[LinearFacts, LinearFacts],
    members: list[Kind],
    degrees: Degrees,
) -> str | None:
    whole, part = shapes
    for kind in members:
        facts, tensor = kind.facts(), degrees.tensor
        divided = {"rows": facts.out_features, "columns": facts.in_features}
        size = divided.get(kind.tensor.split, 0)
        if part != whole and size % tensor:
            return f"{size} {kind.tensor.split} do not divide evenly among {tensor} ranks"
    if scheme is None or build.format is None:
        return None
    pairs = [(whole, part)]
    if scheme.rows != 1:  # blocks of each that is joined
        pairs = [(kind.facts(), rank_facts(kind, degrees)) for kind in members]
    faults = (engine.refuses_slice(build.format.name, scheme, *pair) for pair in pairs)
    return next(filter(None, faults), None)


def linear_check(
    engine: Engine, model: PlannedModel, output: Format, place: tuple[Degrees, str | None]
) -> Callable[[Scheme, LinearFacts], str | None]:
    """The engine's rules for one linear of a model on the ranks and GPUs of a place."""
    degrees, capability = place
    kinds = kinds_by_linear(model)
    build = Build("one linear", format=output)

    def check(scheme: Scheme, linear: LinearFacts) -> str | None:
        if capability is not None and (
            fault := engine.refuses_gpu(output.name, scheme, capability)
        ):
            return fault
        if degrees.tensor == 1:
            return None
        members = [kinds[name] for name in kinds[linear.name].tensor.fused or (linear.name,)]
        shapes = (joined(members), joined(members, degrees))
        return _slice_fault(engine, build, scheme, shapes, members, degrees)

    return check
