"""Memory of a training run on each of its GPUs: states by part, activations, and the loss.

Rules: mixed precision with AdamW keeps 16-bit weights and gradients, an fp32 copy and two fp32
moments; ZeRO (arXiv 1910.02054) divides them stage by stage; LoRA trains adapters alone, QLoRA
(arXiv 2305.14314) over weights in nf4 with double quantization.
"""

from math import ceil, prod

from quantkit.core.errors import RefusedError
from quantkit.core.figure import Figure
from quantkit.core.training import Training, TrainingMemory
from quantkit.planning.model.architecture import Architecture
from quantkit.planning.model.inventory import Inventory
from quantkit.planning.model.parameters import parameter_count
from quantkit.planning.train.backward import megatron_activations, saved_activations

BUCKET = 500_000_000
"""Elements that DeepSpeed reduces at once by default; it needs 4.5 bytes for each."""


def training_memory(
    architecture: Architecture, inventory: Inventory, training: Training
) -> TrainingMemory:
    """Bytes of a training run, part by part.

    Raises:
        RefusedError: offloading that no sharding of this kind has.
    """
    _check(training)
    states = _states(inventory, training)
    passing = _passing(architecture, inventory, training)
    if training.offload == "none":
        return TrainingMemory((*states, *passing), (), ())
    moved = {"gradients", "fp32 weights", "moments"} | ({"weights"} if _whole(training) else set())
    away = tuple(figure for figure in states if figure.name in moved)
    kept = tuple(figure for figure in states if figure.name not in moved)
    if training.offload == "cpu":
        return TrainingMemory((*kept, *passing), away, ())
    in_ram = tuple(figure for figure in away if figure.name == "gradients")
    on_disk = tuple(figure for figure in away if figure.name != "gradients")
    return TrainingMemory((*kept, *passing), in_ram, on_disk)


def lora_parameters(inventory: Inventory, rank: int) -> int:
    """Parameters of adapters of `rank` on every linear of the blocks: rank * (outputs + inputs)."""
    shapes = (t.shape for t in inventory.tensors if t.linear and t.layer is not None)
    return sum(rank * sum(shape) for shape in shapes)


def nf4_bytes(inventory: Inventory) -> int:
    """Bytes of a model whose blocks' linears are nf4 with double quantization, the rest 16 bits.

    bitsandbytes 0.50: half a byte a weight, one for each 64, 4 for each 64 * 256, 1088 of tables.
    """
    total_bytes = 0
    for tensor in inventory.tensors:
        size = prod(tensor.shape)
        if tensor.linear and tensor.layer is not None:
            scales = ceil(size / 64)
            total_bytes += ceil(size / 2) + scales + 4 * ceil(scales / 256) + 1088
        else:
            total_bytes += 2 * size
    return total_bytes


def _whole(training: Training) -> bool:
    """Whether the weights are divided among the GPUs too."""
    return training.zero in ("3", "fsdp")


def _check(training: Training) -> None:
    if training.offload == "nvme" and training.zero != "3":
        raise RefusedError(
            "offloading to NVMe needs ZeRO stage 3",
            why="DeepSpeed moves states to disk only in stage 3, and FSDP only to RAM",
            hint="--zero 3, or --offload cpu",
        )
    if training.offload == "cpu" and training.zero == "0":
        raise RefusedError(
            "offloading to RAM needs ZeRO stage 1 to 3, or fsdp",
            why="without ZeRO or FSDP the optimizer's states stay on the GPU",
            hint="--zero 2",
        )


