"""Build ``fuzz_plans``: the C++ parsers with sanitizers, and their fuzzer."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from native_build import compilation, toolchain
from tests.sanitizers import ADDRESS, NOT_THE_HEADERS

HERE = Path(__file__).resolve().parent
TREE = HERE.parents[1]
CC = TREE / "tfswap" / "cc"
FOLDER = TREE / "build" / "fuzz"

WATCHED = (
    "grappler/index/accumulation_races.cc",
    "grappler/index/activations.cc",
    "grappler/index/alive_contexts.cc",
    "grappler/rewrite/bootstrap.cc",
    "grappler/rewrite/order_edges.cc",
    "grappler/index/graph_index.cc",
    "grappler/index/loop_frames.cc",
    "grappler/index/collective_groups.cc",
    "grappler/index/op_kinds.cc",
    "grappler/rewrite/recomputes.cc",
    "grappler/rewrite/rewriter.cc",
    "grappler/swap_spec.cc",
    "allocator/slab_layouts.cc",
)
"""What is compiled with sanitizers, and by whose branches inputs are judged."""

_FUZZER = ("fuzz_coverage.cc", "fuzz_mutator.cc", "fuzz_plans.cc")
_CHECKED = (
    "-O1",
    "-g1",
    "-fno-omit-frame-pointer",
    *ADDRESS,
    "-fsanitize=float-cast-overflow",
    *NOT_THE_HEADERS["address"],
)
ENVIRONMENT = {
    # TensorFlow's containers are not compiled with bounds annotations.
    "ASAN_OPTIONS": "detect_container_overflow=0:detect_leaks=0:hard_rss_limit_mb=6000",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


def why_not() -> str:
    """Return why it cannot be built here; "" if it can."""
    try:
        compiler = toolchain.find_compiler()
    except SystemExit as error:
        return str(error)
    FOLDER.mkdir(parents=True, exist_ok=True)
    empty, made = FOLDER / "empty.cc", FOLDER / "empty"
    empty.write_text("int main() {}\n")
    command = [*compiler.command, *_CHECKED, str(empty), "-o", str(made)]
    if subprocess.run(command, capture_output=True).returncode != 0:
        return "the compiler has no sanitizers here: install libasan and libubsan"
    if not _objects_of_library():
        return "tfswap is not built in this tree: make build"
    return ""


def build() -> Path:
    """Compile what is not current, and link.

    Raises:
        BuildError: The compiler failed; its output is printed.
        subprocess.CalledProcessError: The linker failed.
    """
    tensorflow = toolchain.find_tensorflow()
    headers = [
        flag.replace("-I", "-isystem", 1) if flag.startswith("-I") else flag
        for flag in tensorflow.compile_flags
        if "std=" not in flag
    ]
    common = ["-std=c++17", *_CHECKED, *headers, f"-I{CC}", f"-I{HERE / 'cc'}"]
    watched = [CC / name for name in WATCHED]
    fuzzer = [HERE / "cc" / name for name in _FUZZER]
    objects = _objects(watched, [*common, "-fsanitize-coverage=trace-pc"])
    objects += _objects(fuzzer, common)
    program = FOLDER / "fuzz_plans"
    rest = map(str, _objects_of_library())
    command = [*toolchain.find_compiler().command, *_CHECKED, *map(str, objects), *rest]
    command += ["-o", str(program), "-pthread", "-ldl"]
    subprocess.run([*command, *tensorflow.libraries], check=True)
    return program


def _objects_of_library() -> list[Path]:
    """Return the objects of the library's build that the parsers need."""
    sources = compilation.sources("codecs", "core")
    folder = compilation.objects_folder()
    return [(folder / path.relative_to(CC)).with_suffix(".o") for path in sources]


def _objects(sources: Sequence[Path], flags: list[str]) -> list[Path]:
    """Compile what is not current; TensorFlow's headers are precompiled once for all."""
    compiler = toolchain.find_compiler()
    steps = []
    for source in sources:
        made = FOLDER / f"{source.stem}.o"
        command = (*compiler.command, "-Wall", *flags, "-MMD", "-MF", str(made.with_suffix(".d")))
        command = (*command, "-c", str(source), "-o", str(made))
        stamp = "\n".join([shlex.join(command), compiler.version])
        steps.append(compilation.CompileStep(source, made, command, stamp))
    missing = [step for step in steps if not compilation.is_current(step)]
    with (
        tempfile.TemporaryDirectory() as folder,
        ThreadPoolExecutor(compilation.build_jobs()) as pool,
    ):
        more: tuple[str, ...] = ()
        if compiler.precompiles and len(missing) >= compilation.FEWEST_SHARING:
            more = compilation.read_shared_headers(compiler, flags, Path(folder))
        for compiled in [pool.submit(compilation.compile_object, step, more) for step in missing]:
            compiled.result()
    return [step.object for step in steps]


if __name__ == "__main__":
    print(build())
