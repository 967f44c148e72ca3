"""The quality part of a result: perplexity, divergence, task answers and triage.

Fractions are 0 to 1; divergences are in nats. A figure that was not measured or is not finite is
None.
"""

from typing import Final

from pydantic import Field

from quantkit.results.record import Interval, Record

FLOOR_FACTOR: Final = 3.0
"""A KL under this many noise floors is not distinguishable from the reference."""

CONFIDENCES = (0.0, 0.25, 0.5, 0.75, 0.95)
"""Lower ends of the ranges of `kl.by_confidence`: the reference's largest probability."""
CONTEXTS = (0, 1, 8, 32, 96, 256, 1024, 4096)
"""Lower ends of the ranges of `kl.by_context`, which contain their upper end: (1, 8] is 2 to 8."""


class Perplexity(Record):
    """exp(mean negative log likelihood); `log_ratio` is ln(model's / reference's).

    `word` and `byte` are per word and per byte of the text, if the protocol counts them.
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
    """KL(reference || model) per token, in nats; `floor` is the reference against itself.

    `worst_percent_share`: share of the summed KL in the 1 % of tokens with the largest KL. Against
    a stored `topk` reference the mean is an estimate between `lower_bound` and `upper_bound`;
    `standard_error` includes its `sampling_standard_error`. `by_context` and `by_confidence` are
    means in the ranges of CONTEXTS and CONFIDENCES.
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
    """Probability of the text's next token: the model's minus the reference's."""

    mean: float | None
    standard_error: float | None = None
    rms: float | None = None
    p001: float | None = None
    p999: float | None = None


class TaskResult(Record):
    """A question set answered by both models.

    `answers` has one digit per question, in order: "1" for a correct answer, "0" for a wrong one.
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


class ExpertTokens(Record):
    """Calibration tokens that routers sent to each of `count` experts, those of all layers.

    `few`: how many were sent less than four for each of their inputs, and `unreached` none.
    """

    count: int
    least: int
    median: float
    most: int
    few: int
    unreached: int


class Modules(Record):
    """Relative squared output error of each linear: one row per block, one column per kind."""

    columns: list[str] = Field(default_factory=list)
    relative_output_error: list[list[float | None]] = Field(default_factory=list)
    experts: ExpertTokens | None = None


class Share(Record):
    """KL with `name` alone quantized (`only`) and with `name` alone restored, with errors."""

    name: str
    only: float
    only_standard_error: float | None = None
    restored: float
    restored_standard_error: float | None = None


class Triage(Record):
    """Contribution of each part to the KL `whole`; contributions do not add up to it.

    `kinds` is empty if the method folded scales into norms: then linears cannot be exchanged alone.
    """

    whole: float
    windows: int
    blocks: list[Share] = Field(default_factory=list)
    kinds: list[Share] = Field(default_factory=list)


class Documents(Record):
    """Sums per document, for paired comparisons of results with the same token hash.

    `sums` has those of the figures in `EvalResult.metrics` that are means over tokens.
    """

    id: list[str] = Field(default_factory=list)
    domain: list[str] = Field(default_factory=list)
    n: list[int] = Field(default_factory=list)
    sum_nll: list[float] = Field(default_factory=list)
    sum_nll_reference: list[float] = Field(default_factory=list)
    sum_kl_nats: list[float] = Field(default_factory=list)
    top1_hits: list[int] = Field(default_factory=list)
    sums: dict[str, list[float]] = Field(default_factory=dict)
