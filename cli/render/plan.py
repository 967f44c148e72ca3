"""A forecast as text: what the model is, a table, a bar, a verdict, and the rules."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from quantkit.cli.render.plan_verdict import verdict
from quantkit.cli.render.training import training_lines
from quantkit.cli.tables import Part, Table, flush, table
from quantkit.cli.units import GIB, excess, gib, size

if TYPE_CHECKING:
    from quantkit.planning.forecast import Forecast, Outlook
    from quantkit.planning.run.estimate import Making

BAR = 60


def forecast_text(found: "Forecast", model: str, *, explain: bool) -> list[Part]:
    """Header, table, bar, verdict and what to try; with `explain` every figure's rule.

    `model` is what the caller named it.
    """
    lines: list[Part] = [*head_lines(found), ""]
    if found.schooling is not None:
        return [*lines, *training_lines(found.schooling, found.hints)]
    if found.place is None:
        lines += [_weights_table(found), *faults(found)]
    else:
        lines += [_deploy_table(found), *faults(found)]
        if found.chosen:
            lines += ["", *bar(found.chosen), "", *_run_lines(found.run), *verdict(found, model)]
    if explain:
        lines += ["", *_rules(found)]
    return lines


def head_lines(found: "Forecast") -> list[str]:
    """What the model is, and the place and load."""
    from math import prod

    from quantkit.checkpoint.stored import DTYPE_BYTES

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


def _weights_table(found: "Forecast") -> Table:
    names = list(dict.fromkeys(part for outlook in found.outlooks for part in outlook.parts))
    rows: list[tuple[object, ...]] = []
    for outlook in found.outlooks:
        parts = [gib(outlook.parts[name]) if name in outlook.parts else None for name in names]
        whole = (gib(outlook.bytes), size(outlook.bytes)) if outlook.parts else (None, "refused")
        rows.append((outlook.build.name, *parts, *whole))
    return flush(("build, GiB", *names, "all", ""), rows)


def _deploy_table(found: "Forecast") -> Table:
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
    from quantkit.planning.run.estimate import span

    if run is None:
        return []
    memory = f"about {size(run.plan.peak.bytes)} of memory beside torch's"
    if run.peak_rss_bytes is not None:
        memory = f"about {size(run.peak_rss_bytes)} of memory"
    lasts = f", {span(run.seconds)}" if run.seconds else "; how long: quantkit doctor --time"
    needs = f"{size(run.plan.disk_bytes)} of disk, {memory}{lasts}"
    return [f"quantize writes {size(run.plan.bytes)}, and takes {needs}"]


def _rules(found: "Forecast") -> list[Part]:
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


def _weights_rules(found: "Forecast") -> list[Part]:
    from quantkit.planning.model.weights import weights_rule

    rows = [
        (outlook.build.name, part, f"{count:,}", weights_rule(found.model, outlook.build, "all"))
        for outlook in found.outlooks
        for part, count in outlook.parts.items()
    ]
    return [table(("build, bytes", "", "", "rule"), rows)]
