"""Machine: measured and emulated links."""

from __future__ import annotations

import dataclasses
import math

import pytest

from tfswap.machine.machine import Machine, cores


def test_a_process_measures_once() -> None:
    machine = Machine.measure()
    assert machine == Machine.measure()
    assert 1e8 < machine.out_bytes_per_s < 1e12
    assert machine.in_bytes_per_s == machine.copy_bytes_per_s == machine.out_bytes_per_s


def test_an_emulated_link_is_at_most_as_fast_as_memory() -> None:
    slow = Machine.emulated(1e6, latency_ns=5000)
    assert (slow.out_bytes_per_s, slow.in_bytes_per_s) == (1e6, 1e6)
    assert slow.out_latency_ns == slow.in_latency_ns == Machine.measure().in_latency_ns + 5000
    assert slow.name == "emulated link, 0.001 GB/s"
    assert Machine.emulated(1e15).out_bytes_per_s == Machine.measure().out_bytes_per_s


def test_copies_cost_core_time() -> None:
    machine = Machine("m", 1e9, 1e9, copy_bytes_per_s=2e9)
    assert machine.copy_ns(10**9, 10**9) == round(1e9 / cores())
    assert machine.copy_ns(0, 0) == 0
    assert Machine("by hardware", 1e9, 1e9).copy_ns(10**9, 10**9) == 0
    # A slower link does not add work.
    assert Machine.emulated(1e6).copy_ns(10**6, 0) == Machine.measure().copy_ns(10**6, 0)


@pytest.mark.parametrize("speed", [0.0, -1.0, math.nan])
def test_speeds_must_be_above_zero(speed: float) -> None:
    for values in ((speed, 1.0), (1.0, speed)):
        with pytest.raises(ValueError, match="speed must be above 0 bytes per second, not"):
            Machine("m", *values)
    with pytest.raises(ValueError, match="link_bandwidth must be above 0 bytes/s, not"):
        Machine.emulated(speed)


def test_latencies_must_not_be_negative() -> None:
    with pytest.raises(ValueError, match="latency must be 0 ns or more, not -1"):
        Machine("m", 1.0, 1.0, in_latency_ns=-1)


def test_a_machine_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Machine("m", 1.0, 1.0).name = "n"  # type: ignore[misc]
