"""Measures the embedded model: against the trigram baseline, and after rounding to 4 and 3 bits.

python -m tools.embedded.measure quantkit/model/embedded --windows 6000
"""

import argparse
import copy
import json
import sys
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from tools.embedded.corpus import read_documents, training_documents, windows
from tools.embedded.generators import Document
from tools.embedded.trigram import Trigram

GROUP = 64


def token_windows(
    tokenizer: PreTrainedTokenizerFast, texts: Iterable[Document], limit: int
) -> NDArray[np.int64]:
    """At most `limit` windows as an array (n_windows, 512)."""
    return np.array(list(islice(windows(tokenizer, iter(texts)), limit)))


@torch.no_grad()
def log_probabilities(model: LlamaForCausalLM, ids: NDArray[np.int64]) -> torch.Tensor:
    """Log-probabilities (n_windows, length - 1, vocabulary) of what follows each token."""
    batches = torch.split(torch.tensor(ids), 4)
    return torch.cat([model(batch).logits[:, :-1].float().log_softmax(-1) for batch in batches])


def rounded(model: LlamaForCausalLM, bits: int) -> LlamaForCausalLM:
    """A copy whose block linears are rounded to nearest, symmetric, one scale per 64 inputs."""
    top = 2 ** (bits - 1)
    result = copy.deepcopy(model)
    for name, layer in result.model.layers.named_modules():
        if isinstance(layer, torch.nn.Linear) and name:
            groups = layer.weight.data.view(layer.out_features, -1, GROUP)
            scales = groups.abs().amax(-1, keepdim=True) / (top - 1)
            codes = (groups / scales.clamp_min(1e-12)).round().clamp(-top, top - 1)
            layer.weight.data = (codes * scales).view_as(layer.weight)
    return result


def measure(folder: Path, n_windows: int) -> dict[str, float]:
    """Perplexities on the held-out text, and KL of the rounded models in nats per token."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = token_windows(tokenizer, read_documents(folder / "heldout.jsonl"), 10**6)
    baseline = Trigram(token_windows(tokenizer, training_documents(), n_windows), len(tokenizer))
    targets = torch.tensor(ids[:, 1:, None])
    true = log_probabilities(model, ids)

    def perplexity(predicted: torch.Tensor) -> float:
        # The trigram model starts at the third token, so both do.
        return float((-predicted.gather(-1, targets)[:, 1:].double().mean()).exp())

    figures = {
        "held-out tokens": float(targets[:, 1:].numel()),
        "trigram perplexity": float(np.exp(baseline.nats(ids).mean())),
        "perplexity": perplexity(true),
    }
    for bits in (8, 4, 3, 2):
        near = log_probabilities(rounded(model, bits), ids)
        kl = (true.exp() * (true - near)).sum(-1)
        figures[f"perplexity rtn {bits} bits"] = perplexity(near)
        figures[f"KL rtn {bits} bits"] = float(kl.double().mean())
        figures[f"top-1 agreement rtn {bits} bits"] = float(
            (true.argmax(-1) == near.argmax(-1)).double().mean()
        )
    return figures


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--windows", type=int, default=6000, help="trained on, for the trigrams")
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures = measure(options.folder, options.windows)
    sys.stdout.write(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
