"""StepAddresses: addresses of one training's steps, planned once its plan has settled."""

from __future__ import annotations

from tfswap.ops.loaded_library import Library
from tfswap.report.summary import Report
from tfswap.training.address_run import AddressRun
from tfswap.training.installed_plan import InstalledPlan
from tfswap.training.log import TrainingLog
from tfswap.training.managed_devices import ManagedDevices
from tfswap.training.swap_options import SwapOptions


class StepAddresses:
    """Has steps recorded and addresses planned, and puts those in force.

    Args:
        lib: The library.
        options: Of the training.
        devices: Of the training.
        plan: Gets the addresses.
        voice: Says things.
        report: Likewise.
        kind: Of calls that train.
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
        """The training's graph stays as it is; says whether its addresses have to be planned."""
        self._fingerprint = fingerprint
        if not self._options.slab:
            return False
        limit_bytes = None if self._devices.on_cpu else self._devices.budget_bytes
        self._run = AddressRun(self._library, self._devices.device, limit_bytes, self._plan.label)
        return not self._plan.has_layout(fingerprint)

    def wants(self, kind: str) -> bool:
        """Whether the next call of this kind is to be recorded."""
        return self._run is not None and self._run.wants(kind)

    @property
    def recorded(self) -> str | None:
        """Fingerprint of the graph that the last call ran, if it was recorded."""
        return None if self._run is None else self._run.recorded

    def expect(self, kind: str) -> None:
        """A graph in calls of this kind has lost its addresses."""
        if self._run is not None:
            self._run.expect(kind)

    def call_begins(self, kind: str) -> None:
        """Of a step, or of a validation."""
        if self._run is not None:
            self._run.call_begins(kind)

    def call_ended(self, kind: str, steps: int) -> bool:
        """Plans addresses of a graph that has run often enough without any.

        Args:
            kind: Of the call.
            steps: That it was.

        Returns:
            Whether there are new ones.
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
        """Whether the training's graph has its addresses, or will have none."""
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
        """The call did not end as it should."""
        if self._run is not None:
            self._run.stop()

    def end(self) -> None:
        """Records nothing any more."""
        self.stop()
        self._run = None
