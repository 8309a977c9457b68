"""Builds tfswap's shared libraries with the system's C++ compiler.

``tfswap/_core.<abi>.so``  the core and its Python bindings; knows nothing of TensorFlow
``tfswap/libtfswap.so``    core, device, kernels and Grappler pass, against the installed TensorFlow
``tfswap/_runtime.<abi>.so``  Python bindings of libtfswap.so
``tfswap/libtfswap_gpu.so``  GPU devices, if that TensorFlow has any; CUDA itself is not needed
``tfswap/codec_kernels.*``  what encodes on a GPU, if there is CUDA's nvcc besides

Objects stay in ``build/native`` between builds. One is compiled again when a file that it includes,
its command, the compiler or TensorFlow has changed. The rest of the packaging is in pyproject.toml.
"""

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
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

TREE = Path(__file__).resolve().parent
PACKAGE = TREE / "tfswap"
CC = PACKAGE / "cc"
OBJECTS = TREE / "build" / "native"

SUPPORTED_TENSORFLOW = ("2.20", "2.21")
LIBRARY = "libtfswap.so"
CORE_MODULE, RUNTIME_MODULE = (
    f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}" for name in ("_core", "_runtime")
)
GPU_LIBRARY = "libtfswap_gpu.so"
# Machine code, and the PTX that an older driver than nvcc compiles by itself.
GPU_KERNELS = ("codec_kernels.fatbin", "codec_kernels.ptx")
GPU_ARCHITECTURES = ("80", "90")
# nvcc writes its own release's, which drivers of older releases refuse. This one is the first with
# those architectures, so each driver of theirs knows it; the assembler checks that it is enough.
PTX_VERSION = "7.0"
MINIMUM_GCC = 12
MINIMUM_PYTHON = (3, 10)
COMPILER_BYTES = 1_500_000_000  # what one compiler needs for a file with TensorFlow's headers
# Most of a file's ten seconds is reading these; they are read once for all, where that is sooner.
SHARED_HEADERS = """\
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/grappler/grappler_item.h"
#include "tensorflow/core/grappler/optimizers/custom_graph_optimizer.h"
"""
SHARED_HEADERS_NAME = "shared_headers.h"
FEWEST_SHARING = 4

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
    """The build cannot go on; the text says why and what to do, and is the last thing printed."""

    def __init__(self, text: str) -> None:
        super().__init__(f"\ntfswap cannot be built: {text}\n")


@dataclass(frozen=True)
class Compiler:
    """The C++ compiler: its command, and what it says of itself."""

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
        """Whether it takes headers that it has read before (ccache would keep none of that)."""
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
    """The installed c-blosc2, for the codecs that are its."""

    version: str
    include: str

    @property
    def compile_flags(self) -> tuple[str, ...]:
        return ("-DTFSWAP_WITH_BLOSC", f"-isystem{self.include}")


@dataclass(frozen=True)
class CompileStep:
    """One source file, its object, and the whole command between them."""

    source: Path
    object: Path
    command: tuple[str, ...]
    stamp: str


def find_compiler() -> Compiler:
    """The compiler named by CXX, else ``g++``.

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
        version = _output([*command, "--version"]).splitlines()[0]
        number = _output([*command, "-dumpfullversion", "-dumpversion"]).strip()
    except (OSError, IndexError, subprocess.CalledProcessError) as error:
        raise BuildError(
            f"the C++ compiler ({shlex.join(command)}) does not run: {error}. Install one:\n"
            + INSTALL_COMPILER
        ) from None
    check_compiler_version(shlex.join(command), version, number)
    return Compiler(command, version)


def find_nvcc() -> Compiler | None:
    """The CUDA compiler named by NVCC, else ``nvcc``, else the one in CUDA's usual folder.

    Raises:
        BuildError: The one named by NVCC is not there.
    """
    named = tuple(shlex.split(os.environ.get("NVCC", "")))
    usual = ("nvcc", "/usr/local/cuda/bin/nvcc")
    command = named or next(((name,) for name in usual if shutil.which(name)), ())
    if not command:
        return None
    try:
        return Compiler(command, _output([*command, "--version"]).strip().splitlines()[-1])
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
    """The TensorFlow of the environment that tfswap is being installed into.

    pip builds in a temporary environment that hides that one, so the interpreter is asked again
    without pip's additions. Importing TensorFlow takes seconds: its flags are remembered.

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
    _write(record, json.dumps(asdict(tensorflow), indent=2))
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


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _write(path: Path, text: str) -> None:
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
    """The directory of Python.h.

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


def sources(*folders: str) -> list[Path]:
    """The C++ files in the named folders of tfswap/cc, sorted."""
    return sorted(path for folder in folders for path in (CC / folder).glob("**/*.cc"))


def objects_folder() -> Path:
    return OBJECTS / str(sys.implementation.cache_tag)


def compile_steps(
    files: Iterable[Path], compiler: Compiler, flags: Sequence[str], depends_on: str
) -> list[CompileStep]:
    """A step for each file. `depends_on` names what the flags do not: versions of what they use."""
    steps = []
    for source in files:
        target = objects_folder() / source.relative_to(CC).with_suffix(".o")
        command = (
            *compiler.command,
            *flags,
            f"-I{CC}",
            "-MMD",
            "-MF",
            str(target.with_suffix(".d")),
            "-c",
            str(source),
            "-o",
            str(target),
        )
        stamp = "\n".join([shlex.join(command), compiler.version, depends_on])
        steps.append(CompileStep(source, target, command, stamp))
    return steps


def is_current(step: CompileStep) -> bool:
    """Whether the object is as new as all that it was made from, by the same command."""
    stamp, dependencies = step.object.with_suffix(".stamp"), step.object.with_suffix(".d")
    if not (step.object.exists() and stamp.exists() and dependencies.exists()):
        return False
    if stamp.read_text() != step.stamp:
        return False
    made = step.object.stat().st_mtime_ns
    for file in dependency_files(dependencies.read_text()):
        if not file.exists() or file.stat().st_mtime_ns >= made:
            return False
    return True


def dependency_files(depfile: str) -> list[Path]:
    """The files that a compiler's -MMD output names after the colon."""
    rule = depfile.replace("\\\n", " ").split(": ", 1)[-1]
    names = re.split(r"(?<!\\)\s+", rule.strip())
    paths = (Path(name.replace("\\ ", " ")) for name in names if name)
    return [path for path in paths if not path.name.startswith(SHARED_HEADERS_NAME)]


