"""Find what the build needs: the C++ compiler, TensorFlow, nvcc, pybind11 and blosc."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

TREE = Path(__file__).resolve().parents[1]
PACKAGE = TREE / "tfswap"
CC = PACKAGE / "cc"
OBJECTS = TREE / "build" / "native"

SUPPORTED_TENSORFLOW = ("2.20", "2.21")
MINIMUM_GCC = 12
MINIMUM_PYTHON = (3, 10)

_SUPPORTED_TEXT = ", ".join(f"{release}.x" for release in SUPPORTED_TENSORFLOW)

INSTALL_COMPILER = f"""\
    Debian, Ubuntu   apt-get install g++
    Fedora, RHEL     dnf install gcc-c++
    openSUSE         zypper install gcc-c++
    Arch             pacman -S gcc
    Alpine is not supported: TensorFlow has no wheel for musl
g++ {MINIMUM_GCC} or newer is needed. One with another name: CXX=/path/to/g++ pip install ."""

INSTALL_TENSORFLOW = """\
    pip install "tensorflow-cpu>=2.20,<2.22"     for a machine without a GPU
    pip install "tensorflow>=2.20,<2.22"         for one with a GPU
then install tfswap again."""


class BuildError(SystemExit):
    """The build failed; the text, printed last, says why and what to do."""

    def __init__(self, text: str) -> None:
        super().__init__(f"\ntfswap cannot be built: {text}\n")


@dataclass(frozen=True)
class Compiler:
    """The C++ compiler: its command and its version text."""

    command: tuple[str, ...]
    version: str

    @property
    def is_cached(self) -> bool:
        return Path(self.command[0]).name == "ccache" and len(self.command) > 1

    @property
    def program(self) -> str:
        """Without what it is run by, ccache say, and without options."""
        return self.command[1 if self.is_cached else 0]

    @property
    def precompiles(self) -> bool:
        """Whether it can use precompiled headers (ccache would cache nothing then)."""
        return not self.is_cached and "clang" not in self.version.lower()


@dataclass(frozen=True)
class TensorFlow:
    """The installed TensorFlow: flags to compile and link against it."""

    version: str
    path: str
    compile_flags: tuple[str, ...]
    link_flags: tuple[str, ...]
    cuda: bool

    @property
    def libraries(self) -> tuple[str, ...]:
        """Linker flags: the framework, and the library with the rest of what the wheel exports."""
        return (*self.link_flags, "-l:libtensorflow_cc.so.2", f"-Wl,-rpath,{self.path}")

    @property
    def abi_flags(self) -> tuple[str, ...]:
        """The flags that all objects must share to be linked with TensorFlow."""
        return tuple(flag for flag in self.compile_flags if "GLIBCXX" in flag)


@dataclass(frozen=True)
class Blosc:
    """The installed c-blosc2, for its codecs."""

    version: str
    include: str

    @property
    def compile_flags(self) -> tuple[str, ...]:
        return ("-DTFSWAP_WITH_BLOSC", f"-isystem{self.include}")


def find_compiler() -> Compiler:
    """Return the compiler named by CXX, or ``g++``.

    Raises:
        BuildError: There is none, or it is too old.
    """
    command = tuple(shlex.split(os.environ.get("CXX", ""))) or ("g++",)
    if shutil.which(command[0]) is None:
        source = "named by CXX " if os.environ.get("CXX") else ""
        raise BuildError(
            f"the C++ compiler {source}({command[0]}) was not found. Install one:\n"
            + INSTALL_COMPILER
        )
    try:
        version = output([*command, "--version"]).splitlines()[0]
        number = output([*command, "-dumpfullversion", "-dumpversion"]).strip()
    except (OSError, IndexError, subprocess.CalledProcessError) as error:
        raise BuildError(
            f"the C++ compiler ({shlex.join(command)}) does not run: {error}. Install one:\n"
            + INSTALL_COMPILER
        ) from None
    check_compiler_version(shlex.join(command), version, number)
    return Compiler(command, version)


def find_nvcc() -> Compiler | None:
    """Return the CUDA compiler named by NVCC, or ``nvcc``, or the one in CUDA's usual folder.

    Raises:
        BuildError: The one named by NVCC is not there.
    """
    named = tuple(shlex.split(os.environ.get("NVCC", "")))
    usual = ("nvcc", "/usr/local/cuda/bin/nvcc")
    command = named or next(((name,) for name in usual if shutil.which(name)), ())
    if not command:
        return None
    try:
        return Compiler(command, output([*command, "--version"]).strip().splitlines()[-1])
    except (OSError, IndexError, subprocess.CalledProcessError) as error:
        if not named:
            return None
        raise BuildError(
            f"the CUDA compiler named by NVCC ({shlex.join(command)}) does not run: {error}. "
            "Name another one, or none: without it only codecs on the GPU are left out."
        ) from None


def check_compiler_version(command: str, version: str, number: str) -> None:
    """Refuse a g++ older than MINIMUM_GCC; other compilers are taken as they are.

    Raises:
        BuildError: It is too old.
    """
    major = re.match(r"\d+", number)
    if "clang" in version.lower() or major is None or int(major.group()) >= MINIMUM_GCC:
        return
    raise BuildError(
        f"{command} is version {number}, and g++ {MINIMUM_GCC} or newer is needed. "
        "Install a newer one beside it and name it:\n"
        f"    Debian, Ubuntu   apt-get install g++-{MINIMUM_GCC}; "
        f"CXX=g++-{MINIMUM_GCC} pip install .\n"
        f"    Fedora, RHEL     dnf install gcc-toolset-{MINIMUM_GCC}; "
        f"scl enable gcc-toolset-{MINIMUM_GCC} 'pip install .'"
    )


def find_tensorflow() -> TensorFlow:
    """Return the TensorFlow of the environment that tfswap is installed into.

    pip builds in a temporary environment that hides that one, so the interpreter is asked again
    without pip's additions. Importing TensorFlow takes seconds: its flags are cached.

    Raises:
        BuildError: There is none, its version is not supported, or it cannot be imported.
    """
    found = json.loads(_ask_target_python(_FIND_TENSORFLOW))
    check_tensorflow_version(found["version"])
    record = OBJECTS / "tensorflow.json"
    if record.exists():
        known = json.loads(record.read_text())
        same = [known["version"], known["path"]] == [found["version"], found["path"]]
        if same and "cuda" in known:
            return TensorFlow(
                **{k: tuple(v) if isinstance(v, list) else v for k, v in known.items()}
            )
    try:
        flags = json.loads(_ask_target_python(_TENSORFLOW_FLAGS).splitlines()[-1])
    except subprocess.CalledProcessError as error:
        last_lines = "\n".join(error.stderr.strip().splitlines()[-5:])
        raise BuildError(
            f"TensorFlow {found['version']} is installed but cannot be imported:\n{last_lines}\n"
            "Check `python -c 'import tensorflow'`, then install tfswap again."
        ) from None
    tensorflow = TensorFlow(
        found["version"],
        found["path"],
        tuple(flags["compile"]),
        tuple(flags["link"]),
        flags["cuda"],
    )
    write(record, json.dumps(asdict(tensorflow), indent=2))
    return tensorflow


_FIND_TENSORFLOW = """
import importlib.metadata as metadata, importlib.util as util, json, os
spec = util.find_spec("tensorflow")
version = None
for name in ("tensorflow", "tensorflow-cpu", "tf-nightly"):
    try:
        version = metadata.version(name)
        break
    except metadata.PackageNotFoundError:
        pass
