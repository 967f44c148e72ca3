"""One group of linears: fold scales into its producer, solve it, put the result in place."""

from dataclasses import dataclass, replace

import torch

from quantkit.core import registry
from quantkit.core.method import Solved
from quantkit.core.ranks import ALONE, Ranks
from quantkit.core.scheme import Scheme
from quantkit.grid.activation import int8_per_token
from quantkit.grid.rows import dealt
from quantkit.model.structure import LinearGroup, ScalePair
from quantkit.pipeline.folding import factors_of, fold, rescaled
from quantkit.pipeline.state import BlockState, SolverConfig, matrix, place
from quantkit.stats.inputs import InputChange, InputStats


@dataclass(frozen=True)
class Draft:
    """What a group's linears become, before anything has changed.

    `divided`: by about what their input's producer is divided, fp32 (in_features,); None where it
    stays as it is.
    """

    divided: torch.Tensor | None
    solved: list[Solved]


@dataclass(frozen=True)
class Groups:
    """The groups of a block in progress, and with what they are solved."""

    state: BlockState
    solver: SolverConfig

    def solve(
        self, group: LinearGroup, stats: InputStats | None = None, notes: tuple[str, ...] = ()
    ) -> InputChange | None:
        """Quantize the linears of `group` in place; returns the change of their input (None: none).

        All ranks call it with the same statistics, and share the rows. `notes` on the statistics
        become notes on the linears.
        """
        return self.put(group, self.draft(group, stats, notes, self.solver.ranks))

    def draft(
        self,
        group: LinearGroup,
        stats: InputStats | None,
        notes: tuple[str, ...] = (),
        ranks: Ranks = ALONE,
    ) -> Draft:
        """Quantize the linears of `group`; the block stays as it is.

        Without statistics (an expert that no token was sent to) they are rounded to nearest where
        the method needs some. `ranks` that have the same statistics share the rows.
        """
        state, method, options = self.state, self.solver.method, self.solver.options
        scheme, pair = self._scheme(group), self._foldable(group)
        weights = [matrix(state.block.get_submodule(name)) for name in group.names]
        divided = None
        if stats is not None and pair is not None and method.rescale is not None:
            divided = method.rescale(weights, stats, scheme, options)
            if divided is not None:
                s = factors_of(state, pair, divided)
                weights = [weight * s for weight in weights]
                stats = rescaled(stats, s)
        if stats is None and method.needs_inputs:
            method = registry.load("methods", "rtn", "METHOD")
            options = method.options()
        dtype = getattr(torch, scheme.scale_dtype(state.model.dtype_name))

        def quantize(rows: list[torch.Tensor]) -> list[Solved]:
            return method.quantize(rows, stats, scheme, dtype, options)

        solved = dealt(quantize, weights, ranks) if method.by_rows else quantize(weights)
        return Draft(divided, [replace(each, notes=(*notes, *each.notes)) for each in solved])

    def put(self, group: LinearGroup, draft: Draft) -> InputChange | None:
        """Replace the linears of `group` by a draft of them; as `solve`."""
        state, pair = self.state, self._foldable(group)
        divided = None
        if draft.divided is not None and pair is not None:
            divided = fold(state, pair, draft.divided)
            if pair.kind == "linear" and group.stage:
                divided = None  # its inner input is computed anew, by a divided producer
        for name, result in zip(group.names, draft.solved, strict=True):
            state.solved[state.full(name)] = result
            place(state.block.get_submodule(name), result.qtensor.dequantize())
        return _input_change(divided, self._scheme(group))

    def _scheme(self, group: LinearGroup) -> Scheme:
        scheme = self.state.scheme(self.solver, group)
        assert scheme is not None
        return scheme

    def _foldable(self, group: LinearGroup) -> ScalePair | None:
        """The pair that feeds `group`; None where its producer is a linear that stays dense."""
        pair = self.state.structure.pair_of(group)
        dense = pair is not None and self.state.full(pair.producer) not in self.solver.schemes
        return None if pair is None or (pair.kind == "linear" and dense) else pair


def _input_change(divided: torch.Tensor | None, scheme: Scheme) -> InputChange | None:
    """Division by fp32 `divided` (in_features,), then 8-bit rounding; None for neither."""
    quantized = scheme.activation == "int8-token"
    if divided is None:
        return int8_per_token if quantized else None

    def change(x: torch.Tensor) -> torch.Tensor:
        x = (x.float() / divided).to(x.dtype)
        return int8_per_token(x) if quantized else x

    return change
