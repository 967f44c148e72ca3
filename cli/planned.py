"""A forecast as text and as a document."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal

from quantkit.cli.console import GIB, Console, gib, size, table
from quantkit.cli.trained import training_document, training_lines

if TYPE_CHECKING:
    from quantkit.planning.deploy import Deployment
    from quantkit.planning.forecast import Forecast, Outlook
    from quantkit.planning.making import Making
    from quantkit.planning.weights import PlannedModel

BAR = 60
MISSED, REFUSED = 3, 4


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
    from quantkit.planning.weights import weights_rule

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


def forecast_text(found: "Forecast", model: str, *, explain: bool) -> str:
    """Header, table, bar, verdict and what to try; with `explain` every figure's rule.

    `model` is what the caller named it.
    """
    lines = [*head_lines(found), ""]
    if found.schooling is not None:
        return "\n".join([*lines, *training_lines(found.schooling, found.hints)])
    if found.place is None:
        lines += [_weights_table(found), *faults(found)]
    else:
        lines += [_deploy_table(found), *faults(found)]
        if found.chosen:
            lines += ["", *bar(found.chosen), "", *_run_lines(found.run), *verdict(found, model)]
    if explain:
        lines += ["", *_rules(found)]
    return "\n".join(lines)


def head_lines(found: "Forecast") -> list[str]:
    """What the model is, and the place and load."""
    from math import prod

    from quantkit.checkpoint.header import DTYPE_BYTES

    model, load, place = found.model, found.load, found.place
    count = sum(k.count * prod(k.tensor.shape) for k in model.kinds if not k.tensor.buffer)
    elements = "" if model.quantized else f"{count:,} parameters, "
    layers = len(model.architecture.layers)
    lines = [
        f"{model.name}: {model.architecture.model_type}, {elements}{layers} blocks "
        f"(from {model.inventory.origin})"
    ]
    extra = sum(
        prod(t.shape) * DTYPE_BYTES[t.dtype]
        for t in model.inventory.tensors
        if t.layer is not None and t.layer >= layers
    )
    if extra:
        lines.append(
            f"not counted: {size(extra)} of extra prediction layers, for speculative decoding"
        )
    lines += model.notes
    if place is not None:
        served = found.chosen.deployment if found.chosen else None
        load = served.load if served else load
        speed = f", {place.gpu.bandwidth / 1e9:.0f} GB/s" if place.gpu.bandwidth else ""
        count = place.degrees.gpus
        lines.append(
            f"{f'{count} x ' if count > 1 else ''}{place.gpu.name}: "
            f"{place.gpu.memory / GIB:.2f} GiB{speed}; {place.engine}; "
            f"{load.sequences} x {load.context:,} tokens, {load.cache} cache"
        )
    return lines


def needed(outlook: "Outlook", found: "Forecast") -> int | None:
    """Bytes that a GPU needs, or where none was named that the weights take; None if refused."""
    if found.schooling is not None:
        return found.schooling.needed
    if found.place is not None:
        return outlook.deployment.total if outlook.deployment else None
    return outlook.bytes or None


def _weights_table(found: "Forecast") -> str:
    names = list(dict.fromkeys(part for outlook in found.outlooks for part in outlook.parts))
    rows: list[tuple[object, ...]] = []
    for outlook in found.outlooks:
        parts = [gib(outlook.parts[name]) if name in outlook.parts else None for name in names]
        whole = (gib(outlook.bytes), size(outlook.bytes)) if outlook.parts else (None, "refused")
        rows.append((outlook.build.name, *parts, *whole))
    return flush(("build, GiB", *names, "all", ""), rows)


def _deploy_table(found: "Forecast") -> str:
    place = found.place
    assert place is not None
    rows = [_row(outlook) for outlook in found.outlooks]
    gpu = f"fits {gib(place.settings.budget(place.gpu.memory).bytes)}"
    head = ("build", "weights", "KV", "other", "total GiB", gpu, "context up to", "tok/s <=")
    return flush(head, rows)


def _row(outlook: "Outlook") -> Sequence[object]:
    deployed = outlook.deployment
    if deployed is None:
        weights = gib(outlook.bytes) if outlook.parts else None
        return (outlook.build.name, weights, None, None, None, "refused", None, None)
    over = deployed.total - deployed.budget.bytes
    sizes = (deployed.weights, deployed.cache.bytes, deployed.other, deployed.total)
    return (
        outlook.build.name,
        *map(gib, sizes),
        "yes" if over <= 0 else f"{excess(over)} over",
        f"{deployed.longest:,}" if deployed.longest else "none",
        round(outlook.decode.tokens_per_second) if outlook.decode else None,
    )


def faults(found: "Forecast") -> list[str]:
    """Each refused build with its reason."""
    return [f"{o.build.name}: {o.fault}" for o in found.outlooks if o.fault]


def bar(outlook: "Outlook", width: int = BAR) -> list[str]:
    """What fills a GPU, a letter for each part; `|` ends the engine's share, `>` is beyond all."""
    deployed = outlook.deployment
    assert deployed is not None
    memory = deployed.place.gpu.memory
    parts = {"W": deployed.weights, "o": deployed.other, "K": deployed.cache.bytes}
    drawn, at = "", 0
    for letter, count in parts.items():
        at += count
        drawn += letter * (min(round(at / memory * width), width + 1) - len(drawn))
    limit = min(width, round(deployed.budget.bytes / memory * width))
    over = ">" if len(drawn) > width else ""
    drawn = drawn[:width].ljust(limit, ".")
    drawn = drawn[:limit] + "|" + drawn[limit:].ljust(width - limit, "-") + over
    left = max(0, deployed.budget.bytes - deployed.total)
    legend = f"W weights {gib(parts['W'])}, o other {gib(parts['o'])}, K cache {gib(parts['K'])}"
    return [f"[{drawn}]", f"{legend}, . free {gib(left)} GiB: {outlook.build.name}"]


