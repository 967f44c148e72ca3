"""Generated test data: results of models and recipes that do not exist, by a seeded generator.

The figures hang together as measured ones do: fewer bits mean a larger KL, documents share their
difficulty, a build's sums per document add up to its mean.
"""

import hashlib
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quantkit.results.kl_level import kl_level
from quantkit.results.schema import (
    Divergence,
    Documents,
    EngineSpeed,
    EvalResult,
    GateOutcome,
    LocalSpeed,
    Memory,
    Modules,
    Perplexity,
    Protocol,
    Speed,
    Subject,
    SweepResult,
    SweepRun,
    TaskResult,
)

DOMAINS = ("prose", "code", "maths", "chat", "other languages")
COLUMNS = ["q", "k", "v", "o", "gate", "up", "down"]
TOKENS_SHA256 = hashlib.sha256(b"generated tokens").hexdigest()
PARAMETERS = 8_000_000_000
KV_BYTES = 147_456
PARTS = ("memory", "tasks", "speed", "modules", "documents")
# family, name, bits per weight, KL at that width
FAMILIES = (
    ("fp8", "FP8 W8A8", 8.1, 0.002),
    ("smoothquant", "SmoothQuant W8A8", 8.2, 0.006),
    ("gptq", "GPTQ W4 g128", 4.2, 0.024),
    ("awq", "AWQ W4 g128", 4.2, 0.026),
    ("nf4", "NF4 b64", 4.5, 0.033),
    ("rtn", "RTN W4 g128", 4.2, 0.045),
    ("gptq", "GPTQ W3 g128", 3.2, 0.12),
    ("rtn", "RTN W3 g128", 3.2, 0.34),
)


def eval_result(
    seed: int,
    name: str = "GPTQ W4 g128",
    bits: float = 4.2,
    mean: float = 0.024,
    parts: Sequence[str] = PARTS,
    documents: int = 60,
    layers: int = 32,
) -> EvalResult:
    """A result with mean KL near `mean`; `parts` names what was measured beside quality."""
    draw = random.Random(seed)
    sums = _documents(draw, documents, mean)
    total = sum(sums.n)
    average = sum(sums.sum_kl_nats) / total
    by_domain: dict[str, float | None] = {
        domain: sum(k for k, d in zip(sums.sum_kl_nats, sums.domain, strict=True) if d == domain)
        / sum(n for n, d in zip(sums.n, sums.domain, strict=True) if d == domain)
        for domain in DOMAINS
    }
    size = int(PARAMETERS * bits / 8)
    found = EvalResult(
        schema="quantkit.eval/1",
        created_utc="2026-11-21T12:00:00Z",
        artifact=Subject(
            name=name,
            bytes=size,
            bits_per_weight=bits,
            quantized_bits_per_weight=0.95 * bits,
            method=name.partition(" ")[0].lower(),
            scheme=name.partition(" ")[2],
        ),
        reference=Subject(name="Generated-8B", bytes=2 * PARAMETERS, sha256="ab" * 32),
        protocol=_protocol(documents),
        tokens=total,
        perplexity=Perplexity(
            value=7.9 * (1 + mean),
            standard_error=0.2,
            log_ratio=0.8 * average,
            log_ratio_ci95=(0.7 * average, 0.9 * average),
        ),
        reference_perplexity=Perplexity(value=7.9, standard_error=0.2),
        kl=Divergence(
            mean=average,
            standard_error=0.02 * average,
            ci95=(0.96 * average, 1.04 * average),
            median=0.2 * average,
            p90=2.5 * average,
            p99=14 * average,
            p999=40 * average,
            max=3 + 10 * average,
            floor_mean=0.0004,
            by_domain=by_domain,
            by_confidence=[2.2 * average, 1.8 * average, 1.3 * average, 0.7 * average, average / 9],
            by_context=[3 * average, 2 * average, 1.4 * average, 1.1 * average, average, average],
        ),
        top1_agreement=1 - 0.4 * average**0.5,
        top1_ci95=(0.99 - 0.4 * average**0.5, 1.0),
        detectable={"kl_relative": 0.03, "log_ratio": 0.0033},
        tasks=_tasks(draw, average) if "tasks" in parts else [],
        memory=_memory(draw, size, layers) if "memory" in parts else Memory(),
        speed=_speed(draw, bits) if "speed" in parts else Speed(),
        modules=_modules(draw, average, layers) if "modules" in parts else Modules(),
        documents=sums if "documents" in parts else Documents(),
        gates=[_gate("kl.mean <= 0.05", average, 0.05), _gate("kl.p99 <= 1", 14 * average, 1.0)],
        environment={"torch": "2.13.0", "cpu": "a generated processor", "threads": 2},
        notes=["generated test data"],
    )
    return found.model_copy(update={"kl_level": kl_level(found)})


