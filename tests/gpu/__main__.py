"""Builds tfswap against the TensorFlow with GPU devices, and runs the tests here on a fake card.

    python tests/gpu [pytest's arguments]

Needs no GPU. All of it goes into ``build/cuda``: that TensorFlow (600 MB), a copy of the sources
and its build, and the fake card. What else Python needs is this interpreter's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
CUDA = TREE / "build" / "cuda"
TENSORFLOW = "tensorflow>=2.21,<2.22"


def run(*command: str | Path, **environment: str) -> int:
    return subprocess.run(
        [str(part) for part in command], cwd=CUDA / "tree", env={**os.environ, **environment}
    ).returncode


def install_tensorflow(site: Path) -> None:
    if (site / ".complete").exists():
        return
    shutil.rmtree(site, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site)]
    subprocess.run([*pip, TENSORFLOW], check=True)
    (site / ".complete").touch()


def copy_sources(tree: Path) -> None:
    """Files that are as they were keep their time, so that they are not compiled again."""
    tree.mkdir(parents=True, exist_ok=True)
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy2(TREE / name, tree / name)
    for name in ("tfswap", "tests", "benchmarks"):
        built = shutil.ignore_patterns(
            "*.so", "codec_kernels.[fp]*", "_build_info.py", "__pycache__"
        )
        shutil.copytree(TREE / name, tree / name, ignore=built, dirs_exist_ok=True)
        for old in list((tree / name).rglob("*")):
            there = TREE / old.relative_to(tree)
            if old.suffix in (".cc", ".cu", ".h", ".py") and not there.exists():
                if old.name != "_build_info.py":
                    old.unlink()


def main() -> int:
    site, tree, card = CUDA / "site", CUDA / "tree", CUDA / "card"
    CUDA.mkdir(parents=True, exist_ok=True)
    install_tensorflow(site)
    copy_sources(tree)
    paths = os.pathsep.join(map(str, (tree, site)))
    python = sys.executable
    failed = run(python, "setup.py", "--quiet", "build_ext", "--inplace", PYTHONPATH=paths)
    failed = failed or run(python, "tests/gpu/fake_cuda/build.py", card, PYTHONPATH=paths)
    return failed or run(
        *(python, "-m", "pytest", "-q", "tests/gpu", *sys.argv[1:]),
        PYTHONPATH=paths,
        LD_LIBRARY_PATH=str(card),
        TF_CPP_MIN_LOG_LEVEL="2",
    )


if __name__ == "__main__":
    sys.exit(main())
