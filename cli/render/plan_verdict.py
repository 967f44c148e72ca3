"""What a forecast comes to: in a sentence, as what to do next, and as an exit code."""

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Literal

from quantkit.cli.console import Console
from quantkit.cli.units import excess, gib

if TYPE_CHECKING:
    from quantkit.planning.forecast import Forecast, Outlook
    from quantkit.planning.serve.deploy import Deployment

MISSED, REFUSED = 3, 4


def verdict(found: "Forecast", model: str) -> list[str]:
    """One sentence on the best build, and what to try."""
    chosen = found.chosen
    assert chosen is not None
    assert chosen.deployment is not None
    deployed, load = chosen.deployment, found.load
    if deployed.fits:
        lines = [
            f"{chosen.build.name} fits: {deployed.longest:,} tokens of context for "
            f"{load.sequences}, or {_sequences(deployed.most)} of {load.context:,} tokens"
        ]
        recipe = chosen.build.recipe
        if found.refusal is not None:
            lines.append(f"quantkit does not make it: {found.refusal}")
        elif recipe is not None:
            from quantkit.recipes.flags import flags_of

            source = quote(str(Path(model).parent) if model.endswith(".json") else model)
            lines.append(f"next: quantkit quantize {source} -o OUT {flags_of(recipe)}")
            if larger_misses(found):
                lines.append(f"or: quantkit fit {source} -o OUT {_served_as(deployed)}")
        return lines
    over = excess(deployed.total - deployed.budget.bytes)
    lines = [f"no build fits: the smallest, {chosen.build.name}, needs {over} GiB more"]
    if chosen.offload is not None:
        blocks, seconds = chosen.offload.blocks, chosen.offload.seconds
        bound = f", at least {seconds:.2g} s a token" if seconds else ""
        rest = len(found.model.architecture.layers) - blocks["GPU"]
        lines.append(
            f"offloaded by transformers: {blocks['GPU']} blocks on the GPU, {rest} in RAM{bound}"
        )
    return lines + [f"try: {hint}" for hint in found.hints]


def larger_misses(found: "Forecast") -> bool:
    """Whether the build before the chosen one does not fit, and bits between could."""
    chosen = found.chosen
    made = [o for o in found.served if o.build.recipe is not None]
    at = next((i for i, o in enumerate(made) if o is chosen), 0)
    return at > 0 and made[at - 1].deployment is not None and not made[at - 1].fits


def _served_as(deployed: "Deployment") -> str:
    """The place and the load as options of `fit`."""
    place, load = deployed.place, deployed.load
    options = [f"--gpu {quote(place.gpu.name)}", f"--context {load.context}"]
    options += [f"--batch {load.sequences}"] if load.sequences > 1 else []
    options += [f"--tp {place.degrees.tensor}"] if place.degrees.tensor > 1 else []
    options += [f"--engine {place.engine}"] if place.engine != "vllm" else []
    return " ".join(options)


def _sequences(count: int) -> str:
    return f"{count:,} sequence" + "s" * (count != 1)


def needed(outlook: "Outlook", found: "Forecast") -> int | None:
    """Bytes that a GPU needs, or where none was named that the weights take; None if refused."""
    if found.schooling is not None:
        return found.schooling.needed
    if found.place is not None:
        return outlook.deployment.total if outlook.deployment else None
    return outlook.bytes or None


def gate(console: Console, found: "Forecast", limit: int | Literal["gpu"] | None) -> int:
    """Exit code 4 where what was asked for is refused, 3 where it needs more than `limit`, else 0.

    `limit` counts bytes of each GPU; "gpu" are those that it has to give.
    """
    if found.refused is not None:
        console.note(f"refused: {found.refused}")
        return REFUSED
    if limit is None:
        return 0
    wanted = found.chosen or found.outlooks[0 if found.place is None and not found.asked else -1]
    need = needed(wanted, found)
    if need is None:
        console.note(f"refused: {wanted.build.name}: {wanted.fault}")
        return REFUSED
    name = "training" if found.schooling else wanted.build.name
    if limit == "gpu":
        missed, than = not (found.schooling or wanted).fits, "the GPU has to give"
    else:
        missed, than = need > limit, f"{gib(limit)} GiB ({limit:,})"
    rank = " on each GPU" if found.place or found.schooling else ""
    verb = "more than" if missed else "no more than"
    console.note(f"{name} needs {gib(need)} GiB ({need:,} bytes){rank}, {verb} {than}")
    return MISSED if missed else 0
