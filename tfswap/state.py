"""What is loaded, what is in force, what memory is in use."""

from __future__ import annotations

from typing import Any

from tfswap.machine import budget as budgets
from tfswap.machine.devices import FIRST_GPU
from tfswap.ops import library
from tfswap.ops.loaded_library import Library, LibraryError
from tfswap.training import active_runs


def status() -> dict[str, Any]:
    """The state of tfswap in this process.

    Returns:
        loaded: Whether libtfswap is in TensorFlow.
        problem: Why not, as a text with what to do; None otherwise.
        device_is_ours: Whether TensorFlow's CPU devices are tfswap's.
        tensorflow: The installed TensorFlow release, or None.
        plan_in_force: Whether a training is under way whose plan is in the session.
        trainings: State of each training under way.
        functions: What the pass did to each graph: fingerprint, label (of the training), outcome
            ("planned", "bootstrapped", "left", "refused"), reason, nodes, swaps, of its ops how
            many work on sections of the batch (sectioned_ops), how many sections, examples in the
            batch (0: not known), and, of what trains, floors: sections, bytes and op of the one
            that needs most, for each number that was looked at.
    """
    try:
        loaded: Library | None = library.load()
    except LibraryError:
        loaded = None
    trainings = active_runs.states()
    return {
        "loaded": loaded is not None,
        "problem": library.problem(),
        "device_is_ours": library.device_is_ours(),
        "tensorflow": library.tensorflow_version(),
        "plan_in_force": any(training["in_force"] for training in trainings),
        "trainings": trainings,
        "functions": [] if loaded is None else loaded.pass_records(),
    }


def number_of(device: str | int) -> int:
    """What the library calls a device: n for "CPU:n" (and for n itself), 1000 + n for "GPU:n".

    Raises:
        ValueError: It is no device's name, or a GPU that is not there or has run nothing yet.
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
            f"there is no {device!r} of tfswap's: it manages those that TensorFlow sees "
            "(`tf.config.list_logical_devices('GPU')`) from their first operation on, if it was "
            "built for a TensorFlow with GPU devices (`pip install tensorflow`, then tfswap again)"
        )
    return known


def memory_stats(device: str | int = "CPU:0") -> dict[str, Any]:
    """Memory of one device and its copies, since the process began or `reset_memory_stats`.

    Args:
        device: "CPU:0", "GPU:0", or its number. Defaults to "CPU:0".

    Returns:
        In bytes: `budget_bytes` (None: no limit), `bytes_in_use` and `peak_bytes` (what the budget
        is for: with a slab, all of its memory), `load_bytes` and `peak_load_bytes` (what was asked
        for), `footprint_ratio` (of the peaks), `largest_request_bytes`, `bytes_out`, `bytes_in`,
        `host_bytes_in_use`, `host_peak_bytes`, `host_bytes_cached`, `host_limit_bytes` (None: no
        limit).

        Of the slab, in bytes: `slab_limit_bytes` (the layouts' height), `slab_bytes` (memory behind
        it), `slab_claimed_bytes`. How allocations of 4 KiB and more were
        served, each with its `..._bytes`: `slab_hits` (where planned), `slab_moved` (elsewhere in
        the slab), `slab_missed` (outside), `slab_lasting` (among unplanned places, by plan: what
        outlives its step). Why not where planned: `slab_unplanned`, `slab_other_size`,
        `slab_taken`, `slab_no_room`. `slab_faults`: writes to freed addresses that the check found.

        Of far memory, which the CPUs share, for each tier ("host", "compressed", "file") as
        `far_<tier>_...`: `bytes_out` (as on the device), `kept_bytes_out` (as kept: less where
        encoded), `bytes_in`, `bytes_in_use` and `peak_bytes` (as kept), `copies_out`,
        `busy_out_ns`, `busy_in_ns` (of a GPU: the disk's alone); `far_moved_on`: buffers that found
        no room in the tier that they were meant for; `file_bytes` (what the file, one for all
        devices, takes of the disk), `file_limit_bytes`, `file_errors` (writes that failed; what was
        to be written stayed in memory).

        Counts: `allocations`, `waits`, `failures`, `copies_out`, `copies_in`, `copies_declined`,
        `far_buffers`. In ns: `wait_ns`, `busy_out_ns`, `busy_in_ns`.

    Raises:
        LibraryError: The library is not loaded.
        ValueError: There is no such device.
    """
    stats: dict[str, Any] = dict(library.load().memory_stats(number_of(device)))
    for key in ("budget_bytes", "host_limit_bytes"):
        stats[key] = stats[key] or None
    stats["footprint_ratio"] = stats["peak_bytes"] / max(stats["peak_load_bytes"], 1)
    del stats["memory_bytes"], stats["window_peak_bytes"], stats["window_peak_load_bytes"]
    return stats


def reset_memory_stats(device: str | int = "CPU:0") -> None:
    """Sets counts to 0 and peaks to what is in use now."""
    library.load().reset_memory_stats(number_of(device))


def set_budget(budget: int | float | str | None, device: str | int = "CPU:0") -> None:
    """Caps a device's memory from now on, without any swapping.

    Args:
        budget: As for `AutoSwap`, of one device; None takes the cap away.
        device: "CPU:0", "GPU:0", or its number. Defaults to "CPU:0".
    """
    number = number_of(device)
    lib = library.load()
    limit = lib.memory_stats(number)["memory_bytes"] if number >= FIRST_GPU else None
    lib.set_budget(
        number, None if budget is None else budgets.resolve(budget, device_limit_bytes=limit)
    )
