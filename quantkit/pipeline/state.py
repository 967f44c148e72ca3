"""A block in progress, and with what its linears are solved."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from quantkit.core.method import Method, Solved
from quantkit.core.ranks import ALONE, Ranks
from quantkit.core.recipe import ExpertTokens
from quantkit.core.scheme import Scheme
from quantkit.model.opened import OpenModel
from quantkit.model.skeleton import is_transposed
from quantkit.model.structure import BlockStructure, LinearGroup


@dataclass(frozen=True)
class SolverConfig:
    """The method, its options, and the scheme of every linear that is quantized (by full name).

    `experts`: which tokens experts are calibrated on, as `CalibrationSpec` states it. `ranks`: the
    processes that share the work.
    """

    method: Method
    options: Any
    schemes: Mapping[str, Scheme]
    experts: ExpertTokens = "routed"
    ranks: Ranks = ALONE


@dataclass
class BlockState:
    """A block in progress: `solved` linears by full name, and parameters `changed` by folding.

    `changed` maps checkpoint names to tensors in the dtype of their source. `expert_tokens` are
    those that were sent to each expert, by the full name of the module that holds them.
    """

    model: OpenModel
    index: int
    block: nn.Module
    structure: BlockStructure
    solved: dict[str, Solved] = field(default_factory=dict)
    changed: dict[str, torch.Tensor] = field(default_factory=dict)
    expert_tokens: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Module path of the block."""
        return self.model.skeleton.block_name(self.index)

    def full(self, linear: str) -> str:
        """Full module name of a module of the block."""
        return f"{self.name}.{linear}"

    def scheme(self, solver: SolverConfig, group: LinearGroup) -> Scheme | None:
        """The scheme that the linears of a group share; None where they stay dense."""
        return solver.schemes.get(self.full(group.names[0]))

    def summary(self) -> str:
        """Name and mean relative loss of the block, for people."""
        losses = [s.loss for s in self.solved.values() if s.loss is not None]
        return f"{self.name}  loss {sum(losses) / len(losses):.2e}" if losses else self.name

    def source(self, parameter: str) -> tuple[str, torch.Tensor]:
        """Checkpoint name and present value of a parameter, as stored, on the model's device."""
        name = self.model.stored_name(self.full(parameter))
        known = self.changed.get(name)
        if known is None:
            known = self.model.stored(self.full(parameter)).to(self.model.device)
        return name, known


def matrix(module: nn.Module) -> torch.Tensor:
    """The weight as contiguous fp32 (out_features, in_features); may share the module's memory."""
    weight: torch.Tensor = module.weight.data  # type: ignore[assignment]  # a Parameter
    return (weight.T if is_transposed(module) else weight).float().contiguous()


def place(module: nn.Module, weight: torch.Tensor) -> None:
    """Copy fp32 `weight` (out_features, in_features) into `module`, rounded to its dtype."""
    data: torch.Tensor = module.weight.data  # type: ignore[assignment]  # a Parameter
    data.copy_(weight.T if is_transposed(module) else weight)
