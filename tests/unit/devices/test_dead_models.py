"""Unreachable models are freed before a budget counts the memory in use."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any, cast

import pytest

from tfswap.devices import dead_models
from tfswap.ops.loaded_library import Library

MIB = 1 << 20


class Device:
    """Memory in use: of reachable objects, and of cycles until they are collected."""

    def __init__(self) -> None:
        self.collections = self.reachable = self.in_cycles = 0

    def step_counts(self, device: int) -> dict[str, int]:
        assert device == 0
        return {"bytes_in_use": self.reachable + self.in_cycles}

    def collect(self) -> int:
        self.collections += 1
        self.in_cycles = 0
        return 0

    def training_begins(self) -> None:
        dead_models.free(cast(Library, self), [0])


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    made = Device()
    monkeypatch.setattr(gc, "collect", made.collect)
    monkeypatch.setattr(dead_models, "_left_bytes", cast(Any, {}))
    yield made


def test_an_earlier_model_is_freed(device: Device) -> None:
    device.reachable, device.in_cycles = 90 * MIB, 90 * MIB
    device.training_begins()
    assert device.in_cycles == 0


def test_without_new_memory_nothing_is_collected(device: Device) -> None:
    device.training_begins()
    assert device.collections == 0
    device.reachable = 90 * MIB
    for _ in range(3):
        device.training_begins()
        device.reachable += 1000  # less than a MiB
    assert device.collections == 1


def test_memory_that_grows_after_a_fall_is_collected(device: Device) -> None:
    device.reachable = 90 * MIB
    device.training_begins()
    device.reachable = 10 * MIB
    device.training_begins()
    device.in_cycles = 50 * MIB
    device.training_begins()
    assert device.collections == 2 and device.in_cycles == 0
