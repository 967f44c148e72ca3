from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from quantkit.grid.transfer import beside, to_device, to_host

GPU = pytest.param(
    "cuda:0", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
)


@pytest.fixture(params=["cpu", GPU])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


def test_there_and_back_are_the_same_numbers(device: torch.device) -> None:
    for dtype in (torch.uint8, torch.bfloat16, torch.float32):
        numbers = (torch.arange(3 * 1000) % 251).view(3, 1000).to(dtype)
        for tensor in (numbers, numbers.T, numbers[0, 0]):
            there = to_device(tensor, device, torch.float32)
            assert (there.device, there.dtype) == (device, torch.float32)
            back = to_host(there)
            assert back.device.type == "cpu"
            assert torch.equal(back, tensor.float())


def test_a_host_s_tensor_is_not_copied() -> None:
    tensor = torch.ones(5)
    assert to_device(tensor, torch.device("cpu")) is tensor
    assert to_host(tensor) is tensor


def test_a_task_beside_sees_what_was_computed(device: torch.device) -> None:
    """Behind a second of products on a GPU, and while more of them follow."""
    size = 4096 if device.type == "cuda" else 64
    matrix = torch.eye(size, device=device)
    with ThreadPoolExecutor(1) as pool:
        for turn in range(20):
            result = torch.full((size, size), float(turn), device=device)
            for _ in range(20):
                result = result @ matrix
            copied = pool.submit(beside(device, lambda r=result: to_host(r)))  # type: ignore[misc]
            again = pool.submit(
                beside(
                    device,
                    lambda t=turn: to_device(  # type: ignore[misc]
                        torch.full((size,), float(t)), device
                    ),
                )
            )
            assert bool((copied.result() == turn).all())
            assert bool((again.result() == turn).all())


def test_nothing_of_cuda_is_asked_without_it() -> None:
    def task() -> int:
        return 1

    assert beside(torch.device("cpu"), task) is task
    assert beside(torch.device("meta"), task) is task
