"""Run by the engine's interpreter: bitsandbytes' own files, and what it makes of ours.

`python quantize_bitsandbytes.py FOLDER` reads `ours-*.safetensors` and writes `read-*.safetensors`
with the dequantized `weight`, and `theirs-*.safetensors` with a saved weight and `dequantized`.
"""

import sys
from pathlib import Path

import torch
from bitsandbytes.functional import QuantState, dequantize_4bit, quantize_4bit
from safetensors.torch import load_file, save_file


def main() -> None:
    """Answer for every file in the folder."""
    folder = Path(sys.argv[1])
    for path in sorted(folder.glob("ours-*.safetensors")):
        tensors = load_file(path)
        packed = tensors.pop("weight")
        state = QuantState.from_dict(tensors, device=torch.device("cpu"))
        read = folder / path.name.replace("ours", "read")
        save_file({"weight": dequantize_4bit(packed, state)}, read)
    for nested in (False, True):
        weight = torch.randn(96, 1088, generator=torch.Generator().manual_seed(5)) * 0.02
        packed, state = quantize_4bit(weight, quant_type="nf4", compress_statistics=nested)
        parts = {f"weight.{key}": part for key, part in state.as_dict(packed=True).items()}
        whole = parts | {"weight": packed, "dequantized": dequantize_4bit(packed, state)}
        whole = {key: part.contiguous().clone() for key, part in whole.items()}
        save_file(whole, folder / f"theirs-{nested}.safetensors")


if __name__ == "__main__":
    main()
