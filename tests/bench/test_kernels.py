"""Every kernel against the fp32 product with the dequantized weight."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.bench.kernel import Kernel, WeightFacts, fitting, kernels
from quantkit.bench.kernels.int8_token import quantize_tokens
from quantkit.bench.linear import TOLERANCE, QuantizedLinear
from quantkit.core.errors import RefusedError
from quantkit.core.scheme import Scheme
from quantkit.grid.activation import int8_per_token
from quantkit.grid.qtensor import QTensor

W8A8 = Scheme("int", 8, None, activation="int8-token")
WEIGHT_ONLY = [
    Scheme("int", bits, group_size, symmetric)
    for bits in (4, 8)
    for group_size in (None, 32, 64, 128)
    for symmetric in (True, False)
]


def random_qtensor(scheme: Scheme, outputs: int, inputs: int, seed: int) -> QTensor:
    """Codes over the whole range, zeros anywhere in theirs, scales of both signs."""
    rng = torch.Generator().manual_seed(seed)
    top = 1 << scheme.bits
    groups = scheme.groups(inputs)
    codes = torch.randint(top, (outputs, inputs), generator=rng).to(torch.uint8)
    scales = (torch.rand(outputs, groups, generator=rng) + 0.1) / top
    scales *= torch.randint(2, scales.shape, generator=rng) * 2 - 1
    zeros = None
    if not scheme.symmetric:
        zeros = torch.randint(1, top, (outputs, groups), generator=rng).to(torch.uint8)
    return QTensor(codes, scales.to(torch.bfloat16), zeros, scheme)


def relative_error(kernel: Kernel, qtensor: QTensor, x: torch.Tensor) -> float:
    bias = torch.linspace(-1, 1, len(qtensor.codes)).to(x.dtype)
    found = QuantizedLinear(kernel, qtensor, x.dtype, bias)(x)
    assert found.dtype == x.dtype
    inputs = int8_per_token(x.float().clone()) if qtensor.scheme.activation else x.float()
    expected = inputs @ qtensor.dequantize().T + bias.float()
    return float((found.float() - expected).norm() / expected.norm())


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([*WEIGHT_ONLY, W8A8]),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.integers(1, 6).map(lambda n: 16 * n),
    st.sampled_from([128, 384, 1024]),
    st.sampled_from([(1,), (7,), (2, 33)]),
    st.integers(0, 1000),
)
def test_the_product_is_that_of_the_dequantized_weight(
    scheme: Scheme,
    dtype: torch.dtype,
    outputs: int,
    inputs: int,
    rows: tuple[int, ...],
    seed: int,
) -> None:
    qtensor = random_qtensor(scheme, outputs, inputs, seed)
    x = torch.randn(*rows, inputs, generator=torch.Generator().manual_seed(seed)).to(dtype)
    for kernel in fitting(WeightFacts(scheme, outputs, inputs, dtype)):
        assert relative_error(kernel, qtensor, x) < TOLERANCE[dtype], kernel.name


@pytest.mark.parametrize("scheme", WEIGHT_ONLY, ids=Scheme.label)
def test_a_weight_takes_the_memory_of_its_codes_and_scales(scheme: Scheme) -> None:
    qtensor = random_qtensor(scheme, 64, 1024, seed=0)
    for kernel in fitting(WeightFacts(scheme, 64, 1024, torch.bfloat16)):
        held = sum(part.nbytes for part in kernel.pack(qtensor, torch.bfloat16))
        codes = 64 * 1024 * scheme.bits // 8
        scale_groups = max(scheme.groups(1024), 1024 // 256)  # a channel: groups of 256
        assert codes < held <= codes + 8 * 64 * scale_groups


def test_inputs_are_rounded_as_evaluation_rounds_them() -> None:
    x = torch.randn(50, 333) * torch.logspace(-12, 3, 50)[:, None]
    before = x.clone()
    codes, scales = quantize_tokens(x)
    assert torch.equal(x, before)
    assert torch.equal(codes * scales, int8_per_token(before))


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (WeightFacts(Scheme("int", 3, 64), 64, 128, torch.float32), "4-bit integers"),
        (WeightFacts(Scheme("int", 4, 64), 40, 128, torch.float32), "multiple of 16 outputs"),
        (WeightFacts(Scheme("int", 4, 16), 64, 128, torch.float32), "multiple of 32 inputs"),
        (WeightFacts(Scheme("nf4", 4, 48), 64, 128, torch.float32), "bitsandbytes"),
    ],
)
def test_what_no_kernel_can_do_is_refused_with_each_reason(facts: WeightFacts, reason: str) -> None:
    with pytest.raises(RefusedError, match=reason) as refusal:
        fitting(facts)
    assert refusal.value.why is not None
    assert all(kernel.name in refusal.value.why for kernel in kernels())


def test_some_kernel_does_what_every_8_and_4_bit_integer_scheme_asks_for() -> None:
    for scheme in (*WEIGHT_ONLY, W8A8):
        assert fitting(WeightFacts(scheme, 4096, 4096, torch.bfloat16))
