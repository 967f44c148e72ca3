import gc
import weakref
from collections.abc import Iterator

import pytest
import torch

from quantkit.core.errors import QuantkitError
from quantkit.stats.hessian import InputCollector
from quantkit.stats.inputs import InputStats
from quantkit.stats.sizes import CHUNK, SAMPLE


@pytest.fixture(autouse=True)
def restored_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def inputs(features: int, sequences: int = 6, length: int = 700) -> torch.Tensor:
    generator = torch.Generator().manual_seed(features)
    x = torch.randn(sequences, length, features, generator=generator)
    x[..., 0] *= 30
    return x.bfloat16()


def collect(x: torch.Tensor, batch: int) -> InputStats:
    collector = InputCollector(mixes_tokens=True)
    for part in torch.split(x, batch):
        collector.add(part)
    return collector.finish()


def fields(stats: InputStats) -> list[torch.Tensor]:
    return [stats.hessian, stats.firsts, stats.absmax, stats.sample]


@pytest.mark.parametrize("features", [1, 64, 100, 192, 333])
def test_hessian_is_the_sum_over_tokens(features: int) -> None:
    x = inputs(features)
    stats = collect(x, 2)
    rows = x.view(-1, features).double()
    expected = rows.T @ rows
    assert stats.hessian.dtype == torch.float32
    torch.testing.assert_close(stats.hessian.double(), expected, rtol=1e-5, atol=1e-2)
    assert torch.equal(stats.hessian, stats.hessian.T)
    trace = rows.square().sum()
    torch.testing.assert_close(stats.hessian.double().trace(), trace, rtol=1e-6, atol=0)
    smallest = torch.linalg.eigvalsh(stats.hessian.double())[0]
    assert smallest > -1e-6 * trace
    assert torch.equal(stats.diagonal, stats.hessian.diagonal())


@pytest.mark.parametrize("features", [100, 192, 576])
def test_neither_batches_nor_threads_change_a_bit(features: int) -> None:
    x = inputs(features)
    torch.set_num_threads(1)
    one = collect(x, 1)
    torch.set_num_threads(2)
    for other in (collect(x, 6), collect(x, 4)):
        for a, b in zip(fields(one), fields(other), strict=True):
            assert torch.equal(a, b)
        assert one.tokens == other.tokens == 4200


def test_threads_change_no_bit_of_what_has_drifted() -> None:
    x = inputs(200)
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        collector = InputCollector()
        for part in torch.split(x, 2):
            collector.add(part, 1.1 * part + 0.01)
        found.append(collector.finish())
    one, two = found
    assert one.drift is not None
    assert two.drift is not None
    assert torch.equal(one.drift, two.drift)
    assert torch.equal(torch.as_tensor(one.drifted), torch.as_tensor(two.drifted))


def test_first_tokens_maxima_and_counts() -> None:
    x = inputs(40)
    stats = collect(x, 4)
    first = x[:, 0].float()
    assert torch.equal(stats.firsts, first)
    assert torch.equal(stats.absmax, x.abs().amax((0, 1)).float())
    assert (stats.tokens, len(stats.firsts), stats.mixes_tokens) == (4200, 6, True)


@pytest.mark.parametrize("length", [10, 700, CHUNK, 3000])
def test_sample_is_evenly_spaced_and_of_bounded_size(length: int) -> None:
    tokens = torch.arange(3 * length, dtype=torch.float32).view(3, length, 1)
    sample = collect(tokens, 1).sample.flatten()
    assert len(sample) < 2 * SAMPLE
    assert len(sample) == 3 * length or len(sample) >= SAMPLE
    assert sample[0] == 0
    assert len(set(sample.diff().tolist())) == 1


def test_a_single_sequence_may_come_without_batch_dimension() -> None:
    x = inputs(40, sequences=1)
    for a, b in zip(fields(collect(x, 1)), fields(collect(x[0], 700)), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_what_is_not_finite_is_an_error(value: float, dtype: torch.dtype) -> None:
    x = torch.ones(2, 5, 7, dtype=dtype)
    x[1, 3, 2] = value
    collector = InputCollector()
    collector.add(x)
    collector.add(torch.ones_like(x))
    with pytest.raises(QuantkitError, match="NaN or Inf in 1 of 7 input channels"):
        collector.finish()


@pytest.mark.parametrize("features", [64, 100, 333])
def test_drift_is_the_sum_over_tokens_and_batches_change_no_bit(features: int) -> None:
    made = torch.Generator().manual_seed(features)
    given = inputs(features)
    originals = (given + 0.1 * torch.randn(given.shape, generator=made)).bfloat16()
    whole, parts = InputCollector(), InputCollector()
    whole.add(given, originals)
    for each, others in zip(torch.split(given, 4), torch.split(originals, 4), strict=True):
        parts.add(each, others)
    stats, again = whole.finish(), parts.finish()
    drift, same = stats.drift, again.drift
    assert drift is not None
    assert same is not None
    assert torch.equal(drift, same)
    x, o = given.flatten(0, 1).double(), originals.flatten(0, 1).double()
    power = (x.T @ x).diagonal().sqrt()
    scale = power[:, None] * power  # of the sums that drift is a difference of
    torch.testing.assert_close(drift.double() / scale, (o - x).T @ x / scale, rtol=0, atol=1e-5)
    assert stats.drifted == again.drifted
    assert float(stats.drifted) == pytest.approx(float((o - x).square().sum()), rel=1e-5)


def test_nothing_collected_is_an_error() -> None:
    collector = InputCollector()
    collector.add(torch.empty(0, 5, 7))
    with pytest.raises(QuantkitError, match="no calibration token"):
        collector.finish()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_batch_is_kept(dtype: torch.dtype) -> None:
    """A view of a few rows would keep the whole batch in memory."""
    collector = InputCollector(mixes_tokens=True)
    batch = inputs(64).to(dtype)
    storage = weakref.ref(batch.untyped_storage())
    collector.add(batch)
    del batch
    gc.collect()
    assert storage() is None
    assert collector.finish().tokens == 4200
