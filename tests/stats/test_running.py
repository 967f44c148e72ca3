import math

import pytest
import torch

from quantkit.stats.running import FAR, RunningDivergence, RunningSoftmax

INF = math.inf
WIDTHS = (37, 256, 1024)


def added(z_p: torch.Tensor, z_q: torch.Tensor, width: int) -> RunningDivergence:
    both = RunningDivergence(torch.arange(len(z_p)) % z_p.shape[1])
    for p, q in zip(torch.split(z_p, width, 1), torch.split(z_q, width, 1), strict=True):
        both.add(p.clone(), q.clone())
    return both


def direct(z_p: torch.Tensor, z_q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """KL(p || q) and KL(q || p) (rows,) in fp64, by their definition."""
    p, q = (torch.log_softmax(z.double(), 1) for z in (z_p, z_q))
    return tuple(
        torch.where(one > -INF, one.exp() * (one - other), 0.0).sum(1)
        for one, other in ((p, q), (q, p))
    )  # type: ignore[return-value]  # two of them


def pair(distance: float, scale: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (rows, vocabulary) of two models; a model's logits have an offset in each row."""
    generator = torch.Generator().manual_seed(seed)
    z = scale * torch.randn(16, 1024, generator=generator)
    offset = torch.randn(16, 1, generator=generator)
    return z, z + distance * torch.randn(z.shape, generator=generator) + offset


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("distance", "tolerance"),
    [(4.5e-4, 1e-3), (1.4e-3, 1e-4), (0.05, 1e-5), (0.5, 1e-6), (5.0, 1e-5), (50.0, 1e-4)],
)
def test_tiles_give_the_divergence_of_the_whole(
    width: int, distance: float, tolerance: float
) -> None:
    for seed, scale in enumerate((0.5, 3.0, 6.0)):
        z_p, z_q = pair(distance, scale, seed)
        both = added(z_p, z_q, width)
        for found, true in zip((both.kl(), both.reverse_kl()), direct(z_p, z_q), strict=True):
            assert ((found - true).abs() <= tolerance * true + 1e-10).all()
            assert (found >= 0).all()


@pytest.mark.parametrize("inplace", [True, False])
@pytest.mark.parametrize("width", WIDTHS)
def test_tiles_give_the_softmax_of_the_whole(width: int, *, inplace: bool) -> None:
    z, _ = pair(0.0, 3.0, 0)
    targets = torch.arange(16) * 68
    softmax = RunningSoftmax(targets)
    parts = [part.clone() for part in torch.split(z, width, 1)]
    rooms = parts if inplace else [part.clone() for part in parts]
    weights = torch.cat([softmax.add(p, out=room) for p, room in zip(parts, rooms, strict=True)], 1)
    log_p = torch.log_softmax(z.double(), 1)
    assert softmax.nll().double() == pytest.approx(-log_p.gather(1, targets[:, None])[:, 0])
    assert softmax.confidence().double() == pytest.approx(log_p.amax(1).exp())
    assert torch.equal(softmax.likeliest, z.argmax(1))
    assert weights.max() == 1


@pytest.mark.parametrize("width", [1, 2, 3, 8])
def test_equal_models_do_not_diverge(width: int) -> None:
    z = torch.tensor([[1.0, 1, 1, 1, 1, 1, 1, 1], [0, 1e4, -1e4, 3, -INF, 2, 1, 0]])
    both = added(z, z.clone(), width)
    assert both.kl().tolist() == both.reverse_kl().tolist() == [0, 0]
    assert torch.equal(both.p.nll(), both.q.nll())


@pytest.mark.parametrize("width", [1, 2, 3, 8])
def test_the_first_of_equal_logits_is_the_likeliest(width: int) -> None:
    softmax = RunningSoftmax(torch.zeros(2, dtype=torch.int64))
    z = torch.tensor([[0.0, 5, 1, 5, 5, 2, 5, 1], [3, 3, 3, 3, 3, 3, 3, 3]])
    for part in torch.split(z, width, 1):
        softmax.add(part.clone(), part.clone())
    assert softmax.likeliest.tolist() == [1, 0]


@pytest.mark.parametrize("width", [1, 2, 3, 8])
@pytest.mark.parametrize(
    ("p", "q"),
    [
        ([1, -INF, 2, 3, -INF, -INF, 0, 1], [1, -INF, 2, 3, 1, -INF, 0, 1]),
        ([-INF, -INF, -INF, 1, 1, -INF, 0, 1], [-INF, -INF, -INF, 0, 1, -INF, 0, 1]),
        ([-INF, -INF, -INF, -INF, 1, -INF, 0, 1], [2, 1, -INF, 1, -INF, -INF, 0, 1]),
        ([1e4, -1e4, 0, 0, 5, 5, 5, 1], [-1e4, 1e4, 0, 0, 5, 5, 5, 1]),
        ([0, 50, 100, 150, 200, 250, 300, 350], [350, 300, 250, 200, 150, 100, 50, 0]),
        ([-3e38, -3e38, 1, 2, 3, 4, 5, 6], [-3e38, -3e38, 1, 2, 3, 4, 5, 7]),
        ([-3e38, -3e38, 1, 2, 3, 4, 5, 6], [0, 0, 1, 2, 3, 4, 5, 7]),
        ([0, 0, 0, 0, 0, 0, 0, 0], [0, FAR, 0, -FAR, 0, 0, FAR + 1, -FAR - 1]),
        ([-100, 0, 0, 0, 0, 0, 0, 0], [-1, 0, 0, 0, 0, 0, 0, 0]),
    ],
)
def test_masked_and_huge_logits(p: list[float], q: list[float], width: int) -> None:
    for one, other in ((p, q), (q, p)):
        z_p, z_q = torch.tensor([one]).float(), torch.tensor([other]).float()
        both = added(z_p, z_q, width)
        for found, true in zip((both.kl(), both.reverse_kl()), direct(z_p, z_q), strict=True):
            assert found.item() == pytest.approx(true.item(), rel=1e-5)


@pytest.mark.parametrize("value", [math.nan, INF])
def test_what_is_not_finite_shows(value: float) -> None:
    z_p = torch.tensor([[0.0, 1, 2, 3], [0, value, 2, 3]])
    both = added(z_p, torch.zeros(2, 4), 3)
    for found in (both.kl(), both.reverse_kl(), both.p.nll()):
        assert found.isnan().tolist() == [False, True]
    assert both.q.nll().isfinite().all()
