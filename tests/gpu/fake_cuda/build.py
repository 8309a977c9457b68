"""Build the simulated GPU's libraries, for a TensorFlow with GPU devices.

TensorFlow opens CUDA's libraries by name when it first needs them, and has a stub for each of their
functions. Each gets a function here: from one of ``SOURCES``, or one that returns "success".

    python build.py FOLDER     writes the libraries; put FOLDER into LD_LIBRARY_PATH

An nvCOMP for that GPU is below ``FOLDER/wheel``, laid out like NVIDIA's wheel: put that into
PYTHONPATH to use it.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from simt.build import HERE as SIMT
from simt.build import objects as kernels_on_cpu

LIBRARIES = (
    "libcuda.so.1",
    "libcudart.so.12",
    "libcublas.so.12",
    "libcublasLt.so.12",
    "libcudnn.so.9",
    "libcufft.so.11",
    "libcusolver.so.11",
    "libcusparse.so.12",
    "libcupti.so.12",
    "libnccl.so.2",
    "libnvidia-ml.so.1",
)
SOURCES = ("fake_cuda.cc", "fake_cudnn.cc", "tensorflow_kernels.cc")
NVCOMP = Path("wheel", "nvidia", "libnvcomp", "lib64", "libnvcomp.so.6")
_NAME = re.compile(r"^(_*cu[A-Z]|_*cuda[A-Z]|cublas|cudnn|cufft|cusolver|cusparse|nccl|cupti|nvml)")


def stubs_of(library: Path) -> set[str]:
    """Return the names of the CUDA functions for which a library of TensorFlow has stubs."""
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True
    ).stdout
    symbols = (line.split() for line in listing.splitlines())
    return {s[-1] for s in symbols if len(s) == 3 and s[1] == "T" and _NAME.match(s[-1])}


def build(folder: Path) -> Path:
    """Write the libraries into `folder`, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    spec = importlib.util.find_spec("tensorflow")
    assert spec is not None and spec.origin is not None
    home = Path(spec.origin).parent
    names = set().union(
        *(stubs_of(home / f"libtensorflow_{part}.so.2") for part in ("framework", "cc"))
    )
    here = Path(__file__).parent
    sources = [here / name for name in SOURCES]
    text = "".join(source.read_text() for source in sources)
    ours = set(re.findall(r"^\S.*?\b(\w+)\(", text, re.MULTILINE))
    rest = "".join(
        f'int {name}(void) {{ return fake_cuda_called("{name}"); }}\n'
        for name in sorted(names - ours)
    )
    source = folder / "stubs.c"
    source.write_text("int fake_cuda_called(const char* name);\n" + rest)
    stubs = folder / "stubs.o"
    quiet = ["-w", "-fPIC", "-O3"]
    subprocess.run(["gcc", *quiet, "-c", str(source), "-o", str(stubs)], check=True)
    library = folder / "libfake_cuda.so"
    parts = [*sources, stubs, *kernels_on_cpu(folder)]
    headers = [home / "include/third_party/gpus" / name / "include" for name in ("cuda", "cudnn")]
    includes = [f"-I{path}" for path in (SIMT, *headers)]
    subprocess.run(
        ["g++", "-std=c++17", *quiet, "-shared", "-pthread", *includes, *map(str, parts)]
        + ["-o", str(library)],
        check=True,
    )
    for name in LIBRARIES:
        link = folder / name
        link.unlink(missing_ok=True)
        link.symlink_to(library.name)
    nvcomp = folder / NVCOMP
    nvcomp.parent.mkdir(parents=True, exist_ok=True)
    source = str(here / "fake_nvcomp.cc")
    subprocess.run(
        ["g++", "-std=c++17", *quiet, "-shared", source, "-ldl", "-o", str(nvcomp)], check=True
    )
    return folder


if __name__ == "__main__":
    print(build(Path(sys.argv[1])))
