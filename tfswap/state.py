"""tfswap's state in this process: the library, trainings and their plans, memory statistics."""

from __future__ import annotations

from typing import Any

from tfswap.machine import budget as budgets
from tfswap.machine.devices import FIRST_GPU
from tfswap.ops import library
from tfswap.ops.loaded_library import Library, LibraryError
from tfswap.training.run import training_states


def status() -> dict[str, Any]:
    """Return the state of tfswap in this process.

    Returns:
        loaded: Whether TensorFlow has loaded libtfswap.
        problem: If not, the reason and what to do; None otherwise.
        device_is_ours: Whether tfswap manages TensorFlow's CPU devices.
        tensorflow: The installed TensorFlow release, or None.
        plan_in_force: Whether a running training has installed a plan.
        trainings: The state of each running training.
        functions: The pass's record of each graph: fingerprint, label (of the training), outcome
            ("planned", "bootstrapped", "left", "refused"), reason, nodes, swaps, number of ops
            that process sections of the batch (sectioned_ops), number of sections, examples in the
            batch (0: unknown), and for training graphs floors: sections, bytes and the op that
            needs most, for each number of sections that was tried.
    """
    try:
        loaded: Library | None = library.load()
    except LibraryError:
        loaded = None
    trainings = training_states()
    return {
        "loaded": loaded is not None,
        "problem": library.problem(),
        "device_is_ours": library.device_is_ours(),
        "tensorflow": library.tensorflow_version(),
        "plan_in_force": any(training["in_force"] for training in trainings),
        "trainings": trainings,
        "functions": [] if loaded is None else loaded.pass_records(),
    }


def device_number(device: str | int) -> int:
    """Return the library's number of a device: n for "CPU:n" and for n, 1000 + n for "GPU:n".

    Raises:
        ValueError: The name is invalid, or the GPU does not exist or has not run an operation yet.
    """
    if isinstance(device, int):
        return device
    kind, _, number = device.rpartition("/")[2].replace("device:", "").partition(":")
    first = {"CPU": 0, "GPU": FIRST_GPU}.get(kind.upper())
    if first is None or not (number or "0").isdigit():
        raise ValueError(f"unknown device {device!r}: tfswap manages 'CPU:0', 'GPU:0', ...")
    known = first + int(number or 0)
    if known >= FIRST_GPU and not library.load().has_device(known):
        raise ValueError(
            f"tfswap does not manage {device!r}: it manages the GPUs that TensorFlow sees "
            "(`tf.config.list_logical_devices('GPU')`) from their first operation on, if it was "
            "built for a TensorFlow with GPU devices (`pip install tensorflow`, then tfswap again)"
        )
    return known


def memory_stats(device: str | int = "CPU:0") -> dict[str, Any]:
    """Return statistics of a device's memory and copies since the last `reset_memory_stats`.

    Args:
        device: "CPU:0", "GPU:0", or the library's number. Defaults to "CPU:0".

    Returns:
        In bytes: `budget_bytes` (None: no limit), `bytes_in_use` and `peak_bytes` (the memory that
        counts against the budget, including the whole slab), `load_bytes` and `peak_load_bytes`
        (the requested sizes), `footprint_ratio` (`peak_bytes` / `peak_load_bytes`),
        `largest_request_bytes`, `bytes_out`, `bytes_in`, `host_bytes_in_use`, `host_peak_bytes`,
        `host_bytes_cached`, `host_limit_bytes` (None: no limit).

        The slab, in bytes: `slab_limit_bytes` (the layouts' height), `slab_bytes` (its memory),
        `slab_claimed_bytes`. Numbers of allocations of 1 KiB and more, each also in `..._bytes`:
        `slab_hits` (at the planned address), `slab_moved` (elsewhere in the slab), `slab_missed`
        (outside the slab), `slab_lasting` (planned without an address because they outlive the
        step). Reasons for another address: `slab_unplanned`, `slab_other_size`, `slab_taken`,
        `slab_no_room`. `slab_faults`: writes to freed addresses that the check found.

        Far memory, which all CPU devices share, for each tier ("host", "compressed", "file") as
        `far_<tier>_...`: `bytes_out` (size on the device), `kept_bytes_out` (size in the tier,
        smaller if encoded), `bytes_in`, `bytes_in_use` and `peak_bytes` (size in the tier),
        `copies_out`, `busy_out_ns`, `busy_in_ns` (for a GPU: of the disk only). `far_moved_on`:
        buffers that went to another tier because theirs was full. `file_bytes` (disk space of the
        one spill file of all devices), `file_limit_bytes`, `file_errors` (failed writes, whose data
        stayed in memory).

        Counts: `allocations`, `waits`, `failures`, `copies_out`, `copies_in`, `copies_declined`,
        `far_buffers`. In ns: `wait_ns`, `busy_out_ns`, `busy_in_ns`. `workspaces_declined`: GPU
        convolutions that ran without their workspace, so with another algorithm, whose last bits
        may differ.

    Raises:
        LibraryError: The library is not loaded.
        ValueError: The device does not exist.
    """
    stats: dict[str, Any] = dict(library.load().memory_stats(device_number(device)))
    for key in ("budget_bytes", "host_limit_bytes"):
        stats[key] = stats[key] or None
    stats["footprint_ratio"] = stats["peak_bytes"] / max(stats["peak_load_bytes"], 1)
    del stats["memory_bytes"], stats["window_peak_bytes"], stats["window_peak_load_bytes"]
    return stats


def reset_memory_stats(device: str | int = "CPU:0") -> None:
    """Set the counts to 0 and the peaks to the current use."""
    library.load().reset_memory_stats(device_number(device))


def set_budget(budget: int | float | str | None, device: str | int = "CPU:0") -> None:
    """Limit a device's memory without swapping.

    Args:
        budget: One device's budget, as for `AutoSwap`; None removes the limit.
        device: "CPU:0", "GPU:0", or the library's number. Defaults to "CPU:0".
    """
    number = device_number(device)
    lib = library.load()
    limit = lib.memory_stats(number)["memory_bytes"] if number >= FIRST_GPU else None
    lib.set_budget(
        number, None if budget is None else budgets.resolve(budget, device_limit_bytes=limit)
    )
