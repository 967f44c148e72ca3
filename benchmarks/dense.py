"""Dense float32 weights of a finished artifact of any tool, by the rules of its format.

    python dense.py ARTIFACT DENSE.safetensors

Reads GPTQ (v1, v2), AWQ (GEMM), bitsandbytes 4-bit and compressed-tensors folders (packed and
plain integers, FP8, FP4), and the FP8 and FP4 folders of ModelOpt and AutoRound. Written from the
formats' definitions with numpy and torch alone, so that it is an independent check of quantkit's
decoders and puts every tool before the same judge.
Every value is computed in float32 from the stored codes and the stored, already rounded scales.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
AWQ_ORDER = [0, 4, 1, 5, 2, 6, 3, 7]  # nibble that holds output column 0..7 of a word
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]  # values of FP4 codes 0 to 7; 8 to 15 are negative


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


def spread(scales: torch.Tensor, shape: torch.Size, block: int | None) -> torch.Tensor:
    """Scales of a tensor, of rows, of groups in a row or of square blocks, one for each weight."""
    if scales.numel() == 1:
        return scales.reshape(1, 1)
    scales = scales.reshape(len(scales), -1)
    for axis in (0, 1):
        size = block or shape[axis] // scales.shape[axis]
        scales = scales.repeat_interleave(size, axis).narrow(axis, 0, shape[axis])
    return scales


def floating(parts: Tensors, config: dict) -> torch.Tensor:
    """[out, in] weights of one FP8 or FP4 linear of compressed-tensors, ModelOpt or AutoRound.

    E8M0 scales are uint8. The second scale of NVFP4 divides in compressed-tensors and AutoRound
    (``weight_global_scale``) and multiplies in ModelOpt (``weight_scale_2``).
    """
    codes = parts["weight_packed"] if "weight_packed" in parts else parts["weight"]
    values = codes.float()
    if codes.dtype == torch.uint8:
        table = torch.tensor([*E2M1, *(-value for value in E2M1)])
        values = table[unpack(codes, 4, 2 * codes.shape[1])]
    scales = parts["weight_scale"] if "weight_scale" in parts else parts["weight_scale_inv"]
    scales = torch.exp2(scales.float() - 127) if scales.dtype == torch.uint8 else scales.float()
    if "weight_global_scale" in parts:
        scales = scales / parts["weight_global_scale"].float()
    if "weight_scale_2" in parts:
        scales = scales * parts["weight_scale_2"].float()
    weight = values * spread(scales, values.shape, square(config))
    return weight * parts["pre_quant_scale"].float() if "pre_quant_scale" in parts else weight


def square(config: dict) -> int | None:
    """Side of the square blocks that share a scale, if any; those at the edges may be cut."""
    groups = [group.get("weights") or {} for group in config.get("config_groups", {}).values()]
    found = [g.get("block_structure") for g in groups] + [config.get("weight_block_size")]
    if isinstance(config.get("group_size"), list):
        found.append(config["group_size"])
    if config.get("quant_algo") == "fp8_pb_wo":
        found.append([128, 128])  # ModelOpt's preset; the config does not say
    return next((int(size[0]) for size in found if size), None)


def compressed(parts: Tensors, config: dict) -> torch.Tensor:
    """[out, in] weights of one compressed-tensors linear: packed integers, plain int8 or floats."""
    if next(iter(config["config_groups"].values()))["weights"]["type"] == "float":
        return floating(parts, config)
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


# Per quantization method: the tensors that mark a quantized linear, and its decoder.
DECODERS = {
    "gptq": (("qweight",), gptq),
    "awq": (("qweight",), awq),
    "compressed-tensors": (("weight_scale",), compressed),
    "bitsandbytes": (("weight.absmax",), bitsandbytes),
    "modelopt": (("weight_scale",), floating),
    "auto-round": (("weight_scale", "weight_scale_inv"), floating),
}


def stored(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of the folder's safetensors files, by name."""
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - a handle, not a dict
                yield name, file.get_tensor(name)


def dense(folder: Path) -> tuple[Tensors, dict[str, int]]:
    """Float32 weights under the original names, and the stored bytes of those quantized."""
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    markers, decode = DECODERS[config["quant_method"]]
    tensors = dict(stored(folder))
    modules = sorted(n[: -len(m) - 1] for n in tensors for m in markers if n.endswith("." + m))
    out: Tensors = {}
    sizes = {}
    for module in modules:
        names = [name for name in tensors if name.startswith(module + ".")]
        parts = {name.removeprefix(module + "."): tensors.pop(name) for name in names}
        out[module + ".weight"] = decode(parts, config)
        if "bias" in parts:
            out[module + ".bias"] = parts.pop("bias").float()
        sizes[module + ".weight"] = sum(part.nbytes for part in parts.values())
    out |= {name: tensor.float() for name, tensor in tensors.items()}
    return {n: t.contiguous() for n, t in out.items()}, sizes


def compared(decoded: Tensors, own: Tensors) -> dict[str, float]:
    """How far decoded weights are from those with which the tool's own forward computes.

    ``own_equal`` is the share of equal values in the dtype of the tool's, ``own_difference`` the
    largest difference over the largest weight of a linear.
    """
    same = count = worst = 0.0
    for name, weight in own.items():
        found = decoded[name].to(weight.dtype)
        same += (found == weight).sum().item()
        count += weight.numel()
        worst = max(worst, ((found - weight).abs().max() / weight.abs().max()).item())
    return {"own_equal": same / count, "own_difference": worst}


def main() -> None:
    """Writes the dense file and prints what was quantized as one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("artifact", type=Path)
    parser.add_argument("dense", type=Path)
    parser.add_argument("--own", type=Path, help="weights to compare them with")
    args = parser.parse_args()
    tensors, sizes = dense(args.artifact)
    save_file(tensors, args.dense, {"format": "pt", "quantized": json.dumps(list(sizes))})
    report: dict[str, float] = {
        "quantized": len(sizes),
        "bits_per_weight": 8 * sum(sizes.values()) / sum(tensors[n].numel() for n in sizes),
    }
    if args.own and args.own.exists():
        report |= compared(tensors, load_file(args.own))
    print(json.dumps(report))


if __name__ == "__main__":
    main()
