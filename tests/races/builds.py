"""Build the race tests from tfswap's C++ sources, with a sanitizer or under the scheduler.

Everything goes into ``build/races``.
"""

from __future__ import annotations

import functools
import hashlib
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests import cpp_build
from tests.cpp_build import CC, TREE, CppBuild
from tests.sanitizers import ADDRESS, NOT_THE_HEADERS

HERE = Path(__file__).resolve().parent
BUILT = TREE / "build" / "races"

WATCHED = {"plain": (), "thread": ("-fsanitize=thread",), "address": ADDRESS}
_COMMON = (*cpp_build.ABI, "-O1", "-g", "-fno-omit-frame-pointer", "-Wall", f"-I{HERE}", f"-I{CC}")
# All of it: kernels are looked up by name.
_TENSORFLOW = ("-Wl,--no-as-needed", *cpp_build.tensorflow_libraries())
_build = CppBuild(BUILT)

SCHEDULER = tuple(
    HERE / "interleaving" / f"{name}.cc"
    for name in ("choices", "explore", "instrumented", "posix", "scheduler")
)
RIG = (HERE / "engine" / "rig.cc", HERE / "engine" / "variable.cc")
STEPS = (HERE / "interleaving" / "absl_mutex.cc", HERE / "engine" / "interleavings.cc", *RIG)


class Unavailable(Exception):
    """The programs cannot be built or run on this machine; the text says why."""


@functools.cache
def check(watched: str) -> None:
    """Check that programs can be built and run here.

    Raises:
        Unavailable: They cannot.
    """
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder) / "probe"
        command = [
            *cpp_build.COMPILER.split(),
            *WATCHED[watched],
            "-x",
            "c++",
            "-",
            "-o",
            str(probe),
        ]
        try:
            subprocess.run(command, input=b"int main() {}", capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            raise Unavailable(f"the C++ compiler has no sanitizer for {watched}") from None
        if subprocess.run([probe], capture_output=True).returncode != 0:
            raise Unavailable(f"the sanitizer for {watched} does not run here")


def check_instrumented() -> None:
    """Check that the scheduler can replace a sanitizer's runtime.

    Raises:
        Unavailable: The compiler is another one.
    """
    check("thread")
    version = subprocess.check_output([*cpp_build.COMPILER.split(), "--version"], text=True)
    if "clang" in version.lower():
        raise Unavailable("the scheduler answers what g++ has instrumented code call")


def core_sources() -> list[Path]:
    """Return the sources that run without TensorFlow, except the planners."""
    folders = ("core/gpu", "core/memory", "core/spill", "core/util", "codecs", "far")
    return [*cpp_build.sources(*folders), CC / "core" / "simulate" / "trace.cc"]


def runtime_sources() -> list[Path]:
    """Return the sources of the device."""
    return cpp_build.sources("allocator", "device", "kernels")


def changed(source: Path, before: str, after: str) -> Path:
    """Copy a source of tfswap with one text replaced."""
    text = source.read_text()
    assert text.count(before) == 1, f"{source.name} has not just once: {before}"
    name = hashlib.sha256(f"{before}\0{after}".encode()).hexdigest()[:12]
    copy = BUILT / "changed" / name / source.name
    wanted = text.replace(before, after)
    if not copy.exists() or copy.read_text() != wanted:
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(wanted)
    return copy


def core_interleavings(changes: Sequence[Path] = ()) -> Path:
    """Build the core's small programs under the scheduler; atomics are scheduling points, too.

    Changed sources replace those of the same names.
    """
    check_instrumented()
    names = {path.name for path in changes}
    sources = [path for path in core_sources() if path.name not in names]
    core = _objects([*sources, *changes], "thread", tensorflow=False)
    own = _objects([*SCHEDULER, HERE / "core" / "interleavings.cc"], "plain", tensorflow=False)
    return _program("core_interleavings", [*own, *core], "plain", changes)


def core_hammer(watched: str) -> Path:
    """Build the stress test of the core, under a sanitizer."""
    check(watched)
    sources = [*core_sources(), HERE / "core" / "hammer.cc"]
    objects = _objects(sources, watched, tensorflow=False)
    return _program("core_hammer", objects, watched)


def engine_interleavings(changes: Sequence[Path] = ()) -> Path:
    """Build swaps under the scheduler, with the library as built: locks are scheduling points.

    With changed sources, all sources are built instead: the library binds its calls itself.
    """
    own = _objects(SCHEDULER, "plain", tensorflow=False)
    if changes:
        names = {path.name for path in changes}
        rest = [path for path in runtime_sources() if path.name not in names]
        core = [path for path in core_sources() if path.name not in names]
        own += _objects(core, "plain", tensorflow=False)
        own += _objects([*STEPS, *rest, *changes], "plain", tensorflow=True)
        flags = ("-rdynamic", *_TENSORFLOW)
        return _program("engine_interleavings", own, "plain", changes, flags)
    library = cpp_build.built_library()
    if library is None:
        raise Unavailable("libtfswap.so has not been built: make build")
    own += _objects(STEPS, "plain", tensorflow=True)
    beside = (f"-L{library.parent}", "-l:libtfswap.so", f"-Wl,-rpath,{library.parent}")
    flags = ("-rdynamic", *beside, *_TENSORFLOW)
    return _program("engine_interleavings", own, "plain", (), flags)


def engine_interleavings_of_atomics() -> Path:
    """Build swaps from instrumented sources: locks and atomics are scheduling points."""
    check_instrumented()
    own = _objects(SCHEDULER, "plain", tensorflow=False)
    own += _objects(STEPS, "plain", tensorflow=True)
    core = _objects(core_sources(), "thread", tensorflow=False)
    runtime = _objects(runtime_sources(), "thread", tensorflow=True)
    objects = [*own, *core, *runtime]
    flags = ("-rdynamic", *_TENSORFLOW)
    return _program("engine_interleavings_of_atomics", objects, "plain", (), flags)


def engine_hammer(watched: str) -> Path:
    """Build the stress test of a device and its copy engine, under a sanitizer."""
    check(watched)
    core = _objects(core_sources(), watched, tensorflow=False)
    own = [*RIG, HERE / "engine" / "hammer.cc"]
    if watched == "thread":
        own.append(HERE / "engine" / "watched.cc")
    runtime = _objects([*runtime_sources(), *own], watched, tensorflow=True)
    flags = ("-rdynamic", *_TENSORFLOW)
    return _program("engine_hammer", [*core, *runtime], watched, (), flags)


def _objects(sources: Sequence[Path], watched: str, tensorflow: bool) -> list[Path]:
    flags = (*_COMMON, *WATCHED[watched])
    if tensorflow:
        flags = (*flags, *NOT_THE_HEADERS[watched])
    made = []
    for source in sources:
        quiet = ("-w",) if BUILT in source.parents else ()  # changes may leave code unused
        made += _build.objects([source], watched, (*flags, *quiet), tensorflow)
    return made


def _program(
    name: str,
    objects: Sequence[Path],
    watched: str,
    changes: Sequence[Path] = (),
    flags: Sequence[str] = (),
) -> Path:
    program = (changes[0].parent if changes else BUILT / watched) / name
    return _build.program(program, objects, (*WATCHED[watched], *flags, "-pthread", "-ldl"))
