"""families.toml against the configs of transformers: what a file leaves out is filled in alike."""

from typing import Any

import pytest
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

from quantkit.core.errors import InputError, RefusedError
from quantkit.planning.model.config import WRITTEN, read_architecture
from quantkit.planning.model.families import Family, Fields, find, known, recurrent

REQUIRED = {"deepseek_v2": {"num_experts_per_tok": 6}, "glm4_moe": {"head_dim": 128}}


@pytest.mark.parametrize("model_type", known())
def test_an_empty_inner_config_is_filled_in_as_transformers_does(model_type: str) -> None:
    given: dict[str, Any] = REQUIRED.get(model_type, {})
    filled = CONFIG_MAPPING[model_type](**given).to_dict()
    outer = {"text_config": {"model_type": model_type, **given}, "dtype": filled["dtype"]}
    assert read_architecture(outer) == read_architecture(filled)


@pytest.mark.parametrize("model_type", known())
def test_sizes_that_transformers_always_writes_are_not_filled_in(model_type: str) -> None:
    config = CONFIG_MAPPING[model_type](**REQUIRED.get(model_type, {}))
    written = config.to_diff_dict()
    aliases: Any = {name: alias for alias, name in type(config).attribute_map.items()}
    for name in WRITTEN:
        key = next((k for k in (name, aliases.get(name)) if k in written), None)
        family = find(model_type)
        assert family is not None
        if key is None or name not in family.defaults or name in family.derived:
            continue
        brief = {other: value for other, value in written.items() if other != key}
        with pytest.raises(InputError, match=f"{name} is missing"):
            read_architecture(brief)


def test_what_is_no_decoder_is_not_read_as_a_llama() -> None:
    """All that transformers lists as such, but for what lies around a decoder (`text_config`)."""
    listed = {**MODEL_FOR_MASKED_LM_MAPPING_NAMES, **MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES}
    sizes = dict.fromkeys(("hidden_size", "num_hidden_layers", "num_attention_heads"), 4)
    refused = 0
    for model_type in listed.keys() - {"encoder-decoder"}:
        config = CONFIG_MAPPING[model_type]().to_dict()
        if "text_config" in config:
            continue
        refused += 1
        with pytest.raises(RefusedError, match="is an encoder"):
            read_architecture(config | sizes | {"vocab_size": 8, "model_type": model_type})
    assert refused > 60


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
