"""The GPUs that TensorFlow sees, and which of them tfswap manages."""

from __future__ import annotations

from dataclasses import dataclass

from tfswap.ops.loaded_library import Library

FIRST_GPU = 1000
"""The library's number for "GPU:0"."""

NOT_OURS = (
    "A GPU is visible, but TensorFlow's own allocator manages it: its memory is not limited. "
    "tfswap was built for a TensorFlow without GPU devices; rebuild it for this one "
    "(pip install --force-reinstall --no-deps --no-build-isolation tfswap)."
)


@dataclass(frozen=True)
class Gpu:
    """One (logical) GPU device.

    Attributes:
        name: "GPU:0", "GPU:1", ...
        number: The library's number for it.
        is_ours: Whether tfswap manages it, so that it can have a budget and swap.
    """

    name: str
    number: int
    is_ours: bool


def visible_gpus(lib: Library) -> list[Gpu]:
    """Return all GPUs that TensorFlow sees, after running an operation on each."""
    import tensorflow as tf

    found = []
    for i, device in enumerate(tf.config.list_logical_devices("GPU")):
        with tf.device(device.name):  # a GPU's streams exist from its first operation on
            tf.identity(tf.constant(0.0)).numpy()
        found.append(Gpu(f"GPU:{i}", FIRST_GPU + i, lib.has_device(FIRST_GPU + i)))
    return found


def device_name(number: int) -> str:
    """Return a device's name: "CPU:0" for 0, "GPU:1" for 1001."""
    return f"GPU:{number - FIRST_GPU}" if number >= FIRST_GPU else f"CPU:{number}"
