"""The file tier's speeds, as observed in a training."""

from __future__ import annotations

import math

from tfswap.machine.far_tier import FILE, FarTier
from tfswap.machine.file_link import MonitoredFileTier, file_tier_behind_link
from tfswap.machine.machine import Machine

MB = 1_000_000
MEASURED = FarTier(FILE, 900 * MB, 1200 * MB, 200_000, 200_000, 1 << 40, 8e9)


def stats(mb_out: int = 0, s_out: float = 0, mb_in: int = 0, s_in: float = 0) -> dict[str, int]:
    return {
        "far_file_bytes_out": mb_out * MB,
        "far_file_busy_out_ns": int(s_out * 1e9),
        "far_file_bytes_in": mb_in * MB,
        "far_file_busy_in_ns": int(s_in * 1e9),
    }


def test_the_first_plan_has_the_speed_of_the_steps_before_it() -> None:
    file = MonitoredFileTier(MEASURED, stats(500, 100, 500, 100), stats(1400, 102, 1200, 101))
    assert (file.tier.out_bytes_per_s, file.tier.in_bytes_per_s) == (450 * MB, 700 * MB)
    assert file.observe(stats(2300, 103.5, 1900, 102)) == ""
    assert (file.tier.out_bytes_per_s, file.tier.in_bytes_per_s) == (450 * MB, 700 * MB)


def test_a_small_change_of_speed_is_ignored() -> None:
    file = MonitoredFileTier(MEASURED, stats(500, 100, 500, 100), stats(500, 100, 500, 100))
    assert file.observe(stats(1400, 102, 1400, 101.5)) == ""
    assert file.tier == MEASURED


def test_a_slow_disk_gets_its_observed_speed_and_the_slower_direction_is_reported() -> None:
    file = MonitoredFileTier(MEASURED, stats(), stats())
    message = file.observe(stats(900, 3, 1200, 10))
    assert message == "the disk gave 120 MB/s reading where 1200 were expected"
    assert (file.tier.out_bytes_per_s, file.tier.in_bytes_per_s) == (300 * MB, 120 * MB)
    assert file.tier.capacity_bytes == MEASURED.capacity_bytes


def test_a_disk_that_recovers_gets_at_most_its_measured_speed() -> None:
    file = MonitoredFileTier(MEASURED, stats(), stats())
    assert file.observe(stats(900, 10, 1200, 10))
    message = file.observe(stats(9900, 11, 13200, 11))
    assert message == "the disk gave 1200 MB/s reading where 120 were expected"
    assert file.tier == MEASURED


def test_a_few_bytes_change_nothing() -> None:
    file = MonitoredFileTier(MEASURED, stats(), stats())
    assert file.observe(stats(10, 10, 10, 10)) == ""
    assert file.tier == MEASURED


def test_behind_a_gpu_link_the_slower_of_both_speeds_counts_and_core_time_does_not() -> None:
    gpu = Machine("gpu", 600 * MB, 20e9, 10_000, 10_000)
    assert file_tier_behind_link(MEASURED, gpu) == FarTier(
        FILE, 600 * MB, 1200 * MB, 210_000, 210_000, 1 << 40, math.inf
    )
    assert file_tier_behind_link(MEASURED, gpu).copy_ns(MB, MB) == 0