def _run_lines(run: "Making | None") -> list[str]:
    """What it takes to quantize; the time where this machine was timed."""
    from quantkit.planning.making import span

    if run is None:
        return []
    memory = f"about {size(run.plan.peak.bytes)} of memory beside torch's"
    if run.peak_rss_bytes is not None:
        memory = f"about {size(run.peak_rss_bytes)} of memory"
    lasts = f", {span(run.seconds)}" if run.seconds else "; how long: quantkit doctor --time"
    needs = f"{size(run.plan.disk_bytes)} of disk, {memory}{lasts}"
    return [f"quantize writes {size(run.plan.bytes)}, and takes {needs}"]


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


def _rules(found: "Forecast") -> list[str]:
    """Every figure of the chosen build with its rule; without a GPU the weights of every build."""
    if found.place is None:
        return _weights_rules(found)
    chosen = found.chosen
    if chosen is None or chosen.deployment is None:
        return []
    deployed, gpu = chosen.deployment, chosen.deployment.place.gpu
    rows: list[tuple[object, ...]] = [
        (figure.name, f"{figure.bytes:,}", figure.rule)
        for figure in (*deployed.fixed, deployed.cache, deployed.budget)
    ]
    bounds: Mapping[str, Any] = {"decode": chosen.decode, "prefill": chosen.prefill}
    rows += [
        (f"{name}, tok/s", f"{bound.tokens_per_second:,.0f}", f"at most {bound.rule}")
        for name, bound in bounds.items()
        if bound is not None
    ]
    rows.append((gpu.name, f"{gpu.memory:,}", gpu.source))
    if found.run is not None:
        peak = found.run.plan.peak
        rows.append((f"run: {peak.name}", f"{peak.bytes:,}", peak.rule))
    return [f"{chosen.build.name}, bytes of the fullest rank:", table(("", "", "rule"), rows)]


def _weights_rules(found: "Forecast") -> list[str]:
    from quantkit.planning.weights import weights_rule

    rows = [
        (outlook.build.name, part, f"{count:,}", weights_rule(found.model, outlook.build, "all"))
        for outlook in found.outlooks
        for part, count in outlook.parts.items()
    ]
    return [table(("build, bytes", "", "", "rule"), rows)]


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


def excess(count: int) -> str:
    """Bytes that are missing as GiB, never as none."""
    return gib(count) if count >= GIB / 100 else "under 0.01"


def flush(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table whose columns are flush right, but for the first."""
    cells = [["-" if cell is None else str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    whole = [
        [row[0], *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))] for row in cells
    ]
    return table(whole[0], whole[1:])
