"""Types of the native core, which ``cc/core/simulate/simulator.h`` documents."""

import builtins
from typing import Any

import numpy as np
from numpy.typing import NDArray

Buffer = bytes | bytearray | memoryview | NDArray[Any]

class Tier:
    def __init__(
        self,
        out_bytes_per_s: float,
        in_bytes_per_s: float,
        out_latency_ns: int = 0,
        in_latency_ns: int = 0,
        capacity_bytes: int = ...,
        in_sections: bool = ...,
    ) -> None: ...
    def out_duration_ns(self, bytes: int) -> int: ...
    def in_duration_ns(self, bytes: int) -> int: ...

class Timeline:
    def __init__(
        self,
        op_start_ns: NDArray[np.int64],
        op_end_ns: NDArray[np.int64],
        resident_bytes: int,
        buffer_bytes: NDArray[np.int64],
        buffer_alloc_ns: NDArray[np.int64],
        buffer_free_ns: NDArray[np.int64],
        absences: NDArray[np.int32],
        step_ns: int,
    ) -> None: ...
    def events(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (time_ns, unswapped load after the event) of each event, in simulation order."""

    def op_positions(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the event index of each op's start and of each op's end."""

class SimResult:
    @property
    def step_ns(self) -> int: ...
    @property
    def stall_ns(self) -> int: ...
    @property
    def peak_bytes(self) -> int: ...
    @property
    def peak_ns(self) -> int: ...
    @property
    def peak_op(self) -> int:
        """The last op that started before the peak; -1: none."""

    @property
    def peak_holders(self) -> list[tuple[int, int]]:
        """(buffer, bytes) of the five largest buffers at the peak, without resident bytes."""

    @property
    def bytes_out(self) -> int: ...
    @property
    def bytes_in(self) -> int: ...
    @property
    def far_peak_bytes(self) -> list[int]:
        """The peak bytes of each tier of far memory."""

    @property
    def fits(self) -> bool: ...
    @property
    def stalls(self) -> list[tuple[int, str, int, int]]:
        """(op, "gate" | "swap-in" | "budget" | "order", index of the swap or -1, ns)."""

    def swap_times(self) -> NDArray[np.int64]:
        """Return a row per swap: out start, out end, released, in start, in end; -1: no copy."""

    def load_curve(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (time_ns, bytes from then on) for every change, in order."""

def simulate(
    timeline: Timeline,
    swaps: NDArray[np.int64],
    tiers: list[Tier],
    budget_bytes: int | None = None,
    order: list[tuple[int, int]] = ...,
) -> SimResult: ...

class MaxTree:
    """A range-add, range-maximum tree; see ``cc/core/simulate/max_tree.h``."""

    def __init__(self, values: NDArray[np.int64]) -> None: ...
    def add(self, begin: int, end: int, delta: int) -> None: ...
    def max(self) -> int: ...

class AllocationWaitPolicy:
    """How long an allocation waits for memory; see ``cc/core/memory/allocation_wait_policy.h``."""

    def __init__(self, now_ns: int, worked_ns: int) -> None: ...
    def ends_at(
        self,
        now_ns: int,
        worked_ns: int,
        released: bool = False,
        alive: bool = False,
        others_are_runnable: bool = False,
    ) -> bool: ...

class PackingProblem:
    """Buffers to pack; see ``cc/packing``. Raises ValueError for invalid buffers."""

    def __init__(
        self,
        size: NDArray[np.int64],
        lower: NDArray[np.int64],
        upper: NDArray[np.int64],
        alignment: NDArray[np.int64],
        fixed: NDArray[np.int64],
        gaps: NDArray[np.int64],
    ) -> None: ...
    def max_live(self) -> int: ...
    def find_fault(self, offsets: NDArray[np.int64], height: int) -> str: ...
    def place_by_size(self, best_fit: bool) -> NDArray[np.int64]: ...
    def improve(self, seconds: float, enough: int, seed: int) -> NDArray[np.int64]: ...
    def solve(
        self, capacity: int, seconds: float, without: list[str], seed: int
    ) -> tuple[str, NDArray[np.int64], int]: ...
    def pack(
        self, seconds: float, capacities: list[int], seed: int
    ) -> tuple[NDArray[np.int64], int, int]: ...

class LocalSearch:
    """Plans of one tier without sections; see ``cc/core/simulate/local_search.h``."""

    def __init__(
        self,
        timeline: Timeline,
        swaps: NDArray[np.int64],
        usable: NDArray[np.bool_],
        op_context: NDArray[np.int32],
        absence_context: NDArray[np.int32],
        forms: NDArray[np.int64],
        min_bytes: int,
        tier: Tier,
        limit_bytes: int,
        slow: Tier | None,
        copying_ns_per_byte: float,
        enough_ns: int,
        seed: int,
    ) -> None: ...
    def run(self, seconds: float, tries: int) -> bool:
        """Try plans up to a time limit and a total count; return whether the search continues."""

    @property
    def stall_ns(self) -> int: ...
    @property
    def tried(self) -> int: ...
    def swaps(self) -> list[tuple[int, int, int, int, int, int, int, int]]:
        """Return all fields of each `Swap`, sorted by absence."""

def measure_copy_speed(bytes: int, repeats: int) -> float:
    """Measure the bytes per second of a swap's copies between two blocks of this size."""

def longest_repetition(symbols: NDArray[np.int64], min_length: int) -> tuple[int, int]:
    """Return (start, length) of the longest repetition, reduced to its period; length 0: none."""

class Extents:
    """The free extents of a file; see ``cc/core/spill/extents.h``."""

    def __init__(self) -> None: ...
    def take(self, bytes: int) -> int:
        """Allocate an extent of this size and return its offset; -1: no room."""

    def give_back(self, offset: int, bytes: int) -> None: ...
    def grow(self, bytes: int) -> None: ...
    @property
    def end(self) -> int: ...
    @property
    def free_bytes(self) -> int: ...
    @property
    def free_bytes_at_end(self) -> int: ...
    @property
    def largest_free_bytes(self) -> int: ...

class SpillStats:
    @property
    def bytes_in_use(self) -> int: ...
    @property
    def peak_bytes_in_use(self) -> int: ...
    @property
    def file_bytes(self) -> int: ...
    @property
    def limit_bytes(self) -> int: ...
    @property
    def bytes_written(self) -> int: ...
    @property
    def bytes_read(self) -> int: ...
    @property
    def write_ns(self) -> int: ...
    @property
    def read_ns(self) -> int: ...

class SpillFile:
    """A spill file; see ``cc/core/spill/spill_file.h``. Raises OSError on failure."""

    def __init__(
        self,
        folder: str,
        limit_bytes: int = 0,
        *,
        checksums: bool = True,
        io_uring: bool = True,
    ) -> None: ...
    def allocate(self, bytes: int) -> int:
        """Return the offset of an extent of this size; -1: no room, see ``problem``."""

    def free(self, offset: int, bytes: int) -> None: ...
    def write(self, offset: int, data: NDArray[np.generic]) -> None: ...
    def read(self, offset: int, data: NDArray[np.generic]) -> None: ...
    def stats(self) -> SpillStats: ...
    def reset_peak(self) -> None: ...
    @property
    def problem(self) -> str: ...
    @property
    def engine(self) -> str:
        """Either "io_uring" or "threads"."""

    @property
    def folder(self) -> str: ...

class CheckpointValue:
    """A value in a file; see ``cc/core/spill/checkpoint_file.h``."""

    @staticmethod
    def find(
        path: str, offset: int, size_bytes: int, known: NDArray[np.generic]
    ) -> CheckpointValue | None:
        """Return the value; None if it does not begin with these bytes."""

    def read(self, begin: int, data: NDArray[np.generic]) -> None:
        """Read a part that begins at a whole MiB; raise OSError if it has changed."""

class SpillSpeed:
    @property
    def write_bytes_per_s(self) -> float: ...
    @property
    def read_bytes_per_s(self) -> float: ...
    @property
    def both_write_bytes_per_s(self) -> float: ...
    @property
    def both_read_bytes_per_s(self) -> float: ...

def set_faults(text: str) -> None:
    """Inject faults into this module's core, for tests; see ``cc/core/util/faults.h``. "": none.

    Raises ValueError for an invalid text.
    """

def fault_counts() -> dict[str, tuple[int, int]]:
    """Return the opportunities and the injections of each fault since it was set, by name."""

def measure_spill(
    folder: str,
    bytes: int,
    seconds: float = 0.5,
    *,
    checksums: bool = True,
    io_uring: bool = True,
) -> SpillSpeed:
    """Measure a temporary spill file of at most this size in the folder."""

def buffer_checksum(data: NDArray[np.generic], portable: bool = False) -> int: ...

SECTION_BYTES: int

class Encoded:
    """A buffer encoded in sections, stored in chunks; see ``cc/codecs/codec_stream.h``."""

    @property
    def encoded_bytes(self) -> int: ...
    @property
    def chunks(self) -> int: ...
    def decode(self, threads: int = 1) -> bytes: ...

def encode(
    data: Buffer,
    codec: str,
    element_bytes: int = 4,
    rate_percent: int = 100,
    threads: int = 1,
    chunk_bytes: int = ...,
    most_chunks: int = ...,
) -> Encoded | None:
    """Encode a whole buffer; return None if it needs more than `most_chunks`.

    Raises ValueError if the codec is unknown, not loaded, or cannot encode such elements.
    """

def encode_section(
    data: Buffer, codec: str, element_bytes: int = 4, rate_percent: int = 100
) -> bytes: ...
def decode_section(data: Buffer, bytes: int, past_cache: bool = False) -> builtins.bytes | None:
    """Decode a section to this many bytes; return None if it is malformed."""

def measure_codec(
    data: Buffer,
    codec: str,
    element_bytes: int = 4,
    rate_percent: int = 100,
    threads: int = 1,
    repeats: int = 5,
) -> tuple[int, float, float, float]:
    """Return (encoded bytes, seconds to encode, to decode, to memcpy), medians of `repeats`."""

def why_not_codec(codec: str, element_bytes: int = 4) -> str:
    """Return why a codec cannot be used in this process; empty if it can."""

def sparsity(data: Buffer, element_bytes: int = 4, every: int = 1) -> float:
    """Return the fraction of words whose bits are all zero, sampling one in `every` 4 KiB."""

def count_zero_words(data: Buffer, element_bytes: int = 4) -> int: ...
def load_blosc(path: str) -> str:
    """Load c-blosc2's library, once; return "" or why it cannot be used."""

def codec_path() -> str:
    """Return the instruction set in use: "avx512", "avx2" or "portable"."""

def best_codec_path() -> str: ...
def set_codec_path(name: str) -> bool:
    """Select an instruction set, for tests; return False if this machine lacks it."""
