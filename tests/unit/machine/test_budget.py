"""What budgets, host limits and bandwidths mean, and what cgroups allow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfswap.machine import budget as budgets

MIB = 1 << 20
GIB = 1 << 30


@pytest.mark.parametrize(
    ("amount", "size_bytes"),
    [
        ("900MiB", 900 * MIB),
        ("6GB", 6_000_000_000),
        ("1.5 GiB", 3 * GIB // 2),
        (" 1 kB ", 1000),
        ("1KiB", 1024),
        ("2tib", 2 << 40),
        ("123", 123),
        ("123 B", 123),
        ("1e3MB", 1_000_000_000),
        ("0.1KiB", 102),
        (42, 42),
        (np.int64(7), 7),
    ],
)
def test_parse_bytes(amount: str | int, size_bytes: int) -> None:
    assert budgets.parse_bytes(amount) == size_bytes


def test_a_limit_may_be_zero() -> None:
    assert budgets.parse_limit(0) == 0
    assert budgets.parse_limit("3MiB") == 3 << 20
    for wrong in (-1, False, "nothing", 0.5):
        with pytest.raises(ValueError, match="memory"):
            budgets.parse_limit(wrong)


def test_a_part_of_a_device_whose_memory_nobody_knows_is_refused() -> None:
    assert budgets.resolve("2GiB", device_limit_bytes=0) == 2 << 30
    for relative in ("50%", 0.5, "auto"):
        with pytest.raises(ValueError, match="give bytes"):
            budgets.resolve(relative, device_limit_bytes=0)


@given(st.integers(1, 1 << 50), st.sampled_from([("MiB", 1 << 20), ("GB", 10**9), ("B", 1)]))
def test_parse_bytes_is_exact(count: int, unit: tuple[str, int]) -> None:
    assert budgets.parse_bytes(f"{count}{unit[0]}") == count * unit[1]


@pytest.mark.parametrize(
    "amount", ["", "MiB", "900 M", "1,5GB", "-3MB", "nan", "6GB/s", "1 2", None, [], True, 2.5]
)
def test_parse_bytes_lists_what_is_allowed(amount: object) -> None:
    with pytest.raises(ValueError) as caught:
        budgets.parse_bytes(amount)  # type: ignore[arg-type]
    assert str(caught.value) == (
        f"{amount!r} is not an amount of memory. Allowed: bytes as an integer, or a text with a "
        "number and one of B, kB, MB, GB, TB, KiB, MiB, GiB, TiB, such as "
        '"900MiB" or "1.5 GiB"'
    )


@pytest.mark.parametrize("amount", [0, -1, "0MiB", "0.1B"])
def test_parse_bytes_refuses_nothing_at_all(amount: str | int) -> None:
    with pytest.raises(ValueError, match="must be above 0 bytes; .* is not"):
        budgets.parse_bytes(amount)


@pytest.mark.parametrize("budget", ["auto", " AUTO ", "80%", 0.5, 1.0, "900MiB", 900])
def test_check_takes_every_form(budget: budgets.Budget) -> None:
    budgets.check(budget, "budget")


@pytest.mark.parametrize(
    ("budget", "text"),
    [
        (6e9, "a float is a part of the memory, above 0 and up to 1.0. Bytes are written as an"),
        (0.0, "a float is a part of the memory"),
        (float("nan"), "a float is a part of the memory"),
        ("120%", "a percentage is above 0 and up to 100%"),
        ("0%", "a percentage is above 0 and up to 100%"),
        ("automatic", "'automatic' is not an amount of memory"),
        (None, "None is not an amount of memory"),
    ],
)
def test_check_names_the_argument_and_all_that_is_allowed(budget: object, text: str) -> None:
    with pytest.raises(ValueError) as caught:
        budgets.check(budget, "host_limit")  # type: ignore[arg-type]
    assert str(caught.value).startswith("host_limit: ")
    assert text in str(caught.value)
    assert str(caught.value).endswith(
        'Allowed too: a part of the device\'s memory, "80%" or a float above 0 and up to 1.0, or '
        '"auto"'
    )


def test_resolve_bytes() -> None:
    assert budgets.resolve("900MiB") == 900 * MIB
    assert budgets.resolve(5) == 5


@pytest.mark.parametrize(("budget", "part"), [("80%", 0.8), (0.25, 0.25), (1.0, 1.0)])
def test_a_part_is_one_of_the_smaller_limit(budget: str | float, part: float) -> None:
    assert budgets.resolve(budget, 10 * GIB) == int(part * 10 * GIB)
    assert budgets.resolve(budget, 10 * GIB, 4 * GIB) == int(part * 4 * GIB)
    assert budgets.resolve(budget, 10 * GIB, 40 * GIB) == int(part * 10 * GIB)


def test_a_part_of_the_cpu_is_one_of_what_this_process_may_use() -> None:
    limit = budgets.cgroup_memory().limit_bytes
    total = budgets.host_memory().total_bytes
    assert budgets.resolve(1.0) == min(total, limit or total)


def test_auto_counts_what_the_device_holds_as_available() -> None:
    assert budgets.resolve("auto", available_bytes=10 * GIB) == 9 * GIB
    assert budgets.resolve("auto", available_bytes=6 * GIB, in_use_bytes=4 * GIB) == 9 * GIB
    assert budgets.resolve("auto", 20 * GIB, in_use_bytes=4 * GIB) == 18 * GIB
    assert budgets.resolve("auto", 20 * GIB, 10 * GIB) == 9 * GIB


def test_auto_host_limit_leaves_the_budget_its_part() -> None:
    def limit(budget_bytes: int | None, in_use_bytes: int = 0) -> int:
        return budgets.resolve_host_limit(
            "auto", budget_bytes, in_use_bytes=in_use_bytes, available_bytes=10 * GIB
        )

    assert limit(None) == 8 * GIB
    assert limit(5 * GIB) == 4 * GIB
    assert limit(6 * GIB, in_use_bytes=1 * GIB) == 4 * GIB
    assert limit(50 * GIB) == 1  # nothing: 0 would mean that there is no limit


def test_host_limit_takes_the_forms_of_a_budget() -> None:
    assert budgets.resolve_host_limit("2GiB", 5) == 2 * GIB
    with pytest.raises(ValueError, match="^host_limit: "):
        budgets.resolve_host_limit("much")


@pytest.mark.parametrize(
    ("bandwidth", "bytes_per_s"),
    [
        ("12GB/s", 12e9),
        ("12e9", 12e9),
        (12e9, 12e9),
        (7, 7.0),
        ("1.5 GiB/s", 1.5 * GIB),
        ("800 mb/s", 800e6),
        (None, None),
    ],
)
def test_parse_bandwidth(bandwidth: str | float | None, bytes_per_s: float | None) -> None:
    assert budgets.parse_bandwidth(bandwidth) == bytes_per_s


@pytest.mark.parametrize(
    "bandwidth", ["12GB", "fast", "12 Gbit/s", "/s", "0GB/s", 0, -1.0, float("inf"), True, "50%"]
)
def test_parse_bandwidth_lists_what_is_allowed(bandwidth: object) -> None:
    with pytest.raises(ValueError) as caught:
        budgets.parse_bandwidth(bandwidth)  # type: ignore[arg-type]
    assert str(caught.value) == (
        f"{bandwidth!r} is not a link bandwidth. Allowed: bytes per second as a number above 0, or "
        "a text with a number and one of B/s, kB/s, MB/s, GB/s, TB/s, KiB/s, MiB/s, GiB/s, TiB/s, "
        'such as "12GB/s"'
    )


def fake_tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V1 = "sys/fs/cgroup/memory"
V2 = "sys/fs/cgroup"


def test_cgroup_version_2_takes_the_tightest_limit_on_the_way_up(tmp_path: Path) -> None:
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
    # 4000 is the tightest limit, but the folder above has less left.
    assert budgets.cgroup_memory(root) == budgets.CgroupMemory(4000, 1000)


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
    assert budgets.cgroup_memory(root) == budgets.CgroupMemory(5000, 3500)


def test_cgroup_of_a_container_whose_path_is_the_hosts(tmp_path: Path) -> None:
    root = fake_tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/../../kubepods/pod7\n",
            f"{V2}/memory.max": "7000\n",
            f"{V2}/memory.current": "8000\n",
        },
    )
    assert budgets.cgroup_memory(root) == budgets.CgroupMemory(7000, 0)


@pytest.mark.parametrize("lines", ["", "0::/\n", "4:memory:/\n", "0::/a b:c/d\n"])
def test_no_cgroup_limit(tmp_path: Path, lines: str) -> None:
    root = fake_tree(tmp_path, {"proc/self/cgroup": lines})
    assert budgets.cgroup_memory(root) == budgets.CgroupMemory(None, None)


def test_no_proc_at_all(tmp_path: Path) -> None:
    assert budgets.cgroup_memory(tmp_path) == budgets.CgroupMemory(None, None)


def test_available_is_the_lesser_of_machine_and_cgroup(tmp_path: Path) -> None:
    meminfo = "MemTotal: 100 kB\nMemFree: 10 kB\nMemAvailable: 50 kB\nHugePages_Total: 0\n"
    root = fake_tree(tmp_path, {"proc/self/cgroup": "0::/a\n", "proc/meminfo": meminfo})
    assert budgets.host_memory(root) == budgets.HostMemory(102400, 51200)
    assert budgets.available_host_bytes(root) == 51200
    fake_tree(root, {f"{V2}/a/memory.max": "40000", f"{V2}/a/memory.current": "1000"})
    assert budgets.available_host_bytes(root) == 39000


def test_auto_leaves_room_for_the_process_to_grow() -> None:
    assert budgets.without_growth(10 * GIB) == 10 * GIB - budgets.GROWTH_BYTES
    assert budgets.without_growth(100) == 50
    assert budgets.without_growth(10 * GIB, 1 * GIB) == 9 * GIB


def test_swap_within_the_cgroup(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("SwapTotal: 9 kB\nSwapFree: 8388608 kB\n")
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/job\n")
    folder = tmp_path / "sys/fs/cgroup/memory/job"
    folder.mkdir(parents=True)
    assert budgets.swap_bytes(tmp_path) == 8 * GIB
    (folder / "memory.limit_in_bytes").write_text(str(2 * GIB))
    (folder / "memory.memsw.limit_in_bytes").write_text(str(3 * GIB))
    assert budgets.swap_bytes(tmp_path) == 1 * GIB
    (tmp_path / "proc/self/cgroup").write_text("0::/job\n")
    folder = tmp_path / "sys/fs/cgroup/job"
    folder.mkdir()
    (folder / "memory.swap.max").write_text("max")
    assert budgets.swap_bytes(tmp_path) == 8 * GIB
    (folder / "memory.swap.max").write_text("0")
    assert budgets.swap_bytes(tmp_path) == 0
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\n")
    assert budgets.swap_bytes(tmp_path) == 0


def test_budgets_by_device_are_each_checked() -> None:
    budgets.check_each({"GPU:0": "6GiB", "GPU:1": 0.5}, "budget")
    budgets.check_each("6GiB", "budget")
    for wrong, said in [
        ({}, "no device in it"),
        ({"0": "6GiB"}, "'0' is no device; they are called 'GPU:0'"),
        ({0: "6GiB"}, "0 is no device"),
        ({"GPU:0": "6 gigs"}, "budget of GPU:0"),
        ({"GPU:0": -1}, "budget of GPU:0"),
    ]:
        with pytest.raises(ValueError, match=said):
            budgets.check_each(wrong, "budget")
