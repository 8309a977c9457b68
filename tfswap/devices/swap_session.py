"""SwapSession: devices under one budget, for trainings that use them in turn."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tfswap.devices import device_holder
from tfswap.devices.device_holder import DeviceBusy
from tfswap.devices.device_share import DeviceShare
from tfswap.devices.managed_devices import ManagedDevices
from tfswap.devices.model_bytes import ModelBytes
from tfswap.devices.swap_options import SwapOptions
from tfswap.hooks import eager
from tfswap.hooks.defer_sigint import defer_sigint
from tfswap.ops import library
from tfswap.ops.loaded_library import LibraryError
from tfswap.report.training_log import TrainingLog

__all__ = ["DeviceBusy", "SwapSession"]


class SwapSession:
    """Hold the devices of this process from `begin` to `end`.

    A session that is idle (between calls of its functions) ends when another one begins.

    Args:
        options: Options of all its trainings.
        log: Prints and keeps messages about the devices.
        on_release: Called before the devices are released.
        is_over: Returns whether the training has ended without calling `end`.

    Attributes:
        is_idle: Whether another session may end this one.
        thread: The thread that used it last.
        streams_weights: Whether it may move values of variables.

    Raises:
        LibraryError: The library is not loaded.
    """

    # Set by `begin`.
    devices: ManagedDevices

    def __init__(
        self,
        options: SwapOptions,
        log: TrainingLog,
        on_release: Callable[[], None] = lambda: None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self.options = options
        self.library = library.load()
        self._log = log
        self._on_release = on_release
        self._training_is_over = is_over
        self._holder = device_holder.of_process
        self._has_begun = False
        self.is_idle = False
        self.streams_weights = options.may_stream_weights
        self._stands_by = False
        self.thread = threading.current_thread()
        self._process = os.getpid()

    @property
    def is_same_process(self) -> bool:
        """Whether this is the process that made the session, not a fork of it."""
        return os.getpid() == self._process

    def is_over(self) -> bool:
        """Return whether its training, or its thread, has ended without calling `end`."""
        return not self.thread.is_alive() or self._training_is_over()

    def begin(self, layers: int = 0, model: ModelBytes | None = None) -> None:
        """Acquire the devices.

        Args:
            layers: Number of layers of models that are not built or traced yet, which take memory.
            model: Sizes of the model; None: of all variables.

        Raises:
            BrokerError: The broker has no share for this process.
            DeviceBusy: Another training of this process has the devices.
            LibraryError: The library does not manage the devices, or the spill file cannot be made.
            ValueError: The budget cannot be kept.
        """
        if not library.device_is_ours():
            raise LibraryError(
                "TensorFlow's CPU device is not tfswap's although its library is loaded: another "
                "library has replaced the device factory. Run `tfswap doctor`."
            )
        self.is_idle = False
        self.thread = threading.current_thread()
        self._holder.acquire(self)
        try:
            self.devices = ManagedDevices(
                self.library, self.options, layers, self._log.note, self._log.warn
            )
            if self.options.broker is not None:
                share = DeviceShare(self.options, self.devices, self._log.note)
                self.devices.use_share(share, share.join())
            self._has_begun = True
            self.consider_weights(model)
            self.devices.acquire(builds_models=self._stands_by)
            if self.devices.shared is not None:
                self.devices.shared.accept_changes()
        except BaseException:
            self.end()
            raise

    def consider_weights(self, model: ModelBytes | None = None) -> None:
        """Let variables leave that leave too little room (`stream_weights="auto"`).

        Args:
            model: Sizes of the model; None: of all variables.
        """
        if self.options.stream_weights == "auto":
            self.devices.consider_weights(model or ModelBytes(eager.variable_bytes()))

    @staticmethod
    def prepare_for_model() -> None:
        """Take the devices from an idle session, whose budget may have no room for a new model.

        The session that stands by gets them, if there is one: it moves variables.
        """
        standby = device_holder.of_process.standby()
        if standby is None:
            device_holder.of_process.end_unless_busy()
            return
        with suppress(DeviceBusy):
            standby.stand_by()

    def acquire(self) -> bool:
        """Acquire the devices unless the session has them, and mark it as not idle.

        Returns:
            Whether the session has the devices; if not, another training has them.

        Raises:
            BrokerError, LibraryError, ValueError: As in `begin`.
        """
        with self._holder.lock:
            self.is_idle = False
            if self.has_devices:
                return True
        try:
            self.begin()
        except DeviceBusy:
            return False
        return True

    @property
    def has_devices(self) -> bool:
        """Whether the session has the devices now."""
        return self._has_begun

    def stand_by(self) -> None:
        """Get the devices now and whenever no other session has them, until `end`.

        Values of variables that are away then stay away from one session to the next.

        Raises:
            DeviceBusy: Another training has the devices; this session gets them after it.
            LibraryError, ValueError: As in `begin`.
        """
        self._holder.set_standby(self, True)
        self._stands_by = True
        if not self.has_devices:
            self.begin()
            self.is_idle = True

    def end(self) -> None:
        """Release the devices to the session that stands by, if there is one.

        Has no effect when called again, or in a forked process.
        """
        if not self.is_same_process:
            return
        with defer_sigint():
            self._holder.set_standby(self, False)
            self._stands_by = False
            standby = self._holder.standby()
            if self._release(standby) and standby is not None:
                standby.stand_by()

    def yield_to(self, successor: device_holder.Session | None) -> None:
        """Release the devices to another session, or to none; a session that stands by stays so."""
        if self.is_same_process:
            with defer_sigint():
                self._release(successor)

    def _release(self, successor: device_holder.Session | None) -> bool:
        """Release the devices; return whether the session had them."""
        with self._holder.lock:
            if not self._holder.has(self):
                return False
            try:
                if self._has_begun:
                    self._on_release()
            finally:
                devices = getattr(self, "devices", None)
                if self._has_begun:
                    self._has_begun = False
                    self.devices.release(
                        variables_stay_away=successor is not None and successor.streams_weights
                    )
                self._holder.release(self)
        if devices is not None and devices.shared is not None:
            devices.shared.leave()
        return True

    def step_begins(self) -> None:
        """Prevent a broker from changing the budget until `step_ended`."""
        self.thread = threading.current_thread()
        if self.devices.shared is not None:
            self.devices.shared.step_begins()

    def step_ended(self) -> None:
        """Allow such changes again. Further calls have no effect."""
        if self.devices.shared is not None:
            self.devices.shared.step_ended()

    def state(self) -> dict[str, Any]:
        """Return the broker's share for `tfswap.status()`; None without a broker."""
        share = None if self.devices.shared is None else self.devices.shared.use()
        return {"share": None if share is None else dataclasses.asdict(share)}
