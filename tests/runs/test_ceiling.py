"""What a run may take of a machine's memory, in containers, too."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from quantkit.core.session import Limits, Session
from quantkit.runs.ceiling import available_bytes, bounded


def system(root: Path, cgroup: str, groups: dict[str, str]) -> tuple[Path, Path]:
    """/proc and /sys/fs/cgroup of a machine with 8 GB free, and files of control groups."""
    files = {"proc/meminfo": "MemAvailable: 7000000 kB\nSwapFree: 1000000 kB\n"}
    files |= {"proc/self/cgroup": cgroup, **{f"groups/{k}": v for k, v in groups.items()}}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root / "proc", root / "groups"


MACHINE = 8_000_000 * 1024
V1 = "memory/docker/1/memory."


@pytest.mark.parametrize(
    ("cgroup", "groups", "left"),
    [
        ("", {}, MACHINE),
        ("0::/\n", {"memory.max": "max\n", "memory.current": "5\n"}, MACHINE),
        ("0::/\n", {"memory.max": "2000\n", "memory.current": "500\n"}, 1500),
        ("0::/\n", {"memory.max": "2000\n", "memory.current": "2500\n"}, 0),
        (
            "0::/\n",
            {
                "memory.max": "2000",
                "memory.current": "500",
                "memory.stat": "anon 9\ninactive_file 100\nactive_file 50\n",
            },
            1650,
        ),
        (
            "0::/pod/one\n",
            {
                "pod/one/memory.max": "max",
                "pod/one/memory.current": "1",
                "pod/memory.max": "900",
                "pod/memory.current": "100",
            },
            800,
        ),
        (
            "5:cpu,cpuacct:/docker/1\n4:memory:/docker/1\n0::/system\n",
            {f"{V1}limit_in_bytes": "700", f"{V1}usage_in_bytes": "100"},
            600,
        ),
        (
            "4:memory:/docker/1\n",
            {"memory/memory.limit_in_bytes": "700", "memory/memory.usage_in_bytes": "200"},
            500,
        ),
    ],
)
def test_a_container_has_what_its_limit_leaves(
    tmp_path: Path, cgroup: str, groups: dict[str, str], left: int
) -> None:
    assert available_bytes(*system(tmp_path, cgroup, groups)) == left


@pytest.mark.parametrize(("name", "index"), [("cuda", 2), ("cuda:1", 1)])
def test_torch_is_told_the_limit_of_a_gpu_for_a_run(
    monkeypatch: pytest.MonkeyPatch, name: str, index: int
) -> None:
    """As no GPU is here, of torch only the functions that keep the share, by device number."""
    shares = {1: 1.0, 2: 1.0}
    whole = SimpleNamespace(total_memory=80)
    stands = {
        "current_device": lambda: 2,
        "get_device_properties": lambda _: whole,
        "get_per_process_memory_fraction": shares.__getitem__,
        "set_per_process_memory_fraction": lambda share, at: shares.update({at: share}),
    }
    for function, stand in stands.items():
        monkeypatch.setattr(torch.cuda, function, stand)
    with bounded(torch.device(name), Session(limits=Limits(vram=20))):
        assert shares[index] == 0.25
    with bounded(torch.device(name), Session()):
        assert shares == {1: 1.0, 2: 1.0}
