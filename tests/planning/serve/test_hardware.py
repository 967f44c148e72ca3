import os
import stat
import tomllib
from importlib import resources
from pathlib import Path

import pytest

from quantkit.core.errors import InputError, RefusedError
from quantkit.planning.serve.hardware import RATES, find_gpu, known_gpus

TABLE = tomllib.loads(
    (resources.files("quantkit.planning.serve") / "hardware.toml").read_text("utf-8")
)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("4090", "RTX 4090 24GB"),
        ("rtx4090", "RTX 4090 24GB"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090 24GB"),
        ("h100", "H100 SXM 80GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM 80GB"),
        ("H100 PCIe", "H100 PCIe 80GB"),
        ("a100-80", "A100 SXM 80GB"),
        ("A100 40GB", "A100 SXM 40GB"),
        ("a100_pcie", "A100 PCIe 80GB"),
        ("l40s", "L40S 48GB"),
        ("mi300x", "MI300X 192GB"),
        ("m3 ultra", "M3 Ultra 512GB"),
        ("mi250x", "MI250X die 64GB"),
        ("a100", "A100 SXM 80GB"),
        ("gh200", "GH200 96GB"),
        ("4060 ti", "RTX 4060 Ti 16GB"),
        ("6000 ada", "RTX 6000 Ada 48GB"),
        ("a6000", "RTX A6000 48GB"),
        ("v100-32gb", "V100 SXM 32GB"),
    ],
)
def test_names_as_people_write_them(text: str, name: str) -> None:
    assert find_gpu(text).name == name


def test_every_gpu_is_found_by_its_own_name_and_says_where_its_figures_are_from() -> None:
    assert len(known_gpus()) > 25
    for gpu, entry in zip(known_gpus(), TABLE["gpu"], strict=True):
        assert find_gpu(gpu.name) == gpu
        assert gpu.source == TABLE["sources"][entry["source"]]
        assert set(gpu.estimated) <= entry.keys()
        assert gpu.memory == int(entry["gib"] * 2**30)
        size = int(gpu.name.rpartition(" ")[2].removesuffix("GB"))
        assert 0.6 * size * 1e9 < gpu.memory <= size * 2**30


def test_rates_are_dense_and_grow_as_numbers_shrink() -> None:
    for gpu in known_gpus():
        rates = [gpu.rates[rate] for rate in RATES if rate in gpu.rates]
        assert rates == sorted(rates)
        assert len(rates) < 2 or rates[1] < 4.1 * rates[0]


@pytest.mark.parametrize(
    ("text", "memory", "bandwidth"),
    [
        ("24GB@1008GB/s", 24 * 10**9, 1.008e12),
        ("16GiB@1TB/s", 2**34, 1e12),
        ("80GB", 80 * 10**9, None),
    ],
)
def test_anything_else_by_memory_and_bandwidth(
    text: str, memory: int, bandwidth: float | None
) -> None:
    gpu = find_gpu(text)
    assert (gpu.memory, gpu.bandwidth) == (memory, bandwidth)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("4090Ti", ["RTX 4090 24GB"]),
        ("4090 laptop", ["RTX 4090 24GB"]),
        ("v100", ["V100 SXM 16GB", "V100 SXM 32GB"]),
        ("rtx 6000", ["RTX A6000 48GB", "RTX 6000 Ada 48GB", "RTX PRO 6000 Blackwell 96GB"]),
        ("a10g", ["A10 24GB"]),
        ("a100 pcie 40gb", ["A100 PCIe 80GB"]),
        ("h100 64gb", ["H100 SXM 80GB"]),
        ("a100 sxm", ["A100 SXM 80GB", "A100 SXM 40GB"]),
    ],
)
def test_a_name_that_is_not_one_gpu_is_refused_with_those_near(text: str, named: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        find_gpu(text)
    assert all(name in (caught.value.why or "") for name in named)
    assert ("names several GPUs" in caught.value.what) == (text in ("v100", "a100 sxm"))
    option = caught.value.hint.partition(", or ")[0]
    assert find_gpu(option.removeprefix("--gpu ").strip('"')).name in (caught.value.why or "")


@pytest.mark.parametrize(("text", "near"), [("4099", "4090"), ("h10", "H100"), ("5091", "5090")])
def test_an_unknown_name_gets_the_nearest(text: str, near: str) -> None:
    with pytest.raises(InputError) as caught:
        find_gpu(text)
    assert near in caught.value.hint


def smi(folder: Path, answer: str) -> None:
    """An nvidia-smi that says `answer`."""
    script = folder / "nvidia-smi"
    script.write_text(f"#!/bin/sh\nprintf '%s\\n' '{answer}'\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)


def test_local_asks_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    smi(tmp_path, "NVIDIA GeForce RTX 4090, 24564, 8.9")
    assert find_gpu("local") == find_gpu("4090")
    smi(tmp_path, "NVIDIA GeForce RTX 4090, 10240, 8.9")
    part = find_gpu("local")
    assert (part.memory, part.bandwidth) == (10 * 2**30, find_gpu("4090").bandwidth)
    smi(tmp_path, "NVIDIA Fictitious, 1024, 9.9")
    gpu = find_gpu("local")
    assert (gpu.memory, gpu.capability, gpu.bandwidth) == (2**30, "9.9", None)


def test_local_without_a_gpu_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RefusedError, match="no GPU"):
        find_gpu("local")
