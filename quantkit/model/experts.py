"""Experts as linears: one for each expert and matrix, in place of transformers' 3-D parameters.

transformers calls experts through a registry of implementations and holds the weights of all of
them in one parameter. Here each expert is a module of linears, and ours is the implementation: what
looks at linears (tracing, calibration, methods, formats) needs to know nothing about experts.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

IMPLEMENTATION = "quantkit"
STAGES = ("routed_inputs", "routed_inner")
"""Modules through which the inputs of all first, and of all second matrices pass."""
ROWS = 32
"""Tokens of a product come in multiples: oneDNN compiles, and keeps, a kernel for each number of
rows. 128 experts left 280 MB of them."""
ROLES: dict[str, tuple[str, ...]] = {
    "gate_up_proj": ("gate_proj", "up_proj"),
    "gate_proj": ("gate_proj",),
    "up_proj": ("up_proj",),
    "down_proj": ("down_proj",),
    "weight": ("linear",),
}
"""The linears of an expert that a parameter of all experts may hold, by the parameter's name."""


@dataclass(frozen=True)
class Fused:
    """A parameter of all experts: which linears' tensors it holds, and how.

    `experts`: the module path. `key`: the parameter's name. `roles`: the linears of an expert in
    its rows, concatenated or interleaved. `tensor`: "weight" or "bias". Weights are (experts,
    out_features, in_features), with in_features before out_features where `transposed`. Where
    `flat`, the first two dimensions are one: the experts' matrices lie one below the other.
    """

    experts: str
    key: str
    roles: tuple[str, ...]
    tensor: str
    count: int
    transposed: bool
    interleaved: bool
    flat: bool = False

    @property
    def name(self) -> str:
        """Full name of the parameter."""
        return f"{self.experts}.{self.key}"

    def parts(self) -> Iterator[tuple[str, int, int]]:
        """Full name of each linear's tensor, with its expert and the place among its `roles`."""
        for expert in range(self.count):
            for place, role in enumerate(self.roles):
                yield f"{self.experts}.{expert}.{role}.{self.tensor}", expert, place

    def item(self, expert: int, rows: int) -> int | slice:
        """Which of the `rows` of the parameter are an expert's."""
        each = rows // self.count
        return slice(expert * each, (expert + 1) * each) if self.flat else expert

    def stack(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A parameter's shape as (experts, ..)."""
        if not self.flat or shape[0] % self.count:
            return shape
        return (self.count, shape[0] // self.count, *shape[1:])

    def part(self, item: torch.Tensor, place: int) -> torch.Tensor:
        """The tensor of one linear, from one expert's item of the parameter; contiguous, its dtype.

        The item is (outputs,) or (outputs, inputs), the latter the other way where `transposed`.
        """
        rows = item.T if self.transposed and self.tensor == "weight" else item
        count = len(self.roles)
        chosen = rows[place::count] if self.interleaved else rows.tensor_split(count)[place]
        return chosen.contiguous().clone()


class Matrices(NamedTuple):
    """A parameter with matrices of all experts, by its path in their module; else as `Fused`."""

    key: str
    roles: tuple[str, ...]
    experts: int
    transposed: bool
    flat: bool = False

    def sizes(self, weight: torch.Tensor) -> tuple[int, int]:
        """Outputs and inputs of an expert's matrix, all roles together, given the parameter."""
        outputs, inputs = weight.shape[-2] // (self.experts if self.flat else 1), weight.shape[-1]
        return (inputs, outputs) if self.transposed else (outputs, inputs)


@dataclass(frozen=True)
class Inputs:
    """The inputs of all experts, each (tokens, features), made when they are asked for.

    `own` of an expert's number: those of the tokens that were sent to it, `counts` of all `tokens`.
    `every` of that: those that all tokens would be to it.
    """

    tokens: int
    counts: tuple[int, ...]
    own: Callable[[int], torch.Tensor]
    every: Callable[[int], torch.Tensor]

    def changed(self, change: Callable[[int, torch.Tensor], torch.Tensor]) -> "Inputs":
        """The inputs after `change` of an expert's number and its (tokens, features)."""
        return replace(
            self,
            own=lambda expert: change(expert, self.own(expert)),
            every=lambda expert: change(expert, self.every(expert)),
        )


class Exchange(nn.Module):
    """Passes the inputs of all experts, so that a hook can see and change them."""

    def forward(self, inputs: Inputs) -> Inputs:
        """The inputs as they are."""
        return inputs


def split_experts(model: nn.Module) -> tuple[Fused, ...]:
    """Replace the parameters of all experts by linears on the meta device; what was replaced."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(IMPLEMENTATION, routed)
    found: list[Fused] = []
    for path, module in list(model.named_modules()):
        if is_fused(module):
            found += split(path, module)
            if hasattr(module, "config"):
                module.config._experts_implementation = IMPLEMENTATION  # noqa: SLF001 - the switch has no public name
    return tuple(found)


def is_fused(module: nn.Module) -> bool:
    """Whether a module holds experts that take part in transformers' registry."""
    return hasattr(module, "is_concatenated") and hasattr(module, "_apply_gate")


def experts_in(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Path and module of all experts of a module that were split."""
    return [(path, m) for path, m in module.named_modules() if hasattr(m, STAGES[0])]


def expert_count(stack: nn.Module) -> int:
    """How many experts a module that was split has."""
    return sum(name.isdecimal() for name, _ in stack.named_children())


def keep_one(stack: nn.Module) -> None:
    """Leave out all experts but the first, which then computes every token."""
    for index in range(1, expert_count(stack)):
        delattr(stack, str(index))
    stack.alone = True  # type: ignore[assignment]  # no module


def stage_of(linear: str, stacks: Iterable[str]) -> str:
    """The stage that the inputs of a linear of experts pass; empty for all other linears."""
    stack = _stack_of(linear, stacks)
    return f"{stack}.{STAGES[linear.endswith('.down_proj')]}" if stack else ""


def to_each_expert(linear: str, stacks: Mapping[str, nn.Module]) -> Iterator[Callable[[str], str]]:
    """Functions from names in the first expert to those in each; one that changes no other name."""
    stack = _stack_of(linear, stacks)
    if stack is None:
        yield str
        return
    for index in range(expert_count(stacks[stack])):
        yield partial(_renamed, old=f"{stack}.0.", new=f"{stack}.{index}.")


def _stack_of(linear: str, stacks: Iterable[str]) -> str | None:
    return next((path for path in stacks if linear.startswith(f"{path}.0.")), None)


def _renamed(name: str, old: str, new: str) -> str:
    return name.replace(old, new)


def split(path: str, module: Any) -> tuple[Fused, ...]:
    """Replace the parameters of the experts at `path` by linears; what was replaced."""
    held, replaced = matrices_of(module), tuple(fused_in(path, module))
    experts = [nn.Module() for _ in range(replaced[0].count)]
    for matrices in held:
        weight = module.get_parameter(matrices.key)
        outputs, inputs = matrices.sizes(weight)
        for expert in experts:
            for role in matrices.roles:
                linear = nn.Linear(
                    inputs,
                    outputs // len(matrices.roles),
                    bias=module.has_bias,
                    device="meta",
                    dtype=weight.dtype,
                ).requires_grad_(requires_grad=False)
                expert.add_module(role, linear)
    for fused in replaced:
        holder, _, leaf = fused.key.rpartition(".")
        delattr(module.get_submodule(holder), leaf)
    for index, expert in enumerate(experts):
        module.add_module(str(index), expert)
    module.alone = False
    for stage in STAGES:
        module.add_module(stage, Exchange())
    return replaced


def fused_in(path: str, module: Any) -> Iterator[Fused]:
    """The parameters of the experts at `path`."""
    held = matrices_of(module)
    count = min(each.experts for each in held)
    for key, roles, _, transposed, flat in held:
        interleaved = len(roles) > 1 and not module.is_concatenated
        yield Fused(path, key, roles, "weight", count, transposed, interleaved, flat)
        if module.has_bias:
            yield Fused(path, f"{key}_bias", roles, "bias", count, transposed, interleaved, flat)


def matrices_of(module: Any) -> tuple[Matrices, ...]:
    """What a module holds of experts: what its `matrices` say, or else by the registry's names."""
    said: tuple[Matrices, ...] | None = getattr(module, "matrices", None)
    return said or tuple(
        Matrices(key, roles, len(getattr(module, key)), module.is_transposed)
        for key, roles in ROLES.items()
        if hasattr(module, key)
    )


def routed(
    self: Any,
    hidden_states: torch.Tensor,
    top_k_index: torch.Tensor,
    top_k_weights: torch.Tensor,
) -> torch.Tensor:
    """The experts' output (tokens, width) for `hidden_states` of that shape.

    `top_k_index` and `top_k_weights`, (tokens, k), name the experts of each token. All first
    matrices come before all second ones, so that the inputs of each are known together. An expert
    that is `alone` computes all tokens, and stands for those that each was sent to.
    """
    experts = [module for name, module in self.named_children() if name.isdecimal()]
    rows = [_rows(self, top_k_index, expert) for expert in range(len(experts))]
    inputs = self.routed_inputs(
        Inputs(
            len(hidden_states),
            tuple(len(tokens) for tokens, _ in rows),
            lambda expert: hidden_states[rows[expert][0]],
            lambda _: hidden_states,
        )
    )
    inner = self.routed_inner(
        replace(
            inputs,
            own=lambda expert: _inner(self, experts[expert], inputs.own(expert)),
            every=lambda expert: _inner(self, experts[expert], inputs.every(expert)),
        )
    )
    out = torch.zeros_like(hidden_states)
    for index, expert in enumerate(experts):
        tokens, places = rows[index]
        if not len(tokens):
            continue
        y = expert.down_proj(_padded(inner.own(index)))[: len(tokens)]
        if self.has_post_expert_norm and hasattr(self, "post_expert_norm"):
            y = self.post_expert_norm(y)
        weights = top_k_weights.sum(-1) if self.alone else top_k_weights[tokens, places]
        out.index_add_(0, tokens, (y * weights[:, None]).to(out.dtype))
    return out


def _rows(self: Any, top_k_index: torch.Tensor, expert: int) -> tuple[torch.Tensor, ...]:
    """The tokens that an expert computes, and where it stands among the k experts of each."""
    if self.alone:
        return (torch.arange(len(top_k_index), device=top_k_index.device), top_k_index[:, 0])
    return torch.where(top_k_index == expert)


def _inner(self: Any, expert: Any, x: torch.Tensor) -> torch.Tensor:
    """The input of an expert's second matrix, (tokens, inner width), for `x` (tokens, width)."""
    count, x = len(x), _padded(x)
    up: torch.Tensor = expert.up_proj(x)
    if not self.has_gate:
        return self.act_fn(up)[:count]  # type: ignore[no-any-return]  # an activation
    pair = (expert.gate_proj(x), up)
    joined = torch.cat(pair, -1) if self.is_concatenated else torch.stack(pair, -1).flatten(-2)
    return self._apply_gate(joined)[:count]  # type: ignore[no-any-return]


def _padded(x: torch.Tensor) -> torch.Tensor:
    """`x` (tokens, features) with zeros up to a multiple of ROWS tokens."""
    return nn.functional.pad(x, (0, 0, 0, -len(x) % ROWS))
