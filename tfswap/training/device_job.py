"""Job: what one training of this process, of several that share a device, has of it."""

from __future__ import annotations

import threading
import time
from typing import Protocol

from tfswap.jobs.share import Share
from tfswap.jobs.slowdown import SlowdownCurve, planned_curve
from tfswap.machine.link import Link
from tfswap.step.timeline import Timeline, peak_load
from tfswap.training.managed_devices import ManagedDevices
from tfswap.training.swap_options import SwapOptions

# How long a job's curve may take to be worked out.
_MOST_CURVE_S = 1.0


class Holder(Protocol):
    """Has a job: a `SwapSession`."""

    options: SwapOptions
    is_idle: bool

    def is_over(self) -> bool:
        """Whether what it was begun for runs no more, although nobody has ended it."""
        ...

    def end(self) -> None:
        """Gives its part of the devices back."""


class Job:
    """What one training, or several that take turns, has of the device.

    Attributes:
        holder: Whose.
        number: By which the library knows it; 0 while it has the device for itself.
        share_bytes: In force when shares were last divided, or taken over since; None: all that
            there is.
        version: Counts the changes of that.
        held_bytes: What it had between its last two steps: its variables.
        devices: What it sees of them.
    """

    def __init__(self, holder: Holder) -> None:
        self.holder = holder
        self.number = 0
        self.share_bytes: int | None = None
        self.version = 0
        self.devices: ManagedDevices | None = None
        self.target_bytes: int | None = None
        self.has_begun = False
        self.steps = 0
        self.held_bytes = 0
        self.in_step = False
        self.waits_in_step = False  # for a share that its first step is foretold to need
        self.thread = threading.current_thread()
        self._profile: tuple[Timeline, Link] | None = None
        self._is_foretold = False
        self._curve: SlowdownCurve | None = None

    def profiled(self, timeline: Timeline, link: Link) -> None:
        """Its step is known; of several functions', the one that needs most counts."""
        known = self._profile
        if known is None or self._is_foretold or peak_load(timeline) >= peak_load(known[0]):
            self._profile, self._curve = (timeline, link), None
            self._is_foretold = False

    def curve(self) -> SlowdownCurve | None:
        """Of its steps by what it has of the device for itself; None: not known yet."""
        if self._profile is None or self.devices is None:
            return None
        if self._curve is None:
            timeline, link = self._profile
            self._curve = planned_curve(timeline, link, deadline_s=time.monotonic() + _MOST_CURVE_S)
        # What was there then is, by now, its own in part.
        then_bytes = self._profile[0].resident_bytes if self._is_foretold else None
        base_bytes = self.devices.base_bytes(self.held_bytes, then_bytes)
        budgets_bytes = [budget - base_bytes for budget in self._curve.budget_bytes]
        kept = {max(b, 1): s for b, s in zip(budgets_bytes, self._curve.slowdowns, strict=True)}
        return SlowdownCurve(tuple(kept), tuple(kept.values()))

    def lack_bytes(self) -> int:
        """What its share lacks of the least that its foretold step can do with."""
        curve = self.curve()
        if curve is None or self.share_bytes is None:
            return 0
        return max(curve.least_bytes - self.share_bytes, 0)

    @property
    def is_known(self) -> bool:
        """Whether its step has been profiled."""
        return self._profile is not None and not self._is_foretold

    @property
    def share(self) -> Share:
        """What was asked for."""
        return self.holder.options.share or Share()
