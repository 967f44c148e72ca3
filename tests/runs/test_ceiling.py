"""What a run may take of a machine's memory, in containers, too."""

from pathlib import Path

import pytest

from quantkit.runs.ceiling import available_bytes


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
