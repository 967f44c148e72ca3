"""What a quantization run needs: bytes of its files, and of memory stage by stage.

Files are laid out as the writer lays them out, headers included. Memory is counted along the way of
`pipeline.blockloop`: two blocks (the next one is read meanwhile), what is still to be written of
the last one, what all windows keep alive, the statistics of a group and what its method needs. All
of it is above what Python with torch holds by itself, which is measured on the machine.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from quantkit.checkpoint.shards import Shard, TensorSpec, artifact_specs, beside, plan_shards
from quantkit.checkpoint.stored import DTYPE_BYTES
from quantkit.core.facts import STORED, LinearFacts
from quantkit.core.figure import Figure
from quantkit.core.format import Format
from quantkit.core.method import GroupShape, Method
from quantkit.core.plan import Plan
from quantkit.core.resources import (
    PAUSED,
    TOKENS_PER_BATCH,
    Files,
    Holding,
    Memory,
    Time,
    Work,
)
from quantkit.core.scheme import Scheme
from quantkit.planning.model.inventory import Inventory, PlannedTensor
from quantkit.stats.sizes import SAMPLE, sampled, statistics_bytes

EXPERTS = ".experts."
"""In the names of tensors of experts, before the expert's number."""
WIDEST_HEAD = 256
Quantized = Mapping[str, tuple[LinearFacts, Scheme]]
"""Tensor name of each weight that is replaced -> its linear, and what it becomes."""


