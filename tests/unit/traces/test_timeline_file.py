"""Timeline files: round trips, and errors for invalid files."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from timelines import assert_same, timelines, training_step

from tfswap.step.op_floor import OpFloor, StepFloor
from tfswap.step.profile import Profile
from tfswap.step.section_floor import SectionFloor
from tfswap.step.timeline import Timeline
from tfswap.traces.read import read_floor, read_section_floors, read_trace
from tfswap.traces.timeline_file import load_profile, load_timeline, save_profile, save_timeline


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(timelines())
def test_files_round_trip(tmp_path: Path, timeline: Timeline) -> None:
    save_timeline(timeline, tmp_path / "step")
    assert_same(load_timeline(tmp_path / "step"), timeline)


def test_files_are_compact(tmp_path: Path) -> None:
    timeline = training_step()
    save_timeline(timeline, tmp_path / "step")
    assert (tmp_path / "step").stat().st_size < 30 * len(timeline.op_names)
    assert_same(read_trace(tmp_path / "step"), timeline)


def test_other_files_are_rejected(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("hello")
    with pytest.raises(ValueError, match="text is not a timeline of tfswap"):
        load_timeline(text)
    other = tmp_path / "other"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("format.npy", b"nothing")
    with pytest.raises(ValueError, match="other is not a timeline of tfswap"):
        load_timeline(other)


def test_pickles_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "step"
    save_timeline(training_step(blocks=1), path)
    with np.load(path) as archive:
        arrays = dict(archive)
    arrays["op_names"] = np.array([{"a": 1}], dtype=object)
    with path.open("wb") as file:
        np.savez(file, **arrays)
    with pytest.raises(ValueError, match="is not a timeline of tfswap: Object arrays"):
        load_timeline(path)


def test_an_invalid_timeline_is_rejected(tmp_path: Path) -> None:
    timeline = training_step(blocks=1)
    absence = replace(timeline.absences[0], buffer=10_000)
    save_timeline(replace(timeline, absences=(absence,)), tmp_path / "step")
    with pytest.raises(ValueError, match="step: absence 0 .* names buffer 10000"):
        load_timeline(tmp_path / "step")


def test_a_profile_is_a_timeline_with_its_graph(tmp_path: Path) -> None:
    profile = Profile(training_step(), "0123456789abcdef", (("a", "b"), ("c", "d")), 123, 456)
    save_profile(profile, tmp_path / "step")
    loaded = load_profile(tmp_path / "step")
    assert_same(loaded.timeline, profile.timeline)
    assert replace(loaded, timeline=profile.timeline) == profile
    assert_same(load_timeline(tmp_path / "step"), profile.timeline)


def test_a_timeline_without_its_graph_is_not_a_profile(tmp_path: Path) -> None:
    save_timeline(training_step(), tmp_path / "step")
    with pytest.raises(ValueError, match="no plan can be made for it: write a profile"):
        load_profile(tmp_path / "step")


FLOORS = (SectionFloor(2, 5 << 30, "a conv\twith a tab"), SectionFloor(16, 123, "b"))


def test_a_profile_has_the_smallest_budgets_with_sections(tmp_path: Path) -> None:
    profile = Profile(training_step(blocks=1), "0123", (), 1, 2, section_floors=FLOORS)
    save_profile(profile, tmp_path / "step")
    assert load_profile(tmp_path / "step").section_floors == FLOORS
    assert read_section_floors(tmp_path / "step") == FLOORS
    assert_same(load_timeline(tmp_path / "step"), profile.timeline)


def test_files_without_sections(tmp_path: Path) -> None:
    save_profile(Profile(training_step(blocks=1), "0123", (), 1, 2), tmp_path / "step")
    with np.load(tmp_path / "step") as archive:
        assert "sections" not in archive  # like files of older versions
    assert load_profile(tmp_path / "step").section_floors == ()
    save_timeline(training_step(blocks=1), tmp_path / "bare")
    assert read_section_floors(tmp_path / "bare") == ()
    events = tmp_path / "events"
    events.write_text("no zip")
    assert read_section_floors(events) == ()


def test_a_profile_has_its_floor(tmp_path: Path) -> None:
    floor = StepFloor(
        OpFloor("a conv\twith a tab", "Conv2D", 1, 2, 3, 4, 5), OpFloor("b", "", 0, 0, 0, 0, 6)
    )
    save_profile(Profile(training_step(blocks=1), "0123", (), 1, 2, floor=floor), tmp_path / "step")
    assert load_profile(tmp_path / "step").floor == floor == read_floor(tmp_path / "step")
    save_profile(Profile(training_step(blocks=1), "0123", (), 1, 2), tmp_path / "step")
    assert load_profile(tmp_path / "step").floor is None
    events = tmp_path / "events"
    events.write_text("no zip")
    assert read_floor(events) is None


def with_array(path: Path, name: str, text: bytes) -> Path:
    """Write a profile with an array that holds this text."""
    save_profile(Profile(training_step(blocks=1), "0123", (), 1, 2), path)
    with np.load(path) as archive:
        arrays = dict(archive)
    arrays[name] = np.frombuffer(text, dtype=np.uint8)
    with path.open("wb") as file:
        np.savez(file, **arrays)
    return path


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"1\t2\t3\t4\tMul\ta\n", "is not what an op needs, separated by tabs"),
        (b"1\t2\t3\t-4\t5\tMul\ta\n", "is not what an op needs"),
        (b"1\t2\t3\t4\t5\tMul\ta\n", "there are 1 floors, not 2"),
        (b"1\t2\t3\t4\t9999999999999999999\tMul\ta\n", "has staying_bytes=9999999999999999999"),
        (b"1\t2\t3\t4\t5\tMul\t\xff\n", "step: 'utf-8' codec"),
    ],
)
def test_invalid_floors_are_rejected(tmp_path: Path, text: bytes, problem: str) -> None:
    path = with_array(tmp_path / "step", "floor", text)
    for load in (load_profile, load_timeline, read_floor):
        with pytest.raises(ValueError, match=problem):
            load(path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"4 5 conv\n", r"step: '4 5 conv' is not a number of sections, bytes and an op"),
        (b"4\t-5\tconv\n", "is not a number of sections"),
        (b"4\t5\t\n", "is not a number of sections"),
        (b"4\t" + b"9" * 5000 + b"\tconv\n", "is not a number of sections"),
        (b"4\t9999999999999999999\tconv\n", "has bytes=9999999999999999999"),
        (b"0\t5\tconv\n", "has sections=0"),
        (b"4\t5\tconv\n4\t6\tconv\n", "two smallest budgets with 4 sections"),
        (b"4\t5\t\xff\n", "step: 'utf-8' codec"),
    ],
)
def test_invalid_sections_are_rejected(tmp_path: Path, text: bytes, problem: str) -> None:
    path = with_array(tmp_path / "step", "sections", text)
    for load in (load_profile, load_timeline, read_section_floors):
        with pytest.raises(ValueError, match=problem):
            load(path)
