"""ManagedDevices: the devices of one training, under its budget and options."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from tfswap.devices import dead_models
from tfswap.devices.device_budgets import DeviceBudgets
from tfswap.devices.device_codecs import DeviceCodecs
from tfswap.devices.device_link import DeviceLink
from tfswap.devices.device_share import DeviceShare
from tfswap.devices.model_bytes import ModelBytes
from tfswap.devices.swap_options import SwapOptions
from tfswap.hooks import eager
from tfswap.machine import budget as budgets
from tfswap.machine.codec_speed import codec_speeds
from tfswap.machine.devices import FIRST_GPU, NOT_OURS, device_name, visible_gpus
from tfswap.machine.far_tier import HOST, TIERS, FarTier
from tfswap.machine.file_link import MonitoredFileTier, file_tier_behind_link, measure_file_tier
from tfswap.machine.gpu_codec_speed import gpu_codec_speeds
from tfswap.machine.machine import Machine
from tfswap.ops.loaded_library import Library
from tfswap.plan.measured_plan import CLEARLY_FITS
from tfswap.plan.schema import FunctionPlan
from tfswap.planning.planners.assignment import FarMemory
from tfswap.report.summary import TierUse

# A plan stays usable while the budget is at least this fraction of the one that it was made for.
_COVERED_FRACTION = 0.99
# Longest wait for copies that make room, and the pause between two checks.
_MAKE_ROOM_S, _POLL_S = 1.0, 0.005


class ManagedDevices:
    """Manage all GPUs if TensorFlow has any, otherwise its CPU devices.

    Only one device is recorded and planned for: at first the first one, after the first step the
    one that needs most memory.

    Args:
        lib: The library.
        options: Options of the training.
        layers: Number of layers of the model, whose graphs take memory too.
        note: Prints and keeps a message.
        warn: Prints and keeps a warning.

    Attributes:
        numbers: Numbers of all devices.
        codecs: Codecs that may encode swapped tensors.
        shared: The share that a broker gives instead of a budget; None without a broker.
        link: The link of the planned device.
        device: Number of the planned device.
        weights_may_leave: Whether plans may swap out values of variables.
        streams_weights: Whether they leave when nothing else can make room.
    """

    def __init__(
        self,
        lib: Library,
        options: SwapOptions,
        layers: int,
        note: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        self._library = lib
        self._options = options
        self._warn = warn
        gpus = visible_gpus(lib)
        if gpus and all(gpu.is_ours for gpu in gpus):
            self.numbers = [gpu.number for gpu in gpus]
        else:
            if gpus:
                warn(NOT_OURS)
            self.numbers = list(range(lib.device_count()))
        dead_models.free(lib, self.numbers)
        self._budgets = DeviceBudgets(lib, options, self.numbers, layers)
        self.codecs = DeviceCodecs(lib, options, self.numbers, warn)
        self.shared: DeviceShare | None = None
        self.device = self.numbers[0]
        self.link = DeviceLink(lib, options, self.numbers, note, warn)
        first_bytes = self._budgets.of(self.device)
        self._budget_bytes = {  # by device; changed by `use_share` and `_set_budgets` only
            device: first_bytes if self._shares_budget else self._budgets.of(device)
            for device in self.numbers
        }
        self._host_limit_bytes = 0
        self.streams_weights = self.weights_may_leave = options.stream_weights is True
        self._file: MonitoredFileTier | None = None
        self._before: dict[int, dict[str, int]] = {}  # statistics when training began
        self._first: dict[int, dict[str, int]] = {}  # counts when the first step began

    def use_share(self, share: DeviceShare, budget_bytes: int) -> None:
        """Use a broker's share as the budget; call before `acquire`."""
        self.shared = share
        self._budget_bytes = dict.fromkeys(self.numbers, budget_bytes)

    @property
    def budget_bytes(self) -> int:
        """Budget of the planned device."""
        return self._budget_bytes[self.device]

    @property
    def fitting_bytes(self) -> float:
        """The most that a step needs that clearly fits the planned device's budget."""
        return CLEARLY_FITS * self.budget_bytes

    @property
    def _shares_budget(self) -> bool:
        """Whether one budget is for all devices: CPUs, which have the same memory."""
        return self.on_cpu and not isinstance(self._options.budget, Mapping)

    def _set_budgets(self, budget_bytes: Mapping[int, int]) -> None:
        """Install a budget for each device."""
        self._budget_bytes = dict(budget_bytes)
        for device, bytes_ in self._budget_bytes.items():
            self._library.set_budget(device, bytes_)

    @property
    def plans_addresses(self) -> bool:
        """Whether addresses are planned. A CPU returns idle pages, wherever they are."""
        return not self.on_cpu if self._options.slab is None else self._options.slab

    @property
    def on_cpu(self) -> bool:
        """Whether the devices are CPUs: far memory is the same RAM, and cores run the copies."""
        return self.device < FIRST_GPU

    def acquire(self, builds_models: bool = False) -> None:
        """Install the budgets and options.

        Args:
            builds_models: Models will be built or loaded, whose variables are not known yet.
        """
        options = self._options
        self._before = {device: self._library.memory_stats(device) for device in self.numbers}
        all_bytes = sum(self._budget_bytes.values())
        on_host_bytes = self.budget_bytes if self._shares_budget else all_bytes
        self._host_limit_bytes = budgets.resolve_host_limit(
            options.host_limit,
            on_host_bytes if self.on_cpu else None,
            available_bytes=self._budgets.available_bytes,
        )
        self._library.set_host_limit(self._host_limit_bytes)
        self.codecs.load_cpu()
        if options.spill_dir is not None:
            self._library.open_file(os.fspath(options.spill_dir), options.spill_limit)
        self.streams_weights |= builds_models and options.may_stream_weights
        if self.streams_weights:
            self._stream_weights()  # before the budget, which existing variables may exceed
        self._set_budgets(self._budget_bytes)
        for device in self.numbers:
            self._library.set_workspace_limit(device, options.workspace_limit)
            self._library.emulate_link(device, self.link.bandwidth)
            self._library.set_verify(device, options.verify)
            if options.slab is not False:
                self._library.always_slab(device, True)
        if self.streams_weights:
            for device in self.numbers:
                self._library.make_room(device)
        if not self.on_cpu:
            self.codecs.load_gpu()
        self._library.trim_malloc()
        if self.on_cpu and options.workspace_limit is not None:
            self._warn("workspace_limit has no effect on a CPU: its ops ask for no workspaces")

    def change_budget(self, budget_bytes: int) -> bool:
        """Change the budget of each device between steps; the caller then plans again.

        A larger budget applies at once, even during a step. A smaller one releases idle memory of
        the slab, on a GPU with its planned addresses, and swaps out values of streamed variables.

        Args:
            budget_bytes: Cap on each device's memory.

        Returns:
            Whether all devices are within the budget now. A device that is not refuses all
            allocations until it is.

        Raises:
            ValueError: The budget is not above 0 bytes.
        """
        if budget_bytes <= 0:
            raise ValueError(f"a budget must be above 0 bytes, not {budget_bytes}")
        is_more = budget_bytes >= self.budget_bytes
        self._set_budgets(dict.fromkeys(self.numbers, budget_bytes))
        if is_more and all(self._in_use_bytes(device) <= budget_bytes for device in self.numbers):
            return True
        within = [self._make_room(device, budget_bytes) for device in self.numbers]
        if self.on_cpu:
            self._library.trim_malloc()
        return all(within)

    def covers(self, planned_bytes: int) -> bool:
        """Return whether a plan for a budget of `planned_bytes` holds within the current one."""
        return self.budget_bytes >= _COVERED_FRACTION * planned_bytes

    def _make_room(self, device: int, budget_bytes: int) -> bool:
        """Release and swap out what can leave; return whether the device is within the budget."""
        if self._in_use_bytes(device) > budget_bytes and not self.on_cpu:
            self._library.clear_layouts(device)  # its slab is one block
        self._library.make_room(device)
        deadline_s = time.monotonic() + _MAKE_ROOM_S
        while self._in_use_bytes(device) > budget_bytes and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)  # until copies end
            self._library.make_room(device)  # a copy that ended may not have freed enough
        return self._in_use_bytes(device) <= budget_bytes

    def _in_use_bytes(self, device: int) -> int:
        return self._library.step_counts(device)["bytes_in_use"]

    def prepare_far_memory(self, function: FunctionPlan) -> None:
        """Take the pinned memory that a GPU's plan needs now, not in a step. A CPU needs none.

        Args:
            function: The plan of a graph; only its uncompressed swaps of tensors are considered:
                variables have their memory since they first left, on demand.
        """
        if self.on_cpu:
            return
        for device in self.numbers:
            own = "" if device == self.device else device_name(device)
            swaps = (s for s in function.swaps if s.device == own and s.tier == HOST)
            tensors = (swap for swap in swaps if not swap.lazy and not swap.after)
            self._library.prepare_host_memory(device, [swap.size_bytes for swap in tensors])

    def step_counts(self) -> dict[str, int]:
        """Return the step counts of the planned device."""
        return self._library.step_counts(self.device)

    def restart_window(self) -> None:
        """Reset the peaks of the planned device to its current use."""
        self._library.restart_window(self.device)

    def consider_weights(self, model: ModelBytes) -> None:
        """Let plans swap out values of variables from now on, if these leave too little room.

        Has no effect after `acquire` if it did not expect that.
        """
        if self._before and not self.streams_weights:
            return
        for device in self.numbers:
            free_bytes = self._budget_bytes[device] - self.others_bytes(model.variables, device)
            self.weights_may_leave |= model.leave_too_little(free_bytes)
        self.streams_weights |= self.weights_may_leave

    def others_bytes(self, variable_bytes: int, device: int | None = None) -> int:
        """Return the size of what a device has between steps beside these variables.

        Args:
            variable_bytes: Size of a model's variables, on the device or away.
            device: The device; None: the planned one.
        """
        stats = self._library.memory_stats(self.device if device is None else device)
        away_bytes = sum(stats[f"far_{tier}_bytes_in_use"] for tier in TIERS)
        return max(0, stats["load_bytes"] + away_bytes - variable_bytes)

    def _stream_weights(self) -> None:
        """Stream variables, including those that exist already."""
        for device in self.numbers:
            self._library.stream_variables(device, True)
        eager.touch_variables()

    def release(self, variables_stay_away: bool = False) -> None:
        """Reset the devices to their state before the training. Further calls have no effect.

        Args:
            variables_stay_away: Values of variables that are in far memory stay there, and the
                budget stays until the next session, which streams them too, sets its own.
        """
        self.codecs.release()
        for device in self.numbers:
            self._library.set_workspace_limit(device, None)
            self._library.emulate_link(device, None)
            self._library.set_verify(device, False)
            self._library.always_slab(device, False)
            self._library.clear_layouts(device)  # before variables come back: its memory is idle
            if variables_stay_away:
                continue
            self._library.set_budget(device, None)
            problem = self._library.stream_variables(device, False)  # the session before may have
            if problem:
                self._warn(f"some variables are still in far memory: {problem}")
        self._library.open_file(None)
        self._library.set_host_limit(None)
        self._library.forget_optimized_graphs()
        self._library.trim_host()

    def refresh_auto_budget(self) -> bool:
        """Compute an "auto" budget on a CPU again, from the memory that is available now.

        Call after the graphs have been made and run, when the process has reached its size.

        Returns:
            Whether the budget was computed and set; False for GPUs, given budgets and shares.
        """
        if not self.on_cpu or isinstance(self._options.budget, Mapping):
            return False
        if self.shared is not None:
            return False
        if not budgets.is_auto(self._options.budget):
            return False
        whole_bytes = self._budgets.whole_host_bytes(self.device)
        budget_bytes = int(budgets.AUTO_BUDGET * whole_bytes)
        self._set_budgets(dict.fromkeys(self.numbers, budget_bytes))
        if budgets.is_auto(self._options.host_limit):
            left_bytes = whole_bytes - budget_bytes
            self._host_limit_bytes = int(budgets.AUTO_HOST_LIMIT * left_bytes)
            self._library.set_host_limit(self._host_limit_bytes)
        return True

    def in_use_bytes(self) -> int:
        """Return the bytes in use on the planned device, including idle memory of the slab."""
        return self._in_use_bytes(self.device)

    def load_bytes(self) -> int:
        """Return the bytes that were requested from the planned device and not freed."""
        return self._library.memory_stats(self.device)["load_bytes"]

    def far_memory(self, machine: Machine) -> FarMemory:
        """Return the far memory of the planned device.

        Args:
            machine: Speeds of the device's link.
        """
        stats = self._library.memory_stats(self.device)
        file = self._file_behind(machine, stats)
        if self.on_cpu:
            host = FarTier.of_host(machine, self._host_limit_bytes)
            return FarMemory(host, file, codec_speeds(self.codecs.all))
        # A GPU has its part of the host limit, and stages copies to the file in some of it.
        far_bytes = stats["far_host_bytes_in_use"] + stats["far_compressed_bytes_in_use"]
        other_bytes = stats["host_bytes_in_use"] - far_bytes
        host = FarTier.of_host(machine, max(0, stats["host_limit_bytes"] - other_bytes))
        own = gpu_codec_speeds(self._library, self.device, self.codecs.lossless)
        return FarMemory(host, file, own, whole_blocks=True)

    def _file_behind(self, machine: Machine, stats: dict[str, int]) -> FarTier | None:
        if self._options.spill_dir is None:
            return None
        if self._file is None:
            file = measure_file_tier(os.fspath(self._options.spill_dir), self._options.spill_limit)
            if not self.on_cpu:
                file = file_tier_behind_link(file, machine)
            self._file = MonitoredFileTier(file, self._before[self.device], stats)
        return self._file.tier

    def observe_file_tier(self) -> str:
        """Return how the disk's speed has changed; see `MonitoredFileTier.observe`."""
        if self._file is None:
            return ""
        return self._file.observe(self._library.memory_stats(self.device))

    def file_problem(self) -> str:
        """Return the last error of the file tier in this training; "" if it had none."""
        return self._library.file_problem() if self._options.spill_dir is not None else ""

    def tiers(self) -> tuple[TierUse, ...]:
        """Return the traffic of the planned device's tiers since `acquire`."""
        stats, before = self._library.memory_stats(self.device), self._before[self.device]
        return tuple(TierUse.between(name, before, stats) for name in TIERS)

    def begin_first_step(self) -> None:
        """Record what each device holds before the first step."""
        for device in self.numbers:
            self._library.restart_window(device)
        self._first = {device: self._library.step_counts(device) for device in self.numbers}

    def switch_to_busiest(self) -> dict[str, int] | None:
        """Plan for the device that needed most memory in the first step.

        Returns:
            The counts of that device before the step; None if it is the planned device already.
        """
        if len(self.numbers) == 1:
            return None
        after = {device: self._library.step_counts(device) for device in self.numbers}
        needed = {
            device: after[device]["window_peak_bytes"] - self._first[device]["bytes_in_use"]
            for device in self.numbers
        }
        busiest = max(self.numbers, key=lambda device: needed[device])
        if busiest == self.device:
            return None
        self.device = self.link.device = busiest
        for device in self.numbers:
            self._library.clear_layouts(device)
        return self._first[busiest]

    def wait(self) -> None:
        """Wait until the devices have finished their work; on GPUs, calls return earlier."""
        eager.wait_for(map(device_name, self.numbers))
