"""What a config.json says of a model: by the table of families, else by transformers' own class."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from quantkit.core.errors import QuantkitError
from quantkit.planning.model.architecture import Architecture
from quantkit.planning.model.config import (
    model_type_of,
    read_architecture,
    read_as_llama,
    stated_dtype,
    unread_fields,
)
from quantkit.planning.model.families import find, is_custom
from quantkit.planning.model.inventory import Inventory, PlannedTensor
from quantkit.planning.model.measured import measured_model
from quantkit.planning.model.parameters import inventory_from_config
from quantkit.planning.model.towers import unlisted


@dataclass(frozen=True)
class Described:
    """A model's architecture, and what people have to know of it.

    `measured`: its tensors, where they were built; `towers`: those of them beside a text model that
    the table has. `is_llama`: only its files have them. `unbuilt`: why transformers cannot
    build it.
    """

    config: Mapping[str, Any]
    architecture: Architecture
    measured: Inventory | None = None
    towers: tuple[PlannedTensor, ...] = ()
    notes: tuple[str, ...] = ()
    is_llama: bool = False
    unbuilt: str = ""

    @cached_property
    def inventory(self) -> Inventory | None:
        """All tensors, none of them quantized; None where the config does not give them."""
        if self.measured is not None or self.is_llama:
            return self.measured
        inventory = inventory_from_config(self.config, self.architecture)
        if not self.towers:
            return inventory
        own = tuple(row for row in inventory.rows if row.part != "tower")
        return Inventory((*own, *self.towers), inventory.origin)


def describe(config: Mapping[str, Any], *, has_files: bool) -> Described:
    """What a config.json's object says; of one with `has_files` the headers give the tensors.

    A type that the table does not know, a field that it does not read, and a tower that it does not
    list are measured. Where that fails a known type is read by the table all the same, and one with
    files for its cache as a Llama.

    Raises:
        InputError: a field is missing, of the wrong kind, or at odds with another.
        RefusedError: no decoder, or one that neither table nor transformers can size.
    """
    model_type = model_type_of(config)
    dtype = stated_dtype(config) or "F32"
    known = find(model_type) is not None
    odd = unread_fields(config) if known else ()
    if known and not odd and (has_files or not unlisted(config)):
        absent = is_custom(str(config.get("model_type"))) and "transformers has no class for it"
        return Described(config, read_architecture(config), unbuilt=absent or "")
    try:
        architecture, measured = measured_model(config, dtype)
    except QuantkitError as error:
        if known:
            notes = (f"not read: {', '.join(odd)}",) if odd else ()
            why = error.why or error.what
            return Described(config, read_architecture(config), notes=notes, unbuilt=why)
        if not has_files:
            raise
        note = (
            f"plan does not know {model_type}, and transformers cannot build it; its weights are "
            "those of its files, its cache that of a Llama of these sizes"
        )
        return Described(
            config, read_as_llama(config), notes=(note,), is_llama=True, unbuilt=error.why or ""
        )
    if known and not odd:
        towers = tuple(row for row in measured.rows if row.part == "tower")
        text = replace(read_architecture(config), tied=architecture.tied)
        return Described(config, text, towers=towers)
    return Described(config, architecture, measured)
