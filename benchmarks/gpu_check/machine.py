"""Stage: hardware and software, and whether a GPU can be checked at all."""

from __future__ import annotations

import os
import platform
from typing import Any

from benchmarks.gpu_check.context import Context, Missing
from benchmarks.gpu_check.driver import management, the_driver

GPU = "GPU:0"
# The name that the GPU of tests/gpu/fake_cuda reports.
_FAKE_NAME = "FAKE"


def run(context: Context) -> None:
    """Find the GPU, its driver, TensorFlow and tfswap.

    Raises:
        Missing: One of them is missing; the text says what to do.
    """
    figures = context.figures
    figures |= _software()
    driver = the_driver()
    figures["driver_cuda"] = driver.cuda_version()
    figures |= management()
    figures |= _gpu()
    figures["fake"] = _FAKE_NAME in figures["device"]
    figures["cpu"] = _processor()
    figures["cores"] = len(os.sched_getaffinity(0))
    figures["host_bytes"] = _host_bytes()
    gib = figures["memory_bytes"] / 2**30
    context.line("device", f"{figures['device']}, {gib:.1f} GiB for TensorFlow")
    context.line("driver", f"{figures['driver'] or '?'}, CUDA {figures['driver_cuda']}")
    context.line("TensorFlow", f"{figures['tensorflow']}, CUDA {figures['tensorflow_cuda']}")
    context.line(
        "host", f"{figures['cores']} cores, {figures['host_bytes'] / 2**30:.0f} GiB of memory"
    )


def _software() -> dict[str, Any]:
    try:
        import tensorflow as tf
    except ImportError as error:
        raise Missing(f"TensorFlow is not installed: {error}. pip install tensorflow") from None
    build = tf.sysconfig.get_build_info()
    if not build.get("is_cuda_build"):
        raise Missing(
            f"TensorFlow {tf.__version__} here is without CUDA. pip install tensorflow (not "
            "tensorflow-cpu), then build tfswap against it: python setup.py build_ext --inplace"
        )
    import tfswap  # after that: another TensorFlow cannot load the GPU's library  # isort: skip
    import keras  # isort: skip
    from tfswap.ops import library

    if library.problem() is not None:
        raise Missing(library.problem())
    if not library.gpu_path().exists():
        raise Missing(
            f"{library.gpu_path().name} is not built: tfswap was built against a TensorFlow "
            "without GPU devices. Build it again: python setup.py build_ext --inplace"
        )
    return {
        "tfswap": tfswap.__version__,
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "python": platform.python_version(),
        "tensorflow_cuda": build.get("cuda_version"),
        "tensorflow_cudnn": build.get("cudnn_version"),
    }


def _gpu() -> dict[str, Any]:
    import tensorflow as tf

    from tfswap import state

    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        raise Missing(
            "The driver sees a GPU, and TensorFlow does not: one of CUDA's libraries is missing "
            '(pip install "tensorflow[and-cuda]"), or CUDA_VISIBLE_DEVICES hides the GPU. '
            "TF_CPP_MIN_LOG_LEVEL=0 has TensorFlow say which."
        )
    details = tf.config.experimental.get_device_details(gpus[0])
    touch_gpu()
    try:
        state.device_number(GPU)
    except ValueError as error:
        raise Missing(f"TensorFlow's GPU is not tfswap's: {error}") from None
    return {
        "device": details.get("device_name", "?"),
        "compute_capability": details.get("compute_capability"),
        "gpus": len(gpus),
        "memory_bytes": gpu_bytes(),
    }


def touch_gpu() -> None:
    """Make TensorFlow create its GPU device: tfswap knows the GPU from its first operation on."""
    import tensorflow as tf

    with tf.device(GPU):
        tf.identity(tf.constant(1.0)).numpy()


def gpu_bytes() -> int:
    """Return the GPU memory that TensorFlow may allocate."""
    from tfswap import state
    from tfswap.ops import library

    return library.load().memory_stats(state.device_number(GPU))["memory_bytes"]


def _processor() -> str | None:
    with open("/proc/cpuinfo") as lines:
        names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
        return next(names, None)


def _host_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
