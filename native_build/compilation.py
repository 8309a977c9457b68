"""Compile and link what is not current."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from native_build.toolchain import CC, OBJECTS, TREE, BuildError, Compiler

COMPILER_BYTES = 1_500_000_000  # what one compiler needs for a file with TensorFlow's headers
# Reading these takes most of the ten seconds that a file compiles; they are precompiled once.
SHARED_HEADERS = """\
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/grappler/grappler_item.h"
#include "tensorflow/core/grappler/optimizers/custom_graph_optimizer.h"
"""
SHARED_HEADERS_NAME = "shared_headers.h"
FEWEST_SHARING = 4


@dataclass(frozen=True)
class CompileStep:
    """One source file, its object, and the whole command between them."""

    source: Path
    object: Path
    command: tuple[str, ...]
    stamp: str


def sources(*folders: str) -> list[Path]:
    """Return the C++ files in the named folders of tfswap/cc, sorted."""
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
    """Return whether the object is newer than its sources and was made by the same command."""
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
    """Parse the files that a compiler's -MMD output names after the colon."""
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
        raise BuildError(failure("compiling", name, result.returncode))
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


def failure(doing: str, name: object, code: int) -> str:
    if code < 0 or code == 137:
        return (
            f"the compiler was killed {doing} {name}, most likely for want of memory. "
            "Each one needs about 1.5 GB: try again with TFSWAP_BUILD_JOBS=1."
        )
    return f"{doing} {name} failed; the compiler's messages are above."


def build_jobs() -> int:
    """Return how many compilers run at once: TFSWAP_BUILD_JOBS, or what cores and memory allow."""
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
    """Link `objects` into `library` unless it is current; return whether it was linked.

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
        raise BuildError(failure(doing, target.name, result.returncode))
    stamp.write_text(shlex.join(command))
    return True
