"""Parsing of budgets, host limits and bandwidths, and their bytes on a device."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfswap.machine import budget as budgets
from tfswap.machine.host_memory import cgroup_memory, host_memory

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


def test_parse_limit_accepts_zero() -> None:
    assert budgets.parse_limit(0) == 0
    assert budgets.parse_limit("3MiB") == 3 << 20
    for wrong in (-1, False, "nothing", 0.5):
        with pytest.raises(ValueError, match="memory"):
            budgets.parse_limit(wrong)


def test_relative_budgets_need_a_known_device_memory() -> None:
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
        f"{amount!r} is not an amount of memory. Allowed: bytes as an integer, or a string with a "
        "number and one of B, kB, MB, GB, TB, KiB, MiB, GiB, TiB, such as "
        '"900MiB" or "1.5 GiB"'
    )


@pytest.mark.parametrize("amount", [0, -1, "0MiB", "0.1B"])
def test_parse_bytes_rejects_zero_and_below(amount: str | int) -> None:
    with pytest.raises(ValueError, match="must be above 0 bytes; .* is not"):
        budgets.parse_bytes(amount)


@pytest.mark.parametrize("budget", ["auto", " AUTO ", "80%", 0.5, 1.0, "900MiB", 900])
def test_check_accepts_every_form(budget: budgets.Budget) -> None:
    budgets.check(budget, "budget")


@pytest.mark.parametrize(
    ("budget", "text"),
    [
        (6e9, "a float is a fraction of the memory, above 0 and up to 1.0. Write bytes as an"),
        (0.0, "a float is a fraction of the memory"),
        (float("nan"), "a float is a fraction of the memory"),
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
        'Also allowed: a fraction of the device\'s memory, "80%" or a float above 0 and up to '
        '1.0, or "auto"'
    )


def test_resolve_bytes() -> None:
    assert budgets.resolve("900MiB") == 900 * MIB
    assert budgets.resolve(5) == 5


@pytest.mark.parametrize(("budget", "fraction"), [("80%", 0.8), (0.25, 0.25), (1.0, 1.0)])
def test_a_fraction_is_of_the_smaller_limit(budget: str | float, fraction: float) -> None:
    assert budgets.resolve(budget, 10 * GIB) == int(fraction * 10 * GIB)
    assert budgets.resolve(budget, 10 * GIB, 4 * GIB) == int(fraction * 4 * GIB)
    assert budgets.resolve(budget, 10 * GIB, 40 * GIB) == int(fraction * 10 * GIB)


def test_a_fraction_of_the_cpu_is_of_the_memory_that_this_process_may_use() -> None:
    limit_bytes = cgroup_memory().limit_bytes
    total_bytes = host_memory().total_bytes
    assert budgets.resolve(1.0) == min(total_bytes, limit_bytes or total_bytes)


def test_auto_counts_what_the_device_holds_as_available() -> None:
    assert budgets.resolve("auto", available_bytes=10 * GIB) == 9 * GIB
    assert budgets.resolve("auto", available_bytes=6 * GIB, in_use_bytes=4 * GIB) == 9 * GIB
    assert budgets.resolve("auto", 20 * GIB, in_use_bytes=4 * GIB) == 18 * GIB
    assert budgets.resolve("auto", 20 * GIB, 10 * GIB) == 9 * GIB


def test_auto_host_limit_reserves_the_budget() -> None:
    def limit_bytes(budget_bytes: int | None, in_use_bytes: int = 0) -> int:
        return budgets.resolve_host_limit(
            "auto", budget_bytes, in_use_bytes=in_use_bytes, available_bytes=10 * GIB
        )

    assert limit_bytes(None) == 8 * GIB
    assert limit_bytes(5 * GIB) == 4 * GIB
    assert limit_bytes(6 * GIB, in_use_bytes=1 * GIB) == 4 * GIB
    assert limit_bytes(50 * GIB) == 1  # 0 would mean "no limit"


def test_host_limit_accepts_the_forms_of_a_budget() -> None:
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
        "a string with a number and one of B/s, kB/s, MB/s, GB/s, TB/s, KiB/s, MiB/s, GiB/s, "
        'TiB/s, such as "12GB/s"'
    )


def test_without_growth_reserves_at_most_half() -> None:
    assert budgets.without_growth(10 * GIB) == 10 * GIB - budgets.GROWTH_BYTES
    assert budgets.without_growth(100) == 50
    assert budgets.without_growth(10 * GIB, 1 * GIB) == 9 * GIB


def test_each_budget_of_a_mapping_is_checked() -> None:
    budgets.check_each({"GPU:0": "6GiB", "GPU:1": 0.5}, "budget")
    budgets.check_each("6GiB", "budget")
    for wrong, message in [
        ({}, "the mapping has no device"),
        ({"0": "6GiB"}, "'0' is not a device name; use names such as 'GPU:0'"),
        ({0: "6GiB"}, "0 is not a device name"),
        ({"GPU:0": "6 gigs"}, "budget of GPU:0"),
        ({"GPU:0": -1}, "budget of GPU:0"),
    ]:
        with pytest.raises(ValueError, match=message):
            budgets.check_each(wrong, "budget")
