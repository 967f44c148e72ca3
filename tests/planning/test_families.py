"""families.toml against the configs of transformers: what a file leaves out is filled in alike."""

from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from quantkit.planning.config import read_architecture
from quantkit.planning.families import Family, Fields, find, known, recurrent

REQUIRED = {"deepseek_v2": {"num_experts_per_tok": 6}, "glm4_moe": {"head_dim": 128}}


@pytest.mark.parametrize("model_type", known())
def test_an_empty_config_is_filled_in_as_transformers_does(model_type: str) -> None:
    given: dict[str, Any] = REQUIRED.get(model_type, {})
    filled = CONFIG_MAPPING[model_type](**given).to_dict()
    assert read_architecture({"model_type": model_type, **given}) == read_architecture(filled)


@pytest.mark.parametrize("model_type", known())
def test_every_default_is_that_of_transformers(model_type: str) -> None:
    config = CONFIG_MAPPING[model_type](**REQUIRED.get(model_type, {}))
    family = find(model_type)
    assert family is not None
    fields = Fields(config.to_dict(), family)
    ours = Fields({}, family)
    computed = {"intermediate_size"} if model_type == "gemma3n_text" else set()
    for name in family.defaults.keys() - computed:
        assert ours.raw(name) == fields.raw(name), name


def test_small_configs_read_alike_with_and_without_defaults(small_config: Any) -> None:
    whole = small_config.to_dict()
    brief = {**small_config.to_diff_dict(), "model_type": small_config.model_type}
    assert len(brief) < len(whole)
    assert read_architecture(brief) == read_architecture(whole)


def test_other_names_of_a_family() -> None:
    assert find("gemma3") == find("gemma3_text")
    assert find("no-such-model") is None


def test_sizes_are_sums_of_products() -> None:
    fields = Fields({"a": 3, "b": 5}, Family("test"))
    assert fields.evaluate("2*a*b+b-1") == 34
    assert recurrent("mamba")["columns"] == "conv_kernel"
