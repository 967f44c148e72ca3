"""Gates on a result: each passed, failed or undecided."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from quantkit.core.errors import InputError
from quantkit.core.gate import parse_gate
from quantkit.core.limit import Gate, Undecided
from quantkit.core.manifest import FILE_NAME
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
"""Prefixes of the figures that need a reference."""
SPREAD = ("kl.mean", "perplexity.value", "perplexity.log_ratio", "top1_agreement")
"""Figures whose interval is missing only if the text has too few documents."""


def judge(
    gates: Iterable[Gate], result: EvalResult, baseline: EvalResult | None = None
) -> tuple[GateOutcome, ...]:
    """The outcome of each gate and, with a `baseline`, of each figure that must not get worse.

    A gate passes or fails if the whole 95 % interval is on one side of its limit, else it is
    undecided. A figure without an interval is compared by its value; one that was not measured is
    undecided. Quality figures of an invalid result fail; on the bundled text they can fail a limit
    but not pass it.
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
    """Check that gates have the baseline and the reference that they need.

    Raises:
        InputError: a gate needs a baseline or a reference, and it is missing.
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
        InputError: the manifest contains an invalid gate.
    """
    recipe = manifest.get("recipe") or {}
    policy = recipe.get("gate_policy")
    strict = isinstance(policy, Mapping) and policy.get("undecided") == "fail"
    gates = recipe.get("gates")
    texts = gates if isinstance(gates, list) else []
    try:
        return tuple(parse_gate(str(text)) for text in texts), "fail" if strict else "warn"
    except InputError as error:
        raise InputError(
            f"{error.what}, in `{FILE_NAME}`", why=error.why, hint=error.hint
        ) from error


def engine_support(engines: object) -> dict[str, str]:
    """Engines of a manifest: "passed" if the engine's rules allow the artifact, else the reason."""
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
            why = "the result has no sums per document"
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
        return _Decision(limit=limit, why="not measured")
    if isinstance(value, str) or isinstance(limit, str):
        return _Decision("passed" if value == limit else "failed", value, None, limit)
    if found.interval is None and gate.figure in SPREAD:
        return _Decision("undecided", value, None, limit, "one document has no standard error")
    status = decide(gate.operator, found.interval or (value, value), limit)
    why = "its interval contains the limit" if status == "undecided" else ""
    if found.interval is None and not _is_exact(gate):
        why = "compared by value: it has no interval"
    if status == "passed" and is_quality(gate.figure) and result.protocol.text == SMOKE:
        # the bundled text only shows whether an artifact is broken
        why = "the bundled text is too small to pass a gate; try: --text FILE"
        status = "undecided"
    return _Decision(status, value, found.interval, limit, why)


def _against_baseline(gate: Gate, pair: Against, allowance: Allowance | None) -> _Decision:
    """The decision against the baseline's figure, moved to the worse side by an `allowance`."""
    limit = pair.baseline
    if pair.interval is None or limit is None or pair.value is None:
        return _Decision(value=pair.value, limit=limit, why=pair.why)
    if allowance is not None:
        limit = allowance.limit(limit)
    status = decide(gate.operator, pair.interval, limit)
    why = "the interval of the difference contains the limit" if status == "undecided" else ""
    if allowance is not None and status != "passed":
        why = pair.change(allowance.operator)
    return _Decision(status, pair.value, pair.interval, limit, why)


def _is_exact(gate: Gate) -> bool:
    return gate.figure.partition(".")[0] in EXACT or gate.figure.endswith("failed_requests")