def _states(inventory: Inventory, training: Training) -> tuple[Figure, ...]:
    """Weights, gradients, fp32 copy and moments of one GPU."""
    parameters = parameter_count(inventory)
    trained, frozen, base = parameters, 0, ""
    if training.method != "full":
        trained = lora_parameters(inventory, training.rank)
        frozen = 2 * parameters if training.method == "lora" else nf4_bytes(inventory)
        base = f"{'16-bit' if training.method == 'lora' else 'nf4'} base + "
    stage = 3 if training.zero == "fsdp" else int(training.zero)
    moments, rule = {
        "adamw": (8 * trained, "8 a trained parameter: two fp32 moments"),
        "adamw-8bit": (
            2 * trained + 8 * ceil(trained / 256),
            "2 a trained parameter, and two fp32 scales for 256",
        ),
    }[training.optimizer]
    gradient = training.gradient_bytes
    rows = (
        ("weights", frozen + 2 * trained, 3, f"{base}2 a trained parameter"),
        ("gradients", gradient * trained, 2, f"{gradient} a trained parameter"),
        ("fp32 weights", 4 * trained, 1, "4 a trained parameter: the optimizer's copy"),
        ("moments", moments, 1, rule),
    )
    return tuple(
        Figure(name, ceil(size / training.gpus), f"{why}; a share of 1/{training.gpus}")
        if stage >= first and training.gpus > 1
        else Figure(name, size, why)
        for name, size, first, why in rows
    )


def _passing(
    architecture: Architecture, inventory: Inventory, training: Training
) -> tuple[Figure, ...]:
    """What a step has beside the states: gathered weights, buckets, activations, the loss."""
    tokens = training.tokens * training.sequences
    if all(layer.feed_forward is None or layer.feed_forward.gated for layer in architecture.layers):
        rank = None if training.method == "full" else training.rank
        saved, live = saved_activations(
            architecture, inventory, tokens, training.checkpointing, rank
        )
    else:
        sizes = (training.tokens, training.sequences)
        saved = megatron_activations(architecture, *sizes, training.checkpointing)
        live = Figure("recomputed block", 0, "none")
        if training.checkpointing == "full":
            once = megatron_activations(architecture, *sizes).bytes // len(architecture.layers)
            live = Figure("recomputed block", once, "the activations of one block")
    logits = architecture.vocabulary * tokens
    loss = Figure("loss", 10 * logits, "10 a logit: 16-bit, fp32, and their gradient")
    running = max(loss, live, key=lambda figure: figure.bytes)
    return (
        *_gathered(inventory, training),
        saved,
        Figure("logits", 4 * logits, "4 a logit, kept for the backward pass"),
        Figure(f"working: {running.name}", running.bytes, running.rule),
    )


def _gathered(inventory: Inventory, training: Training) -> tuple[Figure, ...]:
    """Weights that are whole for a moment, and buckets of gradients on their way."""
    found = []
    block: dict[int | None, int] = {}
    for tensor in inventory.tensors:
        block[tensor.layer] = block.get(tensor.layer, 0) + prod(tensor.shape)
    if training.zero == "3":
        largest = max(prod(tensor.shape) for tensor in inventory.tensors)
        rule = "4 a parameter of the largest tensor: it and the next, in 16 bits"
        found.append(Figure("gathered weights", 4 * largest, rule))
    if training.zero == "fsdp":
        each = 8 if training.method == "full" else 4
        rule = f"{each} a parameter of the largest unit: it, the next, and trained ones' gradients"
        found.append(Figure("gathered weights", each * max(block.values()), rule))
    if training.method == "qlora":
        linears = (t for t in inventory.tensors if t.linear and t.layer is not None)
        largest = max((prod(tensor.shape) for tensor in linears), default=0)
        rule = "2 a weight of the largest linear, which is decoded for its product"
        found.append(Figure("decoded linear", 2 * largest, rule))
    if training.zero in ("1", "2", "3") and (training.gpus > 1 or training.offload != "none"):
        trained = lora_parameters(inventory, training.rank)
        if training.method == "full":
            trained = sum(prod(tensor.shape) for tensor in inventory.tensors)
        size = min(trained, BUCKET)
        rule = f"4.5 for each of {size} elements (DeepSpeed's reduce_bucket_size)"
        found.append(Figure("gradient buckets", ceil(4.5 * size), rule))
    return tuple(found)
