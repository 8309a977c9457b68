"""Build ``fuzz_plans``: the C++ parsers with sanitizers, and their fuzzer."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests import cpp_build
from tests.cpp_build import CC, TREE, CppBuild
from tests.sanitizers import ADDRESS, NOT_THE_HEADERS

HERE = Path(__file__).resolve().parent
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
    "grappler/index/pooling_gradients.cc",
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
    FOLDER.mkdir(parents=True, exist_ok=True)
    empty, made = FOLDER / "empty.cc", FOLDER / "empty"
    empty.write_text("int main() {}\n")
    command = [*cpp_build.COMPILER.split(), *_CHECKED, str(empty), "-o", str(made)]
    try:
        subprocess.run(command, capture_output=True, check=True)
    except OSError as error:
        return str(error)
    except subprocess.CalledProcessError:
        return "the compiler has no sanitizers here: install libasan and libubsan"
    if not _objects_of_library():
        return "tfswap is not built in this tree: make build"
    return ""


def build() -> Path:
    """Compile and link what has changed.

    Raises:
        BuildError: The compiler failed; its output is printed.
    """
    made = CppBuild(FOLDER)
    flags = (*cpp_build.ABI, "-Wall", *_CHECKED, f"-I{CC}", f"-I{HERE / 'cc'}")
    watched = [CC / name for name in WATCHED]
    fuzzer = [HERE / "cc" / name for name in _FUZZER]
    objects = made.objects(watched, "watched", (*flags, "-fsanitize-coverage=trace-pc"), True)
    objects += made.objects(fuzzer, "fuzzer", flags, True)
    linked = (*_CHECKED, *cpp_build.tensorflow_libraries(), "-pthread", "-ldl")
    return made.program(FOLDER / "fuzz_plans", [*objects, *_objects_of_library()], linked)


def _objects_of_library() -> list[Path]:
    """Return the objects of the library's build that the parsers need."""
    folder = TREE / "build" / "native" / "CMakeFiles" / "core.dir"
    return [
        found
        for name in ("codecs", "core")
        for found in sorted((folder / "tfswap" / "cc" / name).rglob("*.o"))
    ]


if __name__ == "__main__":
    print(build())
