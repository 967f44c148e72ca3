"""A quantized folder in an engine: what the engine's rules are asked about."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from quantkit.core.engine import Engine
from quantkit.core.facts import LinearFacts
from quantkit.core.format import Format
from quantkit.core.scheme import KVCache, Scheme
from quantkit.planning.model.weights import PlannedModel


@dataclass(frozen=True)
class Served:
    """A folder, an engine, and `tp` tensor-parallel ranks.

    `method`: the `quant_method` of its config. `format` is None where no format here reads it.
    `schemes`: of each linear of a block by its stored name, None where it is dense; `linears`:
    their shapes, and which of them the engine makes one of. `model`: None where planning does not
    know it. `global_scales`: the global scale, as it is stored, of each linear that has one.
    """

    engine: Engine
    tp: int
    method: str | None
    format: Format | None
    schemes: Mapping[str, Scheme | None]
    linears: Mapping[str, LinearFacts]
    kv_cache: KVCache | None
    model: PlannedModel | None
    global_scales: Mapping[str, float] = field(default_factory=dict)
