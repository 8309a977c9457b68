"""Build the module ``_allocators`` from ``cc/`` against tfswap's headers and library.

It goes into ``build/support``. An object is compiled again when a file that it includes, its
command or the compiler has changed. Processes take turns to build.
"""

from __future__ import annotations

import fcntl
import importlib.util
import shlex
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

from native_build import compilation, toolchain

HERE = Path(__file__).resolve().parent
TREE = HERE.parents[2]
BUILT = TREE / "build" / "support"
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
        path = build(library.LIBRARY_PATH)
    except SystemExit as error:
        raise ImportError(f"{NAME} cannot be built: {error}") from None
    return _imported(NAME, path)


def build(library: Path) -> Path:
    """Compile and link what is not current; return the module's path.

    Raises:
        BuildError: The compiler or the linker failed; its output is printed.
    """
    compiler, tensorflow = toolchain.find_compiler(), toolchain.find_tensorflow()
    headers = [
        flag.replace("-I", "-isystem", 1) if flag.startswith("-I") else flag
        for flag in (*tensorflow.compile_flags, f"-I{toolchain.pybind11_include()}")
        if "std=" not in flag
    ]
    flags = (
        "-std=c++17",
        "-O2",
        "-fPIC",
        "-Wall",
        *headers,
        f"-I{HERE / 'cc'}",
        f"-I{toolchain.CC}",
    )
    flags = (*flags, f"-isystem{toolchain.python_include()}")
    folder = BUILT / str(sys.implementation.cache_tag)
    folder.mkdir(parents=True, exist_ok=True)
    steps = [
        _step(compiler, flags, source, folder) for source in sorted((HERE / "cc").glob("*.cc"))
    ]
    module = folder / f"{NAME}.so"
    beside = (f"-L{library.parent}", f"-l:{library.name}", f"-Wl,-rpath,{library.parent}")
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        missing = [step for step in steps if not compilation.is_current(step)]
        with (
            tempfile.TemporaryDirectory() as shared,
            ThreadPoolExecutor(compilation.build_jobs()) as pool,
        ):
            more: tuple[str, ...] = ()
            if compiler.precompiles and len(missing) >= compilation.FEWEST_SHARING:
                more = compilation.read_shared_headers(compiler, flags, Path(shared))
            for compiled in [
                pool.submit(compilation.compile_object, step, more) for step in missing
            ]:
                compiled.result()
        objects = [step.object for step in steps]
        compilation.link(module, objects, compiler, (*beside, *tensorflow.libraries))
    return module


def _step(compiler: Any, flags: tuple[str, ...], source: Path, folder: Path) -> Any:
    made = folder / f"{source.stem}.o"
    command = (*compiler.command, *flags, "-MMD", "-MF", str(made.with_suffix(".d")))
    command = (*command, "-c", str(source), "-o", str(made))
    stamp = "\n".join([shlex.join(command), compiler.version])
    return compilation.CompileStep(source, made, command, stamp)


def _imported(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
