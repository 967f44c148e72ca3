"""Limits on what was measured: passed, failed or undecided."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from quantkit.core.errors import InputError
from quantkit.core.gate import parse_gate
from quantkit.core.limit import Gate, Undecided
from quantkit.results.baseline import against, regressions
from quantkit.results.decision import INVALID, Status, decide, finite
from quantkit.results.figures import QUALITY, Measured, by_domain, measured
from quantkit.results.schema import (
    EvalResult,
    GateOutcome,
    Interval,
    Protocol,
    Subject,
)

EXACT = ("artifact", "memory", "engines")
SMOKE = "smoke"
BESIDE = ("kl.", "top1_agreement", "perplexity.log_ratio", "tasks.")
"""Figures of a comparison with the original."""
SPREAD = ("kl.mean", "perplexity.value", "perplexity.log_ratio", "top1_agreement")
"""Figures whose interval is only missing where there are too few documents for one."""


def judge(
    gates: Iterable[Gate], result: EvalResult, baseline: EvalResult | None = None
) -> tuple[GateOutcome, ...]:
    """Each gate's outcome, and with a `baseline` then that of every figure that may get worse.

    A gate passes or fails where the whole 95 % interval is on one side of its limit, and is
    undecided otherwise; a figure without an interval is judged by its value, and one that was not
    measured is undecided. Quality figures of an invalid result fail; those of the small text that
    ships may fail a limit, but pass none.
    """
    found = [
        _outcome(gate, domain, verdict)
        for gate in gates
        for domain, verdict in _verdicts(gate, result, baseline)
    ]
    return (*found, *(regressions(result, baseline) if baseline else ()))


def require_decidable(gates: Iterable[Gate], *, baseline: bool, reference: bool) -> None:
    """Nothing, when every gate has what it takes to be decided.

    Raises:
        InputError: one is against a baseline or a reference that was not given.
    """
    for gate in gates:
        if gate.value is None and not baseline:
            raise InputError(f"`{gate}` needs an older result", hint="--baseline OLD.json")
        if gate.figure.startswith(BESIDE) and not reference:
            raise InputError(f"`{gate}` needs the original", hint="--reference MODEL")


def unscored(artifact: Subject) -> EvalResult:
    """The result of an artifact whose text figures were not asked for."""
    nothing = Protocol(name="none", text="", tokens_sha256="", windows=0, sequence_length=0)
    whole = {"artifact": artifact, "protocol": nothing, "tokens": 0, "perplexity": {"value": None}}
    return EvalResult.model_validate(whole)


def recipe_gates(manifest: Mapping[str, Any]) -> tuple[tuple[Gate, ...], Undecided]:
    """The gates of the recipe that made an artifact, and its policy for undecided ones.

    Raises:
        InputError: the manifest states something that is no gate.
    """
    recipe = manifest.get("recipe") or {}
    policy = recipe.get("gate_policy")
    strict = isinstance(policy, Mapping) and policy.get("undecided") == "fail"
    gates = recipe.get("gates")
    texts = gates if isinstance(gates, list) else []
    return tuple(parse_gate(str(text)) for text in texts), "fail" if strict else "warn"


def engine_verdicts(engines: object) -> dict[str, str]:
    """Engines of a manifest: "passed" where the engine's rules hold the artifact, else why not."""
    stated = engines if isinstance(engines, Mapping) else {}
    return {str(name): str(reason or "passed") for name, reason in stated.items()}


@dataclass(frozen=True)
class _Verdict:
    status: Status = "undecided"
    value: float | str | None = None
    interval: Interval | None = None
    limit: float | str | None = None
    why: str = ""


def _verdicts(
    gate: Gate, result: EvalResult, baseline: EvalResult | None
) -> Iterator[tuple[str | None, _Verdict]]:
    """Pairs of domain (None: all of them together) and verdict."""
    if _is_quality(gate) and result.status == "invalid":
        yield None, _Verdict("failed", why=INVALID)
    elif gate.scope is None:
        found = measured(result, gate.figure)
        yield None, _verdict(gate, result, baseline, found)
    else:
        domains = by_domain(result, gate.figure)
        for domain, found in domains.items():
            yield domain, _verdict(gate, result, baseline, found, domain)
        if not domains:
            yield None, _Verdict(why="there are no sums per document")


def _verdict(
    gate: Gate,
    result: EvalResult,
    baseline: EvalResult | None,
    found: Measured,
    domain: str | None = None,
) -> _Verdict:
    if gate.value is not None:
        return _sobered(gate, result, _limited(gate, found))
    if baseline is None:
        return _Verdict(value=found.value, why="no --baseline was given")
    beside = against(result, baseline, gate.figure, gate.factor, domain)
    if beside.interval is None or beside.baseline is None:
        return _Verdict(value=beside.value, limit=beside.baseline, why=beside.why)
    status = decide(gate.operator, beside.interval, beside.baseline)
    why = "the interval of the difference holds the limit" if status == "undecided" else ""
    return _Verdict(status, beside.value, beside.interval, beside.baseline, why)


def _limited(gate: Gate, found: Measured) -> _Verdict:
    """The verdict against a limit that the gate states itself."""
    value, limit = found.value, gate.limit
    if value is None or limit is None:
        return _Verdict(limit=limit, why="it was not measured")
    if isinstance(value, str) or isinstance(limit, str):
        return _Verdict("passed" if value == limit else "failed", value, None, limit)
    status = decide(gate.operator, found.interval or (value, value), limit)
    why = "its interval holds the limit" if status == "undecided" else ""
    if found.interval is None and gate.figure in SPREAD:
        return _Verdict("undecided", value, None, limit, "one document alone shows no spread")
    if found.interval is None and not _is_exact(gate):
        why = "no interval is known: judged by its value"
    return _Verdict(status, value, found.interval, limit, why)


def _sobered(gate: Gate, result: EvalResult, verdict: _Verdict) -> _Verdict:
    """A pass on the smoke text is none: it tells sound from broken, no more."""
    if not _is_quality(gate) or verdict.status != "passed" or result.protocol.text != SMOKE:
        return verdict
    why = "the text that ships is too small to pass a gate; try: --text FILE"
    return _Verdict("undecided", verdict.value, verdict.interval, verdict.limit, why)


def _outcome(gate: Gate, domain: str | None, verdict: _Verdict) -> GateOutcome:
    return GateOutcome(
        expression=f"{gate}:{domain}" if domain else str(gate),
        value=verdict.value,
        interval=finite(verdict.interval),
        limit=verdict.limit,
        status=verdict.status,
        why=verdict.why,
    )


def _is_quality(gate: Gate) -> bool:
    return gate.figure.partition(".")[0] in QUALITY


def _is_exact(gate: Gate) -> bool:
    return gate.figure.partition(".")[0] in EXACT or gate.figure.endswith("failed_requests")