def original(parts: Sequence[str] = PARTS, documents: int = 60) -> EvalResult:
    """The model itself."""
    draw = random.Random(0)
    return EvalResult(
        schema="quantkit.eval/1",
        artifact=Subject(name="Generated-8B", bytes=2 * PARAMETERS, bits_per_weight=16.0),
        protocol=_protocol(documents),
        tokens=512 * documents,
        perplexity=Perplexity(value=7.9, standard_error=0.2),
        memory=_memory(draw, 2 * PARAMETERS, 32) if "memory" in parts else Memory(),
        speed=_speed(draw, 16.0) if "speed" in parts else Speed(),
    )


def write_sweep(
    folder: Path,
    count: int = 8,
    parts: Sequence[str] = PARTS,
    documents: int = 60,
    layers: int = 32,
    rename: dict[int, str] | None = None,
    workload: dict[str, Any] | None = None,
) -> Path:
    """A sweep folder of `count` recipes, of which the last failed; `rename` sets labels."""
    results = [("original", "BF16", "original", original(parts, documents))]
    for index in range(count - 1):
        family, name, bits, mean = FAMILIES[index % len(FAMILIES)]
        turn = index // len(FAMILIES)
        name = (rename or {}).get(index) or (f"{name} v{turn + 1}" if turn else name)
        width, distance = bits * (1 + 0.03 * turn), mean * 0.93**turn
        found = eval_result(index + 1, name, width, distance, parts, documents, layers)
        results.append((f"r{index}", name, family, found))
    runs = [_run(folder, *each) for each in results]
    why = "engine vllm refuses this scheme; try: --set engines=[transformers]"
    runs.append(
        SweepRun(key="bad", label="FP4 MoE", family="mxfp4", status="failed", why=why, command="x")
    )
    sweep = SweepResult(
        schema="quantkit.sweep/1",
        created_utc="2026-11-21T12:00:00Z",
        model=Subject(name="Generated-8B"),
        workload=workload or {},
        runs=runs,
    )
    (folder / "sweep.json").write_text(sweep.model_dump_json(by_alias=True), encoding="utf-8")
    return folder


