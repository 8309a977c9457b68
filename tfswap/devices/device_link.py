"""DeviceLink: the link of the planned device, as a training's copies have it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tfswap.devices.link_watch import LinkWatch, Speeds
from tfswap.devices.swap_options import SwapOptions
from tfswap.machine.devices import FIRST_GPU
from tfswap.machine.gpu_link import measured_link
from tfswap.machine.machine import Machine
from tfswap.ops.loaded_library import Library, LibraryError

# If cores copy this many times faster than the link, ops do not slow the copies down.
_MUCH_FASTER = 3
# Bytes per second of a GPU's link that could not be measured: PCI Express 3.
_ASSUMED_LINK = 12e9


class DeviceLink:
    """Measured or emulated, in the part that other processes leave.

    Args:
        lib: The library.
        options: Of the training.
        numbers: Of its devices.
        note: Says something.
        warn: Warns of something.

    Attributes:
        device: The one that is planned for.
        process_part: Of the link's speed, which a broker gives to this process; None: there is no
            broker.
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
        self._watch: LinkWatch | None = None

    @property
    def bandwidth(self) -> float | None:
        """Of the emulated link, if there is one: this process's part of it."""
        whole = self._options.link_bandwidth
        return None if whole is None else whole * self._part

    @property
    def _part(self) -> float:
        return 1.0 if self.process_part is None else self.process_part

    @property
    def _on_cpu(self) -> bool:
        return self.device < FIRST_GPU

    def use_part(self, process_part: float) -> None:
        """Goes by another part of the link from now on; between steps."""
        self.process_part = process_part
        for device in self._numbers:
            self._library.emulate_link(device, self.bandwidth)
        self._watch = None  # what copies had of the other part

    def machine(self) -> Machine:
        """What the device has of its link, measured within its budget."""
        if self._on_cpu and self._options.link_bandwidth is not None:
            machine = Machine.here(self.bandwidth)
        else:
            machine = self.whole().part(self._part)
        return machine if self._watch is None else machine.times(*self._watch.factors)

    def whole(self) -> Machine:
        """The device's link, as if no other process used it."""
        link_bandwidth = self._options.link_bandwidth
        if self._on_cpu:
            return Machine.here(link_bandwidth)
        if link_bandwidth is not None:
            self._warn("link_bandwidth has no effect on a GPU: its copies are its own")
        try:
            return measured_link(self._library, self.device)
        except LibraryError:
            self._note(
                f"budget or host_limit has no room to measure the link in: plans take it for "
                f"{_ASSUMED_LINK / 1e9:g} GB/s"
            )
            return Machine("pinned host memory", _ASSUMED_LINK, _ASSUMED_LINK)

    def look(self, machine: Machine) -> str:
        """Whether copies have another speed than plans take the link for: see `LinkWatch.look`.

        Not of a GPU, which says nothing of single copies, nor where others use the link too.

        Args:
            machine: The link that the plan goes by.
        """
        if not self._on_cpu or self.process_part is not None:
            return ""
        stats = self._library.memory_stats(self.device)
        if self._watch is None:
            speeds = Speeds(machine.out_bytes_per_s, machine.in_bytes_per_s)
            by_cores = machine.copy_bytes_per_s / _MUCH_FASTER
            is_known = max(machine.out_bytes_per_s, machine.in_bytes_per_s) < by_cores
            self._watch = LinkWatch(speeds, stats, is_known)
            return ""
        return self._watch.look(stats)

    @property
    def is_off(self) -> bool:
        """Whether the last look saw another speed, so that another look will tell."""
        return self._watch is not None and self._watch.is_off
