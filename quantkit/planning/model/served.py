"""A model in the dtype that an engine serves it in, which need not be that of its files."""

from dataclasses import replace
from math import prod

from quantkit.checkpoint.stored import DTYPE_BYTES
from quantkit.core import registry
from quantkit.core.engine import Engine
from quantkit.core.serving import CacheDtype
from quantkit.planning.model.inventory import FLOATS, Inventory
from quantkit.planning.model.parallel import Kind
from quantkit.planning.model.weights import PlannedModel


def as_served(model: PlannedModel, engine: str, capability: str | None) -> PlannedModel:
    """The model as `engine` holds it on a GPU: floats in one dtype, but for buffers and scales."""
    if model.served:
        return model
    rules: Engine = registry.load("engines", engine, "ENGINE")
    own = model.architecture.dtype
    dtype = rules.serves(own, model.architecture.model_type, capability)
    kinds = tuple(_cast(kind, dtype, quantized=bool(model.quantized)) for kind in model.kinds)
    note = f"{engine} serves {own.lower()} in {dtype.lower()}" if dtype != own else ""
    if not note and kinds != model.kinds:
        note = f"{engine} serves all of it in {dtype.lower()}, as config.json says"
    architecture = replace(model.architecture, dtype=dtype)
    return replace(model, architecture=architecture, kinds=kinds, served=note)


def served_cache(model: PlannedModel, cache: CacheDtype) -> CacheDtype:
    """The dtype of the cache of a model as it is served: its own, unless it is in 8 bits."""
    wide = cache == "16-bit" and DTYPE_BYTES[model.architecture.dtype] > 2
    return "32-bit" if wide else cache


def own_dtype(inventory: Inventory) -> str | None:
    """The dtype of most of the elements that are floats; None where none are."""
    elements: dict[str, int] = {}
    for row in inventory.rows:
        if row.dtype in FLOATS:
            elements[row.dtype] = elements.get(row.dtype, 0) + row.alike * prod(row.shape)
    return max(elements, key=lambda dtype: elements[dtype], default=None)


def _cast(kind: Kind, dtype: str, *, quantized: bool) -> Kind:
    tensor = kind.tensor
    if tensor.dtype == dtype or tensor.buffer or tensor.dtype not in FLOATS:
        return kind
    if quantized and not tensor.name.endswith((".weight", ".bias")):
        return kind  # a scale
    return replace(kind, tensor=tensor._replace(dtype=dtype))
