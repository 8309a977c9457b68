"""Timelines written and read again."""

from __future__ import annotations

import zipfile
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from timelines import timelines, training_step

from tfswap.profile import Profile
from tfswap.timeline import Timeline
from tfswap.traces.read import read_trace
from tfswap.traces.timeline_file import (
    load_profile,
    load_timeline,
    save_profile,
    save_timeline,
)


def assert_same(one: Timeline, other: Timeline) -> None:
    for field in fields(Timeline):
        a, b = getattr(one, field.name), getattr(other, field.name)
        assert np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b, field.name


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(timelines())
def test_what_is_written_is_read(tmp_path: Path, timeline: Timeline) -> None:
    save_timeline(timeline, tmp_path / "step")
    assert_same(load_timeline(tmp_path / "step"), timeline)


def test_it_is_compact(tmp_path: Path) -> None:
    timeline = training_step()
    save_timeline(timeline, tmp_path / "step")
    assert (tmp_path / "step").stat().st_size < 30 * len(timeline.op_names)
    assert_same(read_trace(tmp_path / "step"), timeline)


def test_what_is_no_timeline_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("hello")
    with pytest.raises(ValueError, match="text is not a timeline of tfswap"):
        load_timeline(text)
    other = tmp_path / "other"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("format.npy", b"nothing")
    with pytest.raises(ValueError, match="other is not a timeline of tfswap"):
        load_timeline(other)


def test_pickles_are_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "step"
    save_timeline(training_step(blocks=1), path)
    with np.load(path) as archive:
        arrays = dict(archive)
    arrays["op_names"] = np.array([{"a": 1}], dtype=object)
    with path.open("wb") as file:
        np.savez(file, **arrays)
    with pytest.raises(ValueError, match="is not a timeline of tfswap: Object arrays"):
        load_timeline(path)


def test_a_timeline_that_cannot_be_is_refused(tmp_path: Path) -> None:
    timeline = training_step(blocks=1)
    absence = replace(timeline.absences[0], buffer=10_000)
    save_timeline(replace(timeline, absences=(absence,)), tmp_path / "step")
    with pytest.raises(ValueError, match="step: absence 0 .* names buffer 10000"):
        load_timeline(tmp_path / "step")


def test_a_profile_is_a_timeline_with_its_graph(tmp_path: Path) -> None:
    profile = Profile(training_step(), "0123456789abcdef", (("a", "b"), ("c", "d")), 123, 456)
    save_profile(profile, tmp_path / "step")
    again = load_profile(tmp_path / "step")
    assert_same(again.timeline, profile.timeline)
    assert replace(again, timeline=profile.timeline) == profile
    assert_same(load_timeline(tmp_path / "step"), profile.timeline)


def test_a_timeline_without_its_graph_is_no_profile(tmp_path: Path) -> None:
    save_timeline(training_step(), tmp_path / "step")
    with pytest.raises(ValueError, match=r"no plan can be made for: write a profile with tfswap"):
        load_profile(tmp_path / "step")
