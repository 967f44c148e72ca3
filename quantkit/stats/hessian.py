"""Collects the statistics of the inputs of a group of linears, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import torch

from quantkit.core.errors import QuantkitError
from quantkit.core.ranks import ALONE, Ranks
from quantkit.grid.exchange import stream
from quantkit.grid.threads import one_thread, side_by_side
from quantkit.grid.tiles import tiles
from quantkit.stats.inputs import InputStats
from quantkit.stats.sizes import ALIGN, CHUNK, SAMPLE


class InputCollector:
    """Running sums over the inputs of one group of linears.

    The result depends on the order of the tokens, but not on how they are split into batches.
    `ranks` that add the same inputs share the work: each sums some rows of the Hessian.
    """

    def __init__(self, *, mixes_tokens: bool = False, ranks: Ranks = ALONE) -> None:
        self.mixes_tokens = mixes_tokens
        self.ranks = ranks
        self.tokens = 0
        self._absmax: torch.Tensor | None = None
        self._firsts: list[torch.Tensor] = []
        self._sample: list[torch.Tensor] = []
        self._stride = 1

    def add(self, inputs: torch.Tensor, originals: torch.Tensor | None = None) -> None:
        """Adds one batch (sequences, length, in_features), or one sequence (length, in_features).

        Any float dtype; sums are in fp32. `inputs` is not modified and not kept. `originals`, of
        the same shape, are what the original model has in their place, given always or never.
        """
        features = inputs.shape[-1]
        rows = inputs.detach().reshape(-1, features)
        if not rows.numel():
            return
        if not self.tokens:
            self._start(rows, compensate=originals is not None)
        others = None if originals is None else originals.detach().reshape(-1, features)
        largest = rows.abs().amax(0).float()
        self._absmax = largest if self._absmax is None else torch.maximum(self._absmax, largest)
        firsts = inputs.detach().reshape(-1, *inputs.shape[-2:])[:, 0]
        self._firsts.append(firsts.to(torch.float32, copy=True))  # a view would keep the batch
        self._keep_sample(rows)
        for part in _cut(rows, CHUNK - self.tokens % CHUNK):
            filled = self.tokens % CHUNK
            here = slice(filled, filled + len(part))
            self._chunk[here, :features].copy_(part)
            if others is not None:
                self._original_chunk[here, :features].copy_(others[: len(part)])
                others = others[len(part) :]
            self.tokens += len(part)
            if filled + len(part) == CHUNK:
                self._accumulate(CHUNK)

    def finish(self) -> InputStats:
        """The statistics of all inputs; frees the collector's memory, so call it once.

        Raises:
            QuantkitError: nothing was added, or an input is NaN or infinite.
        """
        if self._absmax is None:
            raise QuantkitError("no calibration token reached this input")
        features = self._absmax.numel()
        # Both survive in the largest; read once, as it waits for the device.
        if bad := int((~torch.isfinite(self._absmax)).sum()):
            raise QuantkitError(f"NaN or Inf in {bad} of {features} input channels")
        filled = self.tokens % CHUNK
        if filled:
            padded = -(-filled // ALIGN) * ALIGN
            self._chunk[filled:padded] = 0
            self._original_chunk[filled:padded] = 0
            self._accumulate(padded)
        del self._chunk, self._original_chunk
        if not self.ranks.alone:
            self._complete()
        _mirror(self._hessian)  # only blocks on and above the diagonal were summed
        hessian = self._hessian[:features, :features].contiguous()
        del self._hessian
        drift = None
        if len(self._crossed):
            drift = self._crossed[:features, :features].sub_(hessian)
        del self._crossed
        firsts, sample = torch.cat(self._firsts), torch.cat(self._sample)
        self._firsts, self._sample = [], []
        return InputStats(
            hessian=hessian,
            firsts=firsts,
            absmax=self._absmax,
            sample=sample,
            tokens=self.tokens,
            mixes_tokens=self.mixes_tokens,
            drift=drift,
            drifted=self._drifted,
        )

    def _start(self, rows: torch.Tensor, *, compensate: bool) -> None:
        """Allocates the sums for inputs like `rows` (tokens, in_features), on their device."""
        features = rows.shape[1]
        padded = -(-features // ALIGN) * ALIGN
        self._chunk = torch.zeros(CHUNK, padded, dtype=torch.float32, device=rows.device)
        self._exact = rows.dtype in (torch.bfloat16, torch.float16)
        self._hessian = self._chunk.new_zeros(padded, padded)
        self._original_chunk = self._chunk.new_zeros(CHUNK if compensate else 0, padded)
        self._crossed = self._chunk.new_zeros(padded if compensate else 0, padded)
        self._drifted = self._chunk.new_zeros(())
        size = tiles(rows.device.type).hessian
        starts = range(0, padded, size)
        owners = self.ranks.owners([padded - start for start in starts])
        self._tiles = [(slice(i, i + size), owner) for i, owner in zip(starts, owners, strict=True)]

    def _accumulate(self, tokens: int) -> None:
        """Adds the sum of x x^T over the first `tokens` rows of the chunk to the Hessian.

        H = sum x x^T of GPTQ (arXiv 2210.17323, section 3) without its factor 2, which cancels.
        Only tiles on and above the diagonal are computed: half the work. The sum of o x^T, with the
        original inputs o, is not symmetric: all of it is.
        """
        chunk, hessian = self._chunk[:tokens], self._hessian
        products = [
            partial(hessian[rows, rows.start :].addmm_, chunk[:, rows].T, chunk[:, rows.start :])
            for rows, owner in self._tiles
            if owner == self.ranks.rank
        ]
        if len(self._crossed):
            originals = self._original_chunk[:tokens]
            products += [
                partial(self._crossed[rows].addmm_, originals[:, rows].T, chunk)
                for rows, owner in self._tiles
                if owner == self.ranks.rank
            ]
        if chunk.device.type == "cpu":
            side_by_side(products)
        else:
            with _tf32() if self._exact else nullcontext():
                for product in products:
                    product()
        if len(self._crossed):  # in place, as the next tokens replace these
            with one_thread():
                self._drifted += self._original_chunk[:tokens].sub_(chunk).square_().sum()

    def _complete(self) -> None:
        """Puts the rows that other ranks have summed in place."""
        places = sorted(self._tiles, key=lambda tile: tile[1])  # as the ranks send them
        for sums in (self._hessian, self._crossed) if len(self._crossed) else (self._hessian,):
            own = [sums[rows] for rows, owner in self._tiles if owner == self.ranks.rank]
            for (rows, owner), found in zip(places, stream(self.ranks, own), strict=True):
                if owner != self.ranks.rank:
                    sums[rows] = found

    def _keep_sample(self, rows: torch.Tensor) -> None:
        """Keeps every n-th of all tokens; `rows` is (tokens, in_features).

        n doubles whenever the sample is full, so that the total need not be known beforehand.
        """
        # Tokens at multiples of the stride, counted over all batches; a view would keep the batch.
        self._sample.append(rows[-self.tokens % self._stride :: self._stride].clone())
        while sum(map(len, self._sample)) >= 2 * SAMPLE:
            self._sample = [torch.cat(self._sample)[::2].clone()]
            self._stride *= 2


@contextmanager
def _tf32() -> Iterator[None]:
    """Let a GPU round factors of fp32 products to TF32; its 11 bits hold all of fp16 and bf16."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "tf32"
    try:
        yield
    finally:
        matmul.fp32_precision = before


def _cut(rows: torch.Tensor, first: int) -> list[torch.Tensor]:
    """Views of `rows` (tokens, in_features): at most `first` tokens, then CHUNK each."""
    return [rows[:first], *(rows[i : i + CHUNK] for i in range(first, len(rows), CHUNK))]


def _mirror(hessian: torch.Tensor) -> None:
    """Copies the upper triangle of `hessian` (d, d) to the lower one, in place, tile by tile."""
    size = tiles(hessian.device.type).hessian
    for i in range(0, hessian.shape[0], size):
        rows = slice(i, i + size)
        corner = hessian[rows, rows].triu()
        hessian[rows, rows] = corner + corner.triu(1).T
        hessian[i + size :, rows] = hessian[rows, i + size :].T
