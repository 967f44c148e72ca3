"""What a plan comes to: in a sentence, as what to do next, and as an exit code."""

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Literal

from quantkit.cli.console import Console
from quantkit.core.units import excess, gigabytes

if TYPE_CHECKING:
    from quantkit.core.plan import Plan
    from quantkit.core.serving import Deployment, PlannedBuild, Server, Serving

MISSED, REFUSED = 3, 4


def verdict(serving: "Serving", model: str) -> list[str]:
    """One sentence on the best build, and what to try; `model` is what the caller named it."""
    chosen = serving.chosen
    assert chosen is not None
    deployed = chosen.deployment
    assert deployed is not None
    if deployed.fits:
        return [
            f"{chosen.name} fits: {deployed.longest:,} tokens of context for "
            f"{serving.load.sequences}, or {_sequences(deployed.most)} of "
            f"{serving.load.context:,} tokens",
            *_next(serving, chosen, model),
        ]
    over = excess(deployed.total - deployed.budget.bytes)
    lines = [f"no build fits: the smallest, {chosen.name}, needs {over} GB more"]
    if chosen.offload is not None:
        blocks, seconds = chosen.offload.blocks, chosen.offload.seconds
        bound = f", at least {seconds:.2g} s a token" if seconds else ""
        rest = serving.model.blocks - blocks["GPU"]
        lines.append(
            f"offloaded by transformers: {blocks['GPU']} blocks on the GPU, {rest} in RAM{bound}"
        )
    return lines + [f"try: {hint}" for hint in serving.hints]


def _next(serving: "Serving", chosen: "PlannedBuild", model: str) -> list[str]:
    """The command that makes the build, or why there is none; nothing for the model as it is."""
    if serving.refusal is not None:
        return [f"quantize cannot make this build: {serving.refusal}"]
    if chosen.recipe is None or serving.server is None or chosen.deployment is None:
        return []
    from quantkit.recipes.flags import flags_of

    source = quote(str(Path(model).parent) if model.endswith(".json") else model)
    lines = [f"next: quantkit quantize {source} -o OUT {flags_of(chosen.recipe)}"]
    if larger_misses(serving):
        served = _served_as(serving.server, chosen.deployment)
        lines.append(f"or: quantkit fit {source} -o OUT {served}")
    return lines


def larger_misses(serving: "Serving") -> bool:
    """Whether a build of more bits does not fit, and bits between could."""
    chosen = serving.chosen
    assert chosen is not None
    made = [build for build in serving.candidates if build.recipe is not None]
    return any(build.rank[0] > chosen.rank[0] for build in made)


def _served_as(server: "Server", deployed: "Deployment") -> str:
    """The place and the load as options of `fit`."""
    load = deployed.load
    options = [f"--gpu {quote(server.gpu.name)}", f"--context {load.context}"]
    options += [f"--batch {load.sequences}"] if load.sequences > 1 else []
    options += [f"--tp {server.degrees.tensor}"] if server.degrees.tensor > 1 else []
    options += [f"--engine {server.engine}"] if server.engine != "vllm" else []
    return " ".join(options)


def _sequences(count: int) -> str:
    return f"{count:,} sequence" + "s" * (count != 1)


def needed(build: "PlannedBuild", plan: "Plan") -> int | None:
    """Bytes that a GPU needs, or where none was named that the weights take; None if refused."""
    if plan.training is not None:
        return plan.training.needed
    if plan.serving is not None and plan.serving.server is not None:
        return build.deployment.total if build.deployment else None
    return build.bytes or None


def gate(console: Console, plan: "Plan", limit: int | Literal["gpu"] | None) -> int:
    """Exit code 4 where a requested build is refused, 3 where it needs more than `limit`, else 0.

    `limit` counts bytes of each GPU; "gpu" are those that the engine may take.
    """
    serving = plan.serving
    assert serving is not None
    if serving.refused is not None:
        console.note(f"refused: {serving.refused}")
        return REFUSED
    if limit is None:
        return 0
    first = serving.server is None and not serving.requested
    wanted = serving.chosen or serving.builds[0 if first else -1]
    need = needed(wanted, plan)
    if need is None:
        console.note(f"refused: {wanted.name}: {wanted.fault}")
        return REFUSED
    name = "training" if plan.training else wanted.name
    if limit == "gpu":
        missed, than = not (plan.training or wanted).fits, "the GPU provides"
    else:
        missed, than = need > limit, f"{gigabytes(limit)} GB ({limit:,})"
    rank = " on each GPU" if serving.server or plan.training else ""
    verb = "more than" if missed else "no more than"
    console.note(f"{name} needs {gigabytes(need)} GB ({need:,} bytes){rank}, {verb} {than}")
    return MISSED if missed else 0
