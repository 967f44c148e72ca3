"""Run by vLLM's interpreter: what it takes each linear of an artifact with several schemes for.

`python mixed_schemes.py job.json`, where the job names the artifact and its linears as vLLM fuses
them. The answers lie beside it, in `found.json`: bits and group size, or null where the
linear stays as it is. No kernel is chosen, so no GPU is asked for.
"""

import json
import sys
from pathlib import Path


def main() -> None:
    """Answer for every linear of the job."""
    from torch import nn
    from vllm.model_executor.layers.quantization.compressed_tensors import compressed_tensors
    from vllm.model_executor.models.llama import LlamaForCausalLM

    path = Path(sys.argv[1])
    job = json.loads(path.read_text())
    block = json.loads((Path(job["artifact"]) / "config.json").read_text())["quantization_config"]
    config = compressed_tensors.CompressedTensorsConfig.from_config(block)
    config.packed_modules_mapping = LlamaForCausalLM.packed_modules_mapping
    config._check_scheme_supported = lambda *_, **__: None  # it would look for a GPU
    found = {}
    for name in job["linears"]:
        scheme = config.get_scheme(nn.Linear(1, 1), name)
        assert scheme is None or type(scheme).__name__ == "CompressedTensorsWNA16", scheme
        found[name] = scheme and [scheme.num_bits, scheme.group_size]
    (path.parent / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