path = os.path.dirname(spec.origin) if spec and spec.origin else None
print(json.dumps({"version": version if path else None, "path": path}))
"""

_TENSORFLOW_FLAGS = """
import json, tensorflow as tf
flags = {
    "compile": tf.sysconfig.get_compile_flags(),
    "link": tf.sysconfig.get_link_flags(),
    "cuda": bool(tf.sysconfig.get_build_info()["is_cuda_build"]),
}
print(json.dumps(flags))
"""


def check_tensorflow_version(version: str | None) -> None:
    """Refuse no TensorFlow, and one whose C++ interface this source was not written for.

    Raises:
        BuildError: It is missing or not supported.
    """
    if version is None:
        raise BuildError(
            f"no TensorFlow was found for {sys.executable}. tfswap's library is compiled against "
            "the installed one. Install it first:\n"
            + INSTALL_TENSORFLOW
            + "\nIf it is installed, and your installer builds in an environment of its own: "
            "pip install setuptools wheel pybind11; pip install --no-build-isolation ."
        )
    if ".".join(version.split(".")[:2]) not in SUPPORTED_TENSORFLOW:
        raise BuildError(
            f"TensorFlow {version} is installed, and tfswap supports {_SUPPORTED_TEXT} "
            "(its C++ interface changes between releases). Install a supported one:\n"
            + INSTALL_TENSORFLOW
        )


def check_platform() -> None:
    """Refuse what no TensorFlow wheel of the supported releases runs on.

    Raises:
        BuildError: Not Linux, or a Python that is too old.
    """
    if not sys.platform.startswith("linux"):
        raise BuildError(f"it runs on Linux, and this is {platform.system()}.")
    if sys.version_info < MINIMUM_PYTHON:
        minimum = ".".join(map(str, MINIMUM_PYTHON))
        raise BuildError(f"Python {minimum} or newer is needed; this is {sys.version.split()[0]}.")


def find_blosc() -> Blosc | None:
    """c-blosc2's headers in the environment that tfswap is being installed into, if it has them.

    The wheel of blosc2 brings them. Nothing is linked: its library is looked for at run time.
    """
    found = json.loads(_ask_target_python(_FIND_BLOSC))
    return Blosc(found["version"], found["include"]) if found["include"] else None


_FIND_BLOSC = """
import importlib.metadata as metadata, importlib.util as util, json, os
spec = util.find_spec("blosc2")
version = include = None
try:
    version = metadata.version("blosc2")
