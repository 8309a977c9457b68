"""Build the race tests from tfswap's C++ sources, with a sanitizer or under the scheduler.

Everything goes into ``build/races``. As in ``native_build``, whose steps these are, an object is
compiled again when a file that it includes, its command or the compiler has changed. Processes
take turns to build there.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from native_build import compilation, toolchain
from tests.sanitizers import ADDRESS, NOT_THE_HEADERS

HERE = Path(__file__).resolve().parent
TREE = HERE.parents[1]
CC = TREE / "tfswap" / "cc"
BUILT = TREE / "build" / "races"

WATCHED = {"plain": (), "thread": ("-fsanitize=thread",), "address": ADDRESS}
_COMMON = ("-std=c++17", "-O1", "-g", "-fno-omit-frame-pointer", "-Wall")
_SYSTEM = ("-pthread", "-ldl")

SCHEDULER = tuple(
    HERE / "interleaving" / f"{name}.cc"
    for name in ("choices", "explore", "instrumented", "posix", "scheduler")
)
RIG = (HERE / "engine" / "rig.cc", HERE / "engine" / "variable.cc")
STEPS = (HERE / "interleaving" / "absl_mutex.cc", HERE / "engine" / "interleavings.cc", *RIG)


class Unavailable(Exception):
    """The programs cannot be built or run on this machine; the text says why."""


@functools.cache
def compiler() -> Any:
    """Return the compiler that the build finds.

    Raises:
        Unavailable: There is no compiler.
    """
    try:
        return toolchain.find_compiler()
    except SystemExit as error:
        raise Unavailable(str(error)) from None


@functools.cache
def check(watched: str) -> None:
    """Check that programs can be built and run here.

    Raises:
        Unavailable: They cannot.
    """
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder) / "probe"
        command = [*compiler().command, *WATCHED[watched], "-x", "c++", "-", "-o", str(probe)]
        built = subprocess.run(command, input=b"int main() {}", capture_output=True)
        if built.returncode != 0:
            raise Unavailable(f"the C++ compiler has no sanitizer for {watched}")
        if subprocess.run([probe], capture_output=True).returncode != 0:
            raise Unavailable(f"the sanitizer for {watched} does not run here")


def check_instrumented() -> None:
    """Check that the scheduler can replace a sanitizer's runtime.

    Raises:
        Unavailable: The compiler is another one.
    """
    check("thread")
    if "clang" in compiler().version.lower():
        raise Unavailable("the scheduler answers what g++ has instrumented code call")


def core_sources() -> list[Path]:
    """Return the sources that run without TensorFlow, except the planners."""
    folders = ("core/gpu", "core/memory", "core/spill", "core/util", "codecs", "far")
    return [*compilation.sources(*folders), CC / "core" / "simulate" / "trace.cc"]


def runtime_sources() -> list[Path]:
    """Return the sources of the device."""
    return list(compilation.sources("allocator", "device", "kernels"))


def changed(source: Path, before: str, after: str) -> Path:
    """Copy a source of tfswap with one text replaced."""
    text = source.read_text()
    assert text.count(before) == 1, f"{source.name} has not just once: {before}"
    name = hashlib.sha256(f"{before}\0{after}".encode()).hexdigest()[:12]
    copy = BUILT / "changed" / name / source.name
    wanted = text.replace(before, after)
    with _alone():
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

    Changed sources of the library override its own.
    """
    library = TREE / "tfswap" / "libtfswap.so"
    if not library.exists():
        raise Unavailable("libtfswap.so has not been built: make build")
    own = _objects(SCHEDULER, "plain", tensorflow=False)
    own += _objects([*STEPS, *changes], "plain", tensorflow=True)
    beside = (f"-L{library.parent}", "-l:libtfswap.so", f"-Wl,-rpath,{library.parent}")
    flags = ("-rdynamic", *beside, *_tensorflow_flags())
    return _program("engine_interleavings", own, "plain", changes, flags)


