"""Conversion of host times to GPU times: `_core.move_to_gpu`."""

from __future__ import annotations

import random

from tfswap._core import move_to_gpu


def test_ops_last_as_long_as_between_their_marks() -> None:
    # The host enqueues two ops at 0 and 10; the GPU starts at 100.
    ops = [(0, 5, 0, 0, 1), (10, 15, 0, 2, 3)]
    moved, _ = move_to_gpu([100, 150, 150, 400], [], ops, [], [])
    assert moved == [[100, 150, 0], [150, 400, 0]]


def test_an_op_starts_after_the_one_that_the_gpu_runs_before_it() -> None:
    # Two threads: both set their first marks, then their kernels run in sequence.
    ops = [(0, 10, 0, 0, 2), (1, 12, 1, 1, 3)]
    moved, _ = move_to_gpu([100, 100, 300, 700], [], ops, [], [])
    assert moved == [[100, 300, 0], [300, 700, 0]]


def test_waits_for_copies_are_not_work() -> None:
    ops = [(0, 5, 0, 0, 3), (10, 15, 0, 4, 5)]
    marks = [100, 110, 160, 200, 200, 300]
    moved, _ = move_to_gpu(marks, [(110, 160)], ops, [], [])
    assert moved == [[100, 200, 50], [200, 300, 0]]


def test_waits_of_the_host_for_memory_are_not_work() -> None:
    # The second op's kernel is enqueued when there is memory, at 500; the GPU was idle from 200.
    ops = [(0, 5, 0, 0, 1), (10, 510, 0, 2, 3)]
    moved, _ = move_to_gpu([100, 200, 200, 600], [], ops, [], [], [0, 490])
    assert moved == [[100, 200, 0], [200, 600, 300]]
    # A GPU that is behind has work meanwhile, and a wait for a copy counts once.
    moved, _ = move_to_gpu([100, 450, 450, 600], [(450, 600)], ops, [], [], [0, 490])
    assert moved == [[100, 450, 0], [450, 600, 150]]
    moved, _ = move_to_gpu([100, 700, 700, 800], [], ops, [], [], [0, 490])
    assert moved == [[100, 700, 0], [700, 800, 0]]


def test_memory_follows_the_host() -> None:
    # Allocated halfway through the first op, freed between the two; a temporary of the second.
    ops = [(0, 10, 0, 0, 1), (20, 30, 0, 2, 3)]
    buffers = [(5, 12, 0, 0), (22, 28, 0, 0)]
    _, (output, temporary) = move_to_gpu([100, 200, 200, 300], [], ops, buffers, [])
    assert output == (150, 200)
    assert temporary == (220, 280)


def test_a_buffer_is_live_while_its_readers_run() -> None:
    # Freed by another thread, which ran before the host enqueued the reader's end.
    ops = [(0, 10, 0, 0, 1), (20, 40, 0, 2, 3), (25, 26, 1, 4, 5)]
    buffers = [(1, 27, 0, 1)]
    accesses = [(0, 0), (1, 0)]
    moved, (buffer,) = move_to_gpu([100, 200, 200, 300, 310, 320], [], ops, buffers, accesses)
    assert buffer[0] == moved[0][0]
    assert buffer[1] >= moved[1][1]


def test_memory_that_exists_before_and_after_has_no_times() -> None:
    ops = [(0, 10, 0, 0, 1)]
    _, moved = move_to_gpu([100, 200], [], ops, [(-1, -1, -1, -1)], [])
    assert moved == [(-1, -1)]


def test_ops_without_marks_lie_between_the_others() -> None:
    ops = [(0, 10, 0, 0, 1), (12, 25, 0, -1, -1), (20, 30, 0, 2, 3)]
    moved, _ = move_to_gpu([100, 200, 210, 300], [], ops, [], [])
    assert 200 <= moved[1][0] <= 210 and moved[1][0] <= moved[1][1] <= 300


def test_random_recordings_keep_their_order() -> None:
    dice = random.Random(0)
    for _ in range(200):
        threads = dice.randint(1, 3)
        now, marks, ops = 0, [0], []
        open_ops: dict[int, tuple[int, int]] = {}
        gpu = 0
        for _ in range(60):
            now += dice.randint(1, 5)
            thread = dice.randrange(threads)
            gpu += dice.choice([0, 0, 3, 50])
            marks.append(max(marks[-1], gpu))
            if thread in open_ops:
                start, mark = open_ops.pop(thread)
                ops.append((start, now, thread, mark, len(marks) - 1))
            else:
                open_ops[thread] = now, len(marks) - 1
        if not ops:
            continue
        ops.sort()
        buffers, accesses = [], []
        for op, (start, end, thread, *_rest) in enumerate(ops):
            buffers.append((start, end + dice.randint(0, 30), thread, dice.randrange(threads)))
            accesses.append((op, op))
        moved, lives = move_to_gpu(marks, [], ops, buffers, accesses)
        # The GPU runs one op at a time, in the order of their second marks.
        by_end = sorted(range(len(ops)), key=lambda op: ops[op][4])
        for one, other in zip(by_end, by_end[1:], strict=False):
            assert moved[one][1] <= moved[other][0]
        for (begin, end), (start, stop, wait) in zip(lives, moved, strict=True):
            assert begin <= start <= stop <= end and wait == 0
