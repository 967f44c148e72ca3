import importlib.metadata
from collections import namedtuple
from pathlib import Path

import pytest

from quantkit.pipeline import doctor


def by_name() -> dict[str, doctor.Finding]:
    return {finding.check: finding for finding in doctor.doctor()}


def test_every_part_is_told_and_what_runs_this_test_is_ok() -> None:
    found = by_name()
    assert {"python", "torch", "processor", "memory", "disk", "command", "vllm"} <= set(found)
    assert found["torch"].detail == importlib.metadata.version("torch")
    assert found["python"].ok
    assert all(finding.hint for finding in found.values() if not finding.ok)


def test_another_distribution_with_the_command_is_a_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, entry in (("llm-quantkit", "quantkit"), ("quantkit", "other"), ("fine", "fine")):
        folder = tmp_path / f"{name.replace('-', '_')}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[console_scripts]\n{entry} = x:main\n")
    monkeypatch.syspath_prepend(tmp_path)
    faults = [finding for finding in doctor.doctor() if finding.check == "command"]
    assert [finding.detail.split()[0] for finding in faults] == ["llm-quantkit", "quantkit"]
    assert not any(finding.ok for finding in faults)
    assert faults[0].hint is not None
    assert faults[0].hint.startswith("pip uninstall llm-quantkit")


def test_a_missing_need_is_a_fault_and_a_missing_extra_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    found = by_name()
    assert (found["torch"].ok, found["torch"].hint) == (False, "pip install torch")
    assert found["vllm"].ok


def test_a_full_disk_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(10, 9, 10**9))
    disk = by_name()["disk"]
    assert (disk.ok, disk.detail) == (False, "1.0 GB free in this folder")
