"""Load ``libtfswap.so`` for the installed TensorFlow, before TensorFlow's devices exist.

``tfswap/native`` has a folder for each TensorFlow release that tfswap was built for (``2.21``).
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import sys
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from tfswap.ops.loaded_library import Library, LibraryError

NATIVE = Path(__file__).resolve().parent.parent / "native"

_TOO_LATE = (
    "tfswap was loaded after TensorFlow had created its devices, so the CPU device is TensorFlow's "
    "own and no budget can be kept. Import tfswap before the first TensorFlow operation of the "
    "process (a tensor, a layer, tf.config.list_logical_devices()); importing tensorflow before "
    "tfswap is fine. In a notebook: restart the kernel, then import tfswap first."
)

_library: Library | None = None
_problem: str | None = None


def tensorflow_version() -> str | None:
    """Return the release of the imported or else the installed TensorFlow; None: none."""
    imported = sys.modules.get("tensorflow")
    if imported is not None and hasattr(imported, "__version__"):
        return str(imported.__version__)
    names = ("tensorflow", "tensorflow-cpu", "tf-nightly", "tf-nightly-cpu")
    for entry, name in itertools.product(sys.path, names):  # as an import looks for it
        for found in metadata.distributions(name=name, path=[entry]):
            return found.version
    return None


def folder() -> Path:
    """Return the folder of the libraries for the installed TensorFlow.

    Raises:
        LibraryError: TensorFlow is missing, or tfswap was not built for it or for this Python.
    """
    releases = sorted(path.parent.name for path in NATIVE.glob("*/build.json"))
    if not releases:
        raise LibraryError(
            f"{NATIVE} has no libraries: tfswap was not built. Run `pip install .` (or `make "
            "build`) in its source tree."
        )
    version = tensorflow_version()
    known = ", ".join(f"{release}.x" for release in releases)
    if version is None:
        raise LibraryError(
            "tfswap needs TensorFlow, and none is installed. It has libraries for "
            f"{known} (pip install tensorflow-cpu, or tensorflow)."
        )
    found = NATIVE / ".".join(version.split(".")[:2])
    if found.name not in releases:
        raise LibraryError(
            f"tfswap has libraries for TensorFlow {known}, and {version} is installed. Its C++ "
            "interface changes between releases, so loading another one could crash. Install one "
            "of these, or build tfswap for yours (needs g++): "
            "pip install --force-reinstall --no-deps --no-binary tfswap tfswap"
        )
    if not _runtime(found).exists():
        raise LibraryError(
            f"{_runtime(found)} is missing: tfswap was built for another version of Python. "
            "Install it again: pip install --force-reinstall --no-deps tfswap"
        )
    return found


def _runtime(libraries: Path) -> Path:
    return libraries / f"_runtime{EXTENSION_SUFFIXES[0]}"


def path() -> Path:
    """Return the path of libtfswap.so. Raises what `folder` raises."""
    return folder() / "libtfswap.so"


def gpu_path() -> Path:
    """Return the path of the library with GPU devices, which a build for CPUs does not have."""
    return folder() / "libtfswap_gpu.so"


def build_info() -> dict[str, str]:
    """Return what the libraries were built with: "tensorflow" (the version) and "compiler"."""
    info: dict[str, str] = json.loads((folder() / "build.json").read_text())
    return info


def _context_is_initialized() -> bool:
    context = sys.modules.get("tensorflow.python.eager.context")
    if context is None:
        return False
    current = getattr(context, "_context", None)
    return current is not None and bool(getattr(current, "_initialized", False))


def load() -> Library:
    """Load libtfswap into TensorFlow, once per process. Later calls return the same library.

    Raises:
        LibraryError: TensorFlow is missing, tfswap was not built for it or for this Python, or
            TensorFlow's devices already exist.
    """
    global _library, _problem
    if _library is not None:
        return _library
    if _problem is not None:
        raise LibraryError(_problem)
    try:
        folder()
        if _context_is_initialized():
            raise LibraryError(_TOO_LATE)
        import tensorflow as tf

        if _context_is_initialized():
            raise LibraryError(_TOO_LATE)
        tf.load_library(str(path()))
        if gpu_path().exists() and tf.test.is_built_with_cuda():
            tf.load_library(str(gpu_path()))
        _library = _load_runtime(_runtime(folder()))
    except LibraryError as error:
        _problem = str(error)
        raise
    return _library


def _load_runtime(file: Path) -> Library:
    name = "tfswap._runtime"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    library: Library = module.Library()
    return library


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
