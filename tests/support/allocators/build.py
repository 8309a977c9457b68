"""Build the module ``_allocators`` from ``cc/`` against tfswap's headers and library.

It goes into ``build/support``.
"""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pybind11

from tests import cpp_build
from tests.cpp_build import CC, TREE, CppBuild

HERE = Path(__file__).resolve().parent
BUILT = TREE / "build" / "support" / str(sys.implementation.cache_tag)
NAME = "_allocators"


def load() -> ModuleType:
    """Build and import the module, after tfswap's library, which it is linked to.

    Raises:
        LibraryError: The library cannot be loaded.
        ImportError: The module cannot be built.
    """
    from tfswap.ops import library

    library.load()
    try:
        path = build(library.path())
    except cpp_build.BuildError as error:
        raise ImportError(f"{NAME} cannot be built: {error}") from None
    return _imported(NAME, path)


def build(library: Path) -> Path:
    """Compile and link what has changed; return the module's path.

    Raises:
        BuildError: The compiler or the linker failed; its output is printed.
    """
    made = CppBuild(BUILT)
    includes = (f"-I{pybind11.get_include()}", f"-I{sysconfig.get_paths()['include']}")
    flags = (*cpp_build.ABI, "-O2", "-fPIC", "-Wall", *includes, f"-I{HERE / 'cc'}", f"-I{CC}")
    objects = made.objects(sorted((HERE / "cc").glob("*.cc")), "objects", flags, tensorflow=True)
    beside = (f"-L{library.parent}", f"-l:{library.name}", f"-Wl,-rpath,{library.parent}")
    linked = ("-shared", *beside, *cpp_build.tensorflow_libraries())
    return made.program(BUILT / f"{NAME}.so", objects, linked)


def _imported(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
