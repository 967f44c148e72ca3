import pytest

from quantkit.core.errors import InputError
from quantkit.core.figure import Figure
from quantkit.core.gpu import Gpu
from quantkit.core.serving import Degrees
from quantkit.planning.serve.hardware import find_gpu
from quantkit.planning.serve.settings import ENGINES, settings_of

GIB, MIB = 2**30, 2**20
PEAK = Figure("activations", GIB, "stated")


@pytest.mark.parametrize(
    ("gpu", "chunk", "rows"),
    [("4090", 2048, 256), ("h100", 8192, 1024), ("a100", 2048, 256), ("b200", 16384, 1024)],
)
def test_tiers_of_vllm(gpu: str, chunk: int, rows: int) -> None:
    settings = settings_of("vllm", find_gpu(gpu), Degrees())
    assert (settings.chunk, settings.rows, settings.utilization) == (chunk, rows, 0.92)


@pytest.mark.parametrize(
    ("gib", "tensor", "mebibytes"),
    [
        (16, 1, 512 + 3072 + 128 + 16),
        (24, 2, 512 + 6144 + 256 + 64),
        (48, 8, 512 + 6144 + 1024 + 320),
        (79.2, 1, 512 + 12288 + 128 + 512),
        (61, 1, 512 + 12288 + 128 + 512),
    ],
)
def test_what_sglang_reserves(gib: float, tensor: int, mebibytes: int) -> None:
    settings = settings_of("sglang", Gpu("stated", int(gib * GIB)), Degrees(tensor))
    assert settings.reserve == mebibytes * MIB
    names = [figure.name for figure in settings.overheads(PEAK, Degrees(tensor))]
    assert names == ["CUDA context", "reserve"]


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [
        (Degrees(), 1.4),
        (Degrees(2), 2.1),
        (Degrees(2, 2), 2.8),
        (Degrees(8, 1, 8), 5.4),
    ],
)
def test_overheads_of_vllm_by_communicators(degrees: Degrees, expected: float) -> None:
    settings = settings_of("vllm", find_gpu("4090"), degrees, {"slack": 0})
    total = sum(figure.bytes for figure in settings.overheads(PEAK, degrees))
    assert (total - GIB) / GIB == pytest.approx(expected, abs=1e-8)


def test_what_is_stated_goes_before_the_default() -> None:
    stated = {"utilization": "0.8", "graphs": "0", "non_torch": "2GiB", "chunk": "4096"}
    settings = settings_of("vllm", find_gpu("4090"), Degrees(), stated)
    assert (settings.utilization, settings.graphs) == (0.8, 0)
    assert (settings.non_torch, settings.chunk) == (2 * GIB, 4096)
    assert settings.budget(1000).bytes == 800


@pytest.mark.parametrize(
    ("engine", "stated", "hint"),
    [
        ("vlm", {}, "vllm"),
        ("vllm", {"utilisation": "0.9"}, "utilization"),
        ("vllm", {"utilization": "90"}, "utilization"),
        ("vllm", {"utilization": "0"}, "--set utilization=0.9"),
        ("vllm", {"utilization": "nan"}, "--set utilization=0.9"),
        ("vllm", {"slack": "-0.1"}, "--set slack=0.03"),
        ("vllm", {"slack": "2"}, "--set slack=0.03"),
        ("vllm", {"chunk": "0"}, "--set chunk=256"),
        ("vllm", {"chunk": "1.5"}, "--set chunk=256"),
        ("vllm", {"rows": "1e12"}, "--set rows=256"),
        ("vllm", {"block": "inf"}, "--set block=16"),
        ("vllm", {"graphs": "much"}, "--set graphs=5GB"),
        ("vllm", {"graphs": "-1"}, "--set graphs=5GB"),
        ("vllm", {"nccl": "3"}, "--set nccl=3GB"),
        ("vllm", {"reserve": "5GB", "graphs": "0"}, "--set reserve=0"),
        ("sglang", {"chunk": "4096"}, "--set reserve=0"),
        ("transformers", {"chunk": "4096"}, "--engine vllm"),
        ("transformers", {"block": "16"}, "--engine vllm"),
    ],
)
def test_what_is_unknown_is_refused(engine: str, stated: dict[str, str], hint: str) -> None:
    with pytest.raises(InputError) as caught:
        settings_of(engine, find_gpu("4090"), Degrees(), stated)
    assert hint in caught.value.hint


def test_every_engine_states_every_overhead() -> None:
    for engine in ENGINES:
        settings = settings_of(engine, find_gpu("4090"), Degrees(2, 2, 4))
        figures = settings.overheads(PEAK, Degrees(2, 2, 4))
        assert all(figure.bytes > 0 and figure.rule for figure in figures)


def test_sglang_goes_by_its_parts_without_a_reserve() -> None:
    settings = settings_of("sglang", find_gpu("4090"), Degrees(), {"reserve": "0", "chunk": "512"})
    assert (settings.reserve, settings.chunk) == (0, 512)


@pytest.mark.parametrize("key", ["block", "rows", "chunk"])
@pytest.mark.parametrize("engine", ENGINES)
def test_there_is_at_least_one(engine: str, key: str) -> None:
    with pytest.raises(InputError, match=f"`{key}` cannot be `0`"):
        settings_of(engine, find_gpu("4090"), Degrees(), {key: "0"})
