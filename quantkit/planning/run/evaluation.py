"""What an evaluation needs of memory: models that run block by block over windows of text.

Counted along the way of `eval.walking` and `eval.scoring`, beside what Python with torch holds: all
hidden states of each model, or a batch where they wait in a file; one block at a time; at the end
the heads, and tiles of the logits.
"""

from dataclasses import dataclass, replace

from quantkit.core.figure import Figure
from quantkit.core.resources import PAUSED, SPILLED, TOKENS_PER_BATCH, Holding, Memory
from quantkit.grid.tiles import LOGIT_BYTES, POSITIONS, WIDEST, tiles

WAYS = (PAUSED, SPILLED)
"""Where hidden states wait: in memory, or in a file; the faster way first."""
FP32 = 4
DECODING = 14
"""Bytes a weight while a quantized linear is decoded: words, codes, and numbers in fp32 twice."""
NORMS = 3
"""Copies of hidden states in fp32 while they are normed."""
INNER = 3
"""Numbers of the widest inner width that a token keeps alive: gate, up, and their product."""
OUTER = 5
"""Numbers of the hidden width: what the block got, what it gives, and between them."""
PROBES = 4
"""Windows that the noise floor takes beside the text, at most."""
WHOLES = 4
"""Logits at once where a model gives them only whole: two models', and what is made of them."""
SCORES = 200
"""Bytes a token: its scores, and copies of them in fp64, sorted, while figures are computed."""
RESAMPLES, RESAMPLED = 24 << 20, 64 << 10
"""Bytes of the resamples that intervals are computed from, and of these for each window."""


@dataclass(frozen=True)
class Network:
    """The sizes of a model's parts, in numbers: those of its largest `block` and what it holds.

    `largest`: the largest tensor of it. `inner`: the widest output of a linear, times the experts
    that a token takes. `head`: all that follows the blocks. `itemsize`: bytes of a number in the
    computation. `cast`: bytes of one as it is stored, where it has another dtype than that, else 0;
    `decoded`: linears are stored as codes. `merged`: stored tensors are joined, and the last kept.
    """

    block: int
    largest: int
    inner: int
    hidden: int
    embedding: int
    head: int
    vocabulary: int
    itemsize: int
    cast: int = 0
    decoded: bool = False
    merged: bool = False

    @property
    def loading(self) -> int:
        """Bytes beside a block while it is read."""
        kept = 2 * self.block * (self.cast or self.itemsize) if self.merged else 0
        return kept + self.largest * (DECODING if self.decoded else self.cast)

    def states(self, tokens: int) -> int:
        """Bytes of the hidden states of so many tokens."""
        return tokens * self.hidden * self.itemsize

    def passing(self, tokens: int) -> int:
        """Bytes that so many tokens take on their way through a block."""
        numbers = OUTER * self.hidden + INNER * self.inner
        return tokens * (numbers * self.itemsize + NORMS * FP32 * self.hidden)

    @property
    def following(self) -> int:
        """Bytes of what follows the blocks, while it is read."""
        return self.head * (self.itemsize + self.cast)


@dataclass(frozen=True)
class Reading:
    """Windows of text, their tokens, and the kind of device that reads them.

    `saved`: the original's head is read once more, to be stored with its hidden states.
    """

    windows: int
    length: int
    device: str = "cpu"
    saved: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of all windows."""
        return self.windows * self.length

    @property
    def batch(self) -> int:
        """Tokens of a batch."""
        return min(self.tokens, max(1, TOKENS_PER_BATCH // self.length) * self.length)


def evaluation_memory(
    models: tuple[Network, ...], reading: Reading, holding: Holding = PAUSED
) -> Memory:
    """The stages of an evaluation of one model, or of an artifact beside the original."""
    batch = reading.batch
    probed = PROBES * reading.length if len(models) > 1 else 0
    waiting = sum(m.states(reading.tokens) for m in models) + models[-1].states(probed)
    where = f"{waiting:,} B of hidden states"
    spilled = waiting if holding.spilled else 0
    if holding.spilled:
        waiting, where = 0, "hidden states in a file"
    stages = [_walking(each, waiting, where, batch) for each in models]
    stages.append(_entering(models, waiting, where, batch))
    stages.append(_scoring(models, waiting, where, reading, spilled=holding.spilled))
    return Memory(tuple(stages), holding=holding, spilled_bytes=spilled)


def triage_memory(
    models: tuple[Network, ...], reading: Reading, variants: int, holding: Holding = PAUSED
) -> Memory:
    """The stages of a triage: `variants` of two models, the blocks of both in memory at a time."""
    waiting, where = variants * models[0].states(reading.tokens), f"{variants} variants"
    spilled = waiting if holding.spilled else 0
    if holding.spilled:
        waiting, where = 0, f"{variants} variants in a file"
    blocks = sum(model.block * model.itemsize for model in models)
    running = max(max(m.loading, m.passing(reading.batch)) for m in models)
    rule = f"{where} + a block of each model {blocks:,} B + running it {running:,} B"
    walking = Figure("triage", waiting + blocks + running, rule)
    scoring = _scoring(models, waiting, where, reading, spilled=holding.spilled)
    stages = (walking, replace(scoring, name="scoring of the triage"))
    return Memory(stages, holding=holding, spilled_bytes=spilled)


def _entering(models: tuple[Network, ...], waiting: int, where: str, batch: int) -> Figure:
    size = max(m.embedding * (m.itemsize + m.cast) for m in models)
    passing = max(m.states(2 * batch) for m in models)
    return Figure("embedding of the evaluation", waiting + size + passing, f"{where} + embeddings")


def _walking(model: Network, waiting: int, where: str, batch: int) -> Figure:
    block, passing = model.block * model.itemsize, model.passing(batch)
    compared = 5 * FP32 * batch * model.hidden  # of two models' batches, in fp32
    size = waiting + max(block + max(model.loading, passing), compared)
    rule = (
        f"{where} + a block {block:,} B + reading it {model.loading:,} B or a batch {passing:,} B"
    )
    return Figure("forward of the evaluation", size, rule)


def _scoring(
    models: tuple[Network, ...], waiting: int, where: str, reading: Reading, *, spilled: bool
) -> Figure:
    heads = sum(m.head * m.itemsize for m in models) + max(m.head * m.cast for m in models)
    heads += models[-1].following if reading.saved else 0
    logits = 0
    for model in models:
        columns = min(WIDEST, model.vocabulary)
        tile = columns * model.hidden * FP32 if model.itemsize < FP32 else 0
        rows = min(POSITIONS, reading.length) * model.hidden * (FP32 + model.itemsize)
        logits += tile + rows + 2 * FP32 * tiles(reading.device).logits
        logits += model.states(reading.batch) if spilled else 0
    whole = min(LOGIT_BYTES, FP32 * min(POSITIONS, reading.length) * models[0].vocabulary)
    scores = SCORES * reading.tokens + RESAMPLES + RESAMPLED * reading.windows
    size = waiting + max(heads + logits + WHOLES * whole, scores)
    rule = f"{where} + heads {heads:,} B + logits {logits + WHOLES * whole:,} B"
    return Figure("scoring of the evaluation", size, rule)
