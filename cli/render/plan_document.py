"""A plan as a document: every figure in bytes or seconds, with its rule."""

from typing import TYPE_CHECKING, Any

from quantkit.cli.render.training import training_document

if TYPE_CHECKING:
    from quantkit.core.gpu import Gpu
    from quantkit.core.plan import Plan
    from quantkit.core.serving import PlannedBuild


def plan_document(plan: "Plan") -> dict[str, Any]:
    """The answer of `plan` for JSON; all sizes in bytes."""
    serving = plan.serving
    assert serving is not None
    server, model = serving.server, serving.model
    card = server.gpu if server else plan.training.gpu if plan.training else None
    training = {"training": training_document(plan.training)} if plan.training else {}
    hints = plan.training.hints if plan.training else serving.hints
    return training | {
        "model": model.name,
        "model_type": model.model_type,
        "origin": model.origin,
        "quantized": model.quantized,
        "notes": list(model.notes),
        "context": serving.load.context,
        "batch": serving.load.sequences,
        "kv": serving.load.cache,
        "gpu": _gpu(card) if card else None,
        "engine": server.engine if server else None,
        "degrees": vars(server.degrees) if server else None,
        "chosen": serving.chosen.name if serving.chosen else None,
        "fits": serving.chosen.fits if serving.chosen else None,
        "try": list(hints),
        "refusal": serving.refusal,
        "run": run_document(plan),
        "builds": [_build(build) for build in serving.builds],
    }


def run_document(plan: "Plan") -> dict[str, Any] | None:
    """What a run needs, for JSON: bytes and seconds; None where the plan has no run."""
    if plan.files is None or plan.memory is None:
        return None
    memory = plan.memory
    ways = {"activations": str(memory.holding), "forwards": memory.forwards}
    disk = {"disk_bytes": plan.files.disk_bytes, "peak": vars(memory.peak)}
    return plan.resources() | disk | ways


def _gpu(gpu: "Gpu") -> dict[str, Any]:
    return {
        "name": gpu.name,
        "bytes": gpu.memory,
        "bandwidth": gpu.bandwidth,
        "source": gpu.source,
    }


def _build(build: "PlannedBuild") -> dict[str, Any]:
    document: dict[str, Any] = {
        "build": build.name,
        "recipe": build.recipe.name if build.recipe else None,
        "bytes": build.bytes,
        "parts": dict(build.parts),
        "rule": build.rule,
        "fault": build.fault,
        "note": build.note,
    }
    deployed = build.deployment
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
        "decode_tokens_per_second": build.decode.tokens_per_second if build.decode else None,
        "prefill_tokens_per_second": build.prefill.tokens_per_second if build.prefill else None,
        "offload": vars(build.offload) if build.offload else None,
        "figures": [vars(figure) for figure in figures],
    }
