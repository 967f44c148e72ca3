"""A forecast as a document: every figure in bytes, with its rule."""

from typing import TYPE_CHECKING, Any

from quantkit.cli.render.training import training_document

if TYPE_CHECKING:
    from quantkit.planning.forecast import Forecast, Outlook
    from quantkit.planning.model.weights import PlannedModel


def forecast_document(found: "Forecast") -> dict[str, Any]:
    """The forecast for JSON; all sizes in bytes."""
    place, model = found.place, found.model
    trained = found.schooling.gpu if found.schooling else None
    card = place.gpu if place else trained
    training = {"training": training_document(found.schooling)} if found.schooling else {}
    return training | {
        "model": model.name,
        "model_type": model.architecture.model_type,
        "origin": model.inventory.origin,
        "quantized": model.quantized,
        "notes": list(model.notes),
        "context": found.load.context,
        "batch": found.load.sequences,
        "kv": found.load.cache,
        "gpu": None
        if card is None
        else {
            "name": card.name,
            "bytes": card.memory,
            "bandwidth": card.bandwidth,
            "source": card.source,
        },
        "engine": place.engine if place else None,
        "degrees": vars(place.degrees) if place else None,
        "chosen": found.chosen.build.name if found.chosen else None,
        "fits": found.chosen.fits if found.chosen else None,
        "try": list(found.hints),
        "refusal": found.refusal,
        "run": None
        if found.run is None
        else {
            **found.run.to_dict(),
            "disk_bytes": found.run.plan.disk_bytes,
            "peak": vars(found.run.plan.peak),
        },
        "builds": [_build_document(outlook, model) for outlook in found.outlooks],
    }


def _build_document(outlook: "Outlook", model: "PlannedModel") -> dict[str, Any]:
    from quantkit.planning.model.weights import weights_rule

    document: dict[str, Any] = {
        "build": outlook.build.name,
        "recipe": outlook.build.recipe.name if outlook.build.recipe else None,
        "bytes": outlook.bytes,
        "parts": dict(outlook.parts),
        "rule": weights_rule(model, outlook.build, "all"),
        "fault": outlook.fault,
    }
    deployed = outlook.deployment
    if deployed is None:
        return document
    figures = (*deployed.fixed, deployed.cache, deployed.budget)
    return document | {
        "fits": deployed.fits,
        "rank": {"weights": deployed.weights, "cache": deployed.cache.bytes}
        | {"other": deployed.other, "total": deployed.total, "budget": deployed.budget.bytes},
        "cache_tokens": deployed.tokens,
        "longest_context": deployed.longest,
        "largest_batch": deployed.most,
        "decode_tokens_per_second": outlook.decode.tokens_per_second if outlook.decode else None,
        "prefill_tokens_per_second": outlook.prefill.tokens_per_second if outlook.prefill else None,
        "offload": vars(outlook.offload) if outlook.offload else None,
        "figures": [vars(figure) for figure in figures],
    }
