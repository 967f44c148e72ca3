"""What `eval`, `quantize` and `sweep` leave behind for `report` and later comparisons.

Units are in the names; fractions are 0 to 1; divergences are in nats. A figure that was not
measured, or was not finite, is None. Readers accept fields they do not know.
"""

from typing import Any, Final, Literal

from pydantic import Field

from quantkit.core.notebook import html_table
from quantkit.results.fit_result import Fit
from quantkit.results.level import KlLevel
from quantkit.results.record import Record
from quantkit.results.summary import Summary

EVAL_SCHEMA: Final = "quantkit.eval/1"
SWEEP_SCHEMA: Final = "quantkit.sweep/1"
EVAL_FILE: Final = "eval.json"
SWEEP_FILE: Final = "sweep.json"
ORIGINAL: Final = "original"
"""Key of the run of a sweep that is the model itself."""

FLOOR_FACTOR: Final = 3.0
"""A KL under this many noise floors cannot be told from the reference."""

Interval = tuple[float, float]

CONFIDENCES = (0.0, 0.25, 0.5, 0.75, 0.95)
"""Where the ranges of `kl.by_confidence` begin: the probability of the reference's first choice."""
CONTEXTS = (0, 1, 8, 32, 96, 256, 1024, 4096)
"""Where the ranges of `kl.by_context` begin: they hold their end, (1, 8] the tokens 2 to 8."""


class Subject(Record):
    """A model or an artifact: what was measured.

    `bits_per_weight` is of all that is stored, `quantized_bits_per_weight` of the linears alone.
    `form` says how a stored reference is kept: "hidden" or "topk"; None for a model.
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
    """How the tokens were made and scored; figures of two protocols are never compared."""

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


class Perplexity(Record):
    """exp(mean negative log likelihood); log_ratio is that of the model's to the reference's.

    `word` and `byte` are per word and per byte of the text, where the protocol counts them.
    """

    value: float | None
    standard_error: float | None = None
    ci95: Interval | None = None
    log_ratio: float | None = None
    log_ratio_standard_error: float | None = None
    log_ratio_ci95: Interval | None = None
    word: float | None = None
    byte: float | None = None
    bits_per_byte: float | None = None


class Divergence(Record):
    """KL(reference || model) per token, in nats; floor is the reference against itself.

    `worst_percent_share` is the share of the summed KL in the 1 % of tokens where it is largest.
    Against a reference of which only the likeliest tokens were stored, the mean is an estimate that
    lies between `lower_bound` and `upper_bound`; `sampling_standard_error` is that of the estimate,
    and is in `standard_error`, too.
    `by_context` and `by_confidence` are means in the ranges of CONTEXTS and CONFIDENCES.
    """

    mean: float | None
    standard_error: float | None = None
    ci95: Interval | None = None
    median: float | None = None
    p90: float | None = None
    p99: float | None = None
    p999: float | None = None
    max: float | None = None
    median_ci95: Interval | None = None
    p90_ci95: Interval | None = None
    p99_ci95: Interval | None = None
    p999_ci95: Interval | None = None
    worst_percent_share: float | None = None
    reverse_mean: float | None = None
    lower_bound: float | None = None
    upper_bound: float | None = None
    sampling_standard_error: float | None = None
    floor_mean: float | None = None
    floor_p99: float | None = None
    by_domain: dict[str, float | None] = Field(default_factory=dict)
    by_confidence: list[float | None] = Field(default_factory=list)
    by_context: list[float | None] = Field(default_factory=list)


class TrueTokenChange(Record):
    """Probability of the text's own next token, the model's less the reference's."""

    mean: float | None
    standard_error: float | None = None
    rms: float | None = None
    p001: float | None = None
    p999: float | None = None


class Task(Record):
    """A question set answered by both models; the counts are of the same questions.

    `answers` has "1" for each question answered rightly and "0" for the others, in order.
    """

    name: str
    metric: str = ""
    questions: int
    accuracy: float
    reference_accuracy: float
    right_to_wrong: int
    wrong_to_right: int
    mcnemar_p: float
    recovery: float
    recovery_ci95: Interval | None = None
    detectable_fraction: float
    questions_sha256: str = ""
    answers: str = ""
    reference_answers: str = ""


class Segments(Record):
    """Segments of one kind that a GPU's allocator holds, and what is in them, in bytes.

    `inactive_bytes` are free parts of segments that also hold something: what fragmentation is.
    """

    kind: str
    segments: int
    reserved_bytes: int
    allocated_bytes: int
    requested_bytes: int
    inactive_bytes: int
    largest_free_bytes: int


class Memory(Record):
    """Bytes: planned, and as the machine counted them while the model ran.

    `snapshot` is the state of a GPU's allocator after the pass; `context_tokens` the longest
    context that the model's config allows.
    """

    planned_bytes: int | None = None
    device_peak_bytes: int | None = None
    allocated_peak_bytes: int | None = None
    reserved_peak_bytes: int | None = None
    host_peak_rss_bytes: int | None = None
    kv_bytes_per_token: int | None = None
    context_tokens: int | None = None
    fragmentation_fraction: float | None = None
    parts_bytes: dict[str, int] = Field(default_factory=dict)
    blocks: list[dict[str, float | int | str]] = Field(default_factory=list)
    snapshot: list[Segments] = Field(default_factory=list)


