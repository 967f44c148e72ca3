"""Inputs as language models have them: correlated, with outlier channels and a sink token."""

from collections.abc import Callable, Iterator

import pytest
import torch

from quantkit.stats.hessian import InputCollector
from quantkit.stats.inputs import InputStats

MakeInputs = Callable[..., torch.Tensor]
Collect = Callable[..., InputStats]


def _inputs(
    features: int, sequences: int = 8, length: int = 96, seed: int = 0, rank: int | None = None
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    count = rank or features
    spectrum = torch.arange(1, count + 1) ** -0.7
    mixing = torch.randn(count, features, generator=generator) * spectrum[:, None]
    x = torch.randn(sequences, length, count, generator=generator) @ mixing
    outliers = torch.randperm(features, generator=generator)[:3]
    x[..., outliers] *= 20
    x[:, 0] = 3 * torch.randn(count, generator=generator) @ mixing
    return x


def _collect(x: torch.Tensor, *, mixes_tokens: bool = False) -> InputStats:
    collector = InputCollector(mixes_tokens=mixes_tokens)
    collector.add(x)
    return collector.finish()


@pytest.fixture(scope="session")
def make_inputs() -> MakeInputs:
    """(sequences, length, features): a decaying spectrum, 3 outlier channels, one sink token."""
    return _inputs


@pytest.fixture(scope="session")
def collect() -> Collect:
    return _collect


@pytest.fixture
def weights() -> list[torch.Tensor]:
    """Two linears of 192 inputs, rows of unlike size, a few large weights."""
    generator = torch.Generator().manual_seed(7)
    stacked = torch.randn(112, 192, generator=generator)
    stacked *= torch.rand(112, 1, generator=generator) + 0.2
    stacked[torch.rand(112, 192, generator=generator) < 0.002] *= 6
    return [stacked[:64].clone(), stacked[64:].clone()]


@pytest.fixture(scope="session")
def stats() -> InputStats:
    return _collect(_inputs(192), mixes_tokens=True)


@pytest.fixture
def set_threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
