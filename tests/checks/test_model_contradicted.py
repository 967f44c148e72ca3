"""A config of another model."""

from collections.abc import Callable

from tests.checks.conftest import Folder, codes

Copied = Callable[..., Folder]


def test_a_config_that_transformers_refuses(copied: Copied) -> None:
    folder = copied("gptq")
    folder.json("config.json", lambda config: config.update(model_type="no-such-model"))
    assert codes(folder) == [("model-contradicted", "config.json")]


def test_one_weight_in_8_bit_floats_without_a_scale(copied: Copied) -> None:
    """Of a layout that only headers tell, as ModelOpt's own."""
    folder = copied("modelopt").foreign()
    folder.block(producer={"name": "modelopt", "version": "0.47.0"})
    assert codes(folder) == []
    tensors = folder.tensors()
    del tensors["model.layers.1.self_attn.q_proj.weight_scale"]
    folder.store(tensors)
    assert codes(folder) == [("model-contradicted", "config.json")]
