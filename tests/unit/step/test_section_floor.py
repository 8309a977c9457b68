"""Smallest budgets with sections, as reported by the pass."""

from __future__ import annotations

from typing import Any

import pytest

from tfswap.step.section_floor import SectionFloor, section_floors


def record(**changes: Any) -> dict[str, Any]:
    return {"sections": 4, "bytes": 1 << 20, "op": "conv/Conv2D", **changes}


def test_fewest_sections_first() -> None:
    assert section_floors([record(), record(sections=2, bytes=1 << 21, parts=3)]) == (
        SectionFloor(2, 1 << 21, "conv/Conv2D"),
        SectionFloor(4, 1 << 20, "conv/Conv2D"),
    )
    assert section_floors([]) == ()


@pytest.mark.parametrize(
    ("records", "problem"),
    [
        ([{"sections": 4}], "lacks bytes, op"),
        ([record(sections=0)], "has sections=0; it must be an integer from 1 to 2^63 - 1"),
        ([record(sections=True)], "has sections=True"),
        ([record(sections="4")], "has sections='4'"),
        ([record(bytes=-1)], "has bytes=-1; it must be an integer from 0"),
        ([record(bytes=1 << 63)], "has bytes=9223372036854775808"),
        ([record(bytes=1.5)], "has bytes=1.5"),
        ([record(op="")], "with 4 sections has no op"),
        ([record(op=7)], "with 4 sections has no op"),
        ([record(op="a" * 65537)], "more than 65536 characters"),
        ([record(), record(bytes=5)], "there are two smallest budgets with 4 sections"),
        ([record(sections=n + 1) for n in range(4097)], "more than 4096 numbers of sections"),
    ],
)
def test_malformed_records_are_refused(records: list[dict[str, Any]], problem: str) -> None:
    with pytest.raises(ValueError) as error:
        section_floors(records)
    assert problem in str(error.value)
