"""Public models: their configs, written from the fields of their own files, and known sizes."""

import json
from pathlib import Path
from typing import Any

import pytest

MODELS: dict[str, dict[str, Any]] = {
    model["name"]: model
    for model in json.loads((Path(__file__).parent / "known_models.json").read_text())
}


@pytest.fixture(params=MODELS, scope="session")
def known_model(request: pytest.FixtureRequest) -> dict[str, Any]:
    """One model after the other: `config`, `parameters`, and the bytes of its 16-bit KV cache."""
    return MODELS[request.param]
