"""The speed of a machine is that of what it really runs."""

from pathlib import Path
from time import perf_counter

import pytest
import torch

from quantkit.bench.throughput import time_machine
from quantkit.core import registry
from quantkit.core.progress import Progress
from quantkit.core.resources import Work
from quantkit.core.scheme import Scheme
from quantkit.planning.run.timing import MachineSpeed, recall, remember
from quantkit.stats.hessian import InputCollector
from tests.methods.solving import quantized

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def told() -> list[Progress]:
    return []


@pytest.fixture(scope="module")
def speed(told: list[Progress]) -> MachineSpeed:
    return time_machine(told.append)


def test_every_method_is_timed_and_told(speed: MachineSpeed, told: list[Progress]) -> None:
    assert tuple(speed.solving) == registry.names("methods")
    assert tuple(progress.detail for progress in told) == registry.names("methods")
    assert all(sum(rates.model_dump().values()) > 0 for rates in speed.solving.values())
    assert set(speed.forward) == {"BF16", "F32"}
    assert 1e-15 < speed.hessian < 1e-6


def test_it_survives_the_cache(
    speed: MachineSpeed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("QUANTKIT_CACHE", str(tmp_path))
    remember(speed)
    assert recall() == speed


def test_a_solution_of_another_shape_takes_about_what_is_foretold(speed: MachineSpeed) -> None:
    method = registry.load("methods", "gptq", "METHOD")
    outputs, width = 1536, 1024
    collector = InputCollector()
    collector.add(torch.randn(1, 2048, width))
    stats, weight = collector.finish(), torch.randn(outputs, width)
    taken = []
    for _ in range(3):
        started = perf_counter()
        quantized(method, [weight], stats, Scheme("int", 4, 64), torch.bfloat16, method.options())
        taken.append(perf_counter() - started)
    rates = speed.solving["gptq"]
    work = Work(weights=outputs * width, crossed=outputs * width**2, cubed=width**3)
    expected = (
        rates.weights * work.weights + rates.crossed * work.crossed + rates.cubed * work.cubed
    )
    assert 1 / 4 < min(taken) / expected < 4  # other processes of a busy machine, mostly
