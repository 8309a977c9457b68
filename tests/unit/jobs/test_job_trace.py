from __future__ import annotations

import dataclasses
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timelines import crowded_timelines, timelines, training_step

from tfswap.jobs.job_trace import (
    MAGIC,
    MAX_ABSENCES,
    MAX_BYTES,
    MAX_OPS,
    BadTrace,
    JobTrace,
    job_trace,
    reduce_timeline,
)
from tfswap.jobs.slowdown import planned_curve
from tfswap.machine.machine import Machine
from tfswap.step.timeline import Timeline, absence_rows, peak_load

LINK = Machine("link", 4e9, 5e9, 1000, 2000)


def same(a: Timeline, b: Timeline) -> bool:
    arrays = ("op_start_ns", "op_end_ns", "buffer_bytes", "buffer_alloc_ns", "buffer_free_ns")
    return (
        all(np.array_equal(getattr(a, name), getattr(b, name)) for name in arrays)
        and np.array_equal(absence_rows(a), absence_rows(b))
        and (a.resident_bytes, a.step_ns) == (b.resident_bytes, b.step_ns)
    )


@given(timelines())
def test_traces_round_trip(timeline: Timeline) -> None:
    sent = job_trace(timeline, LINK)
    back = JobTrace.from_bytes(sent.to_bytes())
    assert same(back.timeline, sent.timeline)
    assert back.link == LINK
    copies = dataclasses.replace(LINK, copy_bytes_per_s=8e9)  # a core copies
    assert JobTrace.from_bytes(job_trace(timeline, copies).to_bytes()).link == copies


@given(crowded_timelines(), st.integers(6, 12))
def test_a_reduced_step_needs_no_less_memory(timeline: Timeline, max_ops: int) -> None:
    small = reduce_timeline(timeline, max_ops)
    small.validate()
    assert len(small.op_names) <= max(max_ops, 3 * len(small.absences))
    assert peak_load(small) >= peak_load(timeline)


def test_a_reduced_step_has_nearly_the_same_plans() -> None:
    step = training_step()
    small = reduce_timeline(step, 400)
    assert len(small.op_names) <= 400 and len(small.absences) < len(step.absences)
    assert peak_load(small) == pytest.approx(peak_load(step), rel=0.02)
    whole, part = planned_curve(step, LINK, 4), planned_curve(small, LINK, 4)
    assert part.least_bytes == pytest.approx(whole.least_bytes, rel=0.5)
    # Without the least budgets, whose slowdown includes a penalty.
    beyond = [budget for budget in whole.budget_bytes[1:] if budget >= part.budget_bytes[1]]
    assert len(beyond) >= 2
    for budget in beyond:
        assert part.at(budget) == pytest.approx(whole.at(budget), rel=0.05)


def test_large_steps_make_small_messages() -> None:
    step = training_step(blocks=60, layers=6)
    assert len(step.op_names) > MAX_OPS
    trace = job_trace(step, LINK)
    data = trace.to_bytes()
    assert len(data) < MAX_BYTES
    assert len(trace.timeline.absences) <= MAX_ABSENCES
    assert same(JobTrace.from_bytes(data).timeline, trace.timeline)


GOOD = job_trace(training_step(blocks=2, layers=1), LINK).to_bytes()


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_corrupted_traces_are_refused_or_valid(data: st.DataObject) -> None:
    """Bytes also change before compression, since zlib's checksum would find most changes after."""
    whole = bytearray(zlib.decompress(GOOD[len(MAGIC) :]))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(whole) - 1) | st.integers(0, 100))
        whole[place] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del whole[data.draw(st.integers(0, len(whole))) :]
    mutated = MAGIC + zlib.compress(bytes(whole))
    if data.draw(st.booleans()):
        place = data.draw(st.integers(0, len(mutated) - 1))
        mutated = mutated[:place] + bytes([data.draw(st.integers(0, 255))]) + mutated[place + 1 :]
    try:
        trace = JobTrace.from_bytes(mutated)
    except BadTrace as error:
        assert str(error).startswith("a trace")
        return
    curve = planned_curve(trace.timeline, trace.link, 2)
    assert curve.slowdowns[-1] == 1.0


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    for message in (data, MAGIC + data, MAGIC + zlib.compress(data)):
        with pytest.raises(BadTrace, match="trace"):
            JobTrace.from_bytes(message)


def test_decompression_bombs_are_refused() -> None:
    with pytest.raises(BadTrace, match="does not end within"):
        JobTrace.from_bytes(MAGIC + zlib.compress(bytes(100 << 20)))
    with pytest.raises(BadTrace, match="is larger than"):
        JobTrace.from_bytes(MAGIC + bytes(MAX_BYTES))
    with pytest.raises(BadTrace, match="does not end within"):
        JobTrace.from_bytes(GOOD + b"more")
    with pytest.raises(ValueError, match="must be reduced"):
        JobTrace(training_step(blocks=60, layers=6), LINK).to_bytes()
