"""Compile tfswap's kernels for the CPU, with their runtime."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
CC = HERE.parents[2] / "tfswap" / "cc"

# Errors that a GPU does not tolerate end the program, such as misaligned accesses.
_CHECKED = (
    "-fsanitize=alignment,bounds,shift,null",
    "-fsanitize-undefined-trap-on-error",
)
# As on a GPU: byte arrays may hold words.
_KERNELS = ("-include", "cuda_on_cpu.h", "-fno-strict-aliasing", "-Wno-unknown-pragmas")
_COMMON = ("-std=c++17", "-fPIC", "-Wall", "-Werror", f"-I{HERE}")


def objects(folder: Path, kernels: Path = CC) -> list[Path]:
    """Compile both into `folder`; the kernels are those of `kernels`/cuda."""
    return [
        _compiled(folder, "kernels", ["-O2", *_CHECKED, *_KERNELS, f"-I{kernels}", f"-I{CC}"]),
        _compiled(folder, "simt", ["-O2"]),
    ]


def library(folder: Path) -> Path:
    """Build a library with ``simt_launch``."""
    made = folder / "libsimt.so"
    _run(["g++", "-shared", "-pthread", *map(str, objects(folder)), "-o", str(made)])
    return made


def race_check(folder: Path, kernels: Path = CC) -> Path:
    """Build the program ``race_check``, which instruments the kernels but not their runtime."""
    watched = ["-O1", "-g", "-fsanitize=thread", *_KERNELS, f"-I{kernels}", f"-I{CC}"]
    parts = [
        _compiled(folder, "kernels", watched),
        _compiled(folder, "simt", ["-O2", "-DSIMT_FINDS_RACES"]),
        _compiled(folder, "race_check", ["-O1", f"-I{CC}"]),
    ]
    made = folder / "race_check"
    _run(["g++", "-fsanitize=thread", "-pthread", *map(str, parts), "-o", str(made)])
    return made


def _compiled(folder: Path, name: str, flags: Sequence[str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / f"{name}.o"
    _run(["g++", *_COMMON, *flags, "-c", str(HERE / f"{name}.cc"), "-o", str(made)])
    return made


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True)
