import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def hub_server() -> Any:
    """The module hub_server.py; tests are no package, so it is loaded by its path."""
    path = Path(__file__).with_name("hub_server.py")
    spec = importlib.util.spec_from_file_location("hub_server", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["hub_server"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def serve(hub_server: Any) -> Iterator[Callable[..., Any]]:
    """serve(files, gated=..., faults=...): a running hub."""
    with ExitStack() as stack:
        yield lambda files, **rest: stack.enter_context(
            hub_server.serve(hub_server.Hub(files, **rest))
        )
