"""Planned addresses from strangers, with sanitizers: two that live never share a byte."""

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
    """Compiled here: a slab needs nothing of TensorFlow's."""
    folder = tmp_path_factory.mktemp("slab")
    if shutil.which("g++") is None:
        pytest.skip("there is no g++")
    empty, made = folder / "empty.cc", folder / "fuzz_slab"
    empty.write_text("int main() {}\n")
    trial = ["g++", *CHECKED, str(empty), "-o", str(folder / "empty")]
    if subprocess.run(trial, capture_output=True).returncode != 0:
        pytest.skip("g++ has no sanitizers here: install libasan and libubsan")
    sources = (TREE / "tests/fuzz/cc/fuzz_slab.cc", TREE / "tfswap/cc/core/memory/slab.cc")
    command = ["g++", *CHECKED, f"-I{TREE / 'tfswap' / 'cc'}", *map(str, sources), "-o", str(made)]
    subprocess.run(command, check=True)
    return made


@pytest.mark.parametrize("seed", range(4))
def test_places_that_overlap_or_lie_outside_cost_room_and_no_byte(program: Path, seed: int) -> None:
    done = subprocess.run([program, str(seed), "20000"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
