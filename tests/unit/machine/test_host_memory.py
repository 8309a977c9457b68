"""Host memory and cgroup limits, read from made-up /proc and /sys trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfswap.machine import host_memory
from tfswap.machine.host_memory import CgroupMemory, HostMemory, cgroup_memory

GIB = 1 << 30


def fake_tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V1 = "sys/fs/cgroup/memory"
V2 = "sys/fs/cgroup"


def test_cgroup_version_2_reports_the_tightest_limit_of_all_ancestors(tmp_path: Path) -> None:
    root = fake_tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/user/job/step\n",
            f"{V2}/user/job/step/memory.max": "max\n",
            f"{V2}/user/job/step/memory.current": "100\n",
            f"{V2}/user/job/memory.max": "4000\n",
            f"{V2}/user/job/memory.current": "1500\n",
            f"{V2}/user/job/memory.stat": "anon 1000\ninactive_file 300\nactive_file 200\n",
            f"{V2}/user/memory.max": "9000\n",
            f"{V2}/user/memory.current": "8000\n",
        },
    )
    # 4000 is the lowest limit, but less is available under the parent's limit.
    assert cgroup_memory(root) == CgroupMemory(4000, 1000)


def test_cgroup_version_1(tmp_path: Path) -> None:
    root = fake_tree(
        tmp_path,
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/a\n4:memory:/docker/abc\n0::/\n",
            f"{V1}/docker/abc/memory.limit_in_bytes": "5000\n",
            f"{V1}/docker/abc/memory.usage_in_bytes": "2000\n",
            f"{V1}/docker/abc/memory.stat": "cache 900\ntotal_inactive_file 500\n",
            f"{V1}/memory.limit_in_bytes": "9223372036854771712\n",
            f"{V1}/memory.usage_in_bytes": "123456\n",
        },
    )
    assert cgroup_memory(root) == CgroupMemory(5000, 3500)


def test_cgroup_of_a_container_with_a_path_of_the_host(tmp_path: Path) -> None:
    root = fake_tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/../../kubepods/pod7\n",
            f"{V2}/memory.max": "7000\n",
            f"{V2}/memory.current": "8000\n",
        },
    )
    assert cgroup_memory(root) == CgroupMemory(7000, 0)


@pytest.mark.parametrize("lines", ["", "0::/\n", "4:memory:/\n", "0::/a b:c/d\n"])
def test_no_cgroup_limit(tmp_path: Path, lines: str) -> None:
    root = fake_tree(tmp_path, {"proc/self/cgroup": lines})
    assert cgroup_memory(root) == CgroupMemory(None, None)


def test_no_proc_file_system(tmp_path: Path) -> None:
    assert cgroup_memory(tmp_path) == CgroupMemory(None, None)


def test_available_is_the_smaller_of_machine_and_cgroup(tmp_path: Path) -> None:
    meminfo = "MemTotal: 100 kB\nMemFree: 10 kB\nMemAvailable: 50 kB\nHugePages_Total: 0\n"
    root = fake_tree(tmp_path, {"proc/self/cgroup": "0::/a\n", "proc/meminfo": meminfo})
    assert host_memory.host_memory(root) == HostMemory(102400, 51200)
    assert host_memory.available_host_bytes(root) == 51200
    fake_tree(root, {f"{V2}/a/memory.max": "40000", f"{V2}/a/memory.current": "1000"})
    assert host_memory.available_host_bytes(root) == 39000


def test_free_swap_is_limited_by_the_cgroup(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("SwapTotal: 9 kB\nSwapFree: 8388608 kB\n")
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/job\n")
    folder = tmp_path / "sys/fs/cgroup/memory/job"
    folder.mkdir(parents=True)
    assert host_memory.free_swap_bytes(tmp_path) == 8 * GIB
    (folder / "memory.limit_in_bytes").write_text(str(2 * GIB))
    (folder / "memory.memsw.limit_in_bytes").write_text(str(3 * GIB))
    assert host_memory.free_swap_bytes(tmp_path) == 1 * GIB
    (tmp_path / "proc/self/cgroup").write_text("0::/job\n")
    folder = tmp_path / "sys/fs/cgroup/job"
    folder.mkdir()
    (folder / "memory.swap.max").write_text("max")
    assert host_memory.free_swap_bytes(tmp_path) == 8 * GIB
    (folder / "memory.swap.max").write_text("0")
    assert host_memory.free_swap_bytes(tmp_path) == 0
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\n")
    assert host_memory.free_swap_bytes(tmp_path) == 0
