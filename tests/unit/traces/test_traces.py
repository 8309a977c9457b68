"""SINGA's traces: reading them, and finding the step in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfswap import _core
from tfswap.step.timeline import crosses_step_end, peak_load
from tfswap.traces.events import NoStepFound, find_step, timeline_of
from tfswap.traces.singa import read_singa

MIB = 1 << 20


def longest_square(symbols: list[int]) -> int:
    n = len(symbols)
    return max(
        (
            length
            for length in range(1, n // 2 + 1)
            for start in range(n - 2 * length + 1)
            if symbols[start : start + length] == symbols[start + length : start + 2 * length]
        ),
        default=0,
    )


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=40), st.integers(1, 4))
def test_the_longest_repetition(symbols: list[int], min_length: int) -> None:
    start, length = _core.longest_repetition(np.array(symbols, np.int64), min_length)
    longest = longest_square(symbols)
    if longest < min_length:
        assert length == 0
        return
    assert length >= min_length and longest % length == 0
    assert symbols[start : start + length] == symbols[start + length : start + 2 * length]


def test_a_repetition_is_reduced_to_its_period() -> None:
    step = list(range(100))
    symbols = np.array([7] * 13 + step * 9 + [3, 2, 1], np.int64)
    assert _core.longest_repetition(symbols, 50)[1] == 100


def test_long_streams_are_fast() -> None:
    step = np.random.default_rng(0).integers(0, 9, 20_000)
    assert _core.longest_repetition(np.tile(step, 5), 50)[1] == 20_000


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def a_step(at_ns: int, address: int) -> list[str]:
    size = 4 * MIB
    return [
        f"Malloc 0x{address:x} {size} {at_ns}",
        f"Mutable 0x{address:x} {size} {at_ns + 10}",
        f"Read 0xff {MIB} {at_ns + 20}",
        f"Layer 0xff {MIB} {at_ns + 25}",
        f"Read 0x{address:x} {size} {at_ns + 30}",
        f"Free 0x{address:x} {size} {at_ns + 40}",
        f"Mutable 0xff {MIB} {at_ns + 50}",
    ]


def test_a_step_of_events_becomes_a_timeline(tmp_path: Path) -> None:
    base = 10**18
    lines = [line for i in range(4) for line in a_step(base + 60 * i, 16 + i)]
    step = find_step(read_singa(write(tmp_path / "trace", *lines)), min_events=5)
    assert step.length == 7
    timeline = timeline_of(step)
    timeline.validate()
    assert timeline.step_ns == 60
    assert peak_load(timeline) == 5 * MIB
    assert [name.rstrip("0123456789") for name in timeline.op_names] == [
        "Write",
        "Read",
        "Read",
        "Write",
    ]
    within, before, across = timeline.absences
    assert (within.producer_op, within.after_op, within.before_op) == (0, 0, 2)
    # The tensor read before the step's first write was written in the previous step.
    assert (before.producer_op, before.after_op, before.before_op) == (-1, 1, 3)
    assert before.tensor == across.tensor and crosses_step_end(timeline, across)
    assert (across.producer_op, across.after_op, across.before_op) == (3, 3, 1)


def test_times_in_milliseconds_and_frees_without_bytes(tmp_path: Path) -> None:
    path = write(tmp_path / "t", "Malloc 0x1 100 1512107406951", "Free 0x1 1512107406952")
    events = read_singa(path)
    assert events.bytes.tolist() == [100, 100]
    assert np.diff(events.time_ns).tolist() == [1_000_000]


@pytest.mark.parametrize(
    "line", ["Move 0x1 5 1", "Malloc 0x1", "Malloc 0x1 many 5", "Read 0x1 -5 7", "Read 1 2 3 4 5"]
)
def test_an_invalid_line_is_named(tmp_path: Path, line: str) -> None:
    path = write(tmp_path / "t", "Malloc 0x1 100 1512107406951", line)
    with pytest.raises(ValueError, match=r"line 2: .* is not an event\. Expected: one of Malloc"):
        read_singa(path)


def test_a_trace_without_a_repetition(tmp_path: Path) -> None:
    path = write(tmp_path / "t", *[f"Malloc 0x{i:x} {i} {10**18 + i}" for i in range(1, 99)])
    with pytest.raises(NoStepFound, match="no sequence of 50 or more events repeats among .* 98"):
        find_step(read_singa(path))


SHARED = next(
    (
        parent / "shared" / "data" / "singa"
        for parent in Path(__file__).resolve().parents
        if (parent / "shared" / "data" / "singa").exists()
    ),
    None,
)


@pytest.mark.skipif(SHARED is None, reason="the recorded traces are not here")
def test_the_authors_traces() -> None:
    assert SHARED is not None
    step = find_step(read_singa(SHARED / "vec_block_fresh_vgg.csv"))
    assert step.length == 3172
    assert peak_load(timeline_of(step)) == pytest.approx(634.6 * MIB, rel=1e-3)
    pool = find_step(read_singa(SHARED / "memInfo_vgg_20itr_100size.text"))
    assert pool.length == 1020
