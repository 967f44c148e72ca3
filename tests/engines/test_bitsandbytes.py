"""bitsandbytes itself: it reads our tensors exactly, and writes the bytes that we write."""

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from quantkit.core.facts import LinearFacts
from quantkit.core.scheme import Scheme
from quantkit.formats.bitsandbytes import FORMAT, STATE
from quantkit.grid.qtensor import QTensor

SCHEMES = {
    "plain": Scheme("nf4"),
    "double": Scheme("nf4", double_quant=True),
    "blocks-of-128": Scheme("nf4", group_size=128),
}


def test_both_ways(
    run_script: Callable[..., None],
    random_qtensor: Callable[..., QTensor],
    tmp_path: Path,
) -> None:
    ours = {name: random_qtensor(scheme, 96, 1152) for name, scheme in SCHEMES.items()}
    for name, qtensor in ours.items():
        save_file(FORMAT.encode(qtensor, "float32"), tmp_path / f"ours-{name}.safetensors")
    run_script("transformers", "quantize_bitsandbytes.py", str(tmp_path))
    for name, qtensor in ours.items():
        read = load_file(tmp_path / f"read-{name}.safetensors")["weight"]
        assert torch.equal(read, qtensor.dequantize()), name
    for nested in (False, True):
        assert_same_bytes(load_file(tmp_path / f"theirs-{nested}.safetensors"), nested=nested)


def assert_same_bytes(theirs: dict[str, torch.Tensor], *, nested: bool) -> None:
    weight = theirs.pop("dequantized")
    linear = LinearFacts("x", *weight.shape)
    scheme = Scheme("nf4", double_quant=nested)
    decoded = FORMAT.decode(theirs, scheme, linear)
    assert torch.equal(decoded.dequantize(), weight)
    ours = FORMAT.encode(decoded, "float32")
    assert set(ours) == set(theirs)
    state, expected = (bytes(t.pop(STATE).tolist()) for t in (ours, theirs))
    assert state.rstrip() == expected
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
