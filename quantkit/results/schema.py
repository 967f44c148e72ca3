"""The results that `eval`, `quantize` and `sweep` write, and `report` and baselines read.

Units are in the names; fractions are 0 to 1; divergences are in nats. A figure that was not
measured or is not finite is None. Readers ignore unknown fields.
"""

from typing import Any, Final, Literal

from pydantic import Field

from quantkit.core.notebook import html_table
from quantkit.results.fit_result import Fit
from quantkit.results.level import KlLevel
from quantkit.results.performance import EngineSpeed, LocalSpeed, Memory, Segments, Speed
from quantkit.results.quality import (
    CONFIDENCES,
    CONTEXTS,
    FLOOR_FACTOR,
    Divergence,
    Documents,
    Modules,
    Perplexity,
    Share,
    TaskResult,
    Triage,
    TrueTokenChange,
)
from quantkit.results.record import Interval, MetricFigure, Record
from quantkit.results.summary import Summary

__all__ = [  # the whole schema, including parts from other modules
    "CONFIDENCES",
    "CONTEXTS",
    "EVAL_FILE",
    "EVAL_SCHEMA",
    "FLOOR_FACTOR",
    "ORIGINAL",
    "SWEEP_FILE",
    "SWEEP_SCHEMA",
    "Divergence",
    "Documents",
    "EngineSpeed",
    "EvalResult",
    "GateOutcome",
    "Interval",
    "LocalSpeed",
    "Memory",
    "MetricFigure",
    "Modules",
    "Perplexity",
    "Protocol",
    "Segments",
    "Share",
    "Speed",
    "Subject",
    "Summary",
    "SweepResult",
    "SweepRun",
    "TaskResult",
    "Triage",
    "TrueTokenChange",
]  # fmt: skip

EVAL_SCHEMA: Final = "quantkit.eval/1"
SWEEP_SCHEMA: Final = "quantkit.sweep/1"
EVAL_FILE: Final = "eval.json"
SWEEP_FILE: Final = "sweep.json"
ORIGINAL: Final = "original"
"""Key of the sweep's run of the unquantized model."""


class Subject(Record):
    """The measured model or artifact.

    `bits_per_weight` counts all stored tensors, `quantized_bits_per_weight` quantized linears only.
    `form` is the form of a stored reference, "hidden" or "topk"; None for a model.
    """

    name: str
    revision: str | None = None
    sha256: str | None = None
    bytes: int | None = None
    bits_per_weight: float | None = None
    quantized_bits_per_weight: float | None = None
    method: str | None = None
    scheme: str | None = None
    format: str | None = None
    form: str | None = None


class Protocol(Record):
    """How the text was tokenized and scored; figures of two protocols are not comparable."""

    name: str
    text: str
    tokens_sha256: str
    documents: int | None = None
    windows: int
    sequence_length: int
    bos: str = "none"
    dtype: str = ""
    batch: int | None = None
    text_sha256: str | None = None
    reference_dtype: str | None = None
    overlap_13gram_fraction: float | None = None


class GateOutcome(Record):
    """A gate and its outcome."""

    expression: str
    value: float | str | None = None
    interval: Interval | None = None
    limit: float | str | None = None
    status: Literal["passed", "failed", "undecided"]
    why: str = ""


class EvalResult(Record):
    """The evaluation of one artifact (`eval.json`).

    `metrics`: figures of registered metrics without a field of their own, by their names in gates.
    `engines`: "passed" for each engine whose rules allow the artifact, else the reason.
    `undecided`: "fail" counts an undecided gate as missed.
    """

    schema_: Literal["quantkit.eval/1"] = Field(default=EVAL_SCHEMA, alias="schema")
    created_utc: str = ""
    status: Literal["valid", "invalid"] = "valid"
    artifact: Subject
    reference: Subject | None = None
    protocol: Protocol
    tokens: int
    perplexity: Perplexity
    reference_perplexity: Perplexity | None = None
    kl: Divergence | None = None
    kl_level: KlLevel | None = None
    top1_agreement: float | None = None
    top1_standard_error: float | None = None
    top1_ci95: Interval | None = None
    true_token_change: TrueTokenChange | None = None
    metrics: dict[str, MetricFigure] = Field(default_factory=dict)
    detectable: dict[str, float] = Field(default_factory=dict)
    tasks: list[TaskResult] = Field(default_factory=list)
    memory: Memory = Memory()
    speed: Speed = Speed()
    engines: dict[str, str] = Field(default_factory=dict)
    modules: Modules = Modules()
    triage: Triage | None = None
    fit: Fit | None = None
    block_relative_error: list[float | None] = Field(default_factory=list)
    documents: Documents = Documents()
    gates: list[GateOutcome] = Field(default_factory=list)
    undecided: Literal["warn", "fail"] = "warn"
    environment: dict[str, Any] = Field(default_factory=dict)
    notes: list[str] = Field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON."""
        return self.model_dump(mode="json", by_alias=True)

    def summary(self) -> Summary:
        """The figures that a table of many results shows."""
        kl = self.kl
        return Summary(
            bytes=self.artifact.bytes,
            bits_per_weight=self.artifact.bits_per_weight,
            quantized_bits_per_weight=self.artifact.quantized_bits_per_weight,
            perplexity=self.perplexity.value,
            perplexity_standard_error=self.perplexity.standard_error,
            kl_mean=kl.mean if kl else None,
            kl_standard_error=kl.standard_error if kl else None,
            top1_agreement=self.top1_agreement,
            metrics=self.metrics,
            gates_missed=sum(gate.status == "failed" for gate in self.gates),
        )

    def _repr_html_(self) -> str:
        rows = {"": self.kl_level.meaning if self.kl_level else "", **self.summary().figures()}
        return html_table(self.artifact.name, ("figure", "value"), rows.items())


class SweepRun(Record):
    """One recipe of a sweep; `eval` is a path relative to sweep.json, None if the run failed."""

    key: str
    label: str
    family: str
    recipe: dict[str, Any] = Field(default_factory=dict)
    recipe_sha256: str = ""
    command: str = ""
    eval: str | None = None
    eval_sha256: str | None = None
    summary: Summary = Summary()
    status: Literal["done", "failed", "pending"]
    why: str = ""
    seconds: float | None = None
    cpu_seconds: float | None = None


class SweepResult(Record):
    """All runs of a sweep on one model (`sweep.json`); run `original` is the unquantized model."""

    schema_: Literal["quantkit.sweep/1"] = Field(default=SWEEP_SCHEMA, alias="schema")
    created_utc: str = ""
    model: Subject
    workload: dict[str, Any] = Field(default_factory=dict)
    runs: list[SweepRun] = Field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The journal as JSON."""
        return self.model_dump(mode="json", by_alias=True)

    def _repr_html_(self) -> str:
        head = ("run", *Summary().figures(), "state")
        rows = [(r.label, *r.summary.figures().values(), r.why or r.status) for r in self.runs]
        return html_table(self.model.name, head, rows)
