"""DeviceShare: the share of a device that a broker gives to this process's trainings."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from tfswap.devices.device_link import DeviceLink
from tfswap.devices.swap_options import SwapOptions
from tfswap.io.amounts import readable_bytes
from tfswap.jobs.granted_share import GrantedShare
from tfswap.jobs.job import Job
from tfswap.jobs.job_trace import job_trace
from tfswap.jobs.share import Share
from tfswap.jobs.socket_path import parse_path
from tfswap.machine import budget as budgets
from tfswap.plan.measured_plan import CLEARLY_FITS
from tfswap.report.summary import Report, ShareUse
from tfswap.step.timeline import Timeline, peak_load

# What a process may allocate between what it holds when it joins and its first step.
_FIRST_BYTES = 1 << 20


class _Devices(Protocol):
    """The interface of `ManagedDevices` that a share uses."""

    numbers: list[int]
    link: DeviceLink

    @property
    def budget_bytes(self) -> int: ...
    @property
    def on_cpu(self) -> bool: ...
    @property
    def weights_may_leave(self) -> bool: ...
    def in_use_bytes(self) -> int: ...
    def load_bytes(self) -> int: ...
    def change_budget(self, budget_bytes: int) -> bool: ...


class _Run(Protocol):
    report: Report

    def replan(self, reason: str) -> None: ...


class DeviceShare:
    """Join the broker, and install its shares between steps.

    Args:
        options: Options of the training, which name a broker.
        devices: The managed devices; there must be only one.
        note: Prints and keeps a message.

    Raises:
        ImportError: gRPC is not installed.
        ValueError: There are several devices.
    """

    def __init__(
        self, options: SwapOptions, devices: _Devices, note: Callable[[str], None]
    ) -> None:
        assert options.broker is not None
        if len(devices.numbers) != 1:
            raise ValueError(
                f"broker={options.broker!r} is for processes with one device, and this one has "
                f"{len(devices.numbers)}: show it one of them (CUDA_VISIBLE_DEVICES, say), and run "
                "a broker for each"
            )
        share = options.share or Share()
        assert not isinstance(options.budget, Mapping)
        wanted_bytes = 0 if budgets.is_auto(options.budget) else devices.budget_bytes
        self._devices = devices
        self._note = note
        self._runs: weakref.WeakSet[_Run] = weakref.WeakSet()
        self._steps: weakref.WeakKeyDictionary[object, tuple[Timeline, int]] = (
            weakref.WeakKeyDictionary()
        )
        self._job = Job(
            parse_path(options.broker),
            share.name or Path(sys.argv[0] or "job").name,
            share,
            wanted_bytes,
            "CPU" if devices.on_cpu else "GPU",
            note,
        )

    # Begin and end.

    def join(self) -> int:
        """Wait for the first share; return its bytes.

        Raises:
            BrokerError: The broker refuses the job, or has no share for it in time.
        """
        try:
            granted = self._job.join(self.in_use_bytes() + _FIRST_BYTES)
        except BaseException:  # an interrupt too
            self._job.leave()
            raise
        self._devices.link.process_part = granted.link_share
        return granted.budget_bytes

    def accept_changes(self) -> None:
        """Let the broker change the share between steps, from now on."""
        self._job.hold(self)

    def leave(self) -> None:
        """Return the share to the broker. Further calls have no effect."""
        self._job.leave()

    # Trainings.

    def watch(self, run: _Run) -> None:
        """Plan a training again whenever the share changes."""
        self._runs.add(run)
        run.report.share = self.use()

    def step_begins(self) -> None:
        """Block changes of the share until `step_ended`."""
        self._job.step_begins()

    def step_ended(self) -> None:
        """Allow changes again. Further calls have no effect."""
        self._job.step_ended()

    def profiled(self, planner: object, timeline: Timeline, least_bytes: int) -> None:
        """Report a step to the broker; of several functions' steps, the one with the highest peak.

        Args:
            planner: The planner of the step; this step replaces its previous one.
            timeline: The profiled step.
            least_bytes: The smallest budget that the step can run in.
        """
        self._steps[planner] = (timeline, least_bytes)
        largest = max((step for step, _ in self._steps.values()), key=peak_load)
        self._job.profiled(job_trace(largest, self._devices.link.whole()))

    def use(self) -> ShareUse | None:
        """Return the current share, for reports; None before the first one."""
        granted = self._job.granted
        return None if granted is None else self._described(granted)

    def _described(self, share: GrantedShare) -> ShareUse:
        return ShareUse(
            str(self._job.socket),
            share.device,
            share.budget_bytes,
            share.device_bytes,
            share.link_share,
            share.jobs,
            self._job.in_touch,
        )

    # Called between steps, by the broker's thread or by the training thread.

    def in_use_bytes(self) -> int:
        """Return the bytes that the process holds of the device."""
        return self._devices.in_use_bytes()

    def change(self, share: GrantedShare) -> int | None:
        """Install a share, or return why not; see `tfswap.jobs.job.Holdings`."""
        before_bytes = self._devices.budget_bytes
        if share.budget_bytes < before_bytes:
            least_bytes = max((least for _, least in self._steps.values()), default=0)
            if not self._devices.weights_may_leave:
                # Between steps, only idle memory can be released.
                least_bytes = max(least_bytes, self._devices.load_bytes() + _FIRST_BYTES)
            if share.budget_bytes < least_bytes:
                return least_bytes
        if not self._devices.change_budget(share.budget_bytes):
            least_bytes = self.in_use_bytes()
            self._devices.change_budget(before_bytes)
            return least_bytes
        self._devices.link.use_part(share.link_share)
        self._note(
            f"the broker gives {readable_bytes(share.budget_bytes)} of "
            f"{readable_bytes(share.device_bytes)}, and {share.link_share:.0%} of the link, to "
            f"this job of {share.jobs}"
        )
        for run in list(self._runs):
            run.report.share = self._described(share)
            if _still_fits(run.report, share.budget_bytes):
                run.report.budget_bytes = share.budget_bytes
                continue
            run.replan("the broker has another share for this job")
        return None


def _still_fits(report: Report, budget_bytes: int) -> bool:
    """Return whether the training fits into the budget without swaps, and runs without them."""
    peak_bytes = report.unswapped_peak_bytes
    if report.outcome != "fits" or peak_bytes is None:
        return False
    return not report.bytes_out_per_step and peak_bytes <= CLEARLY_FITS * budget_bytes