@dataclass(frozen=True)
class Run:
    """How a model is to be quantized, as far as memory goes.

    `windows` of `length` calibration tokens, 0 where no input is looked at, are shared by so many
    `ranks`. `dtype` is the model's own as safetensors names it. `compensate`: the original model
    runs beside the quantized one.
    """

    method: Method
    output: Format
    hidden: int
    dtype: str
    windows: int
    length: int
    max_shard_size: int
    device: str = "cpu"
    holding: Holding = PAUSED
    ranks: int = 1
    compensate: bool = False

    @property
    def models(self) -> int:
        """How many run on the calibration tokens: the quantized one, and the original."""
        return 2 if self.compensate else 1

    @property
    def tokens(self) -> int:
        """Calibration tokens."""
        return self.windows * self.length

    @property
    def batch(self) -> int:
        """Tokens of a batch."""
        return min(self.tokens, max(1, TOKENS_PER_BATCH // max(1, self.length)) * self.length)

    @property
    def own(self) -> int:
        """Tokens that a rank runs: those of whole batches."""
        batches = -(-self.tokens // self.batch) if self.tokens else 0
        return min(self.tokens, -(-batches // self.ranks) * self.batch)

    @property
    def kept(self) -> int:
        """Bytes on disk from which a run goes on: hidden states before and after a block."""
        alone = self.ranks == 1
        return 2 * self.models * self.tokens * self.hidden * self.itemsize if alone else 0

    @property
    def itemsize(self) -> int:
        """Bytes of a number in the computation: a CPU widens fp16 to fp32."""
        wide = self.dtype == "F32" or (self.dtype == "F16" and self.device == "cpu")
        return 4 if wide else 2


def plan_run(inventory: Inventory, quantized: Quantized, run: Run) -> tuple[Files, Memory, Time]:
    """Files, memory and work of quantizing the model in `inventory`, on any machine.

    Seconds, and what the process holds beside the run, depend on the machine: `estimate` adds them.
    """
    shards = artifact_shards(inventory, quantized, run)
    layers: dict[int, list[PlannedTensor]] = {}
    for tensor in inventory.tensors:
        if tensor.layer is not None and tensor.part != "other":
            layers.setdefault(tensor.layer, []).append(tensor)
    stages = [_embedding(inventory, run), _copying(inventory, quantized)]
    work, paused, held, seen = Work(), 0, 0, set()
    for index, tensors in sorted(layers.items()):
        groups = _groups(tensors, quantized)
        replays = _replays(groups) if run.holding.replayed else [0] * len(groups)
        for group, times in zip(groups, replays, strict=True):
            each = _work(group, quantized, run)
            work += replace(each, forward=each.forward * (1 + times))
            paused += each.forward
        own = (_shapes(tensors), _shapes(layers.get(index + 1, ())), held)
        if own in seen:
            continue
        seen.add(own)
        coming = _computed(layers.get(index + 1, ()), run)
        stages.append(_tracing(tensors))
        stages += _block(tensors, coming + held, quantized, run)
        held = sum(_encoded_bytes(*quantized[t.name], run) for t in tensors if t.name in quantized)
    files = Files({shard.name: shard.nbytes for shard in shards}, run.kept)
    memory = Memory(
        tuple(stages), holding=run.holding, forwards=work.forward / paused if paused else 1.0
    )
    return files, memory, Time(work, "F32" if run.itemsize == 4 else "BF16")


def quantized_by(plan: Plan, inventory: Inventory) -> Quantized:
    """The tensors that a plan quantizes, by their names in the files."""
    named = {tensor.linear: tensor.name for tensor in inventory.tensors}
    return {
        named[each.linear.name]: (each.linear, each.scheme)
        for each in plan.dispositions
        if each.scheme is not None
    }


def artifact_shards(inventory: Inventory, quantized: Quantized, run: Run) -> tuple[Shard, ...]:
    """The weight files that `pipeline.write` and the writer would make, headers included."""
    dtype = _dtype_name(run)
    new = {
        name: beside(name, run.output.layout(scheme, linear, dtype))
        for name, (linear, scheme) in quantized.items()
    }
    source = {tensor.name: (tensor.dtype, tensor.shape) for tensor in inventory.tensors}
    return plan_shards(artifact_specs(source, new), run.max_shard_size)


def _shapes(tensors: Iterable[PlannedTensor]) -> tuple[object, ...]:
    return tuple((t.part, t.split, t.shape, t.dtype) for t in tensors)


def _elements(tensor: PlannedTensor) -> int:
    return math.prod(tensor.shape)


def _computed(tensors: Iterable[PlannedTensor], run: Run) -> int:
    """Bytes of the tensors in the dtype of the computation."""
    return sum(map(_elements, tensors)) * run.itemsize


def _codes_bytes(linear: LinearFacts, scheme: Scheme, dtype: str) -> int:
    """Bytes of a QTensor: a byte a code, and its scales and zeros."""
    scale = DTYPE_BYTES[STORED.get(scheme.scale_dtype(dtype), "U8")]
    count = scheme.scale_count(linear.out_features, linear.in_features)
    stored = scale if scheme.symmetric else scale + 1
    return linear.out_features * linear.in_features + count * stored


def _encoded_bytes(linear: LinearFacts, scheme: Scheme, run: Run) -> int:
    """Bytes of a linear's tensors in the artifact."""
    layout = run.output.layout(scheme, linear, _dtype_name(run))
    return sum(TensorSpec(name, *stored).nbytes for name, stored in layout.items())


def _dtype_name(run: Run) -> str:
    """The model's dtype as formats name it."""
    return next(name for name, stored in STORED.items() if stored == run.dtype)


def _embedding(inventory: Inventory, run: Run) -> Figure:
    """The embeddings, and the hidden states that they give."""
    tokens = run.batch if run.holding.offloaded else run.own
    entered = tokens * run.hidden * run.itemsize
    parts = [t for t in inventory.tensors if t.part == "embedding"] if run.tokens else []
    stored = 2 * sum(map(_elements, parts)) if run.dtype == "F16" and run.itemsize == 4 else 0
    rule = f"embeddings in memory + {tokens:,} tokens x {run.hidden} x {run.itemsize} B"
    return Figure("embedding", _computed(parts, run) + stored + entered, rule)


def _copying(inventory: Inventory, quantized: Quantized) -> Figure:
    """What is not quantized goes from file to file, one tensor at a time."""
    copied = [t for t in inventory.tensors if t.name not in quantized]
    if not copied:
        return Figure("copying", 0, "every tensor is quantized")
    largest = max(copied, key=_elements)
    size = _elements(largest) * (2 if largest.dtype in ("BF16", "F16") else 4)
    return Figure("copying", size, f"`{largest.name}`, the largest tensor that is copied")


def _tracing(tensors: list[PlannedTensor]) -> Figure:
    """One block in fp32 with random numbers, and copies of linears whose scales are tried."""
    linears = sorted((_elements(t) for t in tensors if len(t.shape) == 2), reverse=True)
    total = sum(map(_elements, tensors)) + 2 * sum(linears[:1]) + sum(linears[1:2])
    return Figure("tracing", 4 * total, "a block and its three largest linears in fp32")


def _block(
    tensors: list[PlannedTensor], beside: int, quantized: Quantized, run: Run
) -> Iterator[Figure]:
    """The forward to each group of a block, and the group's solution, with `beside` in memory."""
    weights = run.models * _computed(tensors, run) + beside + _calls(run)
    queries = sum(
        _elements(t) // run.hidden
        for t in tensors
        if t.part == "attention" and t.linear and t.split != "columns"
    )
    done = 0
    groups = _groups(tensors, quantized)
    experts = Counter(_stage(group) for group in groups)
    for group in groups:
        task = _task(group, quantized, run)
        first = quantized[group[0].name][0]
        alive = _alive(group[0], task.inputs, queries, run.hidden, experts[_stage(group)])
        waiting, coming = _waiting(run, alive, task.inputs, experts[_stage(group)])
        paused = run.models * run.own * waiting * run.itemsize
        gathering, gathered = _statistics(task, run)
        if EXPERTS in first.name:  # of one at a time; beside it those of the layer
            gathering, gathered = gathering + gathered, 2 * gathered
        if run.tokens:
            arriving = run.models * run.own * coming * run.itemsize
            passing = run.models * _passing(run, task.inputs, alive)
            size = weights + done + paused + arriving + gathering + passing
            rule = _stored(weights, done) + (
                f"{run.own:,} tokens {run.holding} at `{first.name}` x {waiting + coming} x "
                f"{run.itemsize} B + statistics {gathering:,} B + a batch on its way {passing:,} B"
            )
            yield Figure("forward", size, rule)
        solving = max(run.method.workspace(task), _compensating(task, run))
        rule = _stored(weights, done) + (
            f"{'waiting' if run.holding.replayed else 'paused'} inputs {paused:,} B + statistics "
            f"{gathered:,} B + {run.method.name} on `{first.name}` {solving:,} B"
        )
        yield Figure("solving", weights + done + paused + gathered + solving, rule)
        dtype = _dtype_name(run)
        done += sum(_codes_bytes(*quantized[tensor.name], dtype) for tensor in group)
    if run.holding.replayed and groups:
        widest = max(quantized[group[0].name][0].in_features for group in groups)
        kept = 0 if run.holding.offloaded else run.models * run.own * run.hidden * run.itemsize
        passing = _passing(run, widest, 3 * run.hidden)
        rule = f"hidden states {kept:,} B + a batch on its way {passing:,} B"
        size = weights + done + kept + passing
        yield Figure("forward", size, _stored(weights, done) + rule)


def _stored(weights: int, done: int) -> str:
    """What a rule says of the blocks' weights in memory."""
    return f"2 blocks and the last one encoded {weights:,} B + codes {done:,} B + "


def _waiting(run: Run, alive: int, inputs: int, experts: int) -> tuple[int, int]:
    """Numbers of each token that wait at a group, and those that go once all have arrived.

    A forward that is replayed leaves its block's input, and to experts their inputs and what their
    router gave. Inputs that several ranks pass to each other wait until all have arrived.
    """
    if not run.holding.replayed:
        return alive, 0
    kept = 0 if run.holding.offloaded else run.hidden
    if experts > 1:
        return kept + run.hidden + 2 * experts, 0
    return kept, inputs if run.ranks > 1 and not run.holding.offloaded else 0


def _passing(run: Run, inputs: int, alive: int) -> int:
    """Bytes of a batch on its way, beside what waits of it."""
    passing = 3 * TOKENS_PER_BATCH * max(inputs, run.hidden)
    if run.holding.replayed:
        passing += run.batch * alive
    return passing * run.itemsize


def _replays(groups: Sequence[list[PlannedTensor]]) -> list[int]:
    """How often a forward that is replayed comes through each group on its way to later ones.

    Experts compute nothing before the forward goes on from their last pause.
    """
    stages = list(dict.fromkeys(map(_stage, groups)))
    later = {stage: len(stages) - 1 - index for index, stage in enumerate(stages)}
    return [0 if EXPERTS in group[0].name else later[_stage(group)] for group in groups]


def _statistics(task: GroupShape, run: Run) -> tuple[int, int]:
    """Bytes of a group's statistics while they are gathered, and when they are complete."""
    if not run.tokens:
        return 0, 0
    gathering, gathered = statistics_bytes(task.inputs, run.itemsize, run.models)
    if run.device == "cpu":
        return gathering, gathered
    firsts = 4 * run.windows * task.inputs
    unused = (2 * SAMPLE - sampled(run.tokens)) * task.inputs * run.itemsize
    return gathering + firsts, gathered + firsts - unused


def _compensating(task: GroupShape, run: Run) -> int:
    """Bytes that move weights, in fp32: H and its factor, then the move and new weights."""
    if not run.compensate or not run.tokens:
        return 0
    square = 4 * task.inputs**2
    return 4 * task.weights + square + max(square, 4 * task.weights)


def _calls(run: Run) -> int:
    """Bytes beside hidden states with which a GPU's blocks are called: rotary tables and a mask."""
    rotary = 4 * run.length * min(run.hidden, WIDEST_HEAD) * run.itemsize
    return 0 if run.device == "cpu" else rotary + run.length**2


def _stage(group: list[PlannedTensor]) -> tuple[str, str, int]:
    """What the groups of all experts that pause together share; other groups pause alone."""
    name, inside, rest = group[0].name.partition(EXPERTS)
    return name, rest.partition(".")[2] if inside else "", group[0].shape[-1]


def _groups(tensors: list[PlannedTensor], quantized: Quantized) -> list[list[PlannedTensor]]:
    """The quantized linears of a block by the input they read, in the order of the forward."""
    found: dict[tuple[str, ...], list[PlannedTensor]] = {}
    for tensor in tensors:
        if tensor.name in quantized:
            linear = quantized[tensor.name][0]
            found.setdefault(linear.fused or (linear.name,), []).append(tensor)
    return sorted(found.values(), key=lambda g: (g[0].part != "attention", g[0].split == "columns"))


def _alive(tensor: PlannedTensor, inputs: int, queries: int, hidden: int, experts: int) -> int:
    """Numbers of each token that a forward keeps alive where it stands at a linear's input.

    The block's own input; the normed input; in attention queries, keys, values and what they gave;
    after attention the sum of its output and the block's input. Inputs of experts are made anew for
    each; what their router gave stays, about two numbers an expert.
    """
    if EXPERTS in tensor.name:
        return 3 * hidden + 2 * experts
    last = tensor.split == "columns"
    if tensor.part == "attention":
        return 2 * hidden + (queries + inputs if last else 0)
    return 3 * hidden + (inputs if last else 0)


def _work(group: list[PlannedTensor], quantized: Quantized, run: Run) -> Work:
    """Forward and Hessian of a group, and its solution."""
    task = _task(group, quantized, run)
    return Work(
        forward=run.models * run.tokens * task.weights,
        hessian=run.tokens * task.inputs**2 * (2 * run.models - 1) // 2,
        weights=task.weights,
        crossed=task.weights * task.inputs,
        cubed=task.inputs**3,
    )


def _sample(run: Run) -> int:
    """Tokens that statistics keep: on a GPU those of the run, the first of each window included."""
    if run.device == "cpu":
        return 2 * SAMPLE if run.tokens else 0
    return sampled(run.tokens) + run.windows


def _task(group: list[PlannedTensor], quantized: Quantized, run: Run) -> GroupShape:
    linear, scheme = quantized[group[0].name]
    return GroupShape(
        outputs=tuple(quantized[tensor.name][0].out_features for tensor in group),
        inputs=linear.in_features,
        scheme=scheme,
        sample=_sample(run),
        mixes_tokens=group[0].part == "attention" and group[0].split != "columns",
        widened=run.itemsize != 4 or linear.transposed,
        device=run.device,
    )
