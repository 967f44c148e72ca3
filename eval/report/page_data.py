"""What the page's script draws from: plain values, sizes in bytes, KL in nats."""

from collections.abc import Mapping
from math import exp
from typing import Any

from quantkit.eval.report.columns import local_speed
from quantkit.eval.report.frontier import frontier
from quantkit.eval.report.numbers import unit_of
from quantkit.eval.report.recommendation import (
    NEEDS,
    PARTS,
    ROOM,
    SENTENCES,
    Decision,
    decisions,
    meets,
    task_clause,
)
from quantkit.eval.report.study import USABLE, WEIGHT_PARTS, Axis, Build, Study, Target
from quantkit.eval.report.targets import offer
from quantkit.results.paired import Difference
from quantkit.results.schema import EngineSpeed, LocalSpeed

SQUARE = "M-4.24,-4.24h8.48v8.48h-8.48Z"
SHAPES = {
    "ref": SQUARE,
    "gptq": "M4.79,0A4.79,4.79,0,1,1,-4.79,0A4.79,4.79,0,1,1,4.79,0",
    "awq": "M0,-7.45L6.45,3.72L-6.45,3.72Z",
    "int8": SQUARE,
    "fp8": "M0,-7.9L4.56,0L0,7.9L-4.56,0Z",
    "fp4": "M2.29,1.32V5.9H-2.29V1.32L-6.26,-.97L-3.97,-4.93L0,-2.64L3.97,-4.93L6.26,-.97Z",
    "nf4": "M0,-8L1.8,-2.48H7.62L2.91,.94L4.71,6.48L0,3.06L-4.71,6.48L-2.91,.94L-7.62,-2.48H-1.8Z",
    "rtn": "M-5.69,-1.9H-1.9V-5.69H1.9V-1.9H5.69V1.9H1.9V5.69H-1.9V1.9H-5.69Z",
}
"""Each mark as an SVG path of one area: colour never stands alone."""
MARKS = tuple(SHAPES)[1:]
FAMILIES = {
    "original": "ref",
    "smoothquant": "int8",
    "gptq-v2": "gptq",
    "gptq_v2": "gptq",
    "mxfp4": "fp4",
    "nvfp4": "fp4",
    "bitsandbytes": "nf4",
}
NAMES = {
    "awq": "AWQ",
    "fp8": "FP8",
    "gptq": "GPTQ",
    "nf4": "NF4",
    "rtn": "round to nearest",
    "smoothquant": "SmoothQuant",
}
DIGITS = 5


def mark_of(study: Study) -> dict[str, str]:
    """Each family's shape and colour: its own, or one that no other family here uses."""
    present = list(dict.fromkeys(build.family for build in study.everything))
    known = {f: FAMILIES.get(f, f) for f in present if FAMILIES.get(f, f) in (*MARKS, "ref")}
    free = [mark for mark in MARKS if mark not in known.values()]
    others = [family for family in present if family not in known]
    return known | {
        family: free[i] if i < len(free) else MARKS[i % len(MARKS)]
        for i, family in enumerate(others)
    }


def page_data(study: Study, target: Target) -> dict[str, Any]:
    """Everything the script needs; indices of `pairs` are those of the builds."""
    unit, factor = unit_of([build.disk_bytes for build in study.everything])
    marks = mark_of(study)
    count = len(study.builds)
    found = study.differences
    return {
        "unit": unit,
        "factor": factor,
        "kv": study.kv_bytes_per_token,
        "context": study.model_context,
        "noise": study.noise,
        "axis": target.axis,
        "reference": 0 if study.reference else None,
        "moduleColumns": _module_columns(study),
        "builds": [_build(build, marks, study) for build in study.everything],
        "usable": dict(USABLE),
        "needs": NEEDS,
        "room": ROOM,
        "sentences": SENTENCES,
        "parts": PARTS,
        **_decisions(study, target),
        "pairs": [_pair(found.get((a, b))) for a in range(count) for b in range(a + 1, count)],
    }


