import platform
from pathlib import Path

import pytest
import torch

from quantkit.bench import machine as module
from quantkit.bench.machine import machine


def test_a_machine_has_a_processor_and_threads_but_no_host_name() -> None:
    found = machine()
    assert set(found) == {"cpu", "gpu", "driver", "threads"}
    assert found["cpu"]
    assert found["threads"] == torch.get_num_threads()
    assert found["cpu"] != platform.node()
    assert (found["gpu"] is None) == (not torch.cuda.is_available())


@pytest.mark.parametrize(
    "text",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build",
    ],
)
def test_a_driver_is_its_version(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "version").write_text(text)
    monkeypatch.setattr(module, "DRIVER", tmp_path / "version")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    assert (machine()["gpu"], machine()["driver"]) == ("a GPU", "550.54.15")
