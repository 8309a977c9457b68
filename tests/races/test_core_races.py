"""Slab, host pool and far memory: every interleaving of small programs, and stress tests with
sanitizers. Needs no TensorFlow except for its flags.
"""

from __future__ import annotations

from pathlib import Path

import builds
import pytest
from programs import explored, hammered, made, refused

CORE = builds.CC / "core"

# Necessary code: the small program that fails without it, the file, the text and its
# replacement, and the error.
NEEDED = {
    "a block that is taken is in the pool no more": (
        "host memory",
        "memory/host_pool.cc",
        "    it->second.pop_front();\n",
        "",
        "another tensor came back",
    ),
    "who takes granules looks whether their word is taken": (
        "words of a slab",
        "memory/slab.cc",
        "if ((before & bits) == 0 && whole == 0) return true;",
        "if ((before & bits) == 0) return true;",
        "a claim is somebody else's too",
    ),
    "who takes words looks at their granules": (
        "words of a slab",
        "memory/slab.cc",
        "if (AreClear(taken_ + first, taken_ + last)) return true;",
        "return true;",
        "a claim is somebody else's too",
    ),
    "memory is taken from idle chunks only": (
        "places in a slab",
        "memory/slab.cc",
        "if (!IsBacked(chunk) || !ClaimGranules(first, first + kGranulesAChunk)) return false;",
        "if (!IsBacked(chunk)) return false;",
        "a claim is somebody else's too",
    ),
    "a word that was taken as a whole goes back so": (
        "sections in a slab",
        "memory/slab.cc",
        "const int64_t end = RoundUp(offset + kept, kWordBytes);",
        "const int64_t end = RoundUp(offset + kept, kGranuleBytes);",
        "granules stayed taken",
    ),
    "what goes back is no longer counted": (
        "places in a slab",
        "memory/slab.cc",
        "  committed_.fetch_sub(kChunkBytes);\n",
        "",
        "what is backed is not what is paid",
    ),
}


def test_every_interleaving_of_small_programs() -> None:
    program = made(builds.core_interleavings)
    found = explored(program, "--most-runs", "3000", "--random-runs", "300")
    assert len(found) == 7
    for each in found:
        assert each["complete"] or each["runs"] == 3000, each
        assert each["diverged"] == 0, each


@pytest.mark.slow
def test_every_interleaving_with_two_preemptions() -> None:
    program = made(builds.core_interleavings)
    for each in explored(program, "--most-runs", "300000", "--random-runs", "20000"):
        assert each["complete"] and each["diverged"] == 0, each


@pytest.mark.parametrize("needed", NEEDED)
def test_removing_necessary_code_is_detected(needed: str) -> None:
    small, file, before, after, what = NEEDED[needed]
    changed = builds.changed(CORE / file, before, after)
    program = made(lambda: builds.core_interleavings([changed]))
    assert refused(program, "--program", small) == what


@pytest.mark.parametrize("watched", ["thread", pytest.param("address", marks=pytest.mark.slow)])
def test_no_race_and_no_wrong_byte_under_load(watched: str, tmp_path: Path) -> None:
    hammered(made(lambda: builds.core_hammer(watched)), watched, 1.5, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("watched", ["thread", "address"])
def test_no_race_and_no_wrong_byte_in_half_a_minute(watched: str, tmp_path: Path) -> None:
    hammered(made(lambda: builds.core_hammer(watched)), watched, 30, tmp_path)
