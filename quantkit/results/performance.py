"""The performance part of a result: memory in bytes, tokens per second, latencies in ms."""

from pydantic import Field

from quantkit.results.record import Interval, Record


class Segments(Record):
    """Segments of one kind in a GPU's caching allocator, in bytes.

    `inactive_bytes` are free parts of segments in use: fragmentation.
    """

    kind: str
    segments: int
    reserved_bytes: int
    allocated_bytes: int
    requested_bytes: int
    inactive_bytes: int
    largest_free_bytes: int


class Memory(Record):
    """Bytes: planned, and as measured while the model ran.

    Peaks are this process' own: on a GPU those of its allocator. `outside_bytes` of the GPU belong
    to other programs and to CUDA itself. `snapshot` is the allocator's state after the pass;
    `context_tokens` the longest context that the model's config allows.
    """

    planned_bytes: int | None = None
    outside_bytes: int | None = None
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
    """One cell of batch x context, measured in this process with `kernel`.

    `fault` states why it has no figures ("out of memory"), `reference_fault` why it has no ratios.
    """

    batch: int
    context_tokens: int
    kernel: str
    threads: int
    repeats: int
    fault: str | None = None
    reference_fault: str | None = None
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
    """Tokens per second; ratios are to the original in the same run."""

    local: list[LocalSpeed] = Field(default_factory=list)
    engine: list[EngineSpeed] = Field(default_factory=list)
