"""The GPUs that TensorFlow sees, and which of them are tfswap's."""

from __future__ import annotations

from dataclasses import dataclass

from tfswap.ops.loaded_library import Library

FIRST_GPU = 1000
"""The library's number of "GPU:0"."""

NOT_OURS = (
    "A GPU is visible, and it is TensorFlow's own: memory on it is not limited. tfswap was built "
    "for a TensorFlow without GPU devices; build it again beside this one "
    "(pip install --force-reinstall --no-deps --no-build-isolation tfswap)."
)


@dataclass(frozen=True)
class Gpu:
    """One (logical) GPU device.

    Attributes:
        name: "GPU:0", "GPU:1", ...
        number: The library's.
        is_ours: Whether it has a budget and swaps.
    """

    name: str
    number: int
    is_ours: bool


def visible_gpus(lib: Library) -> list[Gpu]:
    """All that TensorFlow sees; each has run an operation then."""
    import tensorflow as tf

    found = []
    for i, device in enumerate(tf.config.list_logical_devices("GPU")):
        with tf.device(device.name):  # has streams from its first operation on
            tf.identity(tf.constant(0.0)).numpy()
        found.append(Gpu(f"GPU:{i}", FIRST_GPU + i, lib.has_device(FIRST_GPU + i)))
    return found


def device_name(number: int) -> str:
    """What people call a device: "CPU:0" for 0, "GPU:1" for 1001."""
    return f"GPU:{number - FIRST_GPU}" if number >= FIRST_GPU else f"CPU:{number}"
