"""The two forms of a stored reference: as tensors to write, and as references to compare with."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from quantkit.checkpoint.checkpoint import Checkpoint
from quantkit.checkpoint.shards import TensorSpec
from quantkit.core.errors import RefusedError
from quantkit.eval.scoring import Side, Span, TokenScores, most_whole, slices
from quantkit.eval.text import EvaluationText
from quantkit.eval.topk import KEPT, SAMPLES, TopK, compress, divergence
from quantkit.model.opened import OpenModel
from quantkit.model.skeleton import build_skeleton, read_config
from quantkit.model.weight_map import map_weights
from quantkit.stats.divergence import token_nll


@dataclass(frozen=True)
class Writing:
    """Tensors to be written: their specs, and an iterator that computes them one by one."""

    specs: list[TensorSpec]
    tensors: Iterator[tuple[str, torch.Tensor]]


def hidden_tensors(side: Side, text: EvaluationText, model: OpenModel) -> Writing:
    """Form `hidden`: the states at the scored positions, and what follows the blocks."""
    names = _head_parameters(model)
    row = side.rows(0, slice(0, 1))
    specs = [
        TensorSpec.like(name, torch.empty(shape, dtype=model.dtype, device="meta"))
        for name, shape in names.items()
    ]
    for window, (start, stop) in enumerate(text.spans):
        states = torch.empty(stop - start, row.shape[1], dtype=row.dtype, device="meta")
        specs.append(TensorSpec.like(f"hidden.{window}", states))

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        for name in names:
            yield name, model.parameter(name)
        for window, span in enumerate(text.spans):
            yield f"hidden.{window}", side.rows(window, slice(*span))

    return Writing(specs, tensors())


def _head_parameters(model: OpenModel) -> dict[str, torch.Size]:
    """Shapes of the parameters outside the blocks, less the input embedding's own."""
    skeleton = model.skeleton
    network = skeleton.model
    inputs = network.get_input_embeddings()
    embedding = {name for name, module in network.named_modules() if module is inputs}
    return {
        name: parameter.shape
        for name, parameter in network.named_parameters(remove_duplicate=False)
        if not name.startswith(f"{skeleton.prefix}.") and name.rpartition(".")[0] not in embedding
    }


def hidden_side(
    checkpoint: Checkpoint,
    head: Path,
    dtype: torch.dtype,
    text: EvaluationText,
    device: torch.device,
) -> Side:
    """A stored reference of form `hidden`; the folder `head` has the model's config."""
    skeleton = build_skeleton(read_config(head))
    weights = map_weights(skeleton.rules, checkpoint.names)
    model = OpenModel(skeleton, checkpoint, weights, None, dtype, dtype, device)
    states = _Cached(checkpoint)

    def rows(window: int, positions: slice) -> torch.Tensor:
        start = text.spans[window][0]
        found = states.window(window)["hidden"]
        return found[positions.start - start : positions.stop - start].to(device)

    return Side(rows, model.head(), text.vocabulary)


class _Cached:
    """The stored tensors of one window at a time, by the first part of their names."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._window = -1
        self._tensors: dict[str, torch.Tensor] = {}

    def window(self, window: int) -> dict[str, torch.Tensor]:
        if window != self._window:
            ending = f".{window}"
            names = [n for n in self._checkpoint.names if n.endswith(ending)]
            kept = (n for n in names if n.count(".") == 1)
            self._tensors = {n.removesuffix(ending): self._checkpoint.tensor(n) for n in kept}
            self._window = window
        return self._tensors


def topk_tensors(side: Side, text: EvaluationText) -> Writing:
    """Form `topk`: the likeliest tokens of each scored position and samples of the rest."""
    kept = min(KEPT, side.vocabulary)
    columns = {
        "ids": (torch.int32, kept),
        "log_p": (torch.float32, kept),
        "tail": (torch.float32, None),
        "sample_ids": (torch.int32, SAMPLES),
        "sample_log_p": (torch.float32, SAMPLES),
        "nll": (torch.float32, None),
    }
    specs = []
    for window, (start, stop) in enumerate(text.spans):
        for name, (dtype, width) in columns.items():
            shape = (stop - start,) if width is None else (stop - start, width)
            empty = torch.empty(shape, dtype=dtype, device="meta")
            specs.append(TensorSpec.like(f"{name}.{window}", empty))

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        for window in range(len(text.spans)):
            for name, tensor in _compressed(side, text, window).items():
                yield f"{name}.{window}", tensor

    return Writing(specs, tensors())


def _compressed(side: Side, text: EvaluationText, window: int) -> dict[str, torch.Tensor]:
    """One window's rows; samples depend on the window alone, not on how it is sliced."""
    generator = torch.Generator().manual_seed(window)
    parts: dict[str, list[torch.Tensor]] = {}
    for positions in slices(text.spans[window], most_whole(side.vocabulary)):
        log_p = side.log_probs(window, positions)
        found = vars(compress(log_p, generator, KEPT, SAMPLES))
        targets = text.targets(window, positions).to(log_p.device)
        for name, tensor in {**found, "nll": token_nll(log_p, targets)}.items():
            parts.setdefault(name, []).append(tensor)
    return {name: torch.cat(tensors) for name, tensors in parts.items()}


class TopKScores:
    """A stored reference of form `topk`, as `ReferenceScores`."""

    def __init__(self, checkpoint: Checkpoint, windows: int) -> None:
        """`windows` is the number of stored windows."""
        if not all(f"sample_ids.{window}" in checkpoint.names for window in range(windows)):
            raise RefusedError(
                f"`{checkpoint.folder.name}` contains no samples of the tail",
                why="without them the KL of a few hundred tokens is 10 % too low",
                hint="quantkit eval --save-reference, which stores them",
            )
        self._states = _Cached(checkpoint)

    def against(self, model: Side, window: int, span: Span, targets: torch.Tensor) -> TokenScores:
        """`own` nll of the model, and scores by their names in `Scores.beside`.

        The reference's own loss of the `targets` was computed when it was stored.
        """
        found: list[TokenScores] = []
        for positions in slices(span, most_whole(model.vocabulary)):
            part = slice(positions.start - span[0], positions.stop - span[0])
            log_q = model.log_probs(window, positions)
            own = token_nll(log_q, targets[part].to(log_q.device))
            found.append({"own": own, **self._scores(window, part, log_q)})
        return {name: torch.cat([scores[name] for scores in found]) for name in found[0]}

    def _scores(self, window: int, part: slice, log_q: torch.Tensor) -> TokenScores:
        stored = {k: v[part].to(log_q.device) for k, v in self._states.window(window).items()}
        nll = stored.pop("nll")
        kept = TopK(**stored)
        found = divergence(kept, log_q)
        return {
            "nll": nll,
            "kl": found.estimate,
            "lower": found.lower,
            "upper": found.upper,
            "variance": found.variance,
            "agreement": (kept.ids[:, 0] == log_q.argmax(dim=-1)).float(),
            "confidence": kept.log_p[:, 0].exp(),
        }
