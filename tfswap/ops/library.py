"""Load ``libtfswap.so`` into the TensorFlow that it was built for, before its devices exist."""

from __future__ import annotations

import sys
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path

from tfswap.ops.loaded_library import Library, LibraryError

SUPPORTED_TENSORFLOW = ("2.20", "2.21")
"""TensorFlow releases, as ``major.minor``, whose C++ interface this version supports."""

LIBRARY_PATH = Path(__file__).resolve().parent.parent / "libtfswap.so"
GPU_LIBRARY_PATH = LIBRARY_PATH.with_name("libtfswap_gpu.so")
"""Exists only if tfswap was built against a TensorFlow with GPU devices."""

_TOO_LATE = (
    "tfswap was loaded after TensorFlow had created its devices, so the CPU device is TensorFlow's "
    "own and no budget can be kept. Import tfswap before the first TensorFlow operation of the "
    "process (a tensor, a layer, tf.config.list_logical_devices()); importing tensorflow before "
    "tfswap is fine. In a notebook: restart the kernel, then import tfswap first."
)

_library: Library | None = None
_problem: str | None = None


def tensorflow_version() -> str | None:
    """Return the installed TensorFlow release without importing it; None if there is none."""
    for name in ("tensorflow", "tensorflow-cpu", "tensorflow_cpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _context_is_initialized() -> bool:
    context = sys.modules.get("tensorflow.python.eager.context")
    if context is None:
        return False
    current = getattr(context, "_context", None)
    return current is not None and bool(getattr(current, "_initialized", False))


def _check_versions() -> None:
    version = tensorflow_version()
    supported = ", ".join(f"{release}.x" for release in SUPPORTED_TENSORFLOW)
    if version is None:
        raise LibraryError(
            "tfswap needs TensorFlow, and none is installed. Supported: "
            f"{supported} (pip install tensorflow-cpu, or tensorflow)."
        )
    if ".".join(version.split(".")[:2]) not in SUPPORTED_TENSORFLOW:
        raise LibraryError(
            f"tfswap supports TensorFlow {supported}, and {version} is installed. Install a "
            "supported TensorFlow, then build tfswap again (pip install --force-reinstall tfswap)."
        )
    missing = None
    if not LIBRARY_PATH.exists():
        missing = str(LIBRARY_PATH)
    elif find_spec("tfswap._runtime") is None:
        missing = "tfswap._runtime (for this version of Python)"
    if missing is not None:
        raise LibraryError(
            f"{missing} is missing: tfswap was not built. Run `pip install .` (or `make build`) in "
            "its source tree."
        )
    try:
        built = import_module("tfswap._build_info").TENSORFLOW_VERSION
    except ImportError:
        return
    if built != version:
        raise LibraryError(
            f"tfswap was built for TensorFlow {built}, and {version} is installed. Its C++ "
            "interface changes between releases, so loading it could crash. Build tfswap again: "
            "pip install --force-reinstall --no-deps tfswap."
        )


def load() -> Library:
    """Load libtfswap into TensorFlow, once per process. Later calls return the same library.

    Raises:
        LibraryError: TensorFlow is missing, unsupported or not the one that tfswap was built for,
            the library was not built, or TensorFlow's devices already exist.
    """
    global _library, _problem
    if _library is not None:
        return _library
    if _problem is not None:
        raise LibraryError(_problem)
    try:
        _check_versions()
        if _context_is_initialized():
            raise LibraryError(_TOO_LATE)
        import tensorflow as tf

        if _context_is_initialized():
            raise LibraryError(_TOO_LATE)
        tf.load_library(str(LIBRARY_PATH))
        if GPU_LIBRARY_PATH.exists() and tf.test.is_built_with_cuda():
            tf.load_library(str(GPU_LIBRARY_PATH))
        _library = import_module("tfswap._runtime").Library()
    except LibraryError as error:
        _problem = str(error)
        raise
    return _library


def problem() -> str | None:
    """Return why the library could not be loaded; None if it is loaded or was not requested."""
    return _problem


def device_is_ours() -> bool:
    """Return whether TensorFlow's CPU devices are tfswap's. Creates them if there are none yet."""
    if _library is None:
        return False
    import tensorflow as tf

    tf.config.list_logical_devices("CPU")
    return _library.devices_made() > 0