def _decisions(study: Study, target: Target) -> dict[str, Any]:
    """What every choice on the page decides: lists in the order of `Offer.targets`.

    An outcome is [rule, build, smaller, better]; builds are indices. `meets` has the builds that
    meet each limit of KL, `frontiers` those on the frontier for each number of tokens.
    """
    offered = offer(study, target)
    index = {build.key: place for place, build in enumerate(study.everything)}
    axes: tuple[Axis, ...] = ("memory", "disk") if study.kv_bytes_per_token else ("disk",)
    outcomes: dict[tuple[Any, ...], int] = {}
    lookup: dict[str, list[int]] = {}
    fronts: dict[str, list[list[int]]] = {}
    for axis in axes:
        lookup[axis] = [
            outcomes.setdefault(_outcome(found, index), len(outcomes))
            for found in decisions(study, offered.targets(axis))
        ]
        loads = offered.tokens if axis == "memory" else (0,)
        fronts[axis] = [
            [index[build.key] for build in frontier(study, Target(axis, None, tokens))]
            for tokens in loads
        ]
    meeting = [
        [index[build.key] for build in study.builds if meets(build, Target("disk", max_kl=limit))]
        for limit in offered.max_kls
    ]
    return {
        "offered": {"limits": offered.limits, "tokens": offered.tokens, "floors": offered.max_kls},
        "outcomes": list(outcomes),
        "decisions": lookup,
        "frontiers": fronts,
        "meets": meeting,
    }


def _outcome(found: Decision, index: Mapping[str, int]) -> tuple[Any, ...]:
    builds = (found.build, found.smaller, found.better)
    return (found.rule, *(None if build is None else index[build.key] for build in builds))


def _build(build: Build, marks: dict[str, str], study: Study) -> dict[str, Any]:
    result = build.measured
    data: dict[str, Any] = {
        "label": build.label,
        "family": NAMES.get(build.family, build.family),
        "mark": marks[build.family],
        "disk": build.disk_bytes,
        "weights": build.weight_bytes,
        "rest": build.rest_bytes,
        "missed": build.missed,
        "command": build.command,
    }
    if build.kl:
        data["kl"] = _kl(build)
    if result is None:
        return data
    data |= {"top1": result.top1_agreement, "tasks": task_clause(result)}
    if result.perplexity.log_ratio is not None:
        data["ppl"] = exp(result.perplexity.log_ratio) - 1
    if cell := local_speed(result):
        data["decode"] = cell.decode_tokens_per_s
        data["decodeRatio"] = cell.decode_ratio
    memory = result.memory
    data["parts"] = {name: size for name, size in memory.parts_bytes.items() if name != "kv"}
    data["split"] = any(name in memory.parts_bytes for name in WEIGHT_PARTS)
    data["blocks"] = memory.blocks
    data["local"] = [_local(cell) for cell in result.speed.local]
    data["engine"] = [_engine(cell) for cell in result.speed.engine]
    if result.modules.relative_output_error and build is not study.reference:
        rows = result.modules.relative_output_error
        data["modules"] = [[_short(value, 3) for value in row] for row in rows]
    return data


def _kl(build: Build) -> dict[str, Any]:
    kl = build.kl
    if kl is None:
        return {}
    names = ("mean", "median", "p90", "p99", "p999", "max")
    return {
        **{name: _short(getattr(kl, name)) for name in names},
        "error": _short(kl.standard_error),
        "half": _short(build.kl_half_width),
        "ci": [_short(end) for end in kl.ci95] if kl.ci95 else None,
        "domains": [[name, _short(v)] for name, v in kl.by_domain.items() if v is not None],
    }


def _local(cell: LocalSpeed) -> dict[str, Any]:
    return {
        "batch": cell.batch,
        "context": cell.context_tokens,
        "kernel": cell.kernel,
        "prefill": _short(cell.prefill_ratio),
        "decode": _short(cell.decode_ratio),
    }


def _engine(cell: EngineSpeed) -> dict[str, Any]:
    return {
        "engine": cell.engine,
        "concurrency": cell.concurrency,
        "output": _short(cell.output_tokens_per_s),
        "ttft": [_short(cell.ttft_p50_ms), _short(cell.ttft_p99_ms)],
        "itl": [_short(cell.itl_p50_ms), _short(cell.itl_p99_ms)],
    }


def _module_columns(study: Study) -> list[str]:
    found = (b.measured.modules.columns for b in study.builds if b.measured)
    return next((columns for columns in found if columns), [])


def _pair(found: Difference | None) -> list[float | int | None] | None:
    if found is None:
        return None
    return [_short(found.mean, 3), _short(found.half_width, 3), int(found.real)]


def _short(value: float | None, digits: int = DIGITS) -> float | None:
    """The number with no more digits than a picture shows: 40 maps would be megabytes."""
    return None if value is None else float(f"{value:.{digits}g}")
