"""Tables and sentences of the page's sections; a section without figures is empty and left out."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import log
from typing import Any

from quantkit.eval.report.fitted import frontiers
from quantkit.eval.report.numbers import (
    error,
    fixed,
    grouped,
    percent,
    signed_percent,
    significant,
    unit_of,
    visible,
)
from quantkit.eval.report.study import Build, Study
from quantkit.results.schema import (
    CONFIDENCES,
    CONTEXTS,
    Divergence,
    GateOutcome,
    LocalSpeed,
    Memory,
)

DETECTABLE = {"kl_relative": "KL", "log_ratio": "perplexity"}
"""Relative differences that an evaluation can show, by their names in a result."""
WORST = 3
BINS = 7


def sections(study: Study) -> dict[str, Any]:
    """Rows by section, for the template."""
    return {
        "has_points": any(build.kl and build.disk_bytes for build in study.builds),
        "has_parts": any(b.result and b.result.memory.parts_bytes for b in study.everything),
        "has_blocks": any(b.result and b.result.memory.blocks for b in study.everything),
        "plans": _plans(study),
        "fits": frontiers(study),
        "has_tail": any(build.kl and build.kl.p99 is not None for build in study.builds),
        "heats": _heats(study),
        "tasks": _tasks(study),
        "local": _local(study),
        "engine": _engine(study),
        "slower": _slower(study),
        "worst": _worst(study),
        "experts": list(_experts(study)),
        "gates": _gates(study),
        "protocol": _protocol(study),
        "commands": [b for b in study.everything if b.command],
        "failed": [b for b in study.builds if b.measured is None],
    }


def measured_sum(memory: Memory) -> int | None:
    """What was counted of the parts that a plan knows: all but the context of a GPU."""
    return sum(size for name, size in memory.parts_bytes.items() if name != "context") or None


def _plans(study: Study) -> list[tuple[Build, list[str]]]:
    """Planned and measured bytes and their relative difference, of builds with both."""
    peaks = [measured_sum(b.result.memory) for b in study.everything if b.result]
    unit, factor = unit_of(peaks)
    rows = []
    for build in study.everything:
        memory = build.result.memory if build.result else Memory()
        planned, measured = memory.planned_bytes, measured_sum(memory)
        if measured is None:
            continue
        sizes = [f"{significant(s / factor)}\u00a0{unit}" if s else "" for s in (planned, measured)]
        change = signed_percent(measured / planned - 1) if planned else ""
        lost = memory.fragmentation_fraction
        rows.append((build, [*sizes, change, "" if lost is None else percent(lost, 2)]))
    return rows


@dataclass(frozen=True)
class Heat:
    """KL by something, a row a build: text and shade (0 to 6, one scale for the table)."""

    title: str
    names: list[str]
    rows: list[tuple[Build, list[tuple[str, int | None]]]]


def _heats(study: Study) -> list[Heat]:
    """KL by domain, by how sure the original is, and by how much context there is."""
    domains = list(dict.fromkeys(name for b in study.builds if b.kl for name in b.kl.by_domain))
    shown = [visible(name) for name in domains]
    return [
        heat
        for heat in (
            _heat("domain", shown, study, lambda kl: [kl.by_domain.get(d) for d in domains]),
            _heat(
                "the original's confidence",
                [f"{100 * a:g}\u2013{100 * b:g}\u00a0%" for a, b in pairwise((*CONFIDENCES, 1))],
                study,
                lambda kl: kl.by_confidence,
            ),
            _heat(
                "tokens of context",
                _contexts(),
                study,
                lambda kl: kl.by_context,
            ),
        )
        if heat is not None
    ]


def _contexts() -> list[str]:
    """Names of the ranges of `kl.by_context`: `1`, `2-8`, ..., with a longer dash."""
    ranges = [str(b) if b == a + 1 else f"{a + 1}\u2013{b}" for a, b in pairwise(CONTEXTS)]
    return [*ranges, f"over {CONTEXTS[-1]}"]


def _heat(
    what: str, names: list[str], study: Study, of: Callable[[Divergence], list[float | None]]
) -> Heat | None:
    found = [(b, of(b.kl)[: len(names)]) for b in study.builds if b.kl]
    filled = [
        i for i in range(len(names)) if any(len(v) > i and v[i] is not None for _, v in found)
    ]
    known = [value for _, values in found for value in values if value is not None and value > 0]
    if len(filled) < 2 or not known:
        return None
    low = log(min(known))
    span = max(log(max(known)) - low, 1e-9)

    def cell(value: float | None) -> tuple[str, int | None]:
        if value is None or value <= 0:
            return ("" if value is None else "0", None)
        return significant(value, 2), min(BINS - 1, int(BINS * (log(value) - low) / span))

    rows = [(b, [cell(v[i] if len(v) > i else None) for i in filled]) for b, v in found]
    return Heat(f"Mean KL by {what}", [names[i] for i in filled], rows)


def _tasks(study: Study) -> list[tuple[int, Build, list[str]]]:
    rows = []
    for index, build in enumerate(study.everything):
        for task in build.measured.tasks if build.measured else []:
            flips = (task.right_to_wrong + task.wrong_to_right) / task.questions
            half = task.recovery_ci95
            spread = f" {error(50 * (half[1] - half[0]))}" if half else ""
            rows.append(
                (
                    index,
                    build,
                    [
                        visible(task.name),
                        grouped(task.questions),
                        percent(task.reference_accuracy),
                        percent(task.accuracy),
                        percent(task.recovery) + spread,
                        str(task.right_to_wrong),
                        str(task.wrong_to_right),
                        percent(flips, 2),
                        significant(task.mcnemar_p, 2),
                        percent(task.detectable_fraction, 2),
                    ],
                )
            )
    return rows


def _local(study: Study) -> list[tuple[int, Build, list[str]]]:
    return [
        (index, build, _cell(cell))
        for index, build in enumerate(study.everything)
        for cell in (build.measured.speed.local if build.measured else [])
    ]


def _cell(cell: LocalSpeed) -> list[str]:
    def rate(value: float | None, interval: tuple[float, float] | None) -> str:
        half = f" {error((interval[1] - interval[0]) / 2)}" if interval else ""
        return "" if value is None else significant(value) + half

    fault, missing = visible(cell.fault or ""), visible(cell.reference_fault or "")
    return [
        visible(cell.kernel),
        str(cell.batch),
        grouped(cell.context_tokens),
        rate(cell.prefill_tokens_per_s, cell.prefill_ci95) or fault,
        _times(cell.prefill_ratio) or missing,
        rate(cell.decode_tokens_per_s, cell.decode_ci95) or fault,
        _times(cell.decode_ratio) or missing,
        _milliseconds(cell.ttft_p50_ms),
        " / ".join(filter(None, map(_milliseconds, (cell.itl_p50_ms, cell.itl_p99_ms)))),
    ]


def _engine(study: Study) -> list[tuple[int, Build, list[str]]]:
    rows = []
    for index, build in enumerate(study.everything):
        for cell in build.measured.speed.engine if build.measured else []:
            name = f"{visible(cell.engine)} {visible(cell.version)}".strip()
            figures = [
                f"{name}, {visible(cell.kernel)}" if cell.kernel else name,
                str(cell.concurrency),
                significant(cell.output_tokens_per_s),
                " / ".join(filter(None, map(_milliseconds, (cell.ttft_p50_ms, cell.ttft_p99_ms)))),
                " / ".join(filter(None, map(_milliseconds, (cell.itl_p50_ms, cell.itl_p99_ms)))),
                str(cell.failed_requests),
            ]
            rows.append((index, build, figures))
    return rows


def _slower(study: Study) -> list[str]:
    """Sentences that name where builds are slower than the original, one for each phase."""
    said = []
    for phase, verb in (("decode", "decode"), ("prefill", "read a prompt")):
        worst = []
        for build in study.builds:
            cells = build.measured.speed.local if build.measured else []
            ratios = [r for c in cells if (r := getattr(c, f"{phase}_ratio")) is not None]
            if ratios and min(ratios) < 1:
                worst.append((min(ratios), build.label))
        if worst:
            ratio, label = min(worst)
            count = f"{len(worst)} of {sum(1 for b in study.builds if b.measured)} builds {verb}"
            slowest = f"the slowest is {label} at {_times(ratio)}"
            said.append(f"{count} slower than the original in some setting; {slowest}.")
    return said


def _worst(study: Study) -> list[tuple[int, Build, str]]:
    """The modules of each build that carry the largest error."""
    rows = []
    for index, build in enumerate(study.everything):
        if build is study.reference or not build.measured:
            continue
        modules = build.measured.modules
        cells = [
            (value, f"{block}.{column}")
            for block, row in enumerate(modules.relative_output_error)
            for column, value in zip(modules.columns, row, strict=False)
            if value is not None
        ]
        worst = sorted(cells, reverse=True)[:WORST]
        if worst:
            text = ", ".join(f"{visible(name)} {significant(value)}" for value, name in worst)
            rows.append((index, build, text))
    return rows


def _experts(study: Study) -> Iterator[tuple[int, Build, str]]:
    """How many calibration tokens the experts of each build were sent."""
    for index, build in enumerate(study.everything):
        found = build.result.modules.experts if build.result else None
        if found is None:
            continue
        spread = f"{grouped(found.least)} to {grouped(found.most)}, median {found.median:g}"
        text = f"{spread}; few for {found.few} of {found.count} experts"
        none = f", none for {found.unreached}" if found.unreached else ""
        yield index, build, text + none


def _gates(study: Study) -> list[tuple[int, Build, GateOutcome, str, str]]:
    return [
        (index, build, gate, _gate_value(gate.value), _interval(gate.interval))
        for index, build in enumerate(study.everything)
        for gate in (build.result.gates if build.result else [])
    ]


def _gate_value(value: float | str | None) -> str:
    if value is None:
        return "not measured"
    return significant(value) if isinstance(value, int | float) else visible(value)


def _interval(ends: Iterable[float] | None) -> str:
    return " to ".join(significant(end) for end in ends) if ends else ""


def _protocol(study: Study) -> list[tuple[str, str]]:
    """What was scored and how, as names and values."""
    p = study.protocol
    if p is None:
        return []
    first = next((b.result for b in study.builds if b.measured and b.result), None)
    documents = f"{grouped(p.documents)} documents, " if p.documents else ""
    overlap = p.overlap_13gram_fraction
    shared = "" if overlap is None else f"; {percent(overlap, 2)} of tokens share a 13-gram"
    reference = first.reference if first else None
    detectable = ", ".join(
        f"{DETECTABLE.get(name, visible(name))} {percent(value, 2)}"
        for name, value in (first.detectable if first else {}).items()
    )
    noise = study.noise
    found = [
        ("Protocol", visible(p.name)),
        ("Text", visible(p.text) + shared),
        (
            "Windows",
            f"{documents}{grouped(p.windows)} windows of {grouped(p.sequence_length)} tokens",
        ),
        ("Tokens scored", grouped(first.tokens) if first else ""),
        ("BOS token", visible(p.bos)),
        ("Arithmetic", _arithmetic(p.dtype, p.batch)),
        ("Original", _subject(reference) if reference else ""),
        ("Noise floor", f"KL {significant(noise)}: the original against itself" if noise else ""),
        ("Smallest detectable difference", detectable),
        ("Token ids, SHA-256", p.tokens_sha256),
        (
            "Environment",
            ", ".join(f"{visible(str(k))} {visible(str(v))}" for k, v in study.environment.items()),
        ),
        ("Measured", visible(study.created_utc)),
    ]
    return [(name, value) for name, value in found if value]


def _arithmetic(dtype: str, batch: int | None) -> str:
    name = visible(dtype) if dtype else ""
    return f"{name}, batches of {batch}" if batch and name else name


def _subject(subject: Any) -> str:
    parts = [visible(subject.name), subject.revision, subject.sha256]
    return ", ".join(visible(part) for part in parts if part)


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{fixed(ratio, 2)}\u00a0\u00d7"


def _milliseconds(value: float | None) -> str:
    return "" if value is None else f"{significant(value)}\u00a0ms"