class LocalSpeed(Record):
    """One cell of batch x context, measured in this process with the kernel that it names."""

    batch: int
    context_tokens: int
    kernel: str
    threads: int
    repeats: int
    prefill_tokens_per_s: float | None = None
    prefill_ci95: Interval | None = None
    decode_tokens_per_s: float | None = None
    decode_ci95: Interval | None = None
    prefill_ratio: float | None = None
    prefill_ratio_ci95: Interval | None = None
    decode_ratio: float | None = None
    decode_ratio_ci95: Interval | None = None
    ttft_p50_ms: float | None = None
    ttft_p50_ci95: Interval | None = None
    itl_p50_ms: float | None = None
    itl_p50_ci95: Interval | None = None
    itl_p95_ms: float | None = None
    itl_p95_ci95: Interval | None = None
    itl_p99_ms: float | None = None
    itl_p99_ci95: Interval | None = None


class EngineSpeed(Record):
    """An engine under a closed loop of `concurrency` requests."""

    engine: str
    version: str = ""
    kernel: str = ""
    concurrency: int
    requests: int
    failed_requests: int
    input_tokens: int
    output_tokens: int
    output_tokens_per_s: float
    output_ci95: Interval | None = None
    ttft_p50_ms: float | None = None
    ttft_p50_ci95: Interval | None = None
    ttft_p99_ms: float | None = None
    ttft_p99_ci95: Interval | None = None
    itl_p50_ms: float | None = None
    itl_p50_ci95: Interval | None = None
    itl_p99_ms: float | None = None
    itl_p99_ci95: Interval | None = None
    tpot_excl_first_p50_ms: float | None = None
    tpot_excl_first_p50_ci95: Interval | None = None


class Speed(Record):
    """Tokens a second; a ratio is to the original in the same run."""

    local: list[LocalSpeed] = Field(default_factory=list)
    engine: list[EngineSpeed] = Field(default_factory=list)


class Modules(Record):
    """Relative squared output error of each linear: a row a block, a column a kind of linear."""

    columns: list[str] = Field(default_factory=list)
    relative_output_error: list[list[float | None]] = Field(default_factory=list)


class Share(Record):
    """KL with `name` alone quantized (`only`), and with it alone restored, and their errors."""

    name: str
    only: float
    only_standard_error: float | None = None
    restored: float
    restored_standard_error: float | None = None


class Triage(Record):
    """Which parts carry the divergence: shares of `whole`, which they do not add up to.

    `kinds` is empty where a method folded scales into norms: a linear then fits only its own block.
    """

    whole: float
    windows: int
    blocks: list[Share] = Field(default_factory=list)
    kinds: list[Share] = Field(default_factory=list)


class Documents(Record):
    """Sums per document: any two results of one token hash can be compared, paired, from these."""

    id: list[str] = Field(default_factory=list)
    domain: list[str] = Field(default_factory=list)
    n: list[int] = Field(default_factory=list)
    sum_nll: list[float] = Field(default_factory=list)
    sum_nll_reference: list[float] = Field(default_factory=list)
    sum_kl_nats: list[float] = Field(default_factory=list)
    top1_hits: list[int] = Field(default_factory=list)


class GateOutcome(Record):
    """A limit and how it went."""

    expression: str
    value: float | str | None = None
    interval: Interval | None = None
    limit: float | str | None = None
    status: Literal["passed", "failed", "undecided"]
    why: str = ""


class EvalResult(Record):
    """One artifact measured (`eval.json`).

    `engines`: "passed" for each engine whose rules hold the artifact, else why they do not.
    `undecided` says whether a gate that is neither passed nor failed counts as missed.
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
    detectable: dict[str, float] = Field(default_factory=dict)
    tasks: list[Task] = Field(default_factory=list)
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
        """For JSON."""
        return self.model_dump(mode="json", by_alias=True)

    def summary(self) -> Summary:
        """What a table of many results shows of this one."""
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
            gates_missed=sum(gate.status == "failed" for gate in self.gates),
        )

    def _repr_html_(self) -> str:
        rows = {"": self.kl_level.meaning if self.kl_level else "", **self.summary().figures()}
        return html_table(self.artifact.name, ("figure", "value"), rows.items())


class SweepRun(Record):
    """One recipe of a sweep; `eval` is a path relative to sweep.json, None where it failed."""

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
    """All recipes of a sweep over one model (`sweep.json`); run `original` is the model itself."""

    schema_: Literal["quantkit.sweep/1"] = Field(default=SWEEP_SCHEMA, alias="schema")
    created_utc: str = ""
    model: Subject
    workload: dict[str, Any] = Field(default_factory=dict)
    runs: list[SweepRun] = Field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return self.model_dump(mode="json", by_alias=True)

    def _repr_html_(self) -> str:
        head = ("run", *Summary().figures(), "state")
        rows = [(r.label, *r.summary.figures().values(), r.why or r.status) for r in self.runs]
        return html_table(self.model.name, head, rows)
