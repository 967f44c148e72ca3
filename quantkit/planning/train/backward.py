"""What autograd keeps of a forward pass for the backward one: bytes of activations.

Two rules. Blocks like Llama's (RMSNorm, gated MLP, fused attention, no dropout) are counted as
PyTorch saves their tensors in bf16, a figure that a test holds to real ones. Blocks like GPT-3's
(LayerNorm, MLP of two matrices, dropout) follow Korthikanti et al. (arXiv 2205.05198, table 2).
"""

from collections import defaultdict
from dataclasses import dataclass

from quantkit.core.figure import Figure
from quantkit.core.training import Checkpointing
from quantkit.planning.model.architecture import (
    Architecture,
    Attention,
    Experts,
    FeedForward,
    LatentAttention,
    Layer,
    Recurrent,
)
from quantkit.planning.model.inventory import Inventory, PlannedTensor


@dataclass(frozen=True)
class Widths:
    """Elements a token: queries, keys (and as many values), heads, and what an MLP is wide."""

    queries: int
    keys: int
    heads: int
    mlp: int


def saved_activations(
    architecture: Architecture,
    inventory: Inventory,
    tokens: int,
    checkpointing: Checkpointing = "none",
    adapter_rank: int | None = None,
) -> tuple[Figure, Figure]:
    """Bytes kept until the backward pass for `tokens` tokens, and those of the block that runs.

    With checkpoints a block keeps its input, and has the rest again while its backward pass runs.
    Attention is fused, so there is nothing quadratic that selective recomputation could save.
    `adapter_rank`: of LoRA on every linear, the rest frozen. Exact for Llama, Mistral, Qwen 2, 3;
    up to a sixth too little where norms compute in fp32 (Gemma) or linears are fused (Phi-3).
    Latents and recurrent mixers are counted by their widths.
    """
    norms = defaultdict(list)
    for tensor in inventory.tensors:
        if tensor.part == "norm" and tensor.layer is not None:
            norms[tensor.layer].append(tensor)
    blocks = [
        tokens * block_bytes(architecture.hidden, layer, norms[index], adapter_rank)
        for index, layer in enumerate(architecture.layers)
    ]
    if checkpointing == "full":
        kept = 2 * architecture.hidden * tokens * len(blocks)
        live = max(blocks, default=0)
        return (
            Figure("activations", kept, "2 hidden a token and block: its input in 16 bits"),
            Figure("recomputed block", live, "the activations of the largest block"),
        )
    rule = f"{_hidden_factor(adapter_rank)} hidden + 4 queries + 4 keys + 8 MLP width + 4 heads + 8"
    rule += f" + 14 * {adapter_rank}, a token" if adapter_rank else ", a token"
    return Figure("activations", sum(blocks), rule), Figure("recomputed block", 0, "none")


def _hidden_factor(adapter_rank: int | None) -> int:
    """Bytes a hidden element: where a norm is trained, its output in 16 bits is kept too."""
    return 16 if adapter_rank is None else 12


def block_bytes(
    hidden: int, layer: Layer, norms: list[PlannedTensor], adapter_rank: int | None = None
) -> int:
    """Bytes that one block like Llama's saves for a token.

    Measured with PyTorch 2.13 and transformers 5.23: norms keep their input in fp32 and, where
    their weight is trained, their output; products keep their inputs, fused attention its heads'
    logarithms of sums. A further norm, of heads or of a sublayer's output, adds its own.
    """
    widths = _widths(layer)
    total = _hidden_factor(adapter_rank) * hidden
    total += 4 * widths.queries + 4 * widths.keys + 4 * widths.heads + 8 * widths.mlp + 8
    if isinstance(layer.feed_forward, Experts):  # a token's copies, and the router's scores
        total += 4 * layer.feed_forward.active * hidden + 12 * layer.feed_forward.count
    if adapter_rank is not None:
        total += 2 * 7 * adapter_rank
    element = 6 if adapter_rank is None else 4
    return total + sum(_vectors(norm, widths) * (element * norm.shape[0] + 4) for norm in norms)


def _vectors(norm: PlannedTensor, widths: Widths) -> int:
    """How many vectors a token has for a norm beyond the two that every block has."""
    if norm.name.endswith("self_attn.q_norm.weight"):
        return widths.queries // norm.shape[0]
    if norm.name.endswith("self_attn.k_norm.weight"):
        return widths.keys // norm.shape[0]
    return int(norm.name.endswith("feedforward_layernorm.weight"))


def _widths(layer: Layer) -> Widths:
    mlp = 0
    match layer.feed_forward:
        case FeedForward(width):
            mlp = width
        case Experts() as experts:
            mlp = experts.active * experts.width + experts.shared_width
    match layer.mixer:
        case Attention() as mixer:
            queries, keys = mixer.heads * mixer.head_dim, mixer.kv_heads * mixer.head_dim
            return Widths(queries, keys, mixer.heads, mlp)
        case LatentAttention() as latent:
            queries = latent.heads * (latent.nope_dim + latent.rope_dim)
            return Widths(queries, queries, latent.heads, mlp)
        case Recurrent() as recurrent:
            return Widths(recurrent.convolution, recurrent.convolution, 0, mlp)
    return Widths(0, 0, 0, mlp)


def megatron_activations(
    architecture: Architecture,
    tokens: int,
    sequences: int,
    checkpointing: Checkpointing = "none",
) -> Figure:
    """Bytes that blocks like GPT-3's keep for `sequences` sequences of `tokens` tokens.

    Korthikanti et al., arXiv 2205.05198, on one GPU: equation 1, and sections 4.1 and 5.
    """
    hidden = architecture.hidden
    each = tokens * sequences * hidden
    total = 0.0
    for layer in architecture.layers:
        heads = layer.mixer.heads if isinstance(layer.mixer, Attention) else 0
        scores = 0 if checkpointing == "selective" else 5 * heads * tokens / hidden
        total += each * (2 if checkpointing == "full" else 34 + scores)
    rules = {
        "none": "s b h (34 + 5 a s / h)",
        "selective": "34 s b h, attention recomputed",
        "full": "2 s b h, blocks recomputed",
    }
    return Figure("activations", round(total), f"{rules[checkpointing]}, arXiv 2205.05198")
