"""Planned memory of a running model, from its config, for comparison with the measured one."""

from typing import Any

import torch

from quantkit.core.errors import QuantkitError
from quantkit.core.serving import CacheDtype
from quantkit.planning.model.config import read_architecture
from quantkit.planning.model.kv import dynamic_cache, mixers, state_bytes
from quantkit.planning.serve.activations import activation_peak
from quantkit.results.schema import Memory

TOKENS = 512
"""Length of the planned sequence: that of the first cell of `--speed`."""


def planned_memory(config: Any, dtype: torch.dtype, weight_bytes: int | None) -> Memory:
    """Bytes of weights, cache and activations of one pass over TOKENS tokens, as far as known.

    `config` is transformers', `dtype` that of the computation.
    """
    try:
        architecture = read_architecture(config.to_dict())
        numbers: CacheDtype = "32-bit" if dtype.itemsize > 2 else "16-bit"
        cache = dynamic_cache(architecture, TOKENS, dtype=numbers)
    except QuantkitError:  # a family that plan does not know is evaluated all the same
        return Memory()
    wider = dtype.itemsize / 2
    states = sum(state_bytes(m, itemsize=dtype.itemsize) for m in mixers(architecture))
    passing = round(wider * activation_peak(architecture, TOKENS, 1).bytes)
    planned = None if weight_bytes is None else weight_bytes + cache.after_prefill.bytes + passing
    token = (cache.visible.bytes - states) // TOKENS
    longest = architecture.context
    return Memory(planned_bytes=planned, kv_bytes_per_token=token, context_tokens=longest)
