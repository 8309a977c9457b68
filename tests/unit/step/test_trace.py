"""StepTrace: what a recording lists, and what it does not."""

from __future__ import annotations

from dataclasses import replace

from recorded_steps import recorded

TRACE = replace(
    recorded(("a", 100, -1, 30), ("b", 200, 10, 50), ("c", 200, 50, -1)), resident_bytes=7
)


def test_small_buffers_beside_the_listed_ones_count_as_staying():
    # At most 300 bytes are listed: `b` is freed when `c` is allocated.
    assert TRACE.with_unlisted(340).resident_bytes == 40


def test_small_buffers_that_were_there_at_the_start_stay():
    assert TRACE.with_unlisted(302).resident_bytes == 7
    assert TRACE.with_unlisted(0).resident_bytes == 7
