"""The devices of a training, with a library that only remembers what it is told."""

from __future__ import annotations

from collections import defaultdict
from typing import Any
from unittest import mock

import pytest

from tfswap.devices import managed_devices
from tfswap.devices.managed_devices import ManagedDevices
from tfswap.devices.model_bytes import ModelBytes
from tfswap.devices.swap_options import parse_options
from tfswap.machine.devices import FIRST_GPU

MIB = 1 << 20


class FakeLibrary(mock.Mock):
    """Keep the budgets, in the order in which they are set."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.budgets: list[tuple[int, int | None]] = []
        self.in_use = defaultdict(int)
        self.set_budget = lambda device, size: self.budgets.append((device, size))
        self.memory_stats = lambda device: defaultdict(
            int, bytes_in_use=self.in_use[device], load_bytes=self.in_use[device]
        )
        self.step_counts = self.memory_stats
        self.device_count = lambda: 2
        self.streams: list[tuple[int, bool]] = []
        self.stream_variables = lambda device, on: self.streams.append((device, on)) or ""

    def _get_child_mock(self, /, **more: Any) -> mock.Mock:
        return mock.Mock(**more)


def devices_of(lib: FakeLibrary, budget: Any, **options: Any) -> ManagedDevices:
    with (
        mock.patch.object(managed_devices, "visible_gpus", lambda lib: []),
        mock.patch.object(managed_devices.dead_models, "free", lambda lib, numbers: None),
    ):
        return ManagedDevices(
            lib, parse_options(budget=budget, **options), 0, lambda text: None, pytest.fail
        )


def test_cpus_share_one_budget_and_release_takes_it_back() -> None:
    lib = FakeLibrary()
    devices = devices_of(lib, "100MiB")
    assert devices.numbers == [0, 1] and devices.on_cpu
    devices.acquire()
    assert lib.budgets == [(0, 100 * MIB), (1, 100 * MIB)] and devices.budget_bytes == 100 * MIB
    devices.release()
    assert lib.budgets[2:] == [(0, None), (1, None)]


def test_each_named_device_has_its_own_budget() -> None:
    lib = FakeLibrary()
    devices_of(lib, {"CPU:0": "100MiB", "CPU:1": "40MiB"}).acquire()
    assert lib.budgets == [(0, 100 * MIB), (1, 40 * MIB)]
    with pytest.raises(ValueError, match="budget is for CPU:0; there are CPU:0, CPU:1"):
        devices_of(FakeLibrary(), {"CPU:0": "100MiB"})


def test_a_smaller_budget_makes_room_and_reports_whether_it_is_kept() -> None:
    lib = FakeLibrary()
    devices = devices_of(lib, "100MiB")
    devices.acquire()
    lib.in_use[0] = 80 * MIB
    lib.make_room = lambda device: lib.in_use.update({device: 30 * MIB})
    assert devices.change_budget(40 * MIB) and devices.budget_bytes == 40 * MIB
    lib.make_room = lambda device: None
    with mock.patch.object(managed_devices, "_MAKE_ROOM_S", 0.01):
        assert not devices.change_budget(20 * MIB)
    assert devices.change_budget(200 * MIB)  # a larger one applies at once
    with pytest.raises(ValueError, match="above 0 bytes"):
        devices.change_budget(0)


@pytest.mark.parametrize(
    ("option", "variables", "others", "leave"),
    [
        ("auto", 49 * MIB, 0, False),
        ("auto", 51 * MIB, 0, True),
        ("auto", 30 * MIB, 50 * MIB, True),  # half of what the budget leaves to the model
        ("auto", 10 * MIB, 200 * MIB, True),
        (True, 1, 0, True),
        (False, 500 * MIB, 0, False),
    ],
)
def test_large_variables_leave(option: Any, variables: int, others: int, leave: bool) -> None:
    lib = FakeLibrary()
    devices = devices_of(lib, "100MiB", stream_weights=option)
    lib.in_use.update({0: others + variables, 1: others + variables})
    if option == "auto":
        devices.consider_weights(ModelBytes(variables))
    assert devices.weights_may_leave == leave
    with mock.patch.object(managed_devices.eager, "touch_variables"):
        devices.acquire()
    assert lib.streams == ([(0, True), (1, True)] if leave else [])
    devices.consider_weights(ModelBytes(500 * MIB))  # too late: their uses before are not known
    assert devices.weights_may_leave == leave
    devices.release()
    assert lib.streams[-2:] == [(0, False), (1, False)]


def test_variables_may_leave_while_models_are_built() -> None:
    lib = FakeLibrary()
    devices = devices_of(lib, "100MiB")
    with mock.patch.object(managed_devices.eager, "touch_variables"):
        devices.acquire(builds_models=True)
    assert lib.streams == [(0, True), (1, True)] and not devices.weights_may_leave
    lib.in_use.update({0: 20 * MIB, 1: 20 * MIB})
    devices.consider_weights(ModelBytes(20 * MIB))
    assert not devices.weights_may_leave
    devices.consider_weights(ModelBytes(90 * MIB))
    assert devices.weights_may_leave
    devices.release(variables_stay_away=True)
    assert len(lib.streams) == 2 and (0, None) not in lib.budgets


def test_a_plan_covers_a_budget_that_is_hardly_smaller() -> None:
    devices = devices_of(FakeLibrary(), "100MiB")
    assert devices.covers(100 * MIB) and devices.covers(101 * MIB)
    assert not devices.covers(102 * MIB)


def test_only_an_auto_budget_of_a_cpu_is_computed_again() -> None:
    assert not devices_of(FakeLibrary(), "100MiB").refresh_auto_budget()
    lib = FakeLibrary()
    devices = devices_of(lib, "auto")
    devices.acquire()
    lib.budgets.clear()
    assert devices.refresh_auto_budget()
    assert lib.budgets == [(0, devices.budget_bytes), (1, devices.budget_bytes)]


def test_the_busiest_device_is_planned_for() -> None:
    lib = FakeLibrary()
    lib.step_counts = lambda device: {
        "bytes_in_use": 10,
        "window_peak_bytes": 100 + device * lib.in_use["steps"],
    }
    devices = devices_of(lib, "100MiB")
    devices.begin_first_step()
    assert devices.switch_to_busiest() is None  # both need the same: the first one stays
    lib.in_use["steps"] = 50
    assert devices.switch_to_busiest() == {"bytes_in_use": 10, "window_peak_bytes": 100}
    assert devices.device == devices.link.device == 1 < FIRST_GPU
