"""Prefill and decode of models side by side, repeated until the medians are precise.

Models run in alternating order, so that a change of the clock frequency affects all of them.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from time import monotonic, perf_counter
from typing import TYPE_CHECKING

import torch

from quantkit.bench.statistics import is_settled

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Cell:
    """`batch` sequences of `context_tokens` each, followed by `decode_steps` tokens each."""

    batch: int = 1
    context_tokens: int = 512
    decode_steps: int = 128


@dataclass(frozen=True)
class Effort:
    """How long a cell is measured: warm-ups, most repeats, and seconds after which it ends.

    `clock` is used on a CPU; a thread's CPU clock excludes the time of other programs.
    """

    warmups: int = 1
    repeats: int = 10
    seconds: float = 60.0
    clock: Callable[[], float] = perf_counter


@dataclass(frozen=True)
class Timings:
    """Seconds of one model in one cell: a prefill and a list of steps for each repeat.

    `kv_bytes`: allocated bytes of the cache.
    """

    cell: Cell
    kv_bytes: int
    prefill: list[float] = field(default_factory=list)
    steps: list[list[float]] = field(default_factory=list)

    @property
    def prefill_rates(self) -> list[float]:
        """Tokens per second of each repeat."""
        tokens = self.cell.batch * self.cell.context_tokens
        return [tokens / seconds for seconds in self.prefill]

    @property
    def decode_rates(self) -> list[float]:
        """Tokens per second of each repeat, all sequences together."""
        return [self.cell.batch * len(steps) / sum(steps) for steps in self.steps]


def measure_cell(
    networks: Sequence["PreTrainedModel"], cell: Cell, effort: Effort
) -> list[Timings]:
    """The timings of each network in `cell`, in alternating order.

    Ends after `effort.repeats` repeats, when the interval of every median is below 2 %, or after
    `effort.seconds`, but not before two repeats.
    """
    runs = [Run(network, cell, effort.clock) for network in networks]
    for _ in range(effort.warmups):
        for run in runs:
            run()
    found = [Timings(cell, run.kv_bytes()) for run in runs]
    started = monotonic()
    for repeat in range(effort.repeats):
        order = list(range(len(runs)))
        for i in order if repeat % 2 == 0 else reversed(order):
            seconds, steps = runs[i]()
            found[i].prefill.append(seconds)
            found[i].steps.append(steps)
        settled = all(is_settled(t.prefill_rates) and is_settled(t.decode_rates) for t in found)
        if repeat and (settled or monotonic() - started > effort.seconds):
            break
    return found


class Run:
    """A network with inputs (batch, context_tokens) int64 and cache; a call is one repeat."""

    def __init__(
        self,
        network: "PreTrainedModel",
        cell: Cell,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        from transformers import StaticCache

        self.network, self.cell, self.clock = network, cell, clock
        vocabulary = int(network.config.get_text_config().vocab_size)
        rng = torch.Generator().manual_seed(0)
        shape = (cell.batch, cell.context_tokens)
        self.ids = torch.randint(vocabulary, shape, generator=rng).to(network.device)
        length = cell.context_tokens + cell.decode_steps
        self.cache = StaticCache(network.config, max_cache_len=length)
        takes = inspect.signature(network.forward).parameters
        # as in generation: only the logits of the last position
        self.options = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}

    @torch.inference_mode()
    def __call__(self) -> tuple[float, list[float]]:
        """Seconds of the prefill, and of each decode step."""
        self.cache.reset()
        mark, seconds = _stopwatch(self.ids.device, self.clock)
        ids = self.ids
        mark()
        for _ in range(self.cell.decode_steps + 1):
            out = self.network(
                input_ids=ids, past_key_values=self.cache, use_cache=True, **self.options
            )
            ids = out.logits[:, -1:].argmax(-1)
            mark()
        first, *others = seconds()
        return first, others

    @torch.inference_mode()
    def prefill(self) -> None:
        """One forward over the context, not timed."""
        self.cache.reset()
        self.network(input_ids=self.ids, past_key_values=self.cache, use_cache=True, **self.options)

    def kv_bytes(self) -> int:
        """Bytes of the keys and values of all layers, as allocated."""
        return sum(
            tensor.nbytes
            for layer in self.cache.layers
            for tensor in (getattr(layer, "keys", None), getattr(layer, "values", None))
            if tensor is not None
        )


def _stopwatch(
    device: torch.device, clock: Callable[[], float]
) -> tuple[Callable[[], None], Callable[[], list[float]]]:
    """A function that records a time on `device`, and one that returns the seconds in between."""
    if device.type == "cuda":
        events: list[torch.cuda.Event] = []

        def record() -> None:
            events.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
            events[-1].record()

        def elapsed() -> list[float]:
            torch.cuda.synchronize(device)
            pairs = pairwise(events)
            return [before.elapsed_time(after) / 1000 for before, after in pairs]

        return record, elapsed
    moments: list[float] = []
    return (
        lambda: moments.append(clock()),
        lambda: [b - a for a, b in pairwise(moments)],
    )
