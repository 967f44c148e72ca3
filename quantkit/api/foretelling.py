"""The verb that tells beforehand: from config and headers, without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from quantkit.core.recipe import Recipe
    from quantkit.planning.forecast import Forecast
    from quantkit.planning.train import Training

PLANNED_RECIPES = ("smoothquant", "w8a16", "gptq", "nf4-double")
"""What `plan` shows of a model unless asked for something else."""


def plan(  # noqa: PLR0913 - the public surface; each has a default that is right for most
    model: str,
    *,
    gpu: str | None = None,
    context: int | None = None,
    batch: int = 1,
    engine: str = "vllm",
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    kv: Literal[16, 8] = 16,
    recipes: Sequence[Recipe] | None = None,
    settings: Mapping[str, str] | None = None,
    training: Training | None = None,
) -> Forecast:
    """What a model and its quantized builds weigh, and whether they fit a GPU; without torch.

    Only config.json and the headers of the weights are read, or fetched.

    Args:
        model: a folder, a config.json, or a hub id `org/name[@revision]`.
        gpu: a name (`4090`), `24GB@1008GB/s`, or `local`; without one only weights are told.
        context: tokens of a sequence; by default the model's own, at most 8192.
        batch: how many sequences are served at once.
        engine: "vllm", "sglang" or "transformers".
        tp: tensor-parallel ranks.
        pp: pipeline stages.
        ep: expert-parallel ranks.
        kv: bits of an element of the KV cache.
        recipes: what to quantize with; by default one of each size.
        settings: of the engine, by the names of `planning.serving.Settings`.
        training: a training run to forecast instead, its tokens and sequences those given here.

    Raises:
        QuantkitError: what is asked is unknown, or no engine runs it.
    """
    from quantkit.planning.deploy import asked_load, named_place
    from quantkit.planning.forecast import forecast, require_alone, schooled
    from quantkit.planning.opened import open_model
    from quantkit.planning.parallel import Degrees

    place = named_place(gpu, engine, Degrees(tp, pp, ep), **settings or {}) if gpu else None
    planned = open_model(model)
    load = asked_load(planned.architecture, context, batch, kv)
    if training is not None:
        require_alone((tp, pp, ep, kv) != (1, 1, 1, 16), recipes, settings)
        return schooled(planned, training, place.gpu if place else None, load)
    asked = recipes is not None
    if recipes is None and not planned.quantized:
        from quantkit.recipes.loader import load_recipe

        recipes = [load_recipe(name) for name in PLANNED_RECIPES]
    return forecast(planned, recipes or (), place, load, asked=asked)
