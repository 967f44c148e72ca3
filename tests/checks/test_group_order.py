"""Groups of inputs that are impossible, or not in order."""

from collections.abc import Callable

import torch

from tests.checks.conftest import Folder, codes, verified

Copied = Callable[..., Folder]
Q = "model.layers.1.self_attn.q_proj"


def plant(folder: Folder, change: Callable[[torch.Tensor], torch.Tensor]) -> list[tuple[str, str]]:
    folder.change(f"{Q}.g_idx", change)
    return codes(folder)


FAULT = [("group-order", f"{Q}.g_idx")]


def test_a_group_that_there_is_not(copied: Copied) -> None:
    assert plant(copied("gptq"), lambda g: g + 1) == FAULT


def test_a_group_of_too_many(copied: Copied) -> None:
    assert plant(copied("gptq"), torch.zeros_like) == FAULT


def test_another_order_than_the_config_states(copied: Copied) -> None:
    assert plant(copied("gptq").foreign(), lambda g: g.flip(0)) == FAULT


def test_what_is_in_act_order_is_told_as_not_checked(copied: Copied) -> None:
    folder = copied("gptq").foreign()
    folder.block(desc_act=True)
    folder.change(f"{Q}.g_idx", lambda g: g.flip(0))
    found = verified(folder)
    assert (found.status, found.problems) == ("incomplete", ())
    assert [each.path for each in found.unchecked] == [Q]
