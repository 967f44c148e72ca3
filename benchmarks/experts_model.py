"""Trains a small mixture of experts on the embedded model's text, with its tokenizer.

    python -m benchmarks.experts_model FOLDER [--steps 600]

Qwen3's architecture: 4 layers of 16 experts, 2 of them for each token. A random mixture says
nothing about quality: its experts do not differ.
"""

import argparse
import shutil
import time
from itertools import islice
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerFast, Qwen3MoeConfig, Qwen3MoeForCausalLM

from quantkit.model.embedded_model import FOLDER
from tools.embedded.corpus import CONTEXT, training_documents, windows
from tools.embedded.train import schedule

SEED = 20
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def architecture(tokenizer: PreTrainedTokenizerFast) -> Qwen3MoeConfig:
    """All widths of linears are multiples of 128, so that every group size fits."""
    return Qwen3MoeConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        moe_intermediate_size=128,
        num_experts=16,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        output_router_logits=True,
        router_aux_loss_coef=0.002,  # little: real mixtures have experts that are seldom used
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        attn_implementation="eager",
        experts_implementation="grouped_mm",
    )


class Muon(torch.optim.Optimizer):
    """Momentum made orthogonal, as torch's own, for parameters that stack matrices, too."""

    def __init__(self, parameters: list[torch.nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": 0.95})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # no closure
        """One step; gradients are not modified."""
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                sums = state.setdefault("sums", torch.zeros_like(parameter))
                sums.lerp_(parameter.grad, 1 - group["momentum"])
                update = orthogonal(parameter.grad.lerp(sums, group["momentum"]))
                height, width = parameter.shape[-2:]
                scale = max(1.0, height / width) ** 0.5
                parameter.add_(update, alpha=-group["lr"] * scale)


def orthogonal(matrices: torch.Tensor) -> torch.Tensor:
    """The nearest orthogonal matrices, about, to `matrices` (.., rows, columns), by Newton-Schulz.

    Muon, Jordan et al. 2024; five steps with its coefficients.
    """
    a, b, c = NEWTON_SCHULZ
    high = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if high else matrices
    x = (x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)).bfloat16()
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if high else x).to(matrices.dtype)


def train(tokenizer: PreTrainedTokenizerFast, steps: int, rate: float) -> Qwen3MoeForCausalLM:
    """A model trained on `steps` batches of four windows of 512 tokens."""
    torch.manual_seed(SEED)
    model = Qwen3MoeForCausalLM(architecture(tokenizer))
    blocks = [
        p for n, p in model.model.layers.named_parameters() if p.dim() > 1 and "mlp.gate." not in n
    ]
    others = [p for p in model.parameters() if not any(p is block for block in blocks)]
    both = [Muon(blocks, rate), torch.optim.AdamW(others, lr=0.4 * rate, betas=(0.9, 0.95))]
    rates = [
        torch.optim.lr_scheduler.LambdaLR(each, lambda step: schedule(step, steps)) for each in both
    ]
    stream = windows(tokenizer, training_documents())
    start, running = time.monotonic(), 0.0
    for step in range(steps):
        batch = torch.tensor(list(islice(stream, 4)))
        with torch.autocast("cpu", torch.bfloat16):
            found = model(batch, use_cache=False)
        logits = found.logits[:, :-1].float().flatten(0, 1)
        loss = cross_entropy(logits, batch[:, 1:].flatten())
        torch.autograd.backward(loss + model.config.router_aux_loss_coef * found.aux_loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for each, its_rate in zip(both, rates, strict=True):
            each.step()
            its_rate.step()
        model.zero_grad()
        running = loss.item() if step == 0 else 0.95 * running + 0.05 * loss.item()
        if step % 20 == 19:
            print(
                f"step {step + 1} loss {running:.3f} {time.monotonic() - start:.0f} s", flush=True
            )
    return model


def made(folder: Path, steps: int = 500, rate: float = 0.012) -> Path:
    """The folder with the model; it is trained where there is none."""
    if not (folder / "config.json").exists():
        tokenizer = PreTrainedTokenizerFast.from_pretrained(FOLDER)
        model = train(tokenizer, steps, rate)
        model.config.output_router_logits = False
        model.to(torch.bfloat16).save_pretrained(folder)
        for path in FOLDER.glob("tokenizer*"):
            shutil.copy(path, folder)
        shutil.copy(FOLDER / "chat_template.jinja", folder)
    return folder


def main() -> None:
    """Train the model into a folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--rate", type=float, default=0.012, help="peak learning rate of Muon")
    arguments = parser.parse_args()
    made(arguments.folder, arguments.steps, arguments.rate)


if __name__ == "__main__":
    main()
