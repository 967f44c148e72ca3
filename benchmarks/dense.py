"""Dense float32 weights of a finished artifact of any tool, by the rules of its format.

    python dense.py ARTIFACT DENSE.safetensors

Reads GPTQ (v1, v2), AWQ (GEMM), compressed-tensors (pack-quantized, int-quantized) and bitsandbytes
4-bit folders.  Written from the formats' definitions with numpy and torch alone, so that it is an
independent check of quantkit's decoders and puts every tool before the same judge (score.py).
Every value is computed in float32 from the stored codes and the stored, already rounded scales.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

Tensors = dict[str, torch.Tensor]
AWQ_ORDER = [0, 4, 1, 5, 2, 6, 3, 7]  # nibble that holds output column 0..7 of a word


def unpack(words: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """Unsigned codes [rows, count] that lie bit by bit, lowest first, in rows of int32 words."""
    stream = np.ascontiguousarray(words.numpy()).view(np.uint8)
    bit = np.unpackbits(stream, axis=1, bitorder="little")[:, : count * bits]
    place = 1 << np.arange(bits, dtype=np.int64)
    return torch.from_numpy(bit.reshape(len(stream), count, bits) @ place)


def gptq(parts: Tensors, config: dict) -> torch.Tensor:
    """[out, in] weights of one GPTQ linear: (code - zero) * scale of the column's group."""
    bits, scales = config["bits"], parts["scales"].float()
    codes = unpack(parts["qweight"].T, bits, parts["qweight"].shape[0] * 32 // bits)
    zeros = unpack(parts["qzeros"], bits, scales.shape[1])
    if config.get("checkpoint_format", config.get("format", "gptq")) == "gptq":
        zeros = zeros + 1  # version 1 stores the zero point less one
    group = parts["g_idx"].long()
    return (codes - zeros[group].T).float() * scales[group].T


def awq(parts: Tensors, _config: dict) -> torch.Tensor:
    """[out, in] weights of one AWQ linear, packed along the outputs in interleaved nibbles."""

    def columns(words: torch.Tensor) -> torch.Tensor:
        plain = unpack(words, 4, words.shape[1] * 8)
        return plain.reshape(len(words), -1, 8)[:, :, AWQ_ORDER].reshape(len(words), -1)

    codes, scales = columns(parts["qweight"]), parts["scales"].float()
    size = len(codes) // len(scales)
    centred = codes - columns(parts["qzeros"]).repeat_interleave(size, 0)
    return (centred.float() * scales.repeat_interleave(size, 0)).T


def compressed(parts: Tensors, config: dict) -> torch.Tensor:
    """[out, in] weights of one compressed-tensors linear, packed integers or plain int8."""
    scales = parts["weight_scale"].float()
    if "weight_packed" not in parts:
        return parts["weight"].float() * scales
    bits = next(iter(config["config_groups"].values()))["weights"]["num_bits"]
    rows, columns = parts["weight_shape"].tolist()
    codes, middle = unpack(parts["weight_packed"], bits, columns), 1 << (bits - 1)
    zeros = torch.full_like(scales, middle)
    if "weight_zero_point" in parts:
        zeros = unpack(parts["weight_zero_point"].T.contiguous(), bits, rows).T.float()
    size = columns // scales.shape[1]
    return (codes - zeros.repeat_interleave(size, 1)).float() * scales.repeat_interleave(size, 1)


def bitsandbytes(parts: Tensors, _config: dict) -> torch.Tensor:
    """[out, in] weights of one bitsandbytes 4-bit linear: code book times the block's absmax."""
    state = next(t for n, t in parts.items() if n.startswith("weight.quant_state."))
    state = json.loads(bytes(state.tolist()))
    packed, absmax = parts["weight"].flatten().long(), parts["weight.absmax"].float()
    if "nested_offset" in state:
        outer = parts["weight.nested_absmax"].repeat_interleave(state["nested_blocksize"])
        inner = parts["weight.nested_quant_map"][parts["weight.absmax"].long()]
        absmax = inner * outer[: len(inner)] + state["nested_offset"]
    codes = torch.stack([packed >> 4, packed & 15], 1).flatten()
    values = parts["weight.quant_map"][codes].reshape(-1, state["blocksize"]) * absmax[:, None]
    return values.reshape(state["shape"])


# Per quantization method: the tensor that marks a quantized linear, and its decoder.
DECODERS = {
    "gptq": ("qweight", gptq),
    "awq": ("qweight", awq),
    "compressed-tensors": ("weight_scale", compressed),
    "bitsandbytes": ("weight.absmax", bitsandbytes),
}


def stored(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of the folder's safetensors files, by name."""
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - a handle, not a dict
                yield name, file.get_tensor(name)


def dense(folder: Path) -> tuple[Tensors, list[str]]:
    """Float32 weights under the original names, and the names of those that were quantized."""
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    marker, decode = DECODERS[config["quant_method"]]
    tensors = dict(stored(folder))
    modules = sorted(n.removesuffix("." + marker) for n in tensors if n.endswith("." + marker))
    out: Tensors = {}
    for module in modules:
        names = [name for name in tensors if name.startswith(module + ".")]
        parts = {name.removeprefix(module + "."): tensors.pop(name) for name in names}
        out[module + ".weight"] = decode(parts, config)
        if "bias" in parts:
            out[module + ".bias"] = parts["bias"].float()
    out |= {name: tensor.float() for name, tensor in tensors.items()}
    return {n: t.contiguous() for n, t in out.items()}, [m + ".weight" for m in modules]


def main() -> None:
    """Writes the dense file and says how many weights were quantized."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("artifact", type=Path)
    parser.add_argument("dense", type=Path)
    args = parser.parse_args()
    tensors, quantized = dense(args.artifact)
    save_file(tensors, args.dense, {"format": "pt", "quantized": json.dumps(quantized)})
    print(f"{args.dense}: {len(quantized)} quantized weights of {len(tensors)} tensors")


if __name__ == "__main__":
    main()
