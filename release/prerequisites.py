"""What the wheels are compiled with: each supported TensorFlow, and CUDA's nvcc.

    python release/prerequisites.py FOLDER

installs the TensorFlows with GPU devices into ``FOLDER/2.21``, ..., and nvcc into ``FOLDER/nvcc``.
What exists is kept.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

_CHECKS = Path(__file__).resolve().parents[1] / "cmake" / "checks.cmake"
_NVCC = tuple(
    f"nvidia-{part}>=13,<14"
    for part in ("cuda-nvcc", "nvvm", "cuda-crt", "cuda-runtime", "cuda-cccl")
)


def supported_tensorflow() -> list[str]:
    """Return the supported releases, as ``major.minor``, from the oldest to the newest."""
    found = re.search(r"^set\(supported_tensorflow (.*)\)$", _CHECKS.read_text(), re.MULTILINE)
    assert found is not None
    return found[1].split()


def environment(folder: Path) -> dict[str, str]:
    """Return the variables by which setup.py finds them."""
    packages = [str(folder / release / "tensorflow") for release in supported_tensorflow()]
    nvcc = folder / "nvcc" / "nvidia" / "cu13" / "bin" / "nvcc"
    return {"TFSWAP_BUILD_TENSORFLOW": ";".join(packages), "NVCC": str(nvcc)}


def install(folder: Path) -> None:
    """Install what is missing into subfolders of `folder`."""
    for release in supported_tensorflow():
        _install(folder / release, f"tensorflow=={release}.*")
    _install(folder / "nvcc", *_NVCC)
    Path(environment(folder)["NVCC"]).chmod(0o755)


def _install(target: Path, *requirements: str) -> None:
    if (target / "complete").exists():
        return
    shutil.rmtree(target, ignore_errors=True)
    # For one Python, whichever runs this: only headers and libraries are used.
    platforms = [f"--platform=manylinux_2_{release}_x86_64" for release in (28, 27, 17, 12)]
    python = ("--only-binary=:all:", "--implementation=cp", "--python-version=3.12", *platforms)
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target))
    subprocess.run([*pip, *python, *requirements], check=True)
    (target / "complete").touch()


if __name__ == "__main__":
    install(Path(sys.argv[1]).resolve())
