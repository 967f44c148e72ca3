"""Perplexity, KL and top-1 agreement of dense weights against the model they were made from.

    python score.py MODEL DENSE --tokens IDS.npy [--dtype float32|bfloat16] [--int8-activations]

DENSE is a safetensors file of dequantized weights under MODEL's own tensor names (dense.py makes
one); leave it out to score MODEL itself.  Plain transformers and torch, nothing of quantkit: this
is the common judge of all tools, and the check of quantkit's own evaluator.
"""

import argparse
import json
import math
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch.nn.functional import log_softmax
from transformers import AutoModelForCausalLM, PreTrainedModel


def load(folder: Path, dtype: torch.dtype, dense: Path | None = None) -> PreTrainedModel:
    """The model in evaluation mode, its weights replaced by those of ``dense`` where given.

    Raises:
        SystemExit: A weight of the model is missing in ``dense``, or one is foreign to it.
    """
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    if dense:
        found = model.load_state_dict(load_file(dense), strict=False)
        tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
        if set(found.missing_keys) - tied or found.unexpected_keys:
            raise SystemExit(f"{dense} is not for this model: {found}")
        model.tie_weights()
    return model


def round_activations(_module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """The input as symmetric int8 with one scale per token (absmax / 127) would carry it."""
    x = inputs[0].float()
    scale = x.abs().amax(-1, keepdim=True).clamp_min(1e-12) / 127
    return (torch.round(x / scale) * scale).to(inputs[0].dtype)


def mean_and_error(windows: list[float]) -> tuple[float, float]:
    """Mean over windows and its standard error (sample deviation / sqrt of the count)."""
    values = np.asarray(windows)
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values)))


def log_probabilities(model: PreTrainedModel, window: torch.Tensor) -> torch.Tensor:
    """Natural log-probabilities [length, vocabulary] in float32 of the next token everywhere."""
    return log_softmax(model(window[None], use_cache=False).logits[0].float(), -1)


@torch.inference_mode()
def score(model: PreTrainedModel, other: PreTrainedModel, tokens: torch.Tensor) -> dict[str, float]:
    """Perplexity of ``other`` and its divergence from ``model``, natural logarithms in float32.

    Every window of ``tokens`` [windows, length] stands alone: length-1 predictions count for the
    perplexity, all positions for KL(model || other) and top-1 agreement.
    """
    losses, divergences, agreements = [], [], []
    for window in tokens:
        p = log_probabilities(model, window)
        q = p if other is model else log_probabilities(other, window)
        losses.append(-q[:-1].gather(1, window[1:, None]).mean().item())
        divergences.append((p.exp() * (p - q)).sum(-1).mean().item())
        agreements.append((p.argmax(-1) == q.argmax(-1)).float().mean().item())
    loss, loss_error = mean_and_error(losses)
    kl, kl_error = mean_and_error(divergences)
    perplexity = math.exp(loss)
    return {
        "perplexity": perplexity,
        "perplexity_error": perplexity * loss_error,
        "kl": kl,
        "kl_error": kl_error,
        "top1_agreement": mean_and_error(agreements)[0],
        "tokens": tokens.numel(),
    }


def main() -> None:
    """Prints the figures as one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("dense", type=Path, nargs="?")
    parser.add_argument("--tokens", type=Path, required=True, help="int64 .npy, [windows, length]")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--int8-activations", action="store_true", help="for W8A8 results")
    args = parser.parse_args()
    dtype = getattr(torch, args.dtype)
    model = load(args.model, dtype)
    changed = args.dense or args.int8_activations
    other = load(args.model, dtype, args.dense) if changed else model
    if args.int8_activations:
        for linear in other.modules():
            if isinstance(linear, torch.nn.Linear) and linear is not other.get_output_embeddings():
                linear.register_forward_pre_hook(round_activations)
    print(json.dumps(score(model, other, torch.from_numpy(np.load(args.tokens))), indent=2))


if __name__ == "__main__":
    main()
