"""Experts that transformers holds in 3-D parameters, but does not call through its registry.

A form is a way to call them. Which one a module has is not read from its class: the module's own
forward and ours are run on a small copy of it, and the form is taken if both compute the same.
"""

import copy
from collections.abc import Callable
from inspect import signature
from types import MethodType
from typing import Any

import torch
from torch import nn

from quantkit.model.experts import Inputs, expert_count, is_fused, routed, split

WIDTH, INNER = 32, 16
"""Widths of the small copy: that of tokens, and that between an expert's matrices.

One is twice the other, as in some models. Experts as wide inside as outside are not told apart."""
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
        if is_fused(module) or not _has_matrices(module):
            continue
        form = next((form for form in FORMS if _agrees(module, form)), None)
        if form is not None:
            _take_part(module, form)


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


FORMS: tuple[Form, ...] = (routed, with_identities, stacked, every_one, sorted_rows)


def _has_matrices(module: nn.Module) -> bool:
    """Whether a module has 3-D parameters by the names that transformers gives those of experts."""
    found = {key: getattr(module, key, None) for key in ("gate_up_proj", "gate_proj", "down_proj")}
    matrices = {k for k, w in found.items() if isinstance(w, nn.Parameter) and w.ndim == 3}
    if "expert_size" in signature(module.forward).parameters:
        return [weight.ndim for weight in module.parameters()] == [3]
    return "down_proj" in matrices and len(matrices) == 2


def _take_part(module: Any, form: Form) -> None:
    """Set the flags of the registry on a module, and its forward."""
    module.is_transposed = _last(module).shape[1] != _first(module).shape[2] and not _single(module)
    module.is_concatenated = module.has_gate = True
    module.has_bias = module.has_post_expert_norm = False
    if not hasattr(module, "_apply_gate"):
        module._apply_gate = MethodType(_gated, module)  # noqa: SLF001 - the registry's name for it
    module.forward = MethodType(form, module)


def _gated(self: Any, joined: torch.Tensor) -> torch.Tensor:
    """The input of the second matrix (tokens, inner), from gate and up (tokens, 2 inner)."""
    gate, up = joined.chunk(2, -1)
    return self.act_fn(gate) * up  # type: ignore[no-any-return]  # an activation


def _agrees(module: nn.Module, form: Form) -> bool:
    """Whether a module's forward and a form compute the same on a small copy of it."""
    try:
        theirs, ours = _small(module), _small(module)
        _take_part(ours, form)
        for fused in tuple(split("", ours)):
            for name, expert, place in fused.parts():
                item = getattr(theirs, fused.key).data[expert]
                linear, key = name[1:].rsplit(".", 1)
                part = nn.Parameter(fused.part(item, place), requires_grad=False)
                setattr(ours.get_submodule(linear), key, part)
        given = _inputs(theirs, form)
        with torch.no_grad():
            expected, found = theirs(*given), ours(*given)
    except Exception:  # noqa: BLE001 - a module of another form may fail in any way
        return False
    return bool((found - expected).abs().max() <= TOLERANCE * expected.abs().max())


def _small(module: nn.Module) -> Any:
    """A copy in fp32 with as many experts of small width; random, the same each time."""
    small: Any = copy.deepcopy(module)
    first, (_, *second) = _first(module), _last(module).shape
    if hasattr(module, "gate_up_proj"):
        inner = next(size for size in second if 2 * size in first.shape[1:])
    else:
        inner = second[0 if _single(module) else 1]
    width = sum(second) - inner
    sizes = {2 * inner: WIDTH, inner: INNER, width: WIDTH}
    generator = torch.Generator().manual_seed(0)
    for key, parameter in list(small.named_parameters(recurse=False)):
        shape = (len(parameter), *(sizes[size] for size in parameter.shape[1:]))
        values = torch.randn(shape, generator=generator)
        setattr(small, key, nn.Parameter(values, requires_grad=False))
    for key, value in vars(small).items():
        if isinstance(value, int) and not isinstance(value, bool) and value in sizes:
            setattr(small, key, sizes[value])
    return small


def _inputs(module: Any, form: Form) -> tuple[Any, ...]:
    """Random inputs of a form: those of all experts, or tokens and the weights of their experts."""
    generator = torch.Generator().manual_seed(1)
    count = len(_first(module))
    if form is stacked:
        return (torch.randn(count * TOKENS, WIDTH, generator=generator),)
    if form is sorted_rows:
        return torch.randn(count * TOKENS, WIDTH, generator=generator), [TOKENS] * count
    if form is every_one:
        weights = torch.rand(TOKENS, count, generator=generator)
        return torch.randn(TOKENS, WIDTH, generator=generator), weights
    chosen = torch.rand(TOKENS, count, generator=generator).argsort(-1)[:, :2]
    weights = torch.rand(chosen.shape, generator=generator)
    return torch.randn(TOKENS, WIDTH, generator=generator), chosen, weights


def _single(module: nn.Module) -> bool:
    """Whether a module holds one matrix an expert."""
    return hasattr(module, ONE)


def _first(module: nn.Module) -> nn.Parameter:
    """The parameter of the first matrices: gate and up in one, gate by itself, or the only one."""
    keys = ("gate_up_proj", "gate_proj", ONE)
    return module.get_parameter(next(key for key in keys if hasattr(module, key)))


def _last(module: nn.Module) -> nn.Parameter:
    """The parameter of the last matrices."""
    return module.get_parameter(ONE if _single(module) else "down_proj")
