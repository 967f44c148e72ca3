import pytest

from quantkit.core.errors import InputError
from quantkit.planning.options import SERVED, TRAINED, require_used

STATED = {**dict.fromkeys(SERVED, 2), "engine": "vllm", "settings": {"chunk": "512"}}


def test_a_gpu_uses_all_and_nothing_needs_none() -> None:
    require_used({**STATED, "recipes": ()}, gpu=True, training=False)
    silent: dict[str, object] = {**dict.fromkeys(SERVED), "settings": {}, "recipes": ()}
    require_used(silent, gpu=False, training=False)
    require_used({**silent, "recipes": None}, gpu=False, training=True)


@pytest.mark.parametrize("key", [*SERVED, "recipes"])
@pytest.mark.parametrize("training", [False, True])
def test_each_goes_with_a_gpu_or_with_training(key: str, training: bool) -> None:
    stated = {key: STATED.get(key, ())}
    if key in TRAINED if training else key == "recipes":
        require_used(stated, gpu=False, training=training)
        return
    with pytest.raises(InputError) as caught:
        require_used(stated, gpu=training, training=training)
    assert SERVED.get(key, "--bits") in str(caught.value)


def test_the_message_agrees_in_number() -> None:
    for stated, start in (({"tp": 2}, "--tp applies"), ({"tp": 2, "kv": 8}, "--tp, --kv apply")):
        with pytest.raises(InputError, match=f"^{start} to a served model, and no GPU is named"):
            require_used(stated, gpu=False, training=False)


def test_transformers_has_no_cache_of_8_bits() -> None:
    silent: dict[str, object] = dict.fromkeys(SERVED)
    for engine, kv in (("transformers", 16), ("sglang", 8), (None, 8)):
        require_used({**silent, "engine": engine, "kv": kv}, gpu=True, training=False)
    with pytest.raises(InputError, match="8-bit") as caught:
        require_used({**silent, "engine": "transformers", "kv": 8}, gpu=True, training=False)
    assert caught.value.hint == "--engine vllm"
