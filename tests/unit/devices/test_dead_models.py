"""What nobody can reach any more is freed before a budget counts what is there."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any, cast

import pytest

from tfswap.devices import dead_models
from tfswap.ops.loaded_library import Library

MIB = 1 << 20


class Device:
    """What is in use: what is reachable, and what is in cycles until they are found."""

    def __init__(self) -> None:
        self.looks = self.reachable = self.in_cycles = 0

    def step_counts(self, device: int) -> dict[str, int]:
        assert device == 0
        return {"bytes_in_use": self.reachable + self.in_cycles}

    def look(self) -> int:
        self.looks += 1
        self.in_cycles = 0
        return 0

    def training_begins(self) -> None:
        dead_models.free(cast(Library, self), [0])


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    made = Device()
    monkeypatch.setattr(gc, "collect", made.look)
    monkeypatch.setattr(dead_models, "_left_bytes", cast(Any, {}))
    yield made


def test_a_model_of_before_is_let_go(device: Device) -> None:
    device.reachable, device.in_cycles = 90 * MIB, 90 * MIB
    device.training_begins()
    assert device.in_cycles == 0


def test_where_nothing_came_it_is_not_looked_for(device: Device) -> None:
    device.training_begins()
    assert device.looks == 0
    device.reachable = 90 * MIB
    for _ in range(3):
        device.training_begins()
        device.reachable += 1000  # a step's small things
    assert device.looks == 1


def test_what_comes_after_less_was_there_is_looked_for(device: Device) -> None:
    device.reachable = 90 * MIB
    device.training_begins()
    device.reachable = 10 * MIB
    device.training_begins()
    device.in_cycles = 50 * MIB
    device.training_begins()
    assert device.looks == 2 and device.in_cycles == 0
