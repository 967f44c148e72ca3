"""What an engine does not load, or loads wrong."""

from collections.abc import Callable

import pytest

from tests.checks.conftest import Folder, codes, verified

Copied = Callable[..., Folder]


def test_asymmetric_gptq_in_vllm(copied: Copied) -> None:
    found = verified(copied("gptq_v2"), engine="vllm")
    assert found.counts == {"engine-refuses": 14}
    assert "symmetric" in found.problems[0].sentence


def test_nf4_in_vllm(copied: Copied) -> None:
    assert verified(copied("nf4"), engine="vllm").counts == {"engine-refuses": 14}


def test_experts_of_awq_in_transformers(copied: Copied) -> None:
    folder = copied("awq", "experts_apart")
    found = verified(folder, engine="transformers").problems
    assert {p.code for p in found} == {"engine-refuses"}
    assert all(".experts." in p.path for p in found)
    assert codes(folder) == []


@pytest.mark.parametrize("engine", ["vllm", "sglang", "transformers"])
def test_what_it_loads_is_no_fault(copied: Copied, engine: str) -> None:
    assert codes(copied("pack"), engine=engine) == []
