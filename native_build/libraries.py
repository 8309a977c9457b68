"""Build tfswap's shared libraries with the system's C++ compiler.

``tfswap/_core.<abi>.so``  the core and its Python bindings; knows nothing of TensorFlow
``tfswap/libtfswap.so``    core, device, kernels and Grappler pass, against the installed TensorFlow
``tfswap/_runtime.<abi>.so``  Python bindings of libtfswap.so
``tfswap/libtfswap_gpu.so``  GPU devices, if that TensorFlow has any; CUDA itself is not needed
``tfswap/codec_kernels.*``  what encodes on a GPU, if there is CUDA's nvcc besides

Objects stay in ``build/native`` between builds. One is compiled again when a file that it includes,
its command, the compiler or TensorFlow has changed.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from native_build.compilation import (
    FEWEST_SHARING,
    CompileStep,
    build_jobs,
    compile_object,
    compile_steps,
    is_current,
    link,
    make,
    objects_folder,
    read_shared_headers,
    sources,
)
from native_build.toolchain import (
    CC,
    BuildError,
    Compiler,
    TensorFlow,
    check_platform,
    find_blosc,
    find_compiler,
    find_nvcc,
    find_tensorflow,
    pybind11_include,
    python_include,
    write,
)

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


def build_kernels(nvcc: Compiler | None, compiler: Compiler) -> dict[str, Path]:
    """Return the GPU's kernels by file name; without nvcc, print why and return none."""
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
        write(ptx, lowered(made.read_text()))
        make("assembling", fatbin, [ptx], assembled)
    except BuildError:
        print(f"{left_out}{shlex.join(nvcc.command)} failed; what it said is above.", flush=True)
        return {}
    return {path.name: path for path in (fatbin, ptx)}


def lowered(ptx: str) -> str:
    """Return the PTX marked as the oldest version that has all of its instructions."""
    return re.sub(r"^\.version .*$", f".version {PTX_VERSION}", ptx, count=1, flags=re.MULTILINE)


def build_info(tensorflow: TensorFlow, compiler: Compiler) -> str:
    """Return the text of tfswap/_build_info.py, which the loader compares with TensorFlow."""
    return (
        '"""What libtfswap.so was built against. Written by setup.py."""\n\n'
        f'TENSORFLOW_VERSION = "{tensorflow.version}"\n'
        f'COMPILER = "{compiler.version}"\n'
        f'ABI_FLAGS = "{" ".join(tensorflow.abi_flags)}"\n'
        f"CUDA = {tensorflow.cuda}\n"
    )


def build_libraries() -> dict[str, Path]:
    """Compile and link what is not current; return the built files by package file name."""
    check_platform()
    compiler = find_compiler()
    tensorflow = find_tensorflow()
    # No other library interposes these functions, so calls may be inlined.
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
            # Other files first, while the headers are precompiled.
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
    write(info, build_info(tensorflow, compiler))
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
