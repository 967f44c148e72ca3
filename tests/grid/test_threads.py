import pytest
import torch

from quantkit.grid.threads import one_thread


def test_threads_come_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)

    @one_thread()
    def fail() -> None:
        assert torch.get_num_threads() == 1
        raise ValueError

    for _ in range(2):
        with pytest.raises(ValueError, match=r"^$"):
            fail()
        assert torch.get_num_threads() == 2
    torch.set_num_threads(before)
