"""Library: the C functions of ``libtfswap.so``, once it is loaded."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfswap.ops.signatures import SIGNATURES, take_text

_STEP_COUNTS = (
    "budget_bytes",
    "bytes_in_use",
    "window_peak_bytes",
    "load_bytes",
    "window_peak_load_bytes",
    "window_lack_bytes",
    "waits",
    "bytes_out",
    "bytes_in",
    "host_peak_bytes",
    "slab_limit_bytes",
    "slab_hit_bytes",
    "slab_moved_bytes",
    "slab_missed_bytes",
    "slab_lasting_bytes",
)


class LibraryError(RuntimeError):
    """libtfswap cannot be used in this process; the text says why and what to do."""


class Library:
    """The loaded library. Make it with `tfswap.ops.library.load`.

    Devices are numbered as TensorFlow numbers its CPUs, GPUs from 1000 on. All sizes are bytes, all
    times ns.
    """

    def __init__(self, path: Path) -> None:
        self.dll = self._dll = ctypes.CDLL(str(path))
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(self._dll, name)
            function.restype = result
            function.argtypes = arguments

    def _text(self, pointer: int) -> str:
        return take_text(pointer, self._dll.tfswap_free)

    def devices_made(self) -> int:
        """How many CPU devices of tfswap's TensorFlow has created in this process."""
        return int(self._dll.tfswap_devices_made())

    def device_count(self) -> int:
        """How many (logical) CPU devices there are."""
        return int(self._dll.tfswap_device_count())

    def gpu_count(self) -> int:
        """How many (logical) GPU devices of tfswap's there are."""
        return int(self._dll.tfswap_gpu_count())

    def has_device(self, device: int) -> bool:
        """Whether there is one of that number; GPUs from their first operation on."""
        return bool(self._dll.tfswap_has_device(device))

    def set_budget(self, device: int, budget_bytes: int | None) -> None:
        self._dll.tfswap_set_budget(device, budget_bytes or 0)

    def set_workspace_limit(self, device: int, limit_bytes: int | None) -> None:
        self._dll.tfswap_set_workspace_limit(device, -1 if limit_bytes is None else limit_bytes)

    def set_host_limit(self, limit_bytes: int | None) -> None:
        self._dll.tfswap_set_host_limit(limit_bytes or 0)

    def trim_host(self) -> None:
        """Gives far memory that is kept for the next step back to the system."""
        self._dll.tfswap_trim_host()

    def open_file(self, folder: str | None, limit_bytes: int | None = None) -> None:
        """Has the far memory of all devices go on in a file; None takes that away.

        Args:
            folder: Where it is made; it has no name there.
            limit_bytes: What it may grow to; None: no limit.

        Raises:
            LibraryError: There can be no such file, or a GPU has no pinned memory for the way to
                it, and why.
        """
        problem = self._text(
            self._dll.tfswap_open_file(os.fsencode(folder or ""), limit_bytes or 0)
        )
        if problem:
            raise LibraryError(problem)

    def file_problem(self) -> str:
        """What was wrong when the file tier failed last; "" if it never did."""
        return self._text(self._dll.tfswap_file_problem())

    def emulate_link(self, device: int, bytes_per_s: float | None, latency_ns: int = 0) -> None:
        self._dll.tfswap_emulate_link(device, bytes_per_s or 0.0, latency_ns)

    def measure_link(self, device: int, block_bytes: int, blocks: int) -> dict[str, float]:
        """The speed of a GPU's copies to pinned memory and back while nothing else runs.

        Args:
            device: A GPU's number.
            block_bytes: Of each copy; two such blocks are needed on the device.
            blocks: Copies each way.

        Returns:
            In bytes per second: `out_bytes_per_s`, `in_bytes_per_s`, and of both ways at once
            `both_out_bytes_per_s`, `both_in_bytes_per_s`.

        Raises:
            LibraryError: It could not be measured, and why.
        """
        times = (ctypes.c_int64 * 5)()
        problem = self._text(self._dll.tfswap_measure_link(device, block_bytes, blocks, times))
        if problem:
            raise LibraryError(problem)
        moved, *ns = times
        keys = ("out", "in", "both_out", "both_in")
        return {
            f"{key}_bytes_per_s": moved * 1e9 / max(each, 1)
            for key, each in zip(keys, ns, strict=True)
        }

    def make_room(self, device: int) -> None:
        """Has what can leave do so now, as far as more is in use than the budget."""
        self._dll.tfswap_make_room(device)

    def stream_variables(self, device: int, on: bool) -> str:
        """Has variables' values leave when memory runs out, or all of them come back.

        Returns:
            "", or why that cannot be.
        """
        return self._text(self._dll.tfswap_stream_variables(device, int(on)))

    def set_verify(self, device: int, verify: bool) -> None:
        self._dll.tfswap_set_verify(device, int(verify))

    def set_faults(self, text: str) -> None:
        """Has things go wrong on purpose, for tests, in the place of what was set before.

        Args:
            text: Names of ``cc/core/util/faults.h``, with when and how often, separated by
                semicolons: "copy-in-fails after=3 times=1; slow-disk ms=5". "" for none.

        Raises:
            ValueError: There is no such fault, or a number is out of its bounds.
        """
        problem = self._text(self._dll.tfswap_set_faults(text.encode()))
        if problem:
            raise ValueError(problem)

    def fault_counts(self) -> dict[str, tuple[int, int]]:
        """Of each fault that was ever set: how often it could have struck since, and did."""
        lines = self._text(self._dll.tfswap_fault_counts()).splitlines()
        rows = (line.split() for line in lines)
        return {name: (int(asked), int(struck)) for name, asked, struck in rows}

    def memory_stats(self, device: int) -> dict[str, int]:
        stats: dict[str, int] = json.loads(self._text(self._dll.tfswap_memory_stats(device)))
        return stats

    def step_counts(self, device: int) -> dict[str, int]:
        """Return the `memory_stats` that change from step to step; cheap enough for each step."""
        counts = (ctypes.c_int64 * len(_STEP_COUNTS))()
        self._dll.tfswap_step_counts(device, counts)
        return dict(zip(_STEP_COUNTS, counts, strict=True))

    def reset_memory_stats(self, device: int) -> None:
        self._dll.tfswap_reset_memory_stats(device)

    def restart_window(self, device: int) -> None:
        """Restart ``window_peak_bytes``, the peak that is measured for single steps."""
        self._dll.tfswap_restart_window(device)

    def install_layout(self, device: int, fingerprint: str, text: str) -> None:
        """Install planned addresses for a graph (see `tfswap.addresses.layout`).

        Raises:
            ValueError: The text is no layout, or there are no addresses for a slab.
        """
        problem = self._text(
            self._dll.tfswap_install_layout(device, fingerprint.encode(), text.encode())
        )
        if problem:
            raise ValueError(problem)

    def remove_layout(self, device: int, fingerprint: str) -> None:
        self._dll.tfswap_remove_layout(device, fingerprint.encode())

    def clear_layouts(self, device: int) -> None:
        """Takes all layouts back; the slab's idle memory goes with them."""
        self._dll.tfswap_clear_layouts(device)

    def always_slab(self, device: int, always: bool) -> None:
        """Has a CPU's slab serve everything, also what has no planned address.

        Raises:
            LibraryError: There are no addresses for a slab.
        """
        problem = self._text(self._dll.tfswap_always_slab(device, int(always)))
        if problem:
            raise LibraryError(problem)

    def load_blosc(self, path: str) -> str:
        """Loads the codecs of c-blosc2; answers "" or why they cannot be used."""
        return self._text(self._dll.tfswap_load_blosc(os.fsencode(path)))

    def sample_codecs(self, codecs: Sequence[str]) -> None:
        """Has what is swapped out sampled by these codecs from now on; none: no more."""
        self._dll.tfswap_sample_codecs(",".join(codecs).encode())

    def codec_samples(self) -> str:
        """What was found since: see `tfswap.devices.sampling`."""
        return self._text(self._dll.tfswap_codec_samples())

    def set_lossy_rate(self, percent: int | None) -> None:
        """How much lossy codecs may keep of a tensor, at most; None: they may not be used."""
        self._dll.tfswap_set_lossy_rate(percent or 0)

    def losses(self) -> str:
        """What lossy codecs changed since, as `cc/far/loss_meter.h` tells it."""
        return self._text(self._dll.tfswap_losses())

    def codec_problem(self, device: int) -> str:
        """Why a GPU cannot encode what leaves it; "" if it can."""
        return self._text(self._dll.tfswap_codec_problem(device))

    def codec_device(self, device: int) -> str:
        """The GPU's name and memory, which say how fast its codecs are."""
        return self._text(self._dll.tfswap_codec_device(device))

    def codec_processors(self, device: int) -> int:
        """How many blocks of threads a GPU runs at once, at the least."""
        return int(self._dll.tfswap_codec_processors(device))

    def use_codec(self, device: int, codec: str, path: str, workspace_bytes: int) -> str:
        """Has a GPU's codec work that is a library's; answers "" or why it cannot.

        Args:
            device: A GPU's number.
            codec: "lz4" or "ans", which are nvCOMP's.
            path: The library.
            workspace_bytes: Of the device's memory, taken within the budget until
                `release_codecs`: the more, the more sections of a tensor are encoded at once.
        """
        return self._text(
            self._dll.tfswap_use_codec(device, codec.encode(), os.fsencode(path), workspace_bytes)
        )

    def release_codecs(self, device: int) -> None:
        """Gives back what `use_codec` took."""
        self._dll.tfswap_release_codecs(device)

    def take_codec_fault(self, device: int, wait: bool = False) -> str:
        """What could not be decoded since the last call; "" if all could.

        Args:
            device: Its number.
            wait: For all that the device was given to do.
        """
        return self._text(self._dll.tfswap_take_codec_fault(device, int(wait)))

    def set_codec_launch(self, device: int, codec: str, launch: tuple[int, int]) -> None:
        """Has a GPU run a codec in so many blocks, of so many threads, from now on.

        Raises:
            LibraryError: There is no such codec or launch there.
        """
        problem = self._text(self._dll.tfswap_set_codec_launch(device, codec.encode(), *launch))
        if problem:
            raise LibraryError(problem)

    def measure_device_codec(
        self,
        device: int,
        codec: str,
        data: NDArray[Any],
        launch: tuple[int, int],
        repeats: int = 1,
    ) -> tuple[int, float, float]:
        """What a GPU's codec makes of a tensor, and how long that takes while nothing else runs.

        Args:
            device: A GPU's number.
            codec: "zvc", "rle" or "csr"; "lz4" or "ans" while they are in use.
            data: Elements of 2 or 4 bytes. They must find room on the device.
            launch: Blocks, and threads in each.
            repeats: Times of so many are averaged, after one that does not count.

        Returns:
            Encoded bytes, seconds to encode, seconds to decode.

        Raises:
            LibraryError: It could not be measured, or other bytes came back.
        """
        found = (ctypes.c_int64 * 3)()
        tensor = np.ascontiguousarray(data)
        problem = self._text(
            self._dll.tfswap_measure_device_codec(
                *(device, codec.encode(), tensor.itemsize, tensor.ctypes.data, tensor.nbytes),
                *(*launch, repeats, found),
            )
        )
        if problem:
            raise LibraryError(problem)
        return int(found[0]), found[1] / 1e9, found[2] / 1e9

    def trim_malloc(self) -> None:
        """Gives the memory that the system allocator keeps for later back to the system."""
        self._dll.tfswap_trim_malloc()

    def check_slab(self, device: int, check: bool) -> None:
        """Fills free addresses with a pattern, and counts claims that find it damaged. Slow."""
        self._dll.tfswap_check_slab(device, int(check))

    def open_bfc(self, device: int, arena_bytes: int | None) -> None:
        """Has TensorFlow's BFC allocator serve the device, from an arena of that size.

        What is there already stays where it is. For comparisons.
        """
        self._dll.tfswap_open_bfc(device, arena_bytes or 0)

    def granule_bytes(self) -> int:
        """What slots begin at multiples of."""
        return int(self._dll.tfswap_granule_bytes())

    def start_recording(self, device: int, *, host_times: bool = False) -> None:
        """Has what runs on a device written down.

        Args:
            device: Its number.
            host_times: Whether a GPU's recording is to have the times at which the host gave it
                work, in whose order memory is handed out, and not those at which it did it.
        """
        self._dll.tfswap_start_recording(device, int(host_times))

    def stop_recording(self, device: int) -> bytes:
        """Answers the recorded trace (see `tfswap.trace`)."""
        size = ctypes.c_int64()
        pointer = self._dll.tfswap_stop_recording(device, ctypes.byref(size))
        try:
            return ctypes.string_at(pointer, size.value)
        finally:
            self._dll.tfswap_free(pointer)

    def pass_records(self) -> list[dict[str, Any]]:
        """What the Grappler pass did to each graph, oldest first."""
        records: list[dict[str, Any]] = json.loads(self._text(self._dll.tfswap_pass_records()))
        return records

    def portable_fingerprint(self, fingerprint: str) -> str:
        """By which a graph can be known again behind a SavedModel; "" if the pass has not seen it.

        Args:
            fingerprint: The graph's.
        """
        records = {record["fingerprint"]: record for record in self.pass_records()}
        return str(records.get(fingerprint, {}).get("portable", ""))

    def describe(self, fingerprint: str) -> str:
        """A graph that the pass saw, as text (see `tfswap.step.graph`).

        It is the one that has the fingerprint, whatever plan it runs under: a profile is of that.
        """
        return self._text(self._dll.tfswap_describe(fingerprint.encode()))

    def describe_under_plan(self, fingerprint: str, label: str = "") -> str:
        """The same with the ops that a training's plan has run again.

        Args:
            fingerprint: The graph's.
            label: The training's.
        """
        text = self._dll.tfswap_describe_under_plan(fingerprint.encode(), label.encode())
        return self._text(text)

    def clear_pass_records(self) -> None:
        self._dll.tfswap_clear_pass_records()

    def estimate_step(
        self,
        graph: bytes,
        kept: Sequence[str],
        ops_per_s: float,
        product_ops_per_s: float,
        bytes_per_s: float,
    ) -> str:
        """What each op of a training step would cost, as text (see `tfswap.cost_model.op_costs`).

        Args:
            graph: A serialized GraphDef.
            kept: Ops that must stay: outputs, and those that only act.
            ops_per_s: Speed of elementwise work.
            product_ops_per_s: Speed of convolutions and matrix products.
            bytes_per_s: Speed of the device's memory.

        Raises:
            ValueError: TensorFlow cannot make sense of the graph.
        """
        names = "\n".join(kept).encode()
        text = self._text(
            self._dll.tfswap_estimate_step(
                graph, len(graph), names, ops_per_s, product_ops_per_s, bytes_per_s
            )
        )
        if text.startswith("#error\t"):
            raise ValueError(f"the training step cannot be estimated: {text.partition('	')[2]}")
        return text
