"""What the C functions of ``libtfswap.so`` take and answer, for ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "tfswap_free": (None, [ctypes.c_void_p]),
    "tfswap_devices_made": (ctypes.c_int, []),
    "tfswap_gpu_count": (ctypes.c_int, []),
    "tfswap_has_device": (ctypes.c_int, [ctypes.c_int]),
    "tfswap_device_count": (ctypes.c_int, []),
    "tfswap_set_budget": (None, [ctypes.c_int, ctypes.c_int64]),
    "tfswap_set_workspace_limit": (None, [ctypes.c_int, ctypes.c_int64]),
    "tfswap_set_host_limit": (None, [ctypes.c_int64]),
    "tfswap_trim_host": (None, []),
    "tfswap_open_file": (ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_int64]),
    "tfswap_file_problem": (ctypes.c_void_p, []),
    "tfswap_emulate_link": (None, [ctypes.c_int, ctypes.c_double, ctypes.c_int64]),
    "tfswap_measure_link": (
        ctypes.c_void_p,
        [ctypes.c_int, ctypes.c_int64, ctypes.c_int, ctypes.POINTER(ctypes.c_int64)],
    ),
    "tfswap_set_verify": (None, [ctypes.c_int, ctypes.c_int]),
    "tfswap_make_room": (None, [ctypes.c_int]),
    "tfswap_stream_variables": (ctypes.c_void_p, [ctypes.c_int, ctypes.c_int]),
    "tfswap_set_faults": (ctypes.c_void_p, [ctypes.c_char_p]),
    "tfswap_fault_counts": (ctypes.c_void_p, []),
    "tfswap_memory_stats": (ctypes.c_void_p, [ctypes.c_int]),
    "tfswap_step_counts": (None, [ctypes.c_int, ctypes.POINTER(ctypes.c_int64)]),
    "tfswap_reset_memory_stats": (None, [ctypes.c_int]),
    "tfswap_restart_window": (None, [ctypes.c_int]),
    "tfswap_install_layout": (
        ctypes.c_void_p,
        [ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p],
    ),
    "tfswap_remove_layout": (None, [ctypes.c_int, ctypes.c_char_p]),
    "tfswap_clear_layouts": (None, [ctypes.c_int]),
    "tfswap_always_slab": (ctypes.c_void_p, [ctypes.c_int, ctypes.c_int]),
    "tfswap_sample_codecs": (None, [ctypes.c_char_p]),
    "tfswap_codec_samples": (ctypes.c_void_p, []),
    "tfswap_set_lossy_rate": (None, [ctypes.c_int]),
    "tfswap_losses": (ctypes.c_void_p, []),
    "tfswap_codec_problem": (ctypes.c_void_p, [ctypes.c_int]),
    "tfswap_codec_device": (ctypes.c_void_p, [ctypes.c_int]),
    "tfswap_codec_processors": (ctypes.c_int, [ctypes.c_int]),
    "tfswap_use_codec": (
        ctypes.c_void_p,
        [ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int64],
    ),
    "tfswap_release_codecs": (None, [ctypes.c_int]),
    "tfswap_take_codec_fault": (ctypes.c_void_p, [ctypes.c_int, ctypes.c_int]),
    "tfswap_set_codec_launch": (
        ctypes.c_void_p,
        [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_int],
    ),
    "tfswap_measure_device_codec": (
        ctypes.c_void_p,
        [
            ctypes.c_int,
            ctypes.c_char_p,
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_int64,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.POINTER(ctypes.c_int64),
        ],
    ),
    "tfswap_load_blosc": (ctypes.c_void_p, [ctypes.c_char_p]),
    "tfswap_trim_malloc": (None, []),
    "tfswap_check_slab": (None, [ctypes.c_int, ctypes.c_int]),
    "tfswap_open_bfc": (None, [ctypes.c_int, ctypes.c_int64]),
    "tfswap_granule_bytes": (ctypes.c_int64, []),
    "tfswap_chain_make": (
        ctypes.c_void_p,
        [ctypes.c_char_p, ctypes.c_int64, ctypes.POINTER(ctypes.c_void_p)],
    ),
    "tfswap_chain_destroy": (None, [ctypes.c_void_p]),
    "tfswap_chain_install": (ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]),
    "tfswap_chain_check": (None, [ctypes.c_void_p, ctypes.c_int]),
    "tfswap_chain_allocate": (
        ctypes.c_void_p,
        [
            ctypes.c_void_p,
            ctypes.c_char_p,
            ctypes.c_char_p,
            ctypes.c_int,
            ctypes.c_int64,
            ctypes.c_int64,
            ctypes.c_int,
        ],
    ),
    "tfswap_chain_free": (None, [ctypes.c_void_p, ctypes.c_void_p]),
    "tfswap_chain_requested": (ctypes.c_int64, [ctypes.c_void_p, ctypes.c_void_p]),
    "tfswap_chain_set_workspace_limit": (None, [ctypes.c_void_p, ctypes.c_int64]),
    "tfswap_chain_set_budget": (None, [ctypes.c_void_p, ctypes.c_int64]),
    "tfswap_chain_stats": (ctypes.c_void_p, [ctypes.c_void_p]),
    "tfswap_chain_replay": (
        ctypes.c_int64,
        [
            ctypes.c_void_p,
            ctypes.POINTER(ctypes.c_int64),
            ctypes.c_int64,
            ctypes.c_int64,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.POINTER(ctypes.c_int64),
        ],
    ),
    "tfswap_start_recording": (None, [ctypes.c_int, ctypes.c_int]),
    "tfswap_stop_recording": (
        ctypes.c_void_p,
        [ctypes.c_int, ctypes.POINTER(ctypes.c_int64)],
    ),
    "tfswap_pass_records": (ctypes.c_void_p, []),
    "tfswap_describe": (ctypes.c_void_p, [ctypes.c_char_p]),
    "tfswap_describe_under_plan": (ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_char_p]),
    "tfswap_clear_pass_records": (None, []),
    "tfswap_estimate_step": (
        ctypes.c_void_p,
        [
            ctypes.c_char_p,
            ctypes.c_int64,
            ctypes.c_char_p,
            ctypes.c_double,
            ctypes.c_double,
            ctypes.c_double,
        ],
    ),
}


def take_text(pointer: int | None, free: Callable[[int], object]) -> str:
    """Reads a text that a C function answered, and frees it; "" if there is none.

    Args:
        pointer: The text.
        free: ``tfswap_free``.
    """
    if not pointer:
        return ""
    try:
        return ctypes.string_at(pointer).decode("utf-8", errors="replace")
    finally:
        free(pointer)
