"""Types of the bindings of ``libtfswap.so`` (``cc/bindings/runtime``)."""

import os
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

Launch = tuple[int, int]
"""The blocks of a kernel, and the threads of each block."""

class CodecSample:
    """How well codecs compress one tensor that was swapped out."""

    @property
    def label(self) -> str:
        """The name of the swap-out's node."""

    @property
    def different_words(self) -> int:
        """The number of different 4-byte words; 17 means more than 16, 0 means not counted."""

    @property
    def ratios(self) -> dict[str, float]:
        """Encoded bytes divided by source bytes, by codec; without codecs that cannot encode it."""

class Loss:
    """The errors that a lossy codec made in one tensor."""

    @property
    def label(self) -> str:
        """The name of the swap-out's node."""

    @property
    def relative_error(self) -> float:
        """The L2 norm of the errors divided by the L2 norm of the compared values."""

    @property
    def largest_error(self) -> float: ...

class GpuCodecs:
    """The codecs of one GPU on plain addresses; `Library.gpu_codecs` creates it.

    Methods enqueue their work on a stream and do not wait. Addresses and streams are the driver's,
    as integers. Tensors are aligned to 16 bytes; far blocks are aligned to 128 bytes and have
    `max_bytes` of pinned memory. The GPU must be idle when this is destroyed.
    """

    def use_nvcomp(
        self,
        codec: str,
        path: str | os.PathLike[str],
        workspace: int,
        size_bytes: int,
        fault: int,
        stream: int,
    ) -> None:
        """Load one of nvCOMP's codecs, for one stream per direction at a time.

        Args:
            codec: One of `tfswap.machine.nvcomp.NAMES`.
            path: The library.
            workspace: GPU memory, which must outlive this object.
            size_bytes: The size of the workspace; a larger one encodes more of a tensor at once.
            fault: 8 bytes of pinned memory, all zero.
            stream: A stream, for which this waits.

        Raises:
            LibraryError: The library is unsuitable, or the memory is too small for it.
        """

    def check_decoded(self) -> None:
        """Check that nvCOMP could decode everything that the GPU has decoded so far.

        Raises:
            LibraryError: It could not.
        """

    def max_bytes(self, size_bytes: int) -> int:
        """Return the size that the far block of a tensor of `size_bytes` must have."""

    def encoded_bytes(self, far_block: int) -> int:
        """Return the bytes of an encoded tensor whose encoding has ended."""

    def zero_elements(self, far_block: int) -> int:
        """Return the number of zeros in an encoded tensor whose encoding has ended."""

    def encode(
        self,
        codec: str,
        element_bytes: int,
        source: int,
        size_bytes: int,
        far_block: int,
        stream: int,
        launch: Launch = (16, 512),
    ) -> None:
        """Enqueue the encoding of a tensor on the GPU.

        Raises:
            LibraryError: The codec, an address or the launch is invalid, or the driver failed.
        """

    def decode(
        self,
        codec: str,
        element_bytes: int,
        target: int,
        size_bytes: int,
        far_block: int,
        stream: int,
        launch: Launch = (16, 512),
    ) -> None:
        """Enqueue the decoding; codec and sizes must be those of `encode`.

        Raises:
            LibraryError: As for `encode`.
        """

    def count_zeros(
        self,
        element_bytes: int,
        source: int,
        size_bytes: int,
        every: int,
        count: int,
        stream: int,
        launch: Launch = (16, 512),
    ) -> None:
        """Count zeros in every `every`-th 4 KiB of a tensor.

        `count` is pinned memory for two 64-bit numbers: zeros, and counted elements.

        Raises:
            LibraryError: As for `encode`.
        """

