"""SwapSession: devices under one budget, for the trainings that share it."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from tfswap.ops import library
from tfswap.swap_options import SwapOptions
from tfswap.training.device_share import DeviceShare
from tfswap.training.managed_devices import ManagedDevices
from tfswap.training.voice import Voice


class DeviceBusy(RuntimeError):
    """Another training has the devices, under a budget of its own."""


class SwapSession:
    """Has the devices of this process from `begin` to `end`; nobody else has them meanwhile.

    One that is idle (between calls of its functions) lets go of them when another begins.

    Args:
        options: Of all its trainings.
        voice: For what concerns all of them.
        let_go: Called before the devices are given back.

    Attributes:
        is_idle: Whether it may be told to let go of them.

    Raises:
        LibraryError: The library is not loaded.
    """

    _holder: ClassVar[SwapSession | None] = None

    # From `begin` on.
    devices: ManagedDevices

    def __init__(
        self, options: SwapOptions, voice: Voice, let_go: Callable[[], None] = lambda: None
    ) -> None:
        self.options = options
        self.library = library.load()
        self._voice = voice
        self._let_go = let_go
        self.is_idle = False

    def begin(self, layers: int = 0) -> None:
        """Takes the devices.

        Args:
            layers: How many the models have that are not built or traced yet; they take memory too.

        Raises:
            BrokerError: A broker has them, and no share for this process.
            DeviceBusy: A training is under way that does not share them.
            LibraryError: They are not the library's, or there can be no file.
            ValueError: The budget cannot be kept.
        """
        if not library.device_is_ours():
            raise library.LibraryError(
                "TensorFlow's CPU device is not tfswap's although its library is loaded: another "
                "library has replaced the device factory. Run `tfswap doctor`."
            )
        holder = SwapSession._holder
        if holder is not None and holder is not self:
            if not holder.is_idle:
                raise DeviceBusy(
                    "tfswap: another training is under way in this process, and has the devices "
                    "under its own budget: let it end first, or give both one tfswap.Session"
                )
            holder.end()
        self.devices = ManagedDevices(
            self.library, self.options, layers, self._voice.note, self._voice.warn
        )
        SwapSession._holder = self
        try:
            if self.options.broker is not None:
                share = DeviceShare(self.options, self.devices, self._voice.note)
                self.devices.use_share(share, share.join())
            self.devices.take()
            if self.devices.shared is not None:
                self.devices.shared.hold()
        except BaseException:
            self.end()
            raise

    @classmethod
    def let_go_if_idle(cls) -> None:
        """Has nobody's budget in force where somebody's is only between calls of its functions."""
        if cls._holder is not None and cls._holder.is_idle:
            cls._holder.end()

    @property
    def has_devices(self) -> bool:
        """Whether it has them now."""
        return SwapSession._holder is self

    def end(self) -> None:
        """Gives the devices back; harmless when called again."""
        if SwapSession._holder is not self:
            return
        try:
            self._let_go()
        finally:
            SwapSession._holder = None
            self.devices.give_back()
            if self.devices.shared is not None:
                self.devices.shared.leave()
