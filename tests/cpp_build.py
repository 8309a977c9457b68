"""Build the tests' C++ programs with ninja, which compiles again only what has changed."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

TREE = Path(__file__).resolve().parents[1]
CC = TREE / "tfswap" / "cc"
COMPILER = os.environ.get("CXX", "g++")

# As TensorFlow's wheels are compiled.
ABI = ("-std=c++17", "-D_GLIBCXX_USE_CXX11_ABI=1", "-DEIGEN_MAX_ALIGN_BYTES=64")
_RULES = f"""\
rule compile
  command = {COMPILER} $flags -MMD -MF $out.d -c $in -o $out
  description = compiling $in
  depfile = $out.d
  deps = gcc
rule link
  command = {COMPILER} $in -o $out $flags
  description = linking $out
"""


class BuildError(Exception):
    """The compiler failed, or there is none."""


def sources(*folders: str) -> list[Path]:
    """Return the C++ files in the named folders of tfswap/cc, sorted."""
    return sorted(path for folder in folders for path in (CC / folder).rglob("*.cc"))


def built_library() -> Path | None:
    """Return libtfswap.so for the installed TensorFlow; None if it is not built."""
    for name in ("tensorflow", "tensorflow-cpu"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            release = ".".join(metadata.version(name).split(".")[:2])
            found = TREE / "tfswap" / "native" / release / "libtfswap.so"
            return found if found.exists() else None
    return None


def tensorflow_folder() -> Path:
    """Return the folder of the installed TensorFlow."""
    found = importlib.util.find_spec("tensorflow")
    assert found is not None and found.origin is not None
    return Path(found.origin).parent


def tensorflow_libraries() -> tuple[str, ...]:
    """Return the flags to link with TensorFlow."""
    folder = tensorflow_folder()
    names = ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2")
    return (f"-L{folder}", *(f"-l:{name}" for name in names), f"-Wl,-rpath,{folder}")


class CppBuild:
    """Objects and programs in a folder. Processes take turns to build there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._statements: dict[str, str] = {}

    def objects(
        self, files: Sequence[Path], kind: str, flags: Sequence[str], tensorflow: bool = False
    ) -> list[Path]:
        """Compile files into the subfolder `kind`; with TensorFlow, its headers are precompiled."""
        needs = ""
        if tensorflow:
            flags = (*flags, "-isystem", str(tensorflow_folder() / "include"))
            name = hashlib.sha256(repr(flags).encode()).hexdigest()[:12]
            header = self._folder / "headers" / name / "shared.h"
            if not header.exists():
                header.parent.mkdir(parents=True, exist_ok=True)
                header.write_text('#include "tensorflow_headers.h"\n')
            needs = f"{header}.gch"
            self._add("compile", needs, [header], "", ["-x", "c++-header", *flags])
            flags = (*flags, "-include", str(header))
        made = []
        for file in files:
            below = self._folder if self._folder in file.parents else TREE
            made.append((self._folder / kind / file.relative_to(below)).with_suffix(".o"))
            self._add("compile", str(made[-1]), [file], needs, flags)
        return made

    def program(self, target: Path, objects: Sequence[Path], flags: Sequence[str]) -> Path:
        """Link a program, or a library with the flag -shared, and everything that it needs.

        Raises:
            BuildError: It failed; the compiler's output is printed.
        """
        self._add("link", str(target), objects, "", flags)
        ninja = shutil.which("ninja") or shutil.which("ninja", path=Path(sys.executable).parent)
        if ninja is None or shutil.which(COMPILER.split()[0]) is None:
            raise BuildError(f"ninja or {COMPILER} is missing")
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Other processes build other programs, of the same objects.
            known = self._folder / "statements.json"
            earlier = json.loads(known.read_text()) if known.exists() else {}
            statements = {**earlier, **self._statements}
            known.write_text(json.dumps(statements))
            (self._folder / "build.ninja").write_text(_RULES + "".join(statements.values()))
            cores = str(len(os.sched_getaffinity(0)))
            command = [ninja, "--quiet", "-C", str(self._folder), "-j", cores, str(target)]
            if subprocess.run(command).returncode != 0:
                raise BuildError(f"{target.name} cannot be built; the messages above say why")
        return target

    def _add(
        self, rule: str, made: str, files: Sequence[Path], needs: str, flags: Sequence[str]
    ) -> None:
        inputs = " ".join(map(str, files))
        text = shlex.join(flags).replace("$", "$$")
        self._statements[made] = (
            f"build {made}: {rule} {inputs}{f' | {needs}' if needs else ''}\n  flags = {text}\n"
        )
