"""Run where bitsandbytes is: how far its NF4 products are from those of the dequantized weight.

`python multiply_nf4.py job.json`, where the job says where quantkit is; the answer lies beside it.
"""

import json
import sys
from pathlib import Path

import torch


def main() -> None:
    """Every fitting kernel in several groups, dtypes and rows: [[dtype, name, error]]."""
    path = Path(sys.argv[1])
    sys.path.append(json.loads(path.read_text())["package"])
    from quantkit.bench.kernel import WeightFacts, fitting
    from quantkit.bench.linear import QuantizedLinear
    from quantkit.core.scheme import Scheme
    from quantkit.grid.qtensor import QTensor

    torch.set_num_threads(1)
    torch.manual_seed(0)
    answers = []
    for group_size in (32, 64, 128):
        for dtype in (torch.float32, torch.bfloat16):
            codes = torch.randint(16, (96, 384), dtype=torch.uint8)
            scales = torch.rand(codes.numel() // group_size) + 0.1
            qtensor = QTensor(codes, scales, None, Scheme("nf4", 4, group_size))
            facts = WeightFacts(qtensor.scheme, 96, 384, dtype)
            for kernel in fitting(facts):
                for rows in (1, 33):
                    x = torch.randn(rows, 384).to(dtype)
                    expected = x.float() @ qtensor.dequantize().T
                    found = QuantizedLinear(kernel, qtensor, dtype, None)(x).float()
                    error = float((found - expected).norm() / expected.norm())
                    answers.append([str(dtype), kernel.name, error])
    path.with_name("answer.json").write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
