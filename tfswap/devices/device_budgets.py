"""DeviceBudgets: resolve a training's budget options into bytes on its devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfswap.devices.swap_options import SwapOptions
from tfswap.machine import budget as budgets
from tfswap.machine import host_memory
from tfswap.machine.devices import FIRST_GPU, device_name
from tfswap.ops.loaded_library import Library

# Memory that a model's graphs take: for a model in total, and for each layer.
_GROWTH_BYTES, _LAYER_GROWTH_BYTES = 192 << 20, 2 << 20
# "auto" leaves this much memory free for temporary needs: graphs are optimised again, and code must
# stay in the page cache. With a swap file, it leaves less.
_MARGIN, _MARGIN_BYTES, _MARGIN_BYTES_WITH_SWAP = 0.03, 160 << 20, 64 << 20


class DeviceBudgets:
    """Resolve budgets into bytes.

    Args:
        lib: The library.
        options: Options of the training.
        numbers: Numbers of the devices.
        layers: Number of layers of the model, whose graphs take memory too.

    Attributes:
        available_bytes: Host memory that was available at first, without the model's graphs.

    Raises:
        ValueError: Budgets by device do not name exactly the devices that exist.
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
        """Return the budget of a device in bytes; a fraction is of that device's own memory."""
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
        """Return the bytes that a CPU device and its far memory hold or could still allocate."""
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