def engine_interleavings_of_atomics() -> Path:
    """Build swaps from instrumented sources: locks and atomics are scheduling points."""
    check_instrumented()
    own = _objects(SCHEDULER, "plain", tensorflow=False)
    own += _objects(STEPS, "plain", tensorflow=True)
    core = _objects(core_sources(), "thread", tensorflow=False)
    runtime = _objects(runtime_sources(), "thread", tensorflow=True)
    objects = [*own, *core, *runtime]
    flags = ("-rdynamic", *_tensorflow_flags())
    return _program("engine_interleavings_of_atomics", objects, "plain", (), flags)


def engine_hammer(watched: str) -> Path:
    """Build the stress test of a device and its copy engine, under a sanitizer."""
    check(watched)
    core = _objects(core_sources(), watched, tensorflow=False)
    own = [*RIG, HERE / "engine" / "hammer.cc"]
    if watched == "thread":
        own.append(HERE / "engine" / "watched.cc")
    runtime = _objects([*runtime_sources(), *own], watched, tensorflow=True)
    flags = ("-rdynamic", *_tensorflow_flags())
    return _program("engine_hammer", [*core, *runtime], watched, (), flags)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Exclude other processes from building here."""
    BUILT.mkdir(parents=True, exist_ok=True)
    with (BUILT / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _tensorflow_flags() -> tuple[str, ...]:
    # All of it: kernels are looked up by name.
    return ("-Wl,--no-as-needed", *toolchain.find_tensorflow().libraries)


def _flags(watched: str, tensorflow: bool) -> tuple[str, ...]:
    found = toolchain.find_tensorflow()
    flags = (*_COMMON, *WATCHED[watched], *found.abi_flags, f"-I{HERE}", f"-I{CC}")
    if not tensorflow:
        return flags
    headers = (
        flag.replace("-I", "-isystem", 1) if flag.startswith("-I") else flag
        for flag in found.compile_flags
        if "std=" not in flag
    )
    return (*flags, *NOT_THE_HEADERS[watched], *headers)


def _objects(sources: Sequence[Path], watched: str, tensorflow: bool) -> list[Path]:
    """Compile what is not current."""
    flags = _flags(watched, tensorflow)
    steps = []
    for source in sources:
        relative = source.relative_to(BUILT if BUILT in source.parents else TREE)
        target = (BUILT / watched / relative).with_suffix(".o")
        command = (*compiler().command, *flags, "-MMD", "-MF", str(target.with_suffix(".d")))
        if BUILT in source.parents:
            command = (*command, "-w")  # includes that it no longer has
        command = (*command, "-c", str(source), "-o", str(target))
        stamp = "\n".join([shlex.join(command), compiler().version])
        steps.append(compilation.CompileStep(source, target, command, stamp))
    with _alone():
        _compile([step for step in steps if not compilation.is_current(step)], flags, tensorflow)
    return [step.object for step in steps]


def _compile(missing: Sequence[Any], flags: tuple[str, ...], tensorflow: bool) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        ThreadPoolExecutor(compilation.build_jobs()) as pool,
    ):
        more: tuple[str, ...] = ()
        if tensorflow and compiler().precompiles and len(missing) >= compilation.FEWEST_SHARING:
            more = compilation.read_shared_headers(compiler(), flags, Path(folder))
        for result in [pool.submit(compilation.compile_object, step, more) for step in missing]:
            result.result()


def _program(
    name: str,
    objects: Sequence[Path],
    watched: str,
    changes: Sequence[Path] = (),
    flags: Sequence[str] = (),
) -> Path:
    program = (changes[0].parent if changes else BUILT / watched) / name
    command = [*compiler().command, *WATCHED[watched], *map(str, objects)]
    command += ["-o", str(program), *flags, *_SYSTEM]
    with _alone():
        compilation.make("linking", program, objects, command)
    return program
