"""Speed and memory as lines for people."""

from quantkit.cli.render.speed import speed_lines
from quantkit.results.schema import EngineSpeed, LocalSpeed, Memory, Speed


def test_each_cell_and_load_is_a_line() -> None:
    local = LocalSpeed(
        batch=1,
        context_tokens=512,
        kernel="torch int4pack (cpu)",
        threads=2,
        repeats=10,
        prefill_tokens_per_s=812.04,
        prefill_ratio=0.41,
        decode_tokens_per_s=57.3,
    )
    engine = EngineSpeed(
        engine="vllm",
        concurrency=16,
        requests=64,
        failed_requests=2,
        input_tokens=512,
        output_tokens=128,
        output_tokens_per_s=575.32,
        ttft_p50_ms=736.3,
        ttft_p99_ms=826.7,
    )
    memory = Memory(parts_bytes={"linear": 3 << 20, "scales": 1 << 19})
    large = LocalSpeed(
        batch=16, context_tokens=8192, kernel="a", threads=2, repeats=0, fault="out of memory"
    )
    alone = local.model_copy(update={"prefill_ratio": None, "reference_fault": "out of memory"})
    speed = Speed(local=[local, large, alone], engine=[engine])
    found = {"speed": speed.model_dump(), "memory": memory.model_dump()}
    assert speed_lines(found) == [
        "vllm at 16: 575.3 tokens/s, TTFT 736 ms (p99 827), 2 failed with an unnamed kernel",
        "1 x 512 tokens: prefill 812 (0.41 x), decode 57.3 tokens/s with torch int4pack (cpu)",
        "16 x 8192 tokens: out of memory",
        "1 x 512 tokens: prefill 812, decode 57.3 tokens/s with torch int4pack (cpu); "
        "original: out of memory",
        "memory in MiB: linear 3.0, scales 0.5",
    ]


def test_nothing_measured_is_no_line() -> None:
    found = {"speed": Speed().model_dump(), "memory": Memory().model_dump()}
    assert speed_lines(found) == []
