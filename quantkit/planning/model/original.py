"""What an engine's rules ask of a quantized checkpoint: linears and schemes, not packed tensors."""

from quantkit.checkpoint.quantization import quantization_block
from quantkit.core import registry
from quantkit.core.errors import QuantkitError
from quantkit.core.format import Format
from quantkit.core.scheme import Scheme
from quantkit.planning.model.described import Described
from quantkit.planning.model.weights import Build, PlannedModel, planned_model


def original_of(name: str, described: Described, method: str) -> tuple[PlannedModel, Build] | None:
    """The model that a checkpoint was quantized from, and the build that it is of it.

    None where no format here reads the `quant_method` or what its block says, or where the config
    does not give the tensors.
    """
    block = {**(quantization_block(described.config) or {}), "quant_method": method}
    found = next((f for f in _formats() if f.matches(block)), None)
    if found is None or described.inventory is None:
        return None
    model = planned_model(name, described.inventory, described.architecture)
    schemes: dict[str, Scheme] = {}
    try:
        scheme_of = found.parse(block)
        for linear in (kind.tensor.linear for kind in model.kinds if kind.quantizable):
            assert linear is not None
            scheme = scheme_of(linear)
            if scheme is not None:
                schemes[linear] = scheme
    except QuantkitError:
        return None
    return model, Build(method, format=found, schemes=schemes)


def _formats() -> list[Format]:
    return [registry.load("formats", name, "FORMAT") for name in registry.names("formats")]
