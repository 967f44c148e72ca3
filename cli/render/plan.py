"""What `plan` prints: table, bar, verdict; with `--explain` the rule of every figure."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from quantkit.cli.render.plan_verdict import verdict
from quantkit.cli.render.training import training_lines
from quantkit.cli.tables import Part, Table, flush, table
from quantkit.core.units import UNIT_NOTE, excess, gigabytes, size

if TYPE_CHECKING:
    from quantkit.core.plan import Plan
    from quantkit.core.serving import PlannedBuild, Server, Serving

BAR = 60
UNTIMED = "its time is unknown: quantkit doctor --time measures this machine"


def plan_text(plan: "Plan", model: str, *, explain: bool) -> list[Part]:
    """Header, table, bar, verdict and what to try; with `explain` every figure's rule.

    `model` is what the caller named it.
    """
    serving = plan.serving
    assert serving is not None
    lines: list[Part] = [*head_lines(serving), UNIT_NOTE, ""]
    if plan.training is not None:
        return [*lines, *training_lines(plan.training)]
    if serving.server is None:
        lines += [_weights_table(serving), *faults(serving)]
    else:
        lines += [_deploy_table(serving, serving.server), *faults(serving)]
        if serving.chosen:
            lines += ["", *bar(serving.chosen, serving.server), ""]
            lines += [*_run_lines(plan), *verdict(serving, model)]
    if explain:
        lines += ["", *_rules(plan)]
    return lines


def head_lines(serving: "Serving") -> list[str]:
    """What the model is, and the place and load."""
    model, load, server = serving.model, serving.load, serving.server
    elements = "" if model.quantized else f"{model.parameters:,} parameters, "
    lines = [
        f"{model.name}: {model.model_type}, {elements}{model.blocks} blocks (from {model.origin})"
    ]
    if model.extra_bytes:
        lines.append(
            f"not counted: {size(model.extra_bytes)} of extra prediction layers, for speculative "
            "decoding"
        )
    lines += model.notes
    if server is not None:
        deployed = serving.chosen.deployment if serving.chosen else None
        load = deployed.load if deployed else load
        gpu, count = server.gpu, server.degrees.gpus
        speed = f", {gpu.bandwidth / 1e9:.0f} GB/s" if gpu.bandwidth else ""
        lines.append(
            f"{f'{count} x ' if count > 1 else ''}{gpu.name}: {gigabytes(gpu.memory)} GB{speed}; "
            f"{server.engine}; {load.sequences} x {load.context:,} tokens, {load.cache} cache"
        )
    return lines


def _weights_table(serving: "Serving") -> Table:
    names = list(dict.fromkeys(part for build in serving.builds for part in build.parts))
    rows: list[tuple[object, ...]] = []
    for build in serving.builds:
        parts = [gigabytes(build.parts[n]) if n in build.parts else None for n in names]
        rows.append((build.name, *parts, gigabytes(build.bytes) if build.parts else "refused"))
    return flush(("build, GB", *names, "all"), rows)


def _deploy_table(serving: "Serving", server: "Server") -> Table:
    rows = [_row(build) for build in serving.builds]
    fits = f"fits {gigabytes(server.budget)}"
    head = ("build, GB", "weights", "KV", "other", "total", fits, "context up to", "tok/s <=")
    return flush(head, rows)


def _row(build: "PlannedBuild") -> Sequence[object]:
    deployed = build.deployment
    if deployed is None:
        weights = gigabytes(build.bytes) if build.parts else None
        return (build.name, weights, None, None, None, "refused", None, None)
    over = deployed.total - deployed.budget.bytes
    sizes = (deployed.weights, deployed.cache.bytes, deployed.other, deployed.total)
    return (
        build.name,
        *map(gigabytes, sizes),
        "yes" if over <= 0 else f"{excess(over)} over",
        f"{deployed.longest:,}" if deployed.longest else "none",
        round(build.decode.tokens_per_second) if build.decode else None,
    )


def faults(serving: "Serving") -> list[str]:
    """Each refused build with its reason, and each that runs otherwise than its recipe says."""
    said = ((build.name, build.fault or build.note) for build in serving.builds)
    return [f"{name}: {why}" for name, why in said if why]


def bar(build: "PlannedBuild", server: "Server", width: int = BAR) -> list[str]:
    """What fills a GPU, a letter for each part; `|` ends the engine's share, `>` is beyond all."""
    deployed, memory = build.deployment, server.gpu.memory
    assert deployed is not None
    parts = {"W": deployed.weights, "o": deployed.other, "K": deployed.cache.bytes}
    drawn, at = "", 0
    for letter, count in parts.items():
        at += count
        drawn += letter * (min(round(at / memory * width), width + 1) - len(drawn))
    limit = min(width, round(deployed.budget.bytes / memory * width))
    over = ">" if len(drawn) > width else ""
    drawn = drawn[:width].ljust(limit, ".")
    drawn = drawn[:limit] + "|" + drawn[limit:].ljust(width - limit, "-") + over
    weights, other, cache = map(gigabytes, parts.values())
    free = gigabytes(max(0, deployed.budget.bytes - deployed.total))
    legend = f"W weights {weights}, o other {other}, K cache {cache}, . free {free} GB"
    return [f"[{drawn}]", f"{legend}: {build.name}"]


def _run_lines(plan: "Plan") -> list[str]:
    """What it takes to quantize; the time where this machine was timed."""
    from quantkit.core.units import span

    files, memory, time = plan.files, plan.memory, plan.time
    if files is None or memory is None or time is None:
        return []
    peak = f"{size(memory.peak.bytes)} peak memory beside Python with torch"
    if memory.rss_bytes is not None:
        peak = f"{size(memory.rss_bytes)} peak memory"
    needs = f"{size(files.disk_bytes)} of free disk, {peak}"
    line = f"quantize writes {size(files.bytes)} and needs {needs}"
    return [f"{line}, {span(time.seconds)}"] if time.seconds else [line, UNTIMED]


def _rules(plan: "Plan") -> list[Part]:
    """Every figure of the chosen build with its rule; without a GPU the weights of every build."""
    serving = plan.serving
    assert serving is not None
    if serving.server is None:
        return _weights_rules(serving)
    chosen = serving.chosen
    if chosen is None or chosen.deployment is None:
        return []
    deployed, gpu = chosen.deployment, serving.server.gpu
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
    if plan.memory is not None:
        peak = plan.memory.peak
        rows.append((f"run: {peak.name}", f"{peak.bytes:,}", peak.rule))
    return [f"{chosen.name}, bytes of the fullest rank:", table(("", "", "rule"), rows)]


def _weights_rules(serving: "Serving") -> list[Part]:
    rows = [
        (build.name, part, f"{count:,}", build.rule)
        for build in serving.builds
        for part, count in build.parts.items()
    ]
    return [table(("build, bytes", "", "", "rule"), rows)]
