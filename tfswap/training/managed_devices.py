"""The devices of one training: capped, and set up as the callback's options say."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tfswap import budget as budgets
from tfswap.budget import Budget
from tfswap.card_codec_speed import card_codec_speeds, use_remembered
from tfswap.card_link import measured_link
from tfswap.codec_speed import codec_speeds
from tfswap.codecs import LOSSY, NEED_BLOSC, find_blosc, lossy_for, why_not_on_cpu
from tfswap.far_tier import FarTier
from tfswap.file_link import WatchedFile, behind_link, measured_file
from tfswap.gpus import FIRST_GPU, NOT_OURS, device_name, visible_gpus
from tfswap.machine import Machine
from tfswap.nvcomp import INSTALL as INSTALL_NVCOMP
from tfswap.nvcomp import NAMES as OF_NVCOMP
from tfswap.nvcomp import find_nvcomp, workspace_bytes
from tfswap.ops.card_codecs import NAMES as CARD_CODECS
from tfswap.ops.library import Library, LibraryError
from tfswap.plan import TIERS
from tfswap.planners.assignment import AUTO, CSWAP, FarMemory
from tfswap.report.summary import TierUse
from tfswap.swap_options import SwapOptions
from tfswap.training.link_watch import LinkWatch, Speeds

if TYPE_CHECKING:
    from tfswap.training.device_share import DeviceShare

# What a process takes for a model's graphs: traced, differentiated, optimised, and kept.
_GROWTH_BYTES, _LAYER_GROWTH_BYTES = 192 << 20, 2 << 20
# Of what is there for device and far memory, "auto" leaves so much for what comes and goes: graphs
# are optimised again, and code must stay in the page cache. With a swap file the rest can go there.
_MARGIN, _MARGIN_BYTES, _MARGIN_BYTES_WITH_SWAP = 0.03, 160 << 20, 64 << 20
# Others are slower than any link that memory is swapped over.
_CONSIDERED = ("zvc", "rle", "csr")
# How long copies that make room are waited for, and how often they are looked at.
_LEAVING_S, _LOOK_S = 1.0, 0.005
# Copies that cores make so much faster than a link are as fast as the link, whatever ops do.
_MUCH_FASTER = 3
# Of a GPU whose link could not be measured, in bytes per second: PCI Express 3.
_ASSUMED_LINK = 12e9


class ManagedDevices:
    """The GPUs, if TensorFlow has any, else the CPUs.

    Of several, one is recorded and planned for: ``device``, at first the first one. One that a
    broker divides has its share as its budget: ``shared``.

    Where trainings share them (`device_jobs.py`), each has this object of its own. What it counts
    is then its own, on top of a *base*: what was there beside when its step was profiled.

    Args:
        lib: The library.
        options: Of the training.
        layers: How many the model has; its graphs take memory too.
        note: Says something.
        warn: Warns of something.

    Attributes:
        numbers: All of them.
        device: The one that is planned for.
        job: By which the library knows this training; 0 while it has the devices for itself.
        total_bytes: The device's budget.
        budget_bytes: What the training's load may reach of it.
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
        self._note = note
        self._warn = warn
        gpus = visible_gpus(lib)
        if gpus and all(gpu.is_ours for gpu in gpus):
            self.numbers = [gpu.number for gpu in gpus]
        else:
            if gpus:
                warn(NOT_OURS)
            self.numbers = list(range(lib.device_count()))
        self._check_names()
        self.shared: DeviceShare | None = None
        self.device = self.numbers[0]
        self._available_bytes = budgets.without_growth(
            budgets.available_host_bytes(), _GROWTH_BYTES + layers * _LAYER_GROWTH_BYTES
        )
        self.budget_bytes = self.total_bytes = self._resolved_budget(self.device)
        self.job = 0
        self._sharers = 1
        self._was_shared = False
        self._base_bytes = 0
        self._profiled_bytes: int | None = None  # the load when the profiled step began
        self._host_limit_bytes = 0
        self._file: WatchedFile | None = None
        self._link: LinkWatch | None = None
        self._before: dict[int, dict[str, int]] = {}  # statistics when training began
        self._first: dict[int, dict[str, int]] = {}  # counts when the first step began
        self._in_use: list[str] = []  # nvCOMP's

    def use_share(self, share: DeviceShare, budget_bytes: int) -> None:
        """Has a broker's share instead of a budget of its own; before `take`."""
        self.shared = share
        self.budget_bytes = self.total_bytes = budget_bytes

    @property
    def on_cpu(self) -> bool:
        """Whether far memory is the devices' own memory, and copies are the cores' work."""
        return self.device < FIRST_GPU

    def take(self) -> None:
        """Puts budgets and options in force."""
        options = self._options
        self._before = {device: self._library.memory_stats(device) for device in self.numbers}
        shared = self.on_cpu and not isinstance(options.budget, Mapping)
        budget_bytes = {
            device: self.budget_bytes if shared else self._resolved_budget(device)
            for device in self.numbers
        }
        on_host_bytes = self.budget_bytes if shared else sum(budget_bytes.values())
        self._host_limit_bytes = budgets.resolve_host_limit(
            options.host_limit,
            on_host_bytes if self.on_cpu else None,
            available_bytes=self._available_bytes,
        )
        self._library.set_host_limit(self._host_limit_bytes)
        self._load_codecs()
        if options.spill_dir is not None:
            self._library.open_file(os.fspath(options.spill_dir), options.spill_limit)
        if options.stream_weights:
            self._stream_weights()  # before the budget, in which those that are there may not be
        for device in self.numbers:
            self._library.set_budget(device, budget_bytes[device])
            self._library.set_workspace_limit(device, options.workspace_limit)
            self._library.emulate_link(device, self._link_bandwidth)
            self._library.set_verify(device, options.verify)
            if options.slab:
                self._library.always_slab(device, True)
        if options.stream_weights:
            for device in self.numbers:
                self._library.make_room(device)
        if not self.on_cpu:
            self._take_codecs()
        self._library.trim_malloc()
        if self.on_cpu and options.workspace_limit is not None:
            self._warn("workspace_limit has no effect on a CPU: its ops ask for no workspaces")

    def change_budget(self, budget_bytes: int) -> bool:
        """Sets another budget on each device, between steps; plans are to be made anew then.

        More is there at once. For less, what can leave does: idle memory of the slab, on a GPU
        with its planned addresses, and values of streamed variables.

        Args:
            budget_bytes: Cap on each device's memory.

        Returns:
            Whether all devices are within it now. Where one is not, no allocation is granted until
            it is.

        Raises:
            ValueError: The budget is not above 0 bytes.
        """
        if budget_bytes <= 0:
            raise ValueError(f"a budget must be above 0 bytes, not {budget_bytes}")
        self.budget_bytes = self.total_bytes = budget_bytes
        for device in self.numbers:
            self._library.set_budget(device, budget_bytes)
        within = [self._make_room(device, budget_bytes) for device in self.numbers]
        if self.on_cpu:
            self._library.trim_malloc()
        return all(within)

    def _make_room(self, device: int, budget_bytes: int) -> bool:
        """Has a device let go of what can leave; says whether it has no more in use than that."""
        if self._in_use_bytes(device) > budget_bytes and not self.on_cpu:
            self._library.clear_layouts(device)  # its slab is one block
        self._library.make_room(device)
        deadline_s = time.monotonic() + _LEAVING_S
        while self._in_use_bytes(device) > budget_bytes and time.monotonic() < deadline_s:
            time.sleep(_LOOK_S)  # at copies under way
        return self._in_use_bytes(device) <= budget_bytes

    def _in_use_bytes(self, device: int) -> int:
        return self._library.step_counts(device)["bytes_in_use"]

    def _load_codecs(self) -> None:
        codec = self._options.codec
        used = (*self.codecs, *self.lossy_codecs)
        if self.on_cpu and any(name in NEED_BLOSC for name in used):
            self._library.load_blosc(str(find_blosc()))
        if self.on_cpu and codec in OF_NVCOMP and not self.codecs:
            self._warn_of_codec(codec, why_not_on_cpu(codec))

    # Beside other trainings.

    def join(self, first: ManagedDevices) -> None:
        """Instead of `take`, where another training has done that with the same options."""
        self.numbers, self.device = first.numbers, first.device
        self.budget_bytes = self.total_bytes = first.total_bytes
        self._host_limit_bytes = first._host_limit_bytes
        self._before = {device: self._library.memory_stats(device) for device in self.numbers}
        self._load_codecs()

    def take_share(self, job: int, share_bytes: int, sharers: int) -> None:
        """Keeps to a share from now on; not during a step.

        Args:
            job: By which the library knows this training.
            share_bytes: What it may have for itself.
            sharers: How many trainings have the device.
        """
        if self.job == job:
            self._library.set_share(self.device, job, share_bytes)
        else:
            self._library.begin_job(self.device, job, share_bytes)
        self.job, self._sharers = job, sharers
        self._was_shared = True
        self.look_at_share()

    def take_all(self) -> None:
        """The others have ended; not during a step."""
        self.end_job()
        if self._options.slab:
            for device in self.numbers:
                self._library.always_slab(device, True)
        self.look_at_share()

    def end_job(self) -> None:
        """What this training has is no job's any more; harmless when called again."""
        if self.job:
            self._library.end_job(self.device, self.job)
        self.job, self._sharers, self._base_bytes = 0, 1, 0

    def leave_slab(self) -> None:
        """Has nothing come from the slab, whose memory nobody can tell by whom it is used."""
        for device in self.numbers:
            self._library.always_slab(device, False)
            self._library.clear_layouts(device)

    def share_bytes(self) -> int:
        """Of a job, by now: what was everybody's, and is freed in its steps, is added to it."""
        return self._library.step_counts(self.device, self.job)["budget_bytes"]

    def everybodys_bytes(self) -> int:
        """What of the budget is no training's alone."""
        if self._library.memory_stats(self.device)["slab_bytes"]:
            self._library.clear_layouts(self.device)  # gives back what is idle by now
        return self._library.everybodys_bytes(self.device)

    def own_bytes(self) -> int:
        """What this training has, as far as it is told from what is no training's alone."""
        return self._library.step_counts(self.device, self.job)["load_bytes"] if self.job else 0

    def base_bytes(self) -> int:
        """What is to be added to what this training has, to compare it with its profile."""
        if self._profiled_bytes is None:
            return self._library.step_counts(self.device)["everybodys_load_bytes"]
        return self._profiled_bytes - self.own_bytes()

    def profiled_step_begins(self) -> None:
        """Remembers what is there before it."""
        counts = self._library.step_counts(self.device, self.job)
        self._profiled_bytes = counts["load_bytes"]
        if self.job:
            self._profiled_bytes += counts["everybodys_load_bytes"]

    def look_at_share(self) -> None:
        """Before a step: what the training's load may reach, by what there is now."""
        if self.job:
            self._base_bytes = self.base_bytes()
            self.budget_bytes = self.share_bytes() + self._base_bytes
        elif self._was_shared:
            # The others' weights are still there, say.
            load_bytes = self._library.step_counts(self.device)["load_bytes"]
            more_bytes = load_bytes - (self._profiled_bytes or load_bytes)
            self.budget_bytes = self.total_bytes - max(more_bytes, 0)

    def step_counts(self) -> dict[str, int]:
        """Those of the planned device, of this training."""
        counts = self._library.step_counts(self.device, self.job)
        if self.job:
            for name in ("budget_bytes", "bytes_in_use", "window_peak_bytes"):
                counts[name] += self._base_bytes
            counts["window_peak_load_bytes"] += self._base_bytes
        return counts

    def restart_window(self) -> None:
        """Restarts the peaks of the planned device, of this training."""
        self._library.restart_window(self.device, self.job)

    @property
    def weights_may_leave(self) -> bool:
        """Whether plans may have values of variables leave."""
        return self._options.stream_weights

    def _stream_weights(self) -> None:
        """Has those leave, too, that there are already."""
        import tensorflow as tf

        for device in self.numbers:
            self._library.stream_variables(device, True)
        eager = tf.__internal__.EagerTensor
        for known in gc.get_objects():
            # An op that has a variable among its inputs makes it known.
            handle = getattr(known, "_handle", None) if isinstance(known, tf.Variable) else None
            if isinstance(handle, eager):
                tf.raw_ops.VarIsInitializedOp(resource=handle)

    def _take_codecs(self) -> None:
        """A plan that was given encodes without asking how fast that is."""
        codec, plan = self._options.codec, self._options.plan
        named = {swap.codec for each in plan.functions for swap in each.swaps} if plan else set()
        problem = self._library.codec_problem(self.device)
        for name in OF_NVCOMP:
            if name == codec or name in named:
                fault = problem or self._use_nvcomp(name)
                if fault:
                    self._warn_of_codec(name, fault)
        for device in self.numbers:
            use_remembered(self._library, device, self.codecs)
        if self._options.lossy:
            self._warn("lossy=True has no effect on a GPU: all of its codecs are lossless")
        if codec not in (None, AUTO, CSWAP, *OF_NVCOMP, *LOSSY) and not self.codecs:
            names = ", ".join((*CARD_CODECS, *OF_NVCOMP))
            self._warn_of_codec(codec, problem or f"a GPU encodes by {names}")

    def _warn_of_codec(self, codec: str, problem: str) -> None:
        self._warn(f"codec={codec!r} has no effect: {problem.removeprefix('tfswap: ')}")

    def _use_nvcomp(self, codec: str) -> str:
        """Takes a workspace for it on each GPU; answers "" or why there is no such codec."""
        path = find_nvcomp()
        if path is None:
            return INSTALL_NVCOMP
        for device in self.numbers:
            bytes_ = workspace_bytes(self._library.memory_stats(device)["budget_bytes"])
            problem = self._library.use_codec(device, codec, path, bytes_)
            if problem:
                return problem
        self._in_use.append(codec)
        return ""

    def check_codecs(self, wait: bool = False) -> None:
        """Asks the GPUs whether all that came back could be decoded.

        Args:
            wait: For all that they were given to do.

        Raises:
            LibraryError: Some could not, so numbers are lost.
        """
        for device in self.numbers if self._in_use else ():
            problem = self._library.take_codec_fault(device, wait)
            if problem:
                raise LibraryError(problem)

    def give_back(self) -> None:
        """Leaves the devices as if there had been no training; harmless when called again."""
        for device in self.numbers:
            self._library.release_codecs(device)
            self._library.set_budget(device, None)
            if self._options.stream_weights:
                problem = self._library.stream_variables(device, False)
                if problem:
                    self._warn(f"some variables are still in far memory: {problem}")
            self._library.set_workspace_limit(device, None)
            self._library.emulate_link(device, None)
            self._library.set_verify(device, False)
            self._library.always_slab(device, False)
            self._library.clear_layouts(device)
        self._library.open_file(None)
        self._library.set_host_limit(None)
        self._library.trim_host()

    @property
    def _link_share(self) -> float:
        return 1.0 if self.shared is None else self.shared.link_share

    @property
    def _link_bandwidth(self) -> float | None:
        """Of the emulated link, if there is one: this process's part of it."""
        whole = self._options.link_bandwidth
        return None if whole is None else whole * self._link_share

    def use_link_share(self) -> None:
        """Goes by the part of the link that the share says from now on; between steps."""
        for device in self.numbers:
            self._library.emulate_link(device, self._link_bandwidth)
        self._link = None  # what copies had of the other part

    def machine(self) -> Machine:
        """What the planned device has of its link, measured within its budget."""
        if self.on_cpu and self._options.link_bandwidth is not None:
            machine = Machine.here(self._link_bandwidth).part(1 / self._sharers)
        else:
            machine = self.whole_link().part(self._link_share / self._sharers)
        return machine if self._link is None else machine.times(*self._link.factors)

    def look_at_link(self, machine: Machine) -> str:
        """Whether copies have another speed than plans take the link for: see `LinkWatch.look`.

        Not of a GPU, which says nothing of single copies, nor where others use the link too.

        Args:
            machine: The link that the plan goes by.
        """
        if not self.on_cpu or self.shared is not None or self._sharers > 1:
            return ""
        stats = self._library.memory_stats(self.device)
        if self._link is None:
            speeds = Speeds(machine.out_bytes_per_s, machine.in_bytes_per_s)
            by_cores = machine.copy_bytes_per_s / _MUCH_FASTER
            is_known = max(machine.out_bytes_per_s, machine.in_bytes_per_s) < by_cores
            self._link = LinkWatch(speeds, stats, is_known)
            return ""
        return self._link.look(stats)

    @property
    def link_is_off(self) -> bool:
        """Whether the last look saw another speed, so that another look will tell."""
        return self._link is not None and self._link.is_off

    def whole_link(self) -> Machine:
        """The planned device's link, as if no other process used it."""
        link_bandwidth = self._options.link_bandwidth
        if self.on_cpu:
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

    def look_again(self) -> bool:
        """Where "auto" shares the host's memory: gives out what the process has not grown into.

        To be called when graphs have been made and run. Says whether the budget is another one.
        """
        if not self.on_cpu or isinstance(self._options.budget, Mapping) or self._was_shared:
            return False
        if self.shared is not None:
            return False
        if not budgets.is_auto(self._options.budget):
            return False
        self._library.trim_malloc()
        held = self._library.memory_stats(self.device)
        ours_bytes = held["bytes_in_use"] + held["host_bytes_in_use"] + held["host_bytes_cached"]
        whole_bytes = ours_bytes + budgets.available_host_bytes()
        margin_bytes = _MARGIN_BYTES_WITH_SWAP if budgets.swap_bytes() else _MARGIN_BYTES
        whole_bytes -= max(margin_bytes, int(_MARGIN * whole_bytes))
        self.budget_bytes = self.total_bytes = int(budgets.AUTO_BUDGET * whole_bytes)
        for device in self.numbers:
            self._library.set_budget(device, self.budget_bytes)
        if budgets.is_auto(self._options.host_limit):
            left_bytes = whole_bytes - self.budget_bytes
            self._host_limit_bytes = int(budgets.AUTO_HOST_LIMIT * left_bytes)
            self._library.set_host_limit(self._host_limit_bytes)
        return True

    def in_use_bytes(self) -> int:
        """What the planned device holds, idle memory of the slab included."""
        return self._in_use_bytes(self.device)

    def load_bytes(self) -> int:
        """What was asked of it and not freed."""
        return self._library.memory_stats(self.device)["load_bytes"]

    def resident_bytes(self) -> int:
        """What of the budget is taken before a step."""
        return self.own_bytes() + self._base_bytes if self.job else self.load_bytes()

    def far_memory(self, machine: Machine) -> FarMemory:
        """The tiers behind the planned device, whose link is the machine's."""
        stats = self._library.memory_stats(self.device)
        file = self._file_behind(machine, stats)
        if self.on_cpu:
            host = FarTier.of_host(machine, self._host_limit_bytes // self._sharers)
            return FarMemory(host, file, codec_speeds((*self.codecs, *self.lossy_codecs)))
        # A GPU has its part of the limit, and takes some for other ends: the way to the file.
        far_bytes = stats["far_host_bytes_in_use"] + stats["far_compressed_bytes_in_use"]
        other_bytes = stats["host_bytes_in_use"] - far_bytes
        host = FarTier.of_host(machine, max(0, stats["host_limit_bytes"] - other_bytes))
        own = card_codec_speeds(self._library, self.device, self.codecs)
        return FarMemory(host, file, own, whole_blocks=True)

    def _file_behind(self, machine: Machine, stats: dict[str, int]) -> FarTier | None:
        if self._options.spill_dir is None:
            return None
        if self._file is None:
            file = measured_file(os.fspath(self._options.spill_dir), self._options.spill_limit)
            if not self.on_cpu:
                file = behind_link(file, machine)
            self._file = WatchedFile(file, stats)
        return self._file.tier

    def look_at_file(self) -> str:
        """Whether the disk has another speed than plans take it for: see `WatchedFile.look`."""
        if self._file is None:
            return ""
        return self._file.look(self._library.memory_stats(self.device))

    @property
    def codecs(self) -> tuple[str, ...]:
        """Lossless ones that far memory may be encoded by, as the options say."""
        codec = self._options.codec
        if codec is None or codec in LOSSY:
            return ()
        wanted = _CONSIDERED if codec in (AUTO, CSWAP) else (codec,)
        if self.on_cpu:
            return tuple(name for name in wanted if not why_not_on_cpu(name))
        if self._library.codec_problem(self.device):
            return ()
        return tuple(name for name in wanted if name in CARD_CODECS or name in self._in_use)

    @property
    def lossy_codecs(self) -> tuple[str, ...]:
        """Lossy ones that far memory may be encoded by, as the options say."""
        return lossy_for(self._options.codec) if self._options.lossy and self.on_cpu else ()

    @property
    def sampled_codecs(self) -> tuple[str, ...]:
        """Those of which it is to be seen what they make of tensors. Dense is what they cannot make
        smaller.
        """
        return self.codecs or (_CONSIDERED[:1] if self.lossy_codecs else ())

    def file_problem(self) -> str:
        """What was wrong when the file tier failed last; "" if it never did in this training."""
        return self._library.file_problem() if self._options.spill_dir is not None else ""

    def tiers(self) -> tuple[TierUse, ...]:
        """What went through the planned device's far memory since `take`."""
        stats, before = self._library.memory_stats(self.device), self._before[self.device]
        return tuple(TierUse.between(name, before, stats) for name in TIERS)

    def first_step_begins(self) -> None:
        """Remembers what each device holds before it."""
        if self.job:
            return
        for device in self.numbers:
            self._library.restart_window(device)
        self._first = {device: self._library.step_counts(device) for device in self.numbers}

    def find_busiest(self) -> dict[str, int] | None:
        """Goes over to the device that needed most memory in the first step.

        Returns:
            That device's counts before the step; None if it is the planned one already.
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
        self.device = busiest
        self.budget_bytes = after[busiest]["budget_bytes"]
        for device in self.numbers:
            self._library.clear_layouts(device)
        return self._first[busiest]

    def wait(self) -> None:
        """Until all that was started on them has run: on GPUs, calls return before."""
        import tensorflow as tf
        from tensorflow.python.eager import context

        for device in self.numbers:
            with tf.device(device_name(device)):  # a worker sees other workers' devices too
                tf.raw_ops.SyncDevice()
        context.async_wait()

    def _budget_of(self, device: int) -> Budget:
        """As it was given."""
        budget = self._options.budget
        return budget[device_name(device)] if isinstance(budget, Mapping) else budget

    def _check_names(self) -> None:
        """Raises ValueError if budgets by device are not for those that there are."""
        if not isinstance(self._options.budget, Mapping):
            return
        named, there = set(self._options.budget), {device_name(each) for each in self.numbers}
        if named != there:
            raise ValueError(
                f"budget is for {', '.join(sorted(named))}; there are "
                f"{', '.join(sorted(there))}, and each needs one"
            )

    def _resolved_budget(self, device: int) -> int:
        """In bytes; a part of a GPU's memory is of its own: cards and logical devices differ."""
        if self.shared is not None:
            return self.budget_bytes
        stats = self._library.memory_stats(device)
        on_cpu = device < FIRST_GPU
        return budgets.resolve(
            self._budget_of(device),
            device_limit_bytes=None if on_cpu else stats["memory_bytes"],
            available_bytes=self._available_bytes if on_cpu else None,
            in_use_bytes=stats["bytes_in_use"],
        )
