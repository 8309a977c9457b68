"""Build tfswap's native libraries with CMake. All other packaging is in pyproject.toml."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

TREE = Path(__file__).resolve().parent
BUILD = TREE / "build" / "native"

COMPILER_BYTES = 1_500_000_000  # what one compiler needs for a file with TensorFlow's headers

# Prints the folders of the packages TensorFlow and blosc2, without importing them; "" for none.
FIND = """
import importlib.util, json
specs = map(importlib.util.find_spec, ("tensorflow", "blosc2"))
print(json.dumps([spec.submodule_search_locations[0] if spec else "" for spec in specs]))
"""


def installed() -> list[str]:
    """Return the folders of TensorFlow and blosc2 where tfswap is installed; "" for none.

    pip builds in a temporary environment that hides that one: ask without pip's additions.
    """
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONNOUSERSITE"}
    for name in ("PATH", "PYTHONPATH"):
        paths = environment.pop(name, "").split(os.pathsep)
        kept = [path for path in paths if path and "pip-build-env-" not in path]
        if kept:
            environment[name] = os.pathsep.join(kept)
    # Not in the source tree, whose packages would hide installed ones.
    command = [sys.executable, "-c", FIND]
    return json.loads(subprocess.check_output(command, env=environment, cwd="/", text=True))


def jobs() -> str:
    """Return how many compilers run at once: what cores and memory allow."""
    available = re.search(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
    by_memory = int(available[1]) * 1024 // COMPILER_BYTES if available else 1
    fitting = max(1, min(len(os.sched_getaffinity(0)), by_memory))
    return os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", str(fitting))


def tool(name: str) -> str:
    """Return the path of a program, or of the one that its package brings."""
    beside = os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.executable).parent)])
    found = shutil.which(name, path=beside)
    if found is None:
        raise SystemExit(
            f"tfswap cannot be built: {name} is missing, and this build may install nothing "
            "(--no-build-isolation): pip install setuptools pybind11 cmake ninja"
        )
    return found


def run(*command: str) -> None:
    if subprocess.run(command).returncode != 0:
        raise SystemExit(
            "\ntfswap cannot be built: the messages above say why. If a compiler was killed, "
            "memory was short (each one needs about 1.5 GB): try again with "
            "CMAKE_BUILD_PARALLEL_LEVEL=1."
        )


def build() -> None:
    """Compile what has changed."""
    import pybind11

    tensorflow, blosc2 = installed()
    values = {
        "CMAKE_MAKE_PROGRAM": tool("ninja"),
        "TFSWAP_TENSORFLOW": os.environ.get("TFSWAP_BUILD_TENSORFLOW", tensorflow),
        "TFSWAP_BLOSC2": blosc2,
        "TFSWAP_PYTHON_INCLUDE": sysconfig.get_paths()["include"],
        "TFSWAP_PYTHON_SUFFIX": sysconfig.get_config_var("EXT_SUFFIX"),
        "TFSWAP_PYBIND11_INCLUDE": pybind11.get_include(),
    }
    given = [f"-D{name}={value}" for name, value in values.items()]
    given += shlex.split(os.environ.get("CMAKE_ARGS", ""))
    where = ("-S", str(TREE), "-B", str(BUILD), "-G", "Ninja", "--log-level=NOTICE")
    try:
        run(tool("cmake"), *where, *given)
    except SystemExit:
        (BUILD / "CMakeCache.txt").unlink(missing_ok=True)  # it would keep an unusable compiler
        raise
    run(tool("cmake"), "--build", str(BUILD), "--parallel", jobs())


class BuildNative(build_ext):
    """Compile the libraries, into the wheel and beside the sources, so that both run."""

    def run(self) -> None:
        build()
        prefixes = [TREE]
        if not (self.inplace or self.editable_mode):
            prefixes.append(Path(self.build_lib))
        for prefix in prefixes:
            shutil.rmtree(prefix / "tfswap" / "native", ignore_errors=True)
            run(tool("cmake"), "--install", str(BUILD), "--prefix", str(prefix))

    def get_outputs(self) -> list[str]:
        if self.inplace or self.editable_mode:
            return []
        folder = Path(self.build_lib) / "tfswap"
        files = [*folder.glob("_core.*"), *(folder / "native").rglob("*")]
        return [str(path) for path in files if path.is_file()]

    def get_output_mapping(self) -> dict[str, str]:
        return {}

    def get_source_files(self) -> list[str]:
        folders = (TREE / "tfswap" / "cc", TREE / "cmake")
        files = (path for folder in folders for path in sorted(folder.rglob("*")))
        return [str(path.relative_to(TREE)) for path in files if path.is_file()]


class BuildPython(build_py):
    """Copy the modules, without those of an earlier build that no longer exist."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(Path(self.build_lib) / "tfswap", ignore_errors=True)
        super().run()


if __name__ == "__main__":
    setup(
        # Tells setuptools that the wheel is for one platform; BuildNative does the work.
        ext_modules=[Extension("tfswap._core", sources=[])],
        cmdclass={"build_ext": BuildNative, "build_py": BuildPython},
    )