class Library:
    """The loaded library; `tfswap.ops.library.load` creates it.

    Devices are numbered as TensorFlow numbers its CPUs, GPUs from 1000 on. Sizes are bytes, times
    ns. All methods are thread-safe and run without the global interpreter lock. Methods raise
    LibraryError for a device that does not exist.
    """

    @staticmethod
    def devices_made() -> int:
        """Return how many of tfswap's devices TensorFlow has created in this process."""

    @staticmethod
    def device_count() -> int:
        """Return how many (logical) CPU devices exist."""

    @staticmethod
    def gpu_count() -> int:
        """Return how many (logical) GPU devices of tfswap exist."""

    @staticmethod
    def has_device(device: int) -> bool:
        """Return whether a device exists. A GPU exists after its first operation."""

    @staticmethod
    def set_budget(device: int, budget_bytes: int | None) -> None: ...
    @staticmethod
    def set_workspace_limit(device: int, limit_bytes: int | None) -> None:
        """Decline larger workspaces of a GPU's kernels; no effect on a CPU."""

    @staticmethod
    def set_host_limit(limit_bytes: int | None) -> None:
        """Limit the host memory for swaps: of all CPUs together, and of all GPUs together."""

    @staticmethod
    def prepare_host_memory(device: int, sizes: Sequence[int]) -> None:
        """Take host memory for swaps of these sizes in bytes, as far as its limit allows."""

    @staticmethod
    def trim_host() -> None:
        """Return the host memory that is kept for the next step to the system."""

    @staticmethod
    def trim_malloc() -> None:
        """Return the memory that malloc keeps for later to the system."""

    @staticmethod
    def open_file(folder: str | os.PathLike[str] | None, limit_bytes: int | None = None) -> None:
        """Add the file tier to the far memory of all devices; None removes it.

        Args:
            folder: The directory of the file, which has no name.
            limit_bytes: The file's maximum size; None: no limit.

        Raises:
            LibraryError: The file cannot be created, or there is no pinned memory for copies
                between a GPU and the file.
        """

    @staticmethod
    def shares_disk_with_spill_file(path: str | os.PathLike[str]) -> bool:
        """Return whether a file is as fast as the spill file; False without a spill file."""

    @staticmethod
    def find_in_checkpoint(
        path: str | os.PathLike[str], offset: int, size_bytes: int, known: int, known_bytes: int
    ) -> int:
        """Look for a value in a file, and return a number for the op `_VariableInCheckpoint`.

        Args:
            path: The file; it is kept open as long as a variable's value is read from it.
            offset: The value's place.
            size_bytes: Its size.
            known: The address of its first bytes in memory.
            known_bytes: Their number, at least 1; pieces of 1 MiB that are not known have to be as
                they were when the file was opened.

        Returns:
            0 if the file cannot be read directly, or if the value does not begin with the known
            bytes.
        """

    @staticmethod
    def defer_placing(defers: bool) -> None:
        """Leave values that this thread assigns where they are, until `_VariableInCheckpoint`."""

    @staticmethod
    def file_problem() -> str:
        """Return the last error of the file; "" if there was none."""

    @staticmethod
    def emulate_link(device: int, bytes_per_s: float | None, latency_ns: int = 0) -> None:
        """Make a CPU's copies as slow as those of a link; None ends that."""

    @staticmethod
    def measure_link(device: int, block_bytes: int, blocks: int) -> dict[str, float]:
        """Measure a GPU's copies to pinned memory and back while nothing else runs.

        Args:
            device: A GPU's number.
            block_bytes: The size of each copy; the device needs memory for two blocks.
            blocks: The number of copies per direction.

        Returns:
            `out_bytes_per_s` and `in_bytes_per_s`, and `both_out_bytes_per_s` and
            `both_in_bytes_per_s` while both directions run.

        Raises:
            LibraryError: The measurement failed.
        """

    @staticmethod
    def streams_variables(device: int) -> bool:
        """Return whether values of variables may leave the device."""

    @staticmethod
    def set_verify(device: int, verify: bool) -> None:
        """Compare the checksums of tensors at swap-out and swap-in."""

    @staticmethod
    def make_room(device: int) -> None:
        """Swap out what can be swapped out until the bytes in use are within the budget."""

    @staticmethod
    def stream_variables(device: int, on: bool) -> str:
        """Allow swaps of variables' values when memory runs out, or restore all values.

        Returns:
            "", or why that is impossible.
        """

    @staticmethod
    def set_faults(text: str) -> None:
        """Inject faults for tests. Replaces the faults that were set before.

        Args:
            text: Names of ``cc/core/util/faults.h`` with when and how often, separated by
                semicolons: "copy-in-fails after=3 times=1; slow-disk ms=5". "" for none.

        Raises:
            ValueError: There is no such fault, or a number is out of bounds.
        """

    @staticmethod
    def fault_counts() -> dict[str, tuple[int, int]]:
        """Return, for each fault that was set, how often it was checked and how often it struck."""

    @staticmethod
    def memory_stats(device: int) -> dict[str, int]:
        """Return the counts that `tfswap.memory_stats` describes."""

    @staticmethod
    def step_counts(device: int) -> dict[str, int]:
        """Return the counts of `memory_stats` that change from step to step."""

    @staticmethod
    def reset_memory_stats(device: int) -> None: ...
    @staticmethod
    def restart_window(device: int) -> None:
        """Restart ``window_peak_bytes``, the peak since the last restart."""

    @staticmethod
    def start_recording(device: int, *, host_times: bool = False) -> None:
        """Start to record a step of a device.

        Args:
            device: The device's number.
            host_times: Record the times at which the host enqueued a GPU's work, in whose order
                memory is allocated, instead of the times at which the GPU ran it.
        """

    @staticmethod
    def stop_recording(device: int) -> bytes:
        """Return the recorded trace (see `tfswap.traces`)."""

    @staticmethod
    def install_layout(device: int, fingerprint: str, text: str) -> None:
        """Install planned addresses for a graph (see `tfswap.addresses.layout`).

        Raises:
            ValueError: The text is not a layout, or there are no addresses for a slab.
        """

    @staticmethod
    def remove_layout(device: int, fingerprint: str) -> None: ...
    @staticmethod
    def clear_layouts(device: int) -> None:
        """Remove all layouts, and release the slab's idle memory."""

    @staticmethod
    def always_slab(device: int, always: bool) -> None:
        """Serve all of a CPU's allocations from the slab, with or without a planned address.

        Raises:
            LibraryError: There are no addresses for a slab.
        """

    @staticmethod
    def check_slab(device: int, check: bool) -> None:
        """Fill free addresses with a pattern, and count claims that find it damaged. Slow."""

    @staticmethod
    def granule_bytes() -> int:
        """Return the unit of planned addresses."""

    @staticmethod
    def load_blosc(path: str | os.PathLike[str]) -> str:
        """Load the codecs of c-blosc2; return "" or why they cannot be used."""

    @staticmethod
    def sample_codecs(codecs: Sequence[str]) -> None:
        """Measure these codecs on swapped-out tensors from now on; an empty list stops that."""

    @staticmethod
    def codec_samples() -> list[CodecSample]:
        """Return the samples since `sample_codecs`."""

    @staticmethod
    def set_lossy_rate(percent: int | None) -> None:
        """Limit the size of lossily encoded tensors; None forbids lossy codecs.

        Clears the losses so far.
        """

    @staticmethod
    def losses() -> list[Loss]:
        """Return the errors that lossy codecs have made since `set_lossy_rate`."""

    @staticmethod
    def codec_problem(device: int) -> str:
        """Return why a GPU cannot encode swaps; "" if it can."""

    @staticmethod
    def codec_device(device: int) -> str:
        """Return the GPU's name and memory, which identify the speed of its codecs."""

    @staticmethod
    def codec_processors(device: int) -> int:
        """Return the least number of thread blocks that a GPU runs concurrently; 0 for a CPU."""

    @staticmethod
    def use_codec(
        device: int, codec: str, path: str | os.PathLike[str], workspace_bytes: int
    ) -> str:
        """Load a codec of a library for a GPU. Return "" or an error message.

        Args:
            device: A GPU's number.
            codec: "lz4" or "ans", which are nvCOMP's.
            path: The library.
            workspace_bytes: Device memory to allocate, within the budget, until
                `release_codecs`. A larger one encodes more sections of a tensor at once.
        """

    @staticmethod
    def release_codecs(device: int) -> None:
        """Release what `use_codec` allocated."""

    @staticmethod
    def take_codec_fault(device: int, wait: bool = False) -> str:
        """Return the decoding error since the last call; "" if there was none.

        Args:
            device: The device's number.
            wait: Wait for all work of the device.
        """

    @staticmethod
    def set_codec_launch(device: int, codec: str, launch: Launch) -> None:
        """Set the blocks and threads with which a GPU runs a codec.

        Raises:
            LibraryError: There is no such codec or launch.
        """

    @staticmethod
    def measure_device_codec(
        device: int, codec: str, data: NDArray[Any], launch: Launch, repeats: int = 1
    ) -> tuple[int, float, float]:
        """Measure a GPU's codec on a tensor while nothing else runs.

        Args:
            device: A GPU's number.
            codec: "zvc", "rle" or "csr"; "lz4" or "ans" while they are in use.
            data: Elements of 2 or 4 bytes; the device needs memory for them.
            launch: Blocks, and threads per block.
            repeats: The number of runs to average, after one warm-up run.

        Returns:
            Encoded bytes, seconds to encode, seconds to decode.

        Raises:
            LibraryError: The measurement failed, or decoding returned other bytes.
        """

    @staticmethod
    def gpu_codecs(stream: int, folder: str | os.PathLike[str] | None = None) -> GpuCodecs:
        """Return the codecs of a stream's GPU, for benchmarks and tests.

        Args:
            stream: Any stream of the GPU.
            folder: The directory of the kernels; None: that of the library.

        Raises:
            LibraryError: There are no codecs; the message has the reason.
        """

    @staticmethod
    def pass_records() -> list[dict[str, Any]]:
        """Return what the Grappler pass did to each graph, oldest first."""

    @staticmethod
    def portable_fingerprint(fingerprint: str) -> str:
        """Return the fingerprint that a graph keeps in a SavedModel.

        "" if the pass has not seen the graph.
        """

    @staticmethod
    def describe(fingerprint: str) -> str:
        """Return the text of a graph that the pass saw (see `tfswap.step.graph`).

        It is the graph that has the fingerprint, whatever plan it runs under.
        """

    @staticmethod
    def describe_under_plan(fingerprint: str, label: str = "") -> str:
        """Return the same text with the ops that a training's plan recomputes.

        Args:
            fingerprint: The graph's.
            label: The training's.
        """

    @staticmethod
    def clear_pass_records() -> None: ...
    @staticmethod
    def forget_optimized_graphs() -> None:
        """Release the graphs that TensorFlow's own passes have made."""

    @staticmethod
    def estimate_step(
        graph: bytes,
        kept: Sequence[str],
        ops_per_s: float,
        product_ops_per_s: float,
        bytes_per_s: float,
    ) -> str:
        """Estimate the cost of each op of a training step.

        Args:
            graph: A serialized GraphDef.
            kept: Ops that must stay: outputs, and those with side effects only.
            ops_per_s: Speed of elementwise work.
            product_ops_per_s: Speed of convolutions and matrix products.
            bytes_per_s: Speed of the device's memory.

        Returns:
            Text for `tfswap.cost_model.op_costs`.

        Raises:
            ValueError: TensorFlow cannot use the graph.
        """
