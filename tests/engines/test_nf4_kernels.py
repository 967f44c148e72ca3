"""NF4 products of bitsandbytes against those of the dequantized weight."""

import json
from collections.abc import Callable
from pathlib import Path

import torch

import quantkit
from quantkit.bench.linear import TOLERANCE


def test_the_product_is_that_of_the_dequantized_weight(
    run_script: Callable[[str, str, str], None], tmp_path: Path
) -> None:
    package = Path(quantkit.__file__).parents[1]
    (tmp_path / "job.json").write_text(json.dumps({"package": str(package)}))
    run_script("transformers", "multiply_nf4.py", str(tmp_path / "job.json"))
    answers = json.loads((tmp_path / "answer.json").read_text())
    bounds = {str(dtype): bound for dtype, bound in TOLERANCE.items()}
    assert [answer for answer in answers if answer[2] > bounds[answer[0]]] == []
    # the fused kernel is there on some processors; the other runs on all, in both dtypes
    everywhere = [answer[0] for answer in answers if answer[1] == "bitsandbytes gemm_4bit"]
    assert sorted(set(everywhere)) == sorted(map(str, (torch.bfloat16, torch.float32)))
