"""SwapSession: devices under one budget, for the trainings that share it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

from tfswap.hooks.defer_sigint import defer_sigint
from tfswap.machine.link import Link
from tfswap.ops import library
from tfswap.ops.loaded_library import LibraryError
from tfswap.step.timeline import Timeline
from tfswap.training import device_jobs
from tfswap.training.device_job import Job
from tfswap.training.device_jobs import DeviceBusy, NoShare
from tfswap.training.device_share import DeviceShare
from tfswap.training.log import TrainingLog
from tfswap.training.managed_devices import ManagedDevices
from tfswap.training.swap_options import SwapOptions

__all__ = ["DeviceBusy", "NoShare", "SwapSession"]


class SwapSession:
    """Has the devices of this process from `begin` to `end`, or a share of them beside others.

    One that is idle (between calls of its functions) lets go of them when another begins that
    cannot be beside it: in the same thread, or with other options.

    Args:
        options: Of all its trainings.
        voice: For what concerns all of them.
        let_go: Called before the devices are given back.
        is_over: Whether what it was begun for runs no more, although nobody has ended it.

    Attributes:
        is_idle: Whether it may be told to let go of them.

    Raises:
        LibraryError: The library is not loaded.
    """

    # From `begin` on.
    devices: ManagedDevices

    def __init__(
        self,
        options: SwapOptions,
        voice: TrainingLog,
        let_go: Callable[[], None] = lambda: None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self.options = options
        self.library = library.load()
        self._voice = voice
        self._let_go = let_go
        self.is_over = is_over
        self._jobs = device_jobs.of_process(self.library)
        self._job = Job(self)
        self.is_idle = False
        self._process = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether this is not a process that was forked off the one whose devices they are."""
        return os.getpid() == self._process

    def begin(self, layers: int = 0) -> None:
        """Takes the devices, or its share.

        Args:
            layers: How many the models have that are not built or traced yet; they take memory too.

        Raises:
            BrokerError: A broker has them, and no share for this process.
            DeviceBusy: Another training has them, and they cannot be shared.
            LibraryError: They are not the library's, or there can be no file.
            NoShare: Others left no room for it as long as it waited.
            ValueError: The budget cannot be kept.
        """
        if not library.device_is_ours():
            raise LibraryError(
                "TensorFlow's CPU device is not tfswap's although its library is loaded: another "
                "library has replaced the device factory. Run `tfswap doctor`."
            )
        self._jobs.make_way(self._job)
        self.devices = ManagedDevices(
            self.library, self.options, layers, self._voice.note, self._voice.warn
        )
        try:
            if self.options.broker is not None:
                share = DeviceShare(self.options, self.devices, self._voice.note)
                self.devices.use_share(share, share.join())
            self._jobs.join(self._job, self.devices)
            if self.devices.shared is not None:
                self.devices.shared.hold()
        except BaseException:
            self.end()
            raise

    @staticmethod
    def let_go_if_idle() -> None:
        """Has nobody's budget in force where somebody's is only between calls of its functions."""
        device_jobs.of_process(library.load()).let_go_if_idle()

    def hold(self) -> bool:
        """Takes the devices if they are not its own, and is not idle from then on.

        Returns:
            Whether they are its own; otherwise another training has them.

        Raises:
            BrokerError, LibraryError, NoShare, ValueError: As `begin`.
        """
        with self._jobs.lock:
            self.is_idle = False
            if not self.has_devices:
                try:
                    self.begin()
                except DeviceBusy:
                    return False
        return True

    @property
    def will_share(self) -> bool:
        """Whether others have the devices, or may have."""
        return self.options.broker is not None or self._jobs.are_there()

    @property
    def has_devices(self) -> bool:
        """Whether it has them, or its share, now."""
        return self._jobs.has(self._job)

    def end(self) -> None:
        """Gives them back; harmless when called again, and in a process forked meanwhile."""
        if self.is_here:
            with defer_sigint():
                self._end()

    def _end(self) -> None:
        with self._jobs.lock:
            try:
                if self.has_devices:
                    self._let_go()
            finally:
                self._jobs.leave(self._job)  # it may be waiting for its share
        devices = getattr(self, "devices", None)
        if devices is not None and devices.shared is not None:
            devices.shared.leave()

    # Steps, beside other trainings.

    @property
    def version(self) -> int:
        """Counts the changes of what it has of the devices, which happen between steps."""
        return self._job.version

    def step_begins(self) -> None:
        """What it has of the devices stays as it is until `step_ended`."""
        self._jobs.step_begins(self._job)
        if self.devices.shared is not None:
            self.devices.shared.step_begins()

    def step_ended(self) -> None:
        """Harmless when called again."""
        self._jobs.step_ended(self._job)
        if self.devices.shared is not None:
            self.devices.shared.step_ended()

    def know(self, timeline: Timeline, link: Link) -> None:
        """A step has just been profiled: see `DeviceJobs.know`."""
        self._jobs.know(self._job, timeline, link)

    def state(self) -> dict[str, Any]:
        """For `tfswap.status()`: see `DeviceJobs.state`; and the share that a broker gives."""
        share = None if self.devices.shared is None else self.devices.shared.use()
        of_broker = None if share is None else dataclasses.asdict(share)
        return {**self._jobs.state(self._job), "share": of_broker}
