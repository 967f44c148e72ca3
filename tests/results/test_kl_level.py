import pytest

from quantkit.results.kl_level import LEVELS, kl_level
from quantkit.results.schema import Divergence, EvalResult, Perplexity, Protocol, Subject


def result(
    mean: float | None,
    *,
    floor: float | None = None,
    scheme: str = "W4 g128 sym",
    method: str = "gptq",
) -> EvalResult:
    return EvalResult(
        schema="quantkit.eval/1",
        artifact=Subject(name="a", bytes=200_000_000, scheme=scheme, method=method),
        protocol=Protocol(name="qk@1", text="t", tokens_sha256="0", windows=1, sequence_length=8),
        tokens=8,
        perplexity=Perplexity(value=2.0),
        kl=Divergence(mean=mean, floor_mean=floor),
    )


@pytest.mark.parametrize(
    ("mean", "floor", "level"),
    [
        (0.0029, 0.001, "noise"),
        (0.0031, 0.001, "small"),
        (0.019, None, "small"),
        (0.02, 0.001, "usual"),
        (0.099, 0.001, "usual"),
        (0.1, 0.001, "large"),
        (9.0, None, "large"),
        (0.2, 0.1, "noise"),
    ],
)
def test_the_level_is_that_of_the_noise_or_of_the_limits(
    mean: float, floor: float | None, level: str
) -> None:
    found = kl_level(result(mean, floor=floor))
    assert found is not None
    assert found.level == level
    assert bool(found.next) == (level == "large")


def test_without_a_figure_there_is_no_level() -> None:
    assert kl_level(result(None)) is None
    assert kl_level(result(0.2).model_copy(update={"kl": None})) is None
    assert kl_level(result(0.2).model_copy(update={"status": "invalid"})) is None


def test_a_large_one_says_what_to_try() -> None:
    found = kl_level(result(0.2, method="rtn"))
    assert found is not None
    assert found.meaning == "KL 0.2 is large: 0.1 or more"
    assert found.next == [
        "--method gptq",
        "--group-size 64",
        "quantkit fit MODEL -o OUT --size 250MB --bits 4,8",
    ]


@pytest.mark.parametrize(
    ("scheme", "option"),
    [
        ("W4 channel sym", "--group-size 128"),
        ("W4 g64 sym, W8 channel sym", "--group-size 32"),
        ("W4 g32 sym", None),
        ("NF4 g64", None),
    ],
)
def test_the_group_size_is_the_next_smaller_one(scheme: str, option: str | None) -> None:
    found = kl_level(result(0.2, scheme=scheme))
    assert found is not None
    assert [step for step in found.next if "--group" in step] == ([option] if option else [])


def test_the_limits_rise() -> None:
    limits = [limit for limit, _, _ in LEVELS]
    assert limits == sorted(limits)
