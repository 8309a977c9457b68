"""Untrusted planned addresses, with sanitizers: live allocations never overlap."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parents[3]
CHECKED = (
    *("-std=c++17", "-Wall", "-Werror", "-O1", "-g1"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the fuzz target; the slab does not depend on TensorFlow."""
    folder = tmp_path_factory.mktemp("slab")
    if shutil.which("g++") is None:
        pytest.skip("there is no g++")
    empty, target = folder / "empty.cc", folder / "fuzz_slab"
    empty.write_text("int main() {}\n")
    compile_empty = ["g++", *CHECKED, str(empty), "-o", str(folder / "empty")]
    if subprocess.run(compile_empty, capture_output=True).returncode != 0:
        pytest.skip("g++ has no sanitizers here: install libasan and libubsan")
    sources = (TREE / "tests/fuzz/cc/fuzz_slab.cc", TREE / "tfswap/cc/core/memory/slab.cc")
    include = f"-I{TREE / 'tfswap' / 'cc'}"
    subprocess.run(["g++", *CHECKED, include, *map(str, sources), "-o", str(target)], check=True)
    return target


@pytest.mark.parametrize("seed", range(4))
def test_invalid_addresses_do_not_corrupt_memory(program: Path, seed: int) -> None:
    done = subprocess.run([program, str(seed), "20000"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
