"""DeviceBudgets: the budgets that a training's options come to on its devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfswap.machine import budget as budgets
from tfswap.machine import host_memory
from tfswap.machine.devices import FIRST_GPU, device_name
from tfswap.ops.loaded_library import Library
from tfswap.training.swap_options import SwapOptions

# What a process takes for a model's graphs: traced, differentiated, optimised, and kept.
_GROWTH_BYTES, _LAYER_GROWTH_BYTES = 192 << 20, 2 << 20
# Of what is there for device and far memory, "auto" leaves so much for what comes and goes: graphs
# are optimised again, and code must stay in the page cache. With a swap file the rest can go there.
_MARGIN, _MARGIN_BYTES, _MARGIN_BYTES_WITH_SWAP = 0.03, 160 << 20, 64 << 20


class DeviceBudgets:
    """What may be had of devices, and of the host for them.

    Args:
        lib: The library.
        options: Of the training.
        numbers: Of the devices.
        layers: How many the model has; its graphs take memory too.

    Attributes:
        available_bytes: What the host had to give at first.

    Raises:
        ValueError: Budgets by device are not for those that there are.
    """

    def __init__(
        self, lib: Library, options: SwapOptions, numbers: Sequence[int], layers: int
    ) -> None:
        self._library, self._options = lib, options
        self._check_names(numbers)
        self.available_bytes = budgets.without_growth(
            host_memory.available_host_bytes(), _GROWTH_BYTES + layers * _LAYER_GROWTH_BYTES
        )

    def of(self, device: int) -> int:
        """In bytes; a part of a GPU's memory is of its own: GPUs and logical devices differ."""
        budget = self._options.budget
        stats = self._library.memory_stats(device)
        on_cpu = device < FIRST_GPU
        return budgets.resolve(
            budget[device_name(device)] if isinstance(budget, Mapping) else budget,
            device_limit_bytes=None if on_cpu else stats["memory_bytes"],
            available_bytes=self.available_bytes if on_cpu else None,
            in_use_bytes=stats["bytes_in_use"],
        )

    def whole_host_bytes(self, device: int) -> int:
        """What there is by now for a CPU and its far memory, with what they have already."""
        self._library.trim_malloc()
        held = self._library.memory_stats(device)
        ours_bytes = held["bytes_in_use"] + held["host_bytes_in_use"] + held["host_bytes_cached"]
        whole_bytes = ours_bytes + host_memory.available_host_bytes()
        margin_bytes = _MARGIN_BYTES_WITH_SWAP if host_memory.free_swap_bytes() else _MARGIN_BYTES
        return whole_bytes - max(margin_bytes, int(_MARGIN * whole_bytes))

    def _check_names(self, numbers: Sequence[int]) -> None:
        if not isinstance(self._options.budget, Mapping):
            return
        named, there = set(self._options.budget), {device_name(each) for each in numbers}
        if named != there:
            raise ValueError(
                f"budget is for {', '.join(sorted(named))}; there are "
                f"{', '.join(sorted(there))}, and each needs one"
            )
