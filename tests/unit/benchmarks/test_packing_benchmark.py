"""The packing benchmark: its input and output."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from timelines import make_timeline

from benchmarks import packing
from tfswap.step.timeline import OUTLIVES_STEP_NS
from tfswap.traces.events import find_step
from tfswap.traces.singa import read_singa

KEYS = ["instance", "buffers", "capacity", "max_live", "height", "solved", "seconds"]


def printed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_an_instance_is_packed_into_the_capacity_of_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "input.12.csv"
    path.write_text("id,lower,upper,size\n1,0,3,4\n2,3,9,4\n3,0,9,4\n4,9,21,4\n5,0,21,4\n")
    assert packing.main([str(path)]) == 0
    (line,) = printed(capsys)
    assert list(line) == KEYS
    assert (line["buffers"], line["capacity"], line["max_live"]) == (5, 12, 12)
    assert line["solved"] is True and line["height"] == 12


def test_buffers_across_the_step_end_keep_their_addresses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A step: a and b are made, b is freed; a is freed in the next step, before the next a is made.
    lines, time = [], 1_500_000_000_000
    for step in range(40):
        events = [f"Malloc 0xb{step} 300", *([f"Free 0xa{step - 1} 500"] if step else [])]
        events += [f"Malloc 0xa{step} 500", f"Free 0xb{step} 300"]
        for event in events:
            time += 1
            lines.append(f"{event} {time}")
    path = tmp_path / "steps.text"
    path.write_text("\n".join(lines))
    buffers = packing.buffers_of_events(find_step(read_singa(path), 4))
    assert sorted(buffers.size.tolist()) == [300, 500]
    assert buffers.max_live == 800
    assert packing.main([str(tmp_path / "absent.csv"), str(path)]) == 1
    (line,) = printed(capsys)
    assert line["kind"] == "trace" and line["first_fit"] == line["height"] == 800


def test_buffers_that_outlive_a_recorded_step_are_always_live() -> None:
    timeline = make_timeline(
        [(0, 10), (10, 20)], [(100, -1, 5), (200, 6, 9), (300, 8, OUTLIVES_STEP_NS)]
    )
    buffers = packing.buffers_of_timeline(timeline)
    assert buffers.max_live == 500
    assert np.array_equal(buffers.size, timeline.buffer_bytes)
