import pytest
import torch

from quantkit.grid.quadratic import losses_of, row_losses


@pytest.mark.parametrize("features", [1, 100, 128, 300])
def test_row_losses_are_the_quadratic_form(features: int) -> None:
    generator = torch.Generator().manual_seed(features)
    error = torch.randn(7, features, generator=generator)
    x = torch.randn(50, features, generator=generator)
    hessian = x.T @ x
    expected = (error.double() @ x.double().T).square().sum(1)
    torch.testing.assert_close(row_losses(error, hessian).double(), expected, rtol=1e-4, atol=0)


def test_losses_beside_what_could_be_lost() -> None:
    weight = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
    assert losses_of(weight, weight, torch.eye(2)).tolist() == [[25, 4], [25, 4]]
    assert losses_of(weight / 2, weight, torch.eye(2)).tolist() == [[6.25, 1], [25, 4]]
    assert losses_of(weight, weight, torch.zeros(2, 2)).tolist() == [[0, 0], [0, 0]]
