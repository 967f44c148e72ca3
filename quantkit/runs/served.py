"""A folder as an engine's rules see it."""

from collections.abc import Mapping
from dataclasses import replace

from quantkit.checkpoint.quantization import quantization_block
from quantkit.core import registry
from quantkit.core.engine import Engine
from quantkit.core.errors import QuantkitError
from quantkit.core.facts import LinearFacts
from quantkit.model.declared import Declared
from quantkit.model.float_codes import DIVISOR, FACTOR
from quantkit.model.skeleton import is_linear, linear_facts
from quantkit.planning.model.headers import FUSED
from quantkit.planning.model.opened import open_model
from quantkit.planning.model.weights import PlannedModel
from quantkit.planning.serve.served import Served

GLOBAL_SCALES = ("weight_global_scale", "weight_scale_2", DIVISOR, FACTOR)
"""What formats call the scale of all scales."""


def serve(declared: Declared, name: str, tp: int) -> Served:
    """The folder in the engine `name`.

    Raises:
        RefusedError: its config states a KV cache that is not known.
    """
    engine: Engine = registry.load("engines", name, "ENGINE")
    block = quantization_block(declared.checkpoint.config) or {}
    output, model = declared.format, declared.model
    schemes = {each.stored: each.scheme for each in declared.linears}
    shapes = {}
    for path, module in model.skeleton.model.named_modules():
        stored = model.weights.modules.get(path, path)
        if is_linear(module) and path.startswith(f"{model.skeleton.prefix}."):
            shapes[stored] = linear_facts(stored, module)
    model_type = str(getattr(model.config, "model_type", ""))
    linears = {
        stored: replace(facts, fused=_fused(stored, shapes), model_type=model_type)
        for stored, facts in shapes.items()
    }
    stated = block.get("quant_method")
    return Served(
        engine,
        tp,
        str(stated) if stated else None,
        output,
        {stored: schemes.get(stored) for stored in linears},
        linears,
        output.kv_cache_of(block) if output else None,
        _planned(declared),
        _global_scales(declared),
    )


def _global_scales(declared: Declared) -> dict[str, float]:
    """The global scale of each linear that has one."""
    coded = declared.coding.tensors if declared.coding else {}
    parts: dict[str, Mapping[str, str | None]] = {
        name.removesuffix(".weight"): {**each.parts} for name, each in coded.items()
    }
    parts |= {each.stored: each.parts for each in declared.linears}
    found = {}
    for stored, names in parts.items():
        for name in filter(None, (names.get(part) for part in GLOBAL_SCALES)):
            if declared.files[name].nbytes == 4:  # of a stack of experts each has its own
                found[stored] = float(declared.checkpoint.as_stored(name).item())
    return found


def _planned(declared: Declared) -> PlannedModel | None:
    """The folder as planning sees it; None where it does not know the model."""
    try:
        return open_model(str(declared.checkpoint.folder))
    except QuantkitError:
        return None


def _fused(name: str, there: Mapping[str, LinearFacts]) -> tuple[str, ...]:
    """The linears that engines make one of, this one included; none where it is alone."""
    home, _, own = name.rpartition(".")
    group = next((members for members in FUSED if own in members), ())
    found = tuple(f"{home}.{member}" for member in group if f"{home}.{member}" in there)
    return found if len(found) > 1 else ()
