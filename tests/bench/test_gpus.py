"""What `doctor` says of GPUs, from facts: no GPU is needed."""

from dataclasses import replace
from importlib.util import find_spec

import torch

import quantkit
from quantkit.bench.gpus import GpuFacts, GpuMachine, gpu_findings, gpu_machine

H100 = GpuFacts("NVIDIA H100 80GB HBM3", (9, 0), total=85_000_000_000, free=84_300_000_000)
T4 = GpuFacts("Tesla T4", (7, 5), total=15_800_000_000, free=15_600_000_000)
MACHINE = GpuMachine((H100, T4, H100), driver="570.86.15", triton=True)


def test_each_gpu_is_named_and_the_kernels_of_each_kind() -> None:
    first, second, third, new, old = gpu_findings(MACHINE)
    assert first.check == "gpu 0"
    assert first.detail == (
        "NVIDIA H100 80GB HBM3, driver 570.86.15, compute capability 9.0, 84.3 GB free of 85.0"
    )
    assert second.detail.startswith("Tesla T4, driver 570.86.15, compute capability 7.5, 15.6 GB")
    assert third == replace(first, check="gpu 2")
    said = dict(part.split(": ") for part in new.detail.split(": ", 1)[1].split("; "))
    assert said["GPTQ and scales"] == "Triton"
    assert said["W4 g128 sym"] == "torch int4pack (cuda)"
    assert said["W8 channel sym"] == "torch int8pack"
    assert said["W8 g128 sym"] == "torch int4pack, two halves (cuda)"
    assert said["W8A8 channel sym"] == "torch int_mm"
    has_nf4 = find_spec("bitsandbytes") is not None
    assert said["NF4 g64"] == ("bitsandbytes gemm_4bit" if has_nf4 else "none")
    assert "torch's operators (Triton needs compute capability 8.0)" in old.detail
    assert "W4 g128 sym: none; W8 channel sym: torch int8pack" in old.detail
    assert all(finding.ok for finding in gpu_findings(MACHINE))


def test_what_is_missing_is_said() -> None:
    *_, kernels = gpu_findings(replace(MACHINE, gpus=(H100,), triton=False))
    assert "GPTQ and scales: torch's operators (Triton is not installed); W4" in kernels.detail
    held, _ = gpu_findings(replace(MACHINE, gpus=(replace(H100, free=None),)))
    assert not held.ok
    assert "which CUDA does not give to this program" in held.detail
    assert held.hint is not None
    assert "--device cpu" in held.hint


def test_a_machine_without_a_gpu_is_one_line() -> None:
    (line,) = gpu_findings(GpuMachine((), None, triton=False))
    assert line.detail == "torch finds no GPU; quantkit runs on the CPU"
    (line,) = gpu_findings(GpuMachine((), "570.1", triton=False))
    assert "though NVIDIA's driver 570.1 is loaded" in line.detail


def test_doctor_says_what_torch_finds_here() -> None:
    found = [finding.check for finding in quantkit.doctor()]
    assert found[-1] == "speed"
    ours = [finding.check for finding in gpu_findings(gpu_machine())]
    assert found[-1 - len(ours) : -1] == ours
    assert len([name for name in ours if name.startswith("gpu")]) == max(
        1, torch.cuda.device_count()
    )