except metadata.PackageNotFoundError:
    spec = None
for folder in (spec.submodule_search_locations or [] if spec else []):
    if os.path.exists(os.path.join(folder, "include", "blosc2.h")):
        include = os.path.join(folder, "include")
print(json.dumps({"version": version, "include": include}))
"""


def target_environment(environment: dict[str, str]) -> dict[str, str]:
    """`environment` as it was before pip put its build environment in front of the paths."""

    def without_overlay(paths: str) -> str:
        kept = (path for path in paths.split(os.pathsep) if "pip-build-env-" not in path)
        return os.pathsep.join(kept)

    clean = dict(environment)
    for name in ("PATH", "PYTHONPATH"):
        if name in clean:
            clean[name] = without_overlay(clean[name])
    if not clean.get("PYTHONPATH"):
        clean.pop("PYTHONPATH", None)
    clean.pop("PYTHONNOUSERSITE", None)
    clean["TF_CPP_MIN_LOG_LEVEL"] = "3"
    return clean


def _ask_target_python(code: str) -> str:
    # Not in the source tree: "" on the path would find its packages instead of installed ones.
    return subprocess.run(
        [sys.executable, "-c", code],
        env=target_environment(dict(os.environ)),
        cwd="/",
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def output(command: Sequence[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def write(path: Path, text: str) -> None:
    """Writes a file if its contents change; so nothing that depends on it gets newer in vain."""
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def pybind11_include() -> Path:
    """pybind11's headers, copied to a place that stays: pip's build environments come and go.

    Raises:
        BuildError: pybind11 is not installed.
    """
    try:
        import pybind11
    except ImportError:
        raise BuildError(
            "pybind11 is missing, and this build may install nothing (--no-build-isolation). "
            "Install what it needs: pip install setuptools wheel pybind11"
        ) from None
    include = OBJECTS / f"pybind11-{pybind11.__version__}"
    if not include.exists():
        unfinished = include.with_suffix(f".{os.getpid()}")
        shutil.copytree(pybind11.get_include(), unfinished)
        unfinished.rename(include)
    return include


def python_include() -> Path:
    """Return the directory of Python.h.

    Raises:
        BuildError: Python's headers are not installed.
    """
    include = Path(sysconfig.get_paths()["include"])
    if not (include / "Python.h").exists():
        raise BuildError(
            f"Python's headers are missing ({include}/Python.h). Install them:\n"
            "    Debian, Ubuntu   apt-get install python3-dev\n"
            "    Fedora, RHEL     dnf install python3-devel"
        )
    return include
