"""Run by transformers' interpreter: the weights that it makes of compressed-tensors or `fp8`.

`python decompress.py job.json`, where the job has a folder for each name. Beside it lie, for each,
`<name>-loaded.safetensors`, what a forward works with in the model's own dtype, and
`<name>-dequantized.safetensors`, what loading with `dequantize=True` gives.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file


def weights(folder: str, *, dequantize: bool) -> dict[str, torch.Tensor]:
    """The weight of each linear by its name, and what holds the experts of a layer."""
    from transformers import AutoModelForCausalLM, CompressedTensorsConfig, FineGrainedFP8Config

    config = json.loads((Path(folder) / "config.json").read_text())
    fp8 = config["quantization_config"]["quant_method"] == "fp8"
    kind = FineGrainedFP8Config if fp8 else CompressedTensorsConfig
    options = {"quantization_config": kind(dequantize=True)}
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype="auto", output_loading_info=True, **options if dequantize else {}
    )
    odd = sorted(str(key) for part in info.values() for key in part)
    if dequantize:  # it has no use for scales of inputs
        odd = [key for key in odd if ".input_" not in key]
    assert not odd, odd
    with torch.no_grad():
        model(torch.tensor([[2, 3]]))  # decompresses
    layers = model.model.layers
    return {
        f"model.layers.{name}": module.weight.detach().contiguous()
        for name, module in layers.named_modules()
        if isinstance(module, torch.nn.Linear)
    } | {
        f"model.layers.{name}": tensor.detach().contiguous()
        for name, tensor in layers.named_parameters()
        if ".experts." in name
    }


def main() -> None:
    """Answer every artifact of the job."""
    path = Path(sys.argv[1])
    for name, folder in json.loads(path.read_text()).items():
        save_file(weights(folder, dequantize=False), path.parent / f"{name}-loaded.safetensors")
        save_file(weights(folder, dequantize=True), path.parent / f"{name}-dequantized.safetensors")


if __name__ == "__main__":
    main()
