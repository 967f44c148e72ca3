"""A whole model in memory whose quantized linears compute with their codes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from quantkit.bench.kernel import Kernel
from quantkit.bench.linear import QuantizedLinear, Workload, choose_kernel
from quantkit.core.errors import RefusedError
from quantkit.core.progress import Progress, Report, silent
from quantkit.core.scheme import Scheme
from quantkit.model.opened import OpenModel, load_dense
from quantkit.model.skeleton import is_linear

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from quantkit.grid.qtensor import QTensor


@dataclass(frozen=True)
class Runtime:
    """A network ready to run; `kernels` counts the linears that each kernel computes."""

    network: "PreTrainedModel"
    block_prefix: str
    dtype: torch.dtype
    kernels: Mapping[str, int]

    def blocks(self) -> list[tuple[str, nn.Module]]:
        """The decoder blocks in order, each with its name."""
        found = self.network.get_submodule(self.block_prefix).named_children()
        return [(f"{self.block_prefix}.{name}", block) for name, block in found]

    @property
    def kernel(self) -> str:
        """Names of the kernels, by falling number of linears."""
        return ", ".join(sorted(self.kernels, key=lambda name: -self.kernels[name]))


def load_runtime(model: OpenModel, load: Workload = Workload(), report: Report = silent) -> Runtime:  # noqa: B008 - frozen
    """The model with kernels in place of its quantized linears; a plain model unchanged.

    The kernel is chosen once for each scheme and shape. No dequantized weight is kept.

    Raises:
        RefusedError: no kernel on this device supports a quantized linear.
    """
    name = str(model.dtype).removeprefix("torch.")
    network, prefix = model.skeleton.model, model.skeleton.prefix
    if model.format is None:
        linears = sum(is_linear(module) for module in network.modules())
        load_dense(model)
        _complete(network, model.device)
        return Runtime(network, prefix, model.dtype, {f"torch linear {name}": linears})
    chosen: dict[tuple[Scheme, torch.Size], Kernel] = {}
    counts: dict[str, int] = {}
    modules = list(network.named_modules())
    for done, (path, module) in enumerate(modules):
        if is_linear(module) and model.scheme(path) is not None:
            qtensor = model.qtensor(path)
            key = (qtensor.scheme, qtensor.codes.shape)
            if key not in chosen:
                chosen[key] = _choose(path, qtensor, model.dtype, load)
            has_bias = module.bias is not None
            bias = model.parameter(f"{path}.bias") if has_bias else None
            linear = QuantizedLinear(chosen[key], qtensor, model.dtype, bias)
            network.set_submodule(path, linear)
            counts[chosen[key].name] = counts.get(chosen[key].name, 0) + 1
        elif any(True for _ in module.parameters(recurse=False)):
            model.load(path, module)
        report(Progress("load", done + 1, len(modules), path))
    _complete(network, model.device)
    return Runtime(network, prefix, model.dtype, counts)


def _complete(network: "PreTrainedModel", device: torch.device) -> None:
    """Do what loading parameters one by one leaves: a shared one would be stored twice.

    Buffers, such as the frequencies of rotary embeddings, would be copied to a GPU in each step.
    """
    network.tie_weights()
    network.to(device)


def _choose(path: str, qtensor: "QTensor", dtype: torch.dtype, load: Workload) -> Kernel:
    try:
        return choose_kernel(qtensor, dtype, load)
    except RefusedError as refusal:
        raise RefusedError(
            f"`{path}`: {refusal.what}", why=refusal.why, hint=refusal.hint
        ) from refusal
