"""Swaps through the copy engine: in every interleaving of small steps, and hammered by threads while
a sanitizer watches; and that bugs which others had are found so.
"""

from __future__ import annotations

from pathlib import Path

import builds
import pytest
from programs import explored, hammered, made, refused

PROGRAMS = 10


def test_every_interleaving_of_small_steps() -> None:
    program = made(builds.engine_interleavings)
    found = explored(program, "--most-runs", "4000", "--random-runs", "400")
    assert len(found) == PROGRAMS
    for each in found:
        assert each["complete"] or each["runs"] == 4000, each
    seen = {each["program"]: each for each in found}
    # It is these races that are run, not something else.
    assert all(each["copies_out"] > 0 for each in found)
    assert 0 < seen["wanted back"]["copies_in"] < seen["wanted back"]["copies_out"]
    assert seen["cancelled"]["cancelled"] > 0
    assert seen["far memory is full"]["declined"] > 0


@pytest.mark.slow
def test_every_interleaving_with_two_preemptions() -> None:
    program = made(builds.engine_interleavings)
    for each in explored(program, "--most-runs", "500000", "--random-runs", "20000"):
        assert each["complete"], each


@pytest.mark.slow
def test_every_interleaving_of_atomics() -> None:
    program = made(builds.engine_interleavings_of_atomics)
    explored(program, "--preemptions", "1", "--most-runs", "100000", "--random-runs", "20000")


# What others' bugs would be here: where, what is instead of what, the step that meets it, and what
# is found.
BUGS = {
    # A tensor's memory is given up when its copy begins (pytorch/torchtune#1867).
    "freed before it was copied": (
        "kernels/thread_copy_engine.cc",
        "    PutPiece(*buffer, buffer->tensor_.data(), buffer->bytes, &far_copy);\n",
        """\
    const void* data = buffer->tensor_.data();
    {
      std::lock_guard<std::mutex> lock(mu_);
      buffer->tensor_ = Tensor();
    }
    PutPiece(*buffer, data, buffer->bytes, &far_copy);
""",
        "wanted back",
    ),
    # What is wanted back while it leaves is copied back at once (NVIDIA/Megatron-LM#7398).
    "wanted back before it was there": (
        "kernels/copy_engine.cc",
        """\
        --buffer->returns_left_;
        buffer->wanted_back_.push_back({place, context, std::move(done)});
        return;
""",
        """\
        lock.unlock();
        FetchLater(buffer, place, Manner::kInSections, context, std::move(done));
        return;
""",
        "made to leave",
    ),
    # Two tensors have one host block (deepspeedai/DeepSpeed#8186, huggingface/trl#7195).
    "two tensors in one host block": (
        "core/host_pool.cc",
        "    it->second.pop_front();\n",
        "",
        "two tensors",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_bugs_that_others_had_are_found(bug: str) -> None:
    file, before, after, step = BUGS[bug]
    changed = builds.changed(builds.CC / file, before, after)
    program = made(lambda: builds.engine_interleavings([changed]))
    print(refused(program, "--program", step))


@pytest.mark.slow
@pytest.mark.parametrize("watched", ["thread", "address"])
def test_no_race_and_no_wrong_byte_under_load(watched: str, tmp_path: Path) -> None:
    hammered(made(lambda: builds.engine_hammer(watched)), watched, 20, tmp_path)
