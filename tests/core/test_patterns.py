"""Regular expressions of anybody: many plain ones are fast, and slow ones end."""

from time import thread_time

import pytest

from quantkit.core.errors import InputError
from quantkit.core.patterns import SECONDS, Patterns

SLOW = r"(?:.|..|...)+(?<=!)$"


def test_the_first_match_counts_however_often_it_is_asked_for() -> None:
    patterns = Patterns([r"model\.layers\.\d+\.mlp", "model", ".*head"], "config.json")
    for _ in range(2):
        assert patterns.first("model.layers.3.mlp.up_proj") == 0
        assert patterns.first("model.layers.3.mlp.up_proj", whole=True) is None
        assert patterns.first("model.norm") == 1
        assert patterns.first("lm_head", whole=True) == 2
        assert patterns.first("norm") is None


def test_a_mixture_of_70000_linears_is_no_reason_to_refuse() -> None:
    names = [
        f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj"
        for layer in range(61)
        for expert in range(384)
        for part in ("gate", "up", "down")
    ]
    patterns = Patterns([r".*self_attn.*", r".*shared_experts.*", r".*lm_head$"], "config.json")
    for _ in range(5):  # as often as a linear's scheme is looked up
        assert all(patterns.first(name) is None for name in names)


def test_a_slow_pattern_ends_and_is_named_with_a_remedy() -> None:
    began = thread_time()
    with pytest.raises(InputError, match="takes more than") as caught:
        Patterns([SLOW], "a recipe").first("a" * 60)
    assert thread_time() - began < 2 * SECONDS
    assert SLOW in str(caught.value)
    assert caught.value.hint
