"""StepAddresses: planned addresses of a training's steps, made once its plan is steady."""

from __future__ import annotations

from tfswap.devices.managed_devices import ManagedDevices
from tfswap.devices.swap_options import SwapOptions
from tfswap.ops.loaded_library import Library
from tfswap.report.summary import Report
from tfswap.report.training_log import TrainingLog
from tfswap.training.address_run import AddressRun
from tfswap.training.installed_plan import InstalledPlan


class StepAddresses:
    """Record steps, plan their addresses and install them.

    Args:
        lib: The library.
        options: Of the training.
        devices: Of the training.
        plan: The installed plan, which gets the addresses.
        voice: The log of the training.
        report: The report, which gets the address maps.
        kind: Kind of calls that train.
    """

    def __init__(
        self,
        lib: Library,
        options: SwapOptions,
        devices: ManagedDevices,
        plan: InstalledPlan,
        voice: TrainingLog,
        report: Report,
        kind: str,
    ) -> None:
        self._library = lib
        self._options = options
        self._devices = devices
        self._plan = plan
        self._voice = voice
        self._report = report
        self._kind = kind
        self._run: AddressRun | None = None
        self._fingerprint = ""

    def begin(self, fingerprint: str) -> bool:
        """Start to record calls; return whether addresses of the graph have to be planned."""
        self._fingerprint = fingerprint
        if not self._options.slab:
            return False
        limit_bytes = None if self._devices.on_cpu else self._devices.budget_bytes
        self._run = AddressRun(self._library, self._devices.device, limit_bytes, self._plan.label)
        return not self._plan.has_layout(fingerprint)

    def wants(self, kind: str) -> bool:
        """Return whether the next call of this kind will be recorded."""
        return self._run is not None and self._run.wants(kind)

    @property
    def recorded(self) -> str | None:
        """The fingerprint of the graph that the last call ran, if it was recorded."""
        return None if self._run is None else self._run.recorded

    def expect(self, kind: str) -> None:
        """Record calls of this kind: one of their graphs has lost its addresses."""
        if self._run is not None:
            self._run.expect(kind)

    def call_begins(self, kind: str) -> None:
        """Note that a training or validation call begins."""
        if self._run is not None:
            self._run.call_begins(kind)

    def call_ended(self, kind: str, steps: int) -> bool:
        """Plan addresses of a graph that has run often enough without any.

        Args:
            kind: Kind of the call.
            steps: Number of steps in the call.

        Returns:
            Whether new addresses were installed.
        """
        if self._run is None:
            return False
        plan = self._run.call_ended(kind, self._plan.plan, steps)
        if plan is None:
            return False
        if self._run.said:
            self._voice.note(self._run.said)
        self._report.plan = plan
        self._report.addresses = tuple(self._run.maps)
        self._plan.push(plan)
        self._plan.install_layouts()
        self._plan.save()
        return True

    def are_settled(self) -> bool:
        """Return whether the graph has its addresses, or will have none."""
        if self._run is None:
            return False
        if self._run.is_trying(self._kind):
            return False
        if self._plan.has_layout(self._fingerprint) or self._run.is_quiet(self._kind):
            return True
        if self._run.problem:
            self._voice.note(self._run.problem)
            return True
        return False

    def stop(self) -> None:
        """Drop the recording of a call that failed."""
        if self._run is not None:
            self._run.stop()

    def end(self) -> None:
        """Stop recording; harmless when called again."""
        self.stop()
        self._run = None
