"""Gates on a result: each passed, failed or undecided."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from quantkit.core.errors import InputError
from quantkit.core.gate import parse_gate
from quantkit.core.limit import Gate, Undecided
from quantkit.results.baseline import Against, Allowance, against, allowances
from quantkit.results.decision import INVALID, Status, decide, finite
from quantkit.results.figures import FigureValue, by_domain, figure_value, is_quality
from quantkit.results.schema import (
    EvalResult,
    GateOutcome,
    Interval,
    Protocol,
    Subject,
)

EXACT = ("artifact", "memory", "engines")
SMOKE = "smoke"
COMPARED = ("kl.", "top1_agreement", "perplexity.log_ratio", "true_token_change", "tasks.")
"""Beginnings of the figures that compare with the original."""
SPREAD = ("kl.mean", "perplexity.value", "perplexity.log_ratio", "top1_agreement")
"""Figures whose interval is missing only where there are too few documents for one."""


def judge(
    gates: Iterable[Gate], result: EvalResult, baseline: EvalResult | None = None
) -> tuple[GateOutcome, ...]:
    """Each gate's outcome, then with a `baseline` that of every figure that may not get worse.

    A gate passes or fails where the whole 95 % interval is on one side of its limit, and is
    undecided otherwise; a figure without an interval is compared by its value, and one that was not
    measured is undecided. Quality figures of an invalid result fail; those of the small text that
    ships may fail a limit, but pass none.
    """
    wanted: list[tuple[Gate, Allowance | None]] = [(gate, None) for gate in gates]
    if baseline is not None:
        wanted += [(Gate(a.figure, a.operator, None), a) for a in allowances(result, baseline)]
    return tuple(
        outcome
        for gate, allowance in wanted
        for outcome in _outcomes(gate, result, baseline, allowance)
    )


def require_decidable(gates: Iterable[Gate], *, baseline: bool, reference: bool) -> None:
    """Check that every gate has what it compares with.

    Raises:
        InputError: one needs a baseline or a reference, and none was given.
    """
    for gate in gates:
        if gate.value is None and not baseline:
            raise InputError(f"`{gate}` needs an older result", hint="--baseline OLD.json")
        if gate.figure.startswith(COMPARED) and not reference:
            raise InputError(f"`{gate}` needs the original", hint="--reference MODEL")


def unscored(artifact: Subject) -> EvalResult:
    """The result of an artifact that was not scored on any text."""
    nothing = Protocol(name="none", text="", tokens_sha256="", windows=0, sequence_length=0)
    whole = {"artifact": artifact, "protocol": nothing, "tokens": 0, "perplexity": {"value": None}}
    return EvalResult.model_validate(whole)


def recipe_gates(manifest: Mapping[str, Any]) -> tuple[tuple[Gate, ...], Undecided]:
    """The gates of the recipe that made an artifact, and its policy for undecided ones.

    Raises:
        InputError: the manifest states a gate that cannot be read.
    """
    recipe = manifest.get("recipe") or {}
    policy = recipe.get("gate_policy")
    strict = isinstance(policy, Mapping) and policy.get("undecided") == "fail"
    gates = recipe.get("gates")
    texts = gates if isinstance(gates, list) else []
    return tuple(parse_gate(str(text)) for text in texts), "fail" if strict else "warn"


def engine_support(engines: object) -> dict[str, str]:
    """Engines of a manifest: "passed" where the engine's rules allow the artifact, else why not."""
    stated = engines if isinstance(engines, Mapping) else {}
    return {str(name): str(reason or "passed") for name, reason in stated.items()}


def _outcomes(
    gate: Gate, result: EvalResult, baseline: EvalResult | None, allowance: Allowance | None
) -> Iterator[GateOutcome]:
    """The outcome of a gate: one, or one for each domain."""
    if is_quality(gate.figure) and result.status == "invalid":
        yield GateOutcome(expression=str(gate), status="failed", why=INVALID)
    elif gate.scope is None:
        yield _outcome(gate, None, result, baseline, allowance)
    else:
        domains = by_domain(result, gate.figure)
        for domain in domains:
            yield _outcome(gate, domain, result, baseline, allowance)
        if not domains:
            why = "there are no sums per document"
            yield GateOutcome(expression=str(gate), status="undecided", why=why)


def _outcome(
    gate: Gate,
    domain: str | None,
    result: EvalResult,
    baseline: EvalResult | None,
    allowance: Allowance | None,
) -> GateOutcome:
    if gate.value is not None:
        found = (
            by_domain(result, gate.figure)[domain] if domain else figure_value(result, gate.figure)
        )
        decision = _against_limit(gate, result, found)
    elif baseline is not None:
        pair = against(result, baseline, gate.figure, gate.factor, domain)
        decision = _against_baseline(gate, pair, allowance)
    else:
        value = figure_value(result, gate.figure).value
        decision = _Decision(value=value, why="no --baseline was given")
    return GateOutcome(
        expression=f"{gate}:{domain}" if domain else str(gate),
        value=decision.value,
        interval=finite(decision.interval),
        limit=decision.limit,
        status=decision.status,
        why=decision.why,
    )


@dataclass(frozen=True)
class _Decision:
    status: Status = "undecided"
    value: float | str | None = None
    interval: Interval | None = None
    limit: float | str | None = None
    why: str = ""


def _against_limit(gate: Gate, result: EvalResult, found: FigureValue) -> _Decision:
    """The decision against a limit that the gate states itself."""
    value, limit = found.value, gate.limit
    if value is None or limit is None:
        return _Decision(limit=limit, why="it was not measured")
    if isinstance(value, str) or isinstance(limit, str):
        return _Decision("passed" if value == limit else "failed", value, None, limit)
    if found.interval is None and gate.figure in SPREAD:
        return _Decision("undecided", value, None, limit, "one document alone shows no spread")
    status = decide(gate.operator, found.interval or (value, value), limit)
    why = "its interval holds the limit" if status == "undecided" else ""
    if found.interval is None and not _is_exact(gate):
        why = "no interval is known: compared by its value"
    if status == "passed" and is_quality(gate.figure) and result.protocol.text == SMOKE:
        # the small text shows whether an artifact is broken, and no more
        why = "the text that ships is too small to pass a gate; try: --text FILE"
        status = "undecided"
    return _Decision(status, value, found.interval, limit, why)


def _against_baseline(gate: Gate, pair: Against, allowance: Allowance | None) -> _Decision:
    """The decision against the baseline's figure, which an `allowance` moves to the worse side."""
    limit = pair.baseline
    if pair.interval is None or limit is None or pair.value is None:
        return _Decision(value=pair.value, limit=limit, why=pair.why)
    if allowance is not None:
        limit = allowance.limit(limit)
    status = decide(gate.operator, pair.interval, limit)
    why = "the interval of the difference holds the limit" if status == "undecided" else ""
    if allowance is not None and status != "passed":
        why = pair.change(allowance.operator)
    return _Decision(status, pair.value, pair.interval, limit, why)


def _is_exact(gate: Gate) -> bool:
    return gate.figure.partition(".")[0] in EXACT or gate.figure.endswith("failed_requests")
