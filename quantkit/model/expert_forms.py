"""Experts that transformers holds in parameters, but does not call through its registry.

A form is a way to call them. Which one a module has is not read from its class: the module's own
forward and ours are run on a small copy of it, and the form is taken if both compute the same.
"""

import copy
from collections.abc import Callable, Collection, Iterator
from functools import cache
from inspect import signature
from itertools import permutations, product
from types import MethodType
from typing import Any

import torch
from torch import nn

from quantkit.model.experts import (
    ROLES,
    Inputs,
    Matrices,
    expert_count,
    is_fused,
    routed,
    split,
)

WIDTH, INNER = 32, 16
"""Widths of the small copy: that of tokens, and that between an expert's matrices.

One is twice the other, as in some models; they are equal where the module's are."""
ONE = "weight"
"""Name of the only parameter of experts of one matrix each."""
TOKENS = 6
TOLERANCE = 1e-4
"""Of fp32 sums in another order; two forms that differ do so by much more."""

Form = Callable[..., torch.Tensor]


def adopt_experts(model: nn.Module) -> None:
    """Let experts outside the registry take part as those inside do: with its flags, our forward.

    Experts of a form that is not known are left as they are.
    """
    for module in list(model.modules()):
        if is_fused(module):
            continue
        ways = product((*_by_name(module), *_one_below_the_other(module)), FORMS)
        found = next((way for way in ways if _agrees(module, *way)), None)
        if found is not None:
            _take_part(module, *found)


