"""StepRecordings: the steps that one is planned from."""

from __future__ import annotations

import operator

from tfswap.devices.managed_devices import ManagedDevices
from tfswap.ops.loaded_library import Library
from tfswap.step.trace import StepTrace

# The fastest of them is planned with: what disturbs a step only ever makes it slower.
PROFILED_STEPS = 2
# Steps that allocate less than this share of what another one does are for a smaller batch.
_FULL = 0.95


class StepRecordings:
    """Recordings of whole steps, by device.

    Args:
        lib: The library.
        devices: Of the training.

    Attributes:
        seconds: What each step took.
    """

    def __init__(self, lib: Library, devices: ManagedDevices) -> None:
        self._library = lib
        self._devices = devices
        self._is_recording = False
        self._steps: list[dict[int, StepTrace]] = []
        self.seconds: list[float] = []

    def start(self) -> None:
        """A step begins."""
        self._is_recording = True
        for device in self._devices.numbers:
            self._library.start_recording(device)

    def stop(self) -> dict[int, StepTrace]:
        """It ended, or failed; harmless when called again."""
        if not self._is_recording:
            return {}
        self._is_recording = False
        return {
            device: StepTrace.from_bytes(self._library.stop_recording(device))
            for device in self._devices.numbers
        }

    def add(self, seconds: float, traces: dict[int, StepTrace]) -> bool:
        """Takes a step; says whether there are enough."""
        self.seconds.append(seconds)
        self._steps.append(traces)
        return len(self._steps) >= PROFILED_STEPS

    @property
    def vary(self) -> bool:
        """Whether they are for tensors of several shapes, or of several graphs."""
        made = self._made_bytes()
        return min(made) < _FULL * max(made)

    def _made_bytes(self) -> list[int]:
        return [int(each[self._devices.device].buffers["bytes"].sum()) for each in self._steps]

    def fastest(self) -> dict[int, StepTrace]:
        """Of those that were not for a smaller batch."""
        made = self._made_bytes()
        steps = zip(self.seconds, self._steps, made, strict=True)
        full = [(s, traces) for s, traces, size in steps if size >= _FULL * max(made)]
        return min(full, key=operator.itemgetter(0))[1]
