"""KV cache bytes by layer kind, against published models."""

from typing import Any

from quantkit.planning import kv
from quantkit.planning.config import read_architecture


def test_published_models(known_model: dict[str, Any]) -> None:
    architecture = read_architecture(known_model["config"])
    assert kv.full_token_bytes(architecture).bytes == known_model["kv_full"]
    assert kv.growing_bytes(architecture).bytes == known_model["kv_growing"]
    states = sum(kv.state_bytes(layer.mixer) for layer in architecture.layers)
    assert states == known_model["kv_constant"]