def stacked(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    """The experts' outputs (experts x tokens, width) for inputs of that shape, as Llama 4's.

    Each expert has a row for each token, which the router has weighted; those of tokens that it did
    not choose are zeros and give zeros, so that no expert needs to see them.
    """
    seen = torch.ones_like(hidden_states[:, 0]) if self.alone else hidden_states.any(-1)
    rows = seen.nonzero()[:, 0]
    owner = rows[:, None] // (len(hidden_states) // expert_count(self))
    outputs = routed(self, hidden_states[rows], owner, hidden_states.new_ones(owner.shape))
    return torch.zeros_like(hidden_states).index_add_(0, rows, outputs)


def with_identities(
    self: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """As `routed`; an expert beyond those that have matrices returns its input, as LongCat's."""
    out = routed(self, hidden_states, top_k_index, top_k_weights)
    kept = (top_k_weights * (top_k_index >= expert_count(self))).sum(-1, keepdim=True)
    return out + (hidden_states * kept).to(out.dtype)


def every_one(self: Any, hidden_states: torch.Tensor, gammas: torch.Tensor) -> torch.Tensor:
    """Every expert's output for every token (.., width), weighted (.., experts), as Inkling's."""
    rows = hidden_states.reshape(-1, hidden_states.shape[-1])
    weights = gammas.reshape(len(rows), -1)
    index = torch.arange(weights.shape[1], device=rows.device).expand(weights.shape)
    return routed(self, rows, index, weights).view(hidden_states.shape)


def sorted_rows(self: Any, inputs: torch.Tensor, expert_size: list[int]) -> torch.Tensor:
    """The outputs of one matrix an expert, for rows sorted by expert, so many each, as JetMoE's."""
    sizes = [len(inputs)] if self.alone else expert_size
    parts = torch.split(inputs, sizes)
    given = self.routed_inputs(
        Inputs(len(inputs), tuple(sizes), lambda expert: parts[expert], lambda _: inputs)
    )
    experts = [self.get_submodule(f"{index}.linear") for index in range(len(parts))]
    return torch.cat([linear(given.own(index)) for index, linear in enumerate(experts)])


def in_batches(
    self: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """As `routed`, for tokens (sequences, length, width), as DBRX's."""
    rows = hidden_states.reshape(-1, hidden_states.shape[-1])
    return routed(self, rows, top_k_index, top_k_weights).view(hidden_states.shape)


FORMS: tuple[Form, ...] = (routed, with_identities, stacked, every_one, sorted_rows, in_batches)
"""Each takes whatever its experts' forward takes."""
Held = tuple[Matrices, ...]
"""What a module may hold; the last one's outputs, if it is not alone, are as wide as tokens."""


def _by_name(module: nn.Module) -> Iterator[Held]:
    """What 3-D parameters may be that have the names which transformers gives those of experts."""
    own = {key: w for key, w in module.named_parameters(recurse=False) if w.ndim == 3}
    if "expert_size" in _takes(module):
        keys = {ONE} if len(list(module.parameters())) == 1 else set()
    else:
        keys = {"down_proj", "gate_up_proj" if "gate_up_proj" in own else "gate_proj"}
    if keys and keys <= own.keys():
        for transposed in (False, True):
            yield tuple(
                Matrices(key, roles, len(own[key]), transposed)
                for key, roles in ROLES.items()
                if key in own
            )


def _one_below_the_other(module: nn.Module) -> Iterator[Held]:
    """What three 2-D parameters may be that are all of one shape, (experts x inner, width).

    Nothing says which of them is the gate, or how many experts there are: the numbers that the
    module knows are tried.
    """
    named = dict(module.named_parameters())
    shapes = {tuple(parameter.shape) for parameter in named.values()}
    if len(named) != 3 or len(shapes) != 1 or "top_k_index" not in _takes(module):
        return
    (rows, *width), numbers = shapes.pop(), _numbers(module)
    for count in sorted(numbers):
        if len(width) != 1 or count**2 > rows or rows % count or rows // count not in numbers:
            continue
        for keys in permutations(named):
            yield tuple(
                Matrices(key, (role,), count, transposed=role == "down_proj", flat=True)
                for key, role in zip(keys, ("gate_proj", "up_proj", "down_proj"), strict=True)
            )


def _takes(module: nn.Module) -> Collection[str]:
    """The names of what its forward takes."""
    return _named_in(getattr(module.forward, "__func__", module.forward))


@cache
def _named_in(forward: Callable[..., object]) -> Collection[str]:
    return frozenset(signature(forward).parameters)  # the same for each of a thousand linears


def _numbers(module: nn.Module) -> set[int]:
    """The positive numbers that a module and those inside it know."""
    values = (value for part in module.modules() for value in vars(part).values())
    return {value for value in values if type(value) is int and value > 0}


def _take_part(module: Any, held: Held, form: Form) -> None:
    """Set the flags of the registry on a module, what it holds, and its forward."""
    module.matrices = held
    module.is_concatenated = module.has_gate = True
    module.has_bias = module.has_post_expert_norm = False
    if not hasattr(module, "_apply_gate"):
        module._apply_gate = MethodType(_gated, module)  # noqa: SLF001 - the registry's name for it
    if not hasattr(module, "act_fn") and held[0].flat:
        (module.act_fn,) = (m for m in module.modules() if not [*m.children(), *m.parameters()])
    module.forward = MethodType(form, module)


def _gated(self: Any, joined: torch.Tensor) -> torch.Tensor:
    """The input of the second matrix (tokens, inner), from gate and up (tokens, 2 inner)."""
    gate, up = joined.chunk(2, -1)
    return self.act_fn(gate) * up  # type: ignore[no-any-return]  # an activation


def _agrees(module: nn.Module, held: Held, form: Form) -> bool:
    """Whether a module's forward and a form compute the same on a small copy of it."""
    try:
        theirs, ours = _small(module, held), _small(module, held)
        _take_part(ours, held, form)
        for fused in split("", ours):
            whole = theirs.get_parameter(fused.key).data
            for name, expert, place in fused.parts():
                item = whole[fused.item(expert, len(whole))]
                linear, key = name[1:].rsplit(".", 1)
                part = nn.Parameter(fused.part(item, place), requires_grad=False)
                setattr(ours.get_submodule(linear), key, part)
        given = _inputs(held[0].experts, form)
        with torch.no_grad():
            expected, found = theirs(*given), ours(*given)
        near = (found - expected).abs().max() <= TOLERANCE * expected.abs().max()
        return found.shape == expected.shape and bool(near)
    except Exception:  # noqa: BLE001 - a module of another form may fail, or answer, in any way
        return False


def _small(module: nn.Module, held: Held) -> Any:
    """A copy in fp32 with as many experts of small width; random, the same each time."""
    small: Any = copy.deepcopy(module)
    last, count = held[-1], held[-1].experts
    sides = last.sizes(module.get_parameter(last.key))
    width, inner = sides[::-1] if last.key == ONE else sides
    least = WIDTH if inner == width else INNER
    sizes = {2 * inner: 2 * least, inner: least, width: WIDTH}
    rows = {count * inner: count * least} if last.flat else {}
    generator = torch.Generator().manual_seed(0)
    for key, parameter in list(small.named_parameters()):
        first, *others = parameter.shape
        shape = (rows.get(first, first), *(sizes[size] for size in others))
        holder, _, leaf = key.rpartition(".")
        values = nn.Parameter(torch.randn(shape, generator=generator), requires_grad=False)
        setattr(small.get_submodule(holder), leaf, values)
    for part in small.modules():
        for key, value in vars(part).items():
            if type(value) is int and value in sizes:
                setattr(part, key, sizes[value])
    return small


def _inputs(count: int, form: Form) -> tuple[Any, ...]:
    """Random inputs of a form: those of all experts, or tokens and the weights of their experts."""
    generator = torch.Generator().manual_seed(1)
    if form is stacked:
        return (torch.randn(count * TOKENS, WIDTH, generator=generator),)
    if form is sorted_rows:
        return torch.randn(count * TOKENS, WIDTH, generator=generator), [TOKENS] * count
    if form is every_one:
        weights = torch.rand(TOKENS, count, generator=generator)
        return torch.randn(TOKENS, WIDTH, generator=generator), weights
    chosen = torch.rand(TOKENS, count, generator=generator).argsort(-1)[:, :2]
    weights = torch.rand(chosen.shape, generator=generator)
    shape = (2, TOKENS // 2, WIDTH) if form is in_batches else (TOKENS, WIDTH)
    return torch.randn(shape, generator=generator), chosen, weights