def compile_object(step: CompileStep, more_flags: Sequence[str] = ()) -> None:
    """Run one step; `more_flags` only make it faster.

    Raises:
        BuildError: The compiler refused the file; its output is printed above.
    """
    step.object.parent.mkdir(parents=True, exist_ok=True)
    stamp = step.object.with_suffix(".stamp")
    stamp.unlink(missing_ok=True)
    name = step.source.relative_to(TREE)
    print(f"compiling {name}", flush=True)
    step.object.with_suffix(".begun").touch()
    begun = step.object.with_suffix(".begun").stat()
    result = subprocess.run([*step.command, *more_flags], capture_output=True, text=True)
    step.object.with_suffix(".begun").unlink()
    if result.stdout or result.stderr:
        print(result.stdout + result.stderr, file=sys.stderr, flush=True)
    if result.returncode != 0:
        raise BuildError(_failure("compiling", name, result.returncode))
    # As old as the start: a file edited while it was compiled is compiled again.
    os.utime(step.object, ns=(begun.st_atime_ns, begun.st_mtime_ns))
    stamp.write_text(step.stamp)


def read_shared_headers(compiler: Compiler, flags: Sequence[str], folder: Path) -> tuple[str, ...]:
    """Reads `SHARED_HEADERS` (20 s, 400 MB) into `folder`; the flags that have that taken."""
    header = folder / SHARED_HEADERS_NAME
    header.write_text(SHARED_HEADERS)
    print("reading TensorFlow's headers", flush=True)
    made = header.with_suffix(".h.gch")
    command = [*compiler.command, *flags, "-x", "c++-header", str(header), "-o", str(made)]
    read = subprocess.run(command, capture_output=True).returncode == 0
    return ("-include", str(header)) if read else ()


def _failure(doing: str, name: object, code: int) -> str:
    if code < 0 or code == 137:
        return (
            f"the compiler was killed {doing} {name}, most likely for want of memory. "
            "Each one needs about 1.5 GB: try again with TFSWAP_BUILD_JOBS=1."
        )
    return f"{doing} {name} failed; the compiler's messages are above."


def build_jobs() -> int:
    """How many compilers to run at once: TFSWAP_BUILD_JOBS, else what cores and memory allow."""
    asked = os.environ.get("TFSWAP_BUILD_JOBS")
    if asked:
        return max(1, int(asked))
    try:
        available_pages = os.sysconf("SC_AVPHYS_PAGES")
    except (OSError, ValueError):
        return 1
    fitting = available_pages * os.sysconf("SC_PAGE_SIZE") // COMPILER_BYTES
    return max(1, min(len(os.sched_getaffinity(0)), fitting))


def link(library: Path, objects: Sequence[Path], compiler: Compiler, flags: Sequence[str]) -> bool:
    """Links `objects` into `library` unless it is current; answers whether it did.

    Raises:
        BuildError: The linker refused; its output is printed above.
    """
    command = [*compiler.command, "-shared", "-o", str(library), *map(str, objects), *flags]
    return make("linking", library, objects, command)


