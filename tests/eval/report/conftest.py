"""Generated results, for the tests of the report."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def generated() -> Any:
    """The module of that name beside this file, which writes results that nobody measured."""
    path = Path(__file__).with_name("generated.py")
    spec = spec_from_file_location("generated_results", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
