"""Swaps through the copy engine: interleavings of small steps, and stress tests with sanitizers;
and that these tests find bugs of other projects.
"""

from __future__ import annotations

from pathlib import Path

import builds
import pytest
from programs import explored, hammered, made, refused

# With large tensors: each run takes a tenth of a second.
IN_SECTIONS = ("in sections", "sections of the slab", "sections that stay")
STEPS = (
    "wanted back",
    "wanted back by a kernel",
    "encoded",
    "in the slab",
    "made to leave",
    "two readers",
    "gate",
    "freed while it leaves",
    "cancelled",
    "far memory is full",
    "two tensors",
    "two tensors for kernels",
    "two small tensors",
    "the budget changes",
    "a variable leaves",
    "variables make room",
    "streaming ends",
    "streaming begins",
    "in the file",
)


def named(steps: tuple[str, ...]) -> list[str]:
    return [argument for step in steps for argument in ("--program", step)]


def test_every_interleaving_of_small_steps_with_a_preemption() -> None:
    program = made(builds.engine_interleavings)
    most = ("--preemptions", "1", "--most-runs", "4000", "--random-runs", "1000")
    found = explored(program, *named(STEPS), *most)
    seen = {each["program"]: each for each in found}
    assert tuple(seen) == STEPS
    for each in found:
        assert each["complete"] or each["runs"] == 4000, each
    # These races really run.
    assert all(each["copies_out"] > 0 for each in found)
    for name in ("wanted back", "wanted back by a kernel"):
        assert 0 < seen[name]["copies_in"] < seen[name]["copies_out"]
    assert 0 < seen["cancelled"]["not_come"] < seen["cancelled"]["runs"]
    assert seen["far memory is full"]["declined"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_interleavings_with_two_preemptions(step: str) -> None:
    program = made(builds.engine_interleavings)
    explored(program, "--program", step, "--most-runs", "150000", "--random-runs", "20000")


@pytest.mark.slow
@pytest.mark.parametrize("step", IN_SECTIONS)
def test_interleavings_of_sections(step: str) -> None:
    program = made(builds.engine_interleavings)
    most = ("--preemptions", "1", "--most-runs", "200", "--random-runs", "200")
    explored(program, "--program", step, *most)


@pytest.mark.slow
def test_interleavings_of_atomics() -> None:
    program = made(builds.engine_interleavings_of_atomics)
    most = ("--preemptions", "1", "--most-runs", "30000", "--random-runs", "10000")
    explored(program, *named(STEPS), *most)


# Other projects' bugs, here: the file, the text and its replacement, the step that fails, and the
# error.
BUGS = {
    # A tensor's memory is released when its copy begins (pytorch/torchtune#1867).
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
    # A tensor that is needed while it leaves is copied back at once (NVIDIA/Megatron-LM#7398).
    "wanted back before it was there": (
        "kernels/copy_engine.cc",
        """\
        --buffer->returns_left_;
        buffer->waiting_swap_ins_.push_back(std::move(*swap_in));
        return false;
""",
        """\
        return true;
""",
        "made to leave",
    ),
    # Two tensors share one host block (deepspeedai/DeepSpeed#8186, huggingface/trl#7195).
    "two tensors in one host block": (
        "core/memory/host_pool.cc",
        "    it->second.pop_front();\n",
        "",
        "two tensors",
    ),
    # A copy thread is not notified of its work: the step waits forever.
    "nobody is woken": ("kernels/worker.cc", "  wake_.notify_one();\n", "", "gate"),
    # Two bugs of tfswap. A plan's last swap-out ends after the step: no op fetches the value.
    "a variable leaves after the end": (
        "kernels/streamed_variables.cc",
        "  if (!on()) return 0;  // otherwise nothing would restore it\n",
        "",
        "streaming ends",
    ),
    # Values leave before their readers are registered.
    "a variable leaves unseen": (
        "kernels/streamed_variables.cc",
        "  if (on) allocator_->guard()->Set(this);\n  on_.store(on);\n",
        "  on_.store(on);\n  if (on) allocator_->guard()->Set(this);\n",
        "streaming begins",
    ),
}
FOUND = {
    "a variable leaves after the end": "a variable has another size",
    "a variable leaves unseen": "a variable has another size",
    "freed before it was copied": "nothing came back",
    "nobody is woken": "a deadlock",
}
# With three concurrent threads, two preemptions have too many interleavings.
MOST = {"a variable leaves unseen": ("--preemptions", "1")}


def test_the_lines_that_bugs_change_exist() -> None:
    for file, before, after, _ in BUGS.values():
        builds.changed(builds.CC / file, before, after)


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_bugs_of_other_projects_are_found(bug: str) -> None:
    file, before, after, step = BUGS[bug]
    changed = builds.changed(builds.CC / file, before, after)
    program = made(lambda: builds.engine_interleavings([changed]))
    found = refused(program, "--program", step, *MOST.get(bug, ()))
    assert found == FOUND.get(bug, "another tensor came back")


@pytest.mark.slow
@pytest.mark.parametrize("watched", ["thread", "address"])
def test_no_race_and_no_wrong_byte_under_load(watched: str, tmp_path: Path) -> None:
    hammered(made(lambda: builds.engine_hammer(watched)), watched, 20, tmp_path)