def write_eval(folder: Path, result: EvalResult) -> Path:
    """A folder with that eval.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "eval.json").write_text(result.model_dump_json(by_alias=True), encoding="utf-8")
    return folder


def _run(folder: Path, key: str, label: str, family: str, result: EvalResult) -> SweepRun:
    path = write_eval(folder / "runs" / key, result) / "eval.json"
    return SweepRun(
        key=key,
        label=label,
        family=family,
        command=f"quantkit quantize org/Generated-8B -o out/{key} --recipe {key}.yaml",
        eval=path.relative_to(folder).as_posix(),
        eval_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        status="done",
        seconds=None if key == "original" else 840.0,
    )


def _protocol(documents: int) -> Protocol:
    return Protocol(
        name="qk@1",
        text="generated",
        tokens_sha256=TOKENS_SHA256,
        documents=documents,
        windows=documents,
        sequence_length=512,
        bos="prepended",
        dtype="bfloat16",
        batch=8,
        overlap_13gram_fraction=0.0002,
    )


def _documents(draw: random.Random, count: int, mean: float) -> Documents:
    """Sums whose difficulty is the documents' own, the same for every seed, plus a build's part."""
    shared = random.Random(1)
    hardness = [shared.lognormvariate(-0.12, 0.5) for _ in range(count)]
    by_domain = [0.8, 0.65, 0.9, 1.15, 1.5]
    kl = [
        512 * mean * h * by_domain[i % len(by_domain)] * draw.lognormvariate(-0.005, 0.1)
        for i, h in enumerate(hardness)
    ]
    nll = [512 * 2.07 * h for h in hardness]
    return Documents(
        id=[f"d{i}" for i in range(count)],
        domain=[DOMAINS[i % len(DOMAINS)] for i in range(count)],
        n=[512] * count,
        sum_nll=[n + 0.8 * k for n, k in zip(nll, kl, strict=True)],
        sum_nll_reference=nll,
        sum_kl_nats=kl,
        top1_hits=[round(512 * (1 - 0.4 * mean**0.5))] * count,
    )


def _tasks(draw: random.Random, mean: float) -> list[TaskResult]:
    tasks = []
    for name, questions in (("mmlu", 14042), ("gsm8k", 1319), ("ifeval", 541)):
        wrong = round(questions * min(0.2, 0.02 + mean / 2))
        right = round(wrong * draw.uniform(0.6, 1.0))
        accuracy = 0.74 - (wrong - right) / questions
        tasks.append(
            TaskResult(
                name=name,
                questions=questions,
                accuracy=accuracy,
                reference_accuracy=0.74,
                right_to_wrong=wrong,
                wrong_to_right=right,
                mcnemar_p=0.001 if mean > 0.1 else 0.4,
                recovery=accuracy / 0.74,
                recovery_ci95=(accuracy / 0.74 - 0.01, accuracy / 0.74 + 0.01),
                detectable_fraction=0.012,
            )
        )
    return tasks


def _memory(draw: random.Random, size: int, layers: int) -> Memory:
    parts = {
        "linear": int(0.82 * size),
        "scales": int(0.03 * size) if size < 2 * PARAMETERS else 0,
        "unquantized": int(0.15 * size),
        "kv": 2 * 4096 * KV_BYTES,
        "activations": 1_400_000_000,
    }
    peak = sum(parts.values())
    blocks: list[dict[str, float | int | str]] = [
        {
            "name": f"layers.{i}",
            "allocated_bytes": peak // 4 + draw.randrange(10**8),
            "reserved_bytes": peak // 4 + 2 * 10**8,
        }
        for i in range(layers)
    ]
    return Memory(
        planned_bytes=int(peak * draw.uniform(0.97, 1.03)),
        reserved_peak_bytes=peak,
        kv_bytes_per_token=KV_BYTES,
        fragmentation_fraction=0.02,
        parts_bytes=parts,
        blocks=blocks,
    )


def _speed(draw: random.Random, bits: float) -> Speed:
    local = []
    for batch, gain in ((1, (16 / bits) ** 0.6), (16, 0.9 if bits < 16 else 1.0)):
        decode, prefill = 130 * gain * batch**0.8, 4000 * gain**-0.2
        local.append(
            LocalSpeed(
                batch=batch,
                context_tokens=2048,
                kernel="generated kernel",
                threads=2,
                repeats=10,
                prefill_tokens_per_s=prefill,
                prefill_ci95=(0.98 * prefill, 1.02 * prefill),
                decode_tokens_per_s=decode,
                decode_ci95=(0.98 * decode, 1.02 * decode),
                prefill_ratio=prefill / 4000,
                decode_ratio=gain,
                ttft_p50_ms=500.0,
                itl_p50_ms=1000 / decode,
                itl_p99_ms=1300 / decode,
            )
        )
    whole = {"kernel": "generated kernel", "threads": 2, "repeats": 0, "fault": "out of memory"}
    local.append(LocalSpeed.model_validate({"batch": 64, "context_tokens": 8192, **whole}))
    engine = [
        EngineSpeed(
            engine="vllm",
            version="0.19",
            kernel="marlin",
            concurrency=concurrency,
            requests=64,
            failed_requests=0,
            input_tokens=1024,
            output_tokens=512,
            output_tokens_per_s=120 * (16 / bits) ** 0.4 * concurrency**0.8 * draw.uniform(0.9, 1),
            ttft_p50_ms=40.0 + concurrency,
            ttft_p99_ms=90.0 + 2 * concurrency,
            itl_p50_ms=7 + 0.1 * concurrency,
            itl_p99_ms=9 + 0.3 * concurrency,
        )
        for concurrency in (1, 4, 16)
    ]
    return Speed(local=local, engine=engine)


def _modules(draw: random.Random, mean: float, layers: int) -> Modules:
    rows: list[list[float | None]] = [
        [mean * draw.lognormvariate(-1, 0.8) for _ in COLUMNS] for _ in range(layers)
    ]
    return Modules(columns=COLUMNS, relative_output_error=rows)


def _gate(expression: str, value: float, limit: float) -> GateOutcome:
    low, high = 0.96 * value, 1.04 * value
    status: Any = "passed" if high <= limit else "failed" if low > limit else "undecided"
    return GateOutcome(
        expression=expression, value=value, interval=(low, high), limit=limit, status=status
    )
