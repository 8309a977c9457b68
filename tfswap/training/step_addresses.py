"""StepAddresses: planned addresses of a training's steps, made once its plan is steady."""

from __future__ import annotations

from tfswap.training.address_run import AddressRun
from tfswap.training.context import TrainingContext
from tfswap.training.installed_plan import InstalledPlan

# Kinds of calls.
TRAIN, TEST = "train", "test"


class StepAddresses:
    """Record steps, plan their addresses and install them.

    Args:
        context: The training.
        plan: The installed plan, which gets the addresses.
    """

    def __init__(self, context: TrainingContext, plan: InstalledPlan) -> None:
        self._context = context
        self._plan = plan
        self._run: AddressRun | None = None
        self._fingerprint = ""

    def begin(self, fingerprint: str) -> bool:
        """Start to record calls; return whether addresses of the graph have to be planned."""
        self._fingerprint = fingerprint
        devices = self._context.devices
        limit_bytes = None if devices.on_cpu else devices.budget_bytes
        self._run = AddressRun(self._context.library, devices.device, limit_bytes, self._plan.label)
        return not self._plan.has_layout(fingerprint)

    def wants(self, kind: str) -> bool:
        """Return whether the next call of this kind will be recorded."""
        return self._run is not None and self._run.wants(kind)

    @property
    def recorded(self) -> str | None:
        """The fingerprint of the graph that the last call ran, if it was recorded."""
        return None if self._run is None else self._run.recorded

    def expect(self) -> None:
        """Record training calls: one of their graphs has lost its addresses."""
        if self._run is not None:
            self._run.expect(TRAIN)

    def call_begins(self, kind: str) -> None:
        """Note that a training or validation call begins."""
        if self._run is not None:
            self._run.call_begins(kind)

    def call_ended(self, kind: str, steps: int) -> None:
        """Plan addresses of a graph that has run often enough without any.

        Args:
            kind: Kind of the call.
            steps: Number of steps in the call.
        """
        if self._run is None:
            return
        plan = self._run.call_ended(kind, self._plan.plan, steps)
        if plan is None:
            return
        self._context.report.report.plan = plan
        self._context.report.report.addresses = tuple(self._run.maps)
        self._plan.push(plan)
        self._plan.install_layouts()
        self._plan.save()

    def are_settled(self) -> bool:
        """Return whether the graph has its addresses, or will have none."""
        if self._run is None:
            return False
        if self._plan.has_layout(self._fingerprint) or self._run.is_quiet(TRAIN):
            return True
        if self._run.problem:
            self._context.log.note(self._run.problem)
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
