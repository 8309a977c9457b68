"""StepRecordings: the recorded steps that a plan is made of."""

from __future__ import annotations

import operator

from tfswap.devices.managed_devices import ManagedDevices
from tfswap.ops.loaded_library import Library
from tfswap.plan.measured_plan import MeasuredStep
from tfswap.step.trace import StepTrace

# Steps that allocate less than this fraction of what another one does have a smaller batch.
_FULL = 0.95


class StepRecordings:
    """Recordings of whole steps, by device.

    Args:
        library: The library.
        devices: The devices of the training.

    Attributes:
        seconds: The time of each kept step.
    """

    def __init__(self, library: Library, devices: ManagedDevices) -> None:
        self._library = library
        self._devices = devices
        self._is_recording = False
        self._steps: list[dict[int, StepTrace]] = []
        self.seconds: list[float] = []

    def start(self) -> None:
        """Start to record a step."""
        self._is_recording = True
        for device in self._devices.numbers:
            self._library.start_recording(device)

    def stop(self) -> dict[int, StepTrace]:
        """End the recording and return it; empty if there is none."""
        if not self._is_recording:
            return {}
        self._is_recording = False
        return {
            device: StepTrace.from_bytes(self._library.stop_recording(device))
            for device in self._devices.numbers
        }

    def add(self, step: MeasuredStep, traces: dict[int, StepTrace]) -> None:
        """Keep a recorded step.

        Args:
            step: Its measurements, on the planned device.
            traces: The recordings, by device.
        """
        planned = self._devices.device
        self.seconds.append(step.seconds)
        self._steps.append({**traces, planned: traces[planned].with_unlisted(step.peak_bytes)})

    def clear(self) -> None:
        """Drop all kept steps."""
        self.seconds.clear()
        self._steps.clear()

    @property
    def vary(self) -> bool:
        """Whether the steps have tensors of several shapes, or are of several graphs."""
        allocated = self._allocated_bytes()
        return min(allocated) < _FULL * max(allocated)

    def fastest(self) -> dict[int, StepTrace]:
        """Return the fastest of those with a full batch: disturbances only make steps slower."""
        allocated = self._allocated_bytes()
        steps = zip(self.seconds, self._steps, allocated, strict=True)
        full = [(s, traces) for s, traces, size in steps if size >= _FULL * max(allocated)]
        return min(full, key=operator.itemgetter(0))[1]

    def _allocated_bytes(self) -> list[int]:
        return [int(each[self._devices.device].buffers["bytes"].sum()) for each in self._steps]
