"""Tensors from a config alone, against published counts and the models that transformers builds."""

from typing import Any

from quantkit.planning.config import read_architecture
from quantkit.planning.parameters import inventory_from_config, parameter_count


def test_published_counts(known_model: dict[str, Any]) -> None:
    config = known_model["config"]
    inventory = inventory_from_config(config, read_architecture(config))
    assert parameter_count(inventory) == known_model["parameters"]
    assert len({tensor.name for tensor in inventory.tensors}) == len(inventory.tensors)
