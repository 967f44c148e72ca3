"""Experts outside transformers' registry become linears if we know how to call them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from quantkit.model.expert_forms import adopt_experts
from quantkit.model.experts import is_fused, split
from tests.conftest import SHAPE

MOE = {"num_local_experts": 4, "num_experts_per_tok": 2}


def llama4(inner: int = 64) -> Any:
    config = transformers.Llama4TextConfig(**SHAPE | MOE | {"intermediate_size": inner})
    return transformers.models.llama4.modeling_llama4.Llama4TextExperts(config)


def longcat(inner: int = 64) -> Any:
    sizes = {"n_routed_experts": 4, "zero_expert_num": 2, "expert_ffn_hidden_size": inner}
    config = transformers.LongcatFlashConfig(hidden_size=128, **sizes)
    return transformers.models.longcat_flash.modeling_longcat_flash.LongcatFlashExperts(config)


def step() -> Any:
    sizes = {"moe_intermediate_size": 64, "n_routed_experts": 4}
    config = transformers.Step3p7Config(text_config={"hidden_size": 128, **sizes}).text_config
    return transformers.models.step3p7.modeling_step3p7.Step3p7Experts(config, swiglu_limit=0.5)


def inkling() -> Any:
    sizes = {"n_shared_experts": 2, "moe_intermediate_size": 64}
    config = transformers.InklingTextConfig(hidden_size=128, **sizes)
    return transformers.models.inkling.modeling_inkling.InklingSharedExperts(config)


def dbrx() -> Any:
    sizes = {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2}
    config = transformers.DbrxConfig(d_model=128, ffn_config=sizes).ffn_config
    return transformers.models.dbrx.modeling_dbrx.DbrxExperts(config)


def jetmoe() -> Any:
    return transformers.models.jetmoe.modeling_jetmoe.JetMoeParallelExperts(4, 128, 192)


def filled(module: nn.Module) -> nn.Module:
    """The module with random weights."""
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        values = torch.randn(parameter.shape, generator=generator) * parameter.shape[-1] ** -0.5
        parameter.data = values
    return module.requires_grad_(requires_grad=False)


def as_linears(make: Callable[[], Any]) -> tuple[Any, Any]:
    """The experts as they are, and the same as linears."""
    theirs, ours = filled(make()), nn.ModuleDict({"experts": filled(make())})
    adopt_experts(ours)
    weights = {key: p.data.clone() for key, p in theirs.named_parameters()}
    for fused in split("experts", ours["experts"]):
        whole = weights[fused.key]
        for name, expert, place in fused.parts():
            linear = ours.get_submodule(name.removesuffix(".weight"))
            item = whole[fused.item(expert, len(whole))]
            linear.weight = nn.Parameter(fused.part(item, place), False)
    return theirs, ours["experts"]


def tokens(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("make", [longcat, step])
def test_routed_experts_compute_the_same(make: Callable[[], Any]) -> None:
    theirs, ours = as_linears(make)
    count = len(theirs.gate_up_proj)
    index = torch.rand(9, count, generator=torch.Generator().manual_seed(2)).argsort(-1)[:, :2]
    given = (tokens(9, 128), index, tokens(9, 2).abs())
    torch.testing.assert_close(ours(*given), theirs(*given), rtol=1e-4, atol=1e-5)


def test_experts_whose_matrices_lie_one_below_the_other_compute_the_same() -> None:
    theirs, ours = as_linears(dbrx)
    index = torch.rand(10, 4, generator=torch.Generator().manual_seed(2)).argsort(-1)[:, :2]
    given = (tokens(2, 5, 128), index, tokens(10, 2).abs())
    torch.testing.assert_close(ours(*given), theirs(*given), rtol=1e-4, atol=1e-5)


def test_experts_that_see_every_token_compute_the_same() -> None:
    theirs, ours = as_linears(inkling)
    given = {"hidden_states": tokens(2, 5, 128), "gammas": tokens(2, 5, 2)}
    torch.testing.assert_close(ours(**given), theirs(**given), rtol=1e-4, atol=1e-5)


def test_experts_of_one_matrix_compute_the_same() -> None:
    theirs, ours = as_linears(jetmoe)
    given = (tokens(9, 128), [2, 0, 4, 3])
    torch.testing.assert_close(ours(*given), theirs(*given), rtol=1e-4, atol=1e-5)


def test_an_expert_sees_only_tokens_that_the_router_chose() -> None:
    """Llama 4 gives each expert a row of zeros for every other token."""
    theirs, ours = as_linears(llama4)
    rows = tokens(4, 9, 128)
    chosen = torch.rand(4, 9, generator=torch.Generator().manual_seed(3)) < 0.3
    given = (rows * chosen[..., None]).view(-1, 128)
    seen: list[int] = []
    ours.routed_inputs.register_forward_hook(lambda _, args, __: seen.extend(args[0].counts))
    torch.testing.assert_close(ours(given), theirs(given), rtol=1e-4, atol=1e-5)
    assert seen == chosen.sum(1).tolist()


@pytest.mark.parametrize("inner", [32, 96, 128, 256, 512])
@pytest.mark.parametrize("make", [llama4, longcat])
def test_a_form_is_found_whatever_the_widths(make: Callable[..., Any], inner: int) -> None:
    """Tokens are 128 wide: experts may be as wide inside, and sizes may be doubles of others."""
    theirs, ours = as_linears(lambda: make(inner))
    width = theirs.down_proj.shape[2 if make is llama4 else 1]
    assert width == 128
    assert ours.get_submodule("0.down_proj").weight.shape == (width, inner)


class Odd(nn.Module):
    """Experts with the names and shapes of others that compute something else."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.zeros(4, 64, 32))
        self.down_proj = nn.Parameter(torch.zeros(4, 32, 32))
        self.act_fn = nn.SiLU()

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """The up projection is halved before it is gated."""
        out = torch.zeros_like(hidden_states)
        for token, experts in enumerate(top_k_index):
            for place, expert in enumerate(experts):
                gate, up = (self.gate_up_proj[expert] @ hidden_states[token]).chunk(2)
                y = self.down_proj[expert] @ (self.act_fn(gate) * up / 2)
                out[token] += y * top_k_weights[token, place]
        return out


class Pair(Odd):
    """Experts that answer with more than a tensor."""

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> Any:
        """The output and the weights."""
        return super().forward(hidden_states, top_k_index, top_k_weights), top_k_weights


class Narrow(Odd):
    """Experts that answer with fewer features than they are given."""

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """All features but one."""
        return super().forward(hidden_states, top_k_index, top_k_weights)[:, 1:]


@pytest.mark.parametrize("make", [Odd, Pair, Narrow])
def test_experts_that_compute_something_else_are_left_alone(make: Callable[[], nn.Module]) -> None:
    model = nn.ModuleDict({"experts": make()})
    adopt_experts(model)
    assert not is_fused(model["experts"])
