"""GPTQ's checkpoint layout, version 2: zero points as they are, so asymmetric ones too."""

from functools import partial

from quantkit.core.format import Format
from quantkit.formats import gptq

LAYOUT = "gptq_v2"

FORMAT = Format(
    name="gptq-v2",
    summary="GPTQ version 2: 2, 3, 4, 8 bits, symmetric and asymmetric",
    quant_method="gptq",
    encode=partial(gptq.encode, zero_offset=0),
    decode=partial(gptq.decode, zero_offset=0),
    layout=gptq.layout,
    config=lambda model: gptq.config(model, LAYOUT),
    parse=gptq.parse,
    check=lambda scheme, linear: gptq.fault(scheme, linear, LAYOUT),
    matches=lambda block: gptq.is_layout(block, LAYOUT),
)
