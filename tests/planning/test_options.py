import pytest

from quantkit.core.errors import InputError
from quantkit.planning.options import SCHOOLED, SERVED, require_heard

STATED = {**dict.fromkeys(SERVED, 2), "engine": "vllm", "settings": {"chunk": "512"}}


def test_a_gpu_hears_all_and_nothing_needs_none() -> None:
    require_heard({**STATED, "recipes": ()}, gpu=True, training=False)
    silent: dict[str, object] = {**dict.fromkeys(SERVED), "settings": {}, "recipes": ()}
    require_heard(silent, gpu=False, training=False)
    require_heard({**silent, "recipes": None}, gpu=False, training=True)


@pytest.mark.parametrize("key", [*SERVED, "recipes"])
@pytest.mark.parametrize("training", [False, True])
def test_each_goes_with_a_gpu_or_with_training(key: str, training: bool) -> None:
    stated = {key: STATED.get(key, ())}
    if key in SCHOOLED if training else key == "recipes":
        require_heard(stated, gpu=False, training=training)
        return
    with pytest.raises(InputError) as caught:
        require_heard(stated, gpu=training, training=training)
    assert SERVED.get(key, "--bits") in str(caught.value)


def test_transformers_has_no_cache_of_8_bits() -> None:
    silent: dict[str, object] = dict.fromkeys(SERVED)
    for engine, kv in (("transformers", 16), ("sglang", 8), (None, 8)):
        require_heard({**silent, "engine": engine, "kv": kv}, gpu=True, training=False)
    with pytest.raises(InputError, match="8 bits") as caught:
        require_heard({**silent, "engine": "transformers", "kv": 8}, gpu=True, training=False)
    assert caught.value.hint == "--engine vllm"
