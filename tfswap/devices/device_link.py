"""DeviceLink: the link between the planned device and far memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tfswap.devices.swap_options import SwapOptions
from tfswap.machine.devices import FIRST_GPU
from tfswap.machine.gpu_link import measure_gpu_link
from tfswap.machine.machine import Machine
from tfswap.ops.loaded_library import Library, LibraryError

# Bytes per second of a GPU's link that could not be measured: PCI Express 3.
_ASSUMED_LINK = 12e9


class DeviceLink:
    """The measured or emulated link, or the part of it that a broker gives to this process.

    Args:
        lib: The library.
        options: Options of the training.
        numbers: Numbers of the devices.
        note: Prints and keeps a message.
        warn: Prints and keeps a warning.

    Attributes:
        device: Number of the planned device.
        process_part: The fraction of the link that a broker gives to this process; None without
            a broker.
    """

    def __init__(
        self,
        lib: Library,
        options: SwapOptions,
        numbers: Sequence[int],
        note: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        self._library, self._options, self._numbers = lib, options, numbers
        self._note, self._warn = note, warn
        self.device = numbers[0]
        self.process_part: float | None = None

    @property
    def bandwidth(self) -> float | None:
        """Bytes per second of this process's part of the emulated link; None if there is none."""
        whole = self._options.link_bandwidth
        return None if whole is None else whole * self._part

    @property
    def _part(self) -> float:
        return 1.0 if self.process_part is None else self.process_part

    @property
    def _on_cpu(self) -> bool:
        return self.device < FIRST_GPU

    def use_part(self, process_part: float) -> None:
        """Use another part of the link from now on; call between steps."""
        self.process_part = process_part
        for device in self._numbers:
            self._library.emulate_link(device, self.bandwidth)

    def machine(self) -> Machine:
        """Return this process's part of the link, measured within the budget."""
        if self._on_cpu and self._options.link_bandwidth is not None:
            return Machine.here(self.bandwidth)
        return self.whole().part(self._part)

    def whole(self) -> Machine:
        """Return the device's link as if no other process used it."""
        link_bandwidth = self._options.link_bandwidth
        if self._on_cpu:
            return Machine.here(link_bandwidth)
        if link_bandwidth is not None:
            self._warn("link_bandwidth has no effect on a GPU: its copies are its own")
        try:
            return measure_gpu_link(self._library, self.device)
        except LibraryError:
            self._note(
                f"budget or host_limit has no room to measure the link in: plans take it for "
                f"{_ASSUMED_LINK / 1e9:g} GB/s"
            )
            return Machine("pinned host memory", _ASSUMED_LINK, _ASSUMED_LINK)