def make(doing: str, target: Path, inputs: Sequence[Path], command: Sequence[str]) -> bool:
    """Runs the command that makes `target` of `inputs` unless it is current; whether it did.

    Raises:
        BuildError: It failed; its output is printed above.
    """
    stamp = target.with_suffix(".stamp")
    newest = max(path.stat().st_mtime_ns for path in inputs)
    if (
        target.exists()
        and stamp.exists()
        and stamp.read_text() == shlex.join(command)
        and target.stat().st_mtime_ns > newest
    ):
        return False
    stamp.unlink(missing_ok=True)
    print(f"{doing} {target.name}", flush=True)
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        print(result.stdout + result.stderr, file=sys.stderr, flush=True)
        raise BuildError(_failure(doing, target.name, result.returncode))
    stamp.write_text(shlex.join(command))
    return True


def build_kernels(nvcc: Compiler | None, compiler: Compiler) -> dict[str, Path]:
    """The GPU's kernels, by file name; none, and a line that says why, where there is no nvcc."""
    left_out = "GPU codecs are left out: "
    if nvcc is None:
        print(
            f"{left_out}nvcc was not found. To have them, install CUDA's nvcc or name it "
            "(NVCC=/path/to/nvcc), then install tfswap again.",
            flush=True,
        )
        return {}
    source = CC / "cuda" / "codec_kernels.cu"
    made = objects_folder() / "cuda" / "codec_kernels.ptx"
    fatbin, ptx = (objects_folder() / name for name in GPU_KERNELS)
    oldest = f"compute_{GPU_ARCHITECTURES[0]}"
    # The compiler for the host only reads ahead here, so any release of it will do.
    host = ("-ccbin", compiler.program, "-allow-unsupported-compiler")
    compiled = (
        *(*nvcc.command, "-ptx", f"-arch={oldest}", "-std=c++17", *host, f"-I{CC}"),
        *("-MMD", "-MF", str(made.with_suffix(".d")), str(source), "-o", str(made)),
    )
    step = CompileStep(source, made, compiled, "\n".join([shlex.join(compiled), nvcc.version]))
    # A driver need not know how this release compresses.
    assembled = [*nvcc.command, "-fatbin", "--no-compress", str(ptx), "-o", str(fatbin)]
    for code in (*(f"sm_{name}" for name in GPU_ARCHITECTURES), oldest):
        assembled += ["-gencode", f"arch={oldest},code={code}"]
    try:
        if not is_current(step):
            compile_object(step)
        _write(ptx, lowered(made.read_text()))
        make("assembling", fatbin, [ptx], assembled)
    except BuildError:
        print(f"{left_out}{shlex.join(nvcc.command)} failed; what it said is above.", flush=True)
        return {}
    return {path.name: path for path in (fatbin, ptx)}


def lowered(ptx: str) -> str:
    """The same PTX, said to be of the oldest version that has all that is in it."""
    return re.sub(r"^\.version .*$", f".version {PTX_VERSION}", ptx, count=1, flags=re.MULTILINE)


def build_info(tensorflow: TensorFlow, compiler: Compiler) -> str:
    """The text of tfswap/_build_info.py: what the loader compares with what it finds."""
    return (
        '"""What libtfswap.so was built against. Written by setup.py."""\n\n'
        f'TENSORFLOW_VERSION = "{tensorflow.version}"\n'
        f'COMPILER = "{compiler.version}"\n'
        f'ABI_FLAGS = "{" ".join(tensorflow.abi_flags)}"\n'
        f"CUDA = {tensorflow.cuda}\n"
    )


def build_libraries() -> dict[str, Path]:
    """Compile and link what is not current; answers package file name -> built file."""
    check_platform()
    compiler = find_compiler()
    tensorflow = find_tensorflow()
    # Nobody puts functions of another library in the place of ours: calls may be inlined.
    common = (
        "-std=c++17",
        "-fPIC",
        "-fvisibility=default",
        "-fno-semantic-interposition",
        "-Wall",
        *tensorflow.abi_flags,
    )
    headers = tuple(
        flag.replace("-I", "-isystem", 1) if flag.startswith("-I") else flag
        for flag in tensorflow.compile_flags
        if "std=" not in flag
    )
    pybind11 = pybind11_include()
    blosc = find_blosc()
    if blosc is None:
        print("without blosc2: the codecs lz4, zstd and zfp are left out (pip install blosc2)")
    core = compile_steps(sources("core", "packing", "far"), compiler, (*common, "-O3"), "")
    core += compile_steps(
        sources("codecs"),
        compiler,
        (*common, "-O3", *(blosc.compile_flags if blosc else ())),
        blosc.version if blosc else "",
    )
    python = (f"-isystem{pybind11}", f"-isystem{python_include()}")
    runtime_bindings = sources("bindings/runtime")
    core_bindings = [path for path in sources("bindings") if path not in runtime_bindings]
    bindings = compile_steps(core_bindings, compiler, (*common, "-O2", *python), sys.version)
    # As TensorFlow itself was compiled.
    cuda = ("-DGOOGLE_CUDA=1",) if tensorflow.cuda else ()
    with_tensorflow = (*common, "-O2", *cuda, *headers)
    runtime_sources = sources("allocator", "device", "kernels", "grappler")
    runtime = compile_steps(runtime_sources, compiler, with_tensorflow, tensorflow.version)
    runtime_module = compile_steps(
        runtime_bindings,
        compiler,
        (*with_tensorflow, *python),
        f"{tensorflow.version} {sys.version}",
    )
    gpu_sources = sources("gpu") if tensorflow.cuda else []
    gpu = compile_steps(gpu_sources, compiler, with_tensorflow, tensorflow.version)
    sharing = [step for step in (*gpu, *runtime, *runtime_module) if not is_current(step)]
    others = [step for step in (*bindings, *core) if not is_current(step)]
    objects_folder().mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=objects_folder()) as folder,
        ThreadPoolExecutor(build_jobs()) as pool,
    ):
        results = []
        if compiler.precompiles and len(sharing) >= FEWEST_SHARING:
            read = pool.submit(read_shared_headers, compiler, with_tensorflow, Path(folder))
            # The others first: the headers are read meanwhile.
            results += [pool.submit(compile_object, step) for step in others]
            results += [
                pool.submit(lambda step: compile_object(step, read.result()), step)
                for step in sharing
            ]
        else:
            results += [pool.submit(compile_object, step) for step in (*sharing, *others)]
        try:
            for result in results:
                result.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise

    folder = objects_folder()
    system = ("-pthread", "-ldl")
    beside = (f"-L{folder}", "-l:libtfswap.so", "-Wl,-rpath,$ORIGIN")
    libraries: dict[str, tuple[list[CompileStep], tuple[str, ...]]] = {
        CORE_MODULE: ([*core, *bindings], system),
        LIBRARY: ([*core, *runtime], (*system, *tensorflow.libraries)),
        RUNTIME_MODULE: (runtime_module, (*system, *beside, *tensorflow.libraries)),
    }
    if tensorflow.cuda:
        # What is missing in it would only be noticed on a machine with a GPU.
        complete = (*beside, *tensorflow.libraries, "-Wl,--no-undefined")
        libraries[GPU_LIBRARY] = (gpu, (*system, *complete))
    for name, (steps, flags) in libraries.items():
        link(folder / name, [step.object for step in steps], compiler, flags)
    info = folder / "_build_info.py"
    _write(info, build_info(tensorflow, compiler))
    built = {path.name: path for path in (*(folder / name for name in libraries), info)}
    return built | (build_kernels(find_nvcc(), compiler) if tensorflow.cuda else {})


def place(built: Path, target: Path) -> None:
    """Copies in one move: a process that has the old library mapped keeps it."""
    if target.exists() and target.read_bytes() == built.read_bytes():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.copy(built, unfinished)
    os.replace(unfinished, target)


class BuildNative(build_ext):
    """Compiles the libraries, into the wheel and beside the sources, which so run in place too."""

    def run(self) -> None:
        built = build_libraries()
        folders = [PACKAGE]
        if not (self.inplace or self.editable_mode):
            folders.append(Path(self.build_lib) / "tfswap")
        for folder in folders:
            for name, path in built.items():
                place(path, folder / name)
            for name in (GPU_LIBRARY, *GPU_KERNELS):
                if name not in built:  # of a build against another TensorFlow, or with an nvcc
                    (folder / name).unlink(missing_ok=True)

    def get_outputs(self) -> list[str]:
        names = [CORE_MODULE, LIBRARY, RUNTIME_MODULE, "_build_info.py"]
        if self.inplace or self.editable_mode:
            return []
        folder = Path(self.build_lib) / "tfswap"
        names += [name for name in (GPU_LIBRARY, *GPU_KERNELS) if (folder / name).exists()]
        return [str(folder / name) for name in names]

    def get_output_mapping(self) -> dict[str, str]:
        return {}

    def get_source_files(self) -> list[str]:
        return [str(path.relative_to(TREE)) for path in sorted(CC.rglob("*")) if path.is_file()]


class BuildPython(build_py):
    """Copies the modules, without those that an earlier build left and the tree has no more."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(Path(self.build_lib) / "tfswap", ignore_errors=True)
        super().run()


if __name__ == "__main__":
    setup(
        # Says to setuptools that the wheel is for one platform; BuildNative does the work.
        ext_modules=[Extension("tfswap._core", sources=[])],
        cmdclass={"build_ext": BuildNative, "build_py": BuildPython},
    )
