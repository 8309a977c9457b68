"""Private files: links are not followed, writes are atomic, and other users' files are ignored."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import inputs
import pytest
from timelines import FakeMachine, training_step

from tfswap.io import private_files
from tfswap.machine import codec_speed
from tfswap.plan.cache import PlanMemory
from tfswap.plan.schema import FunctionPlan, SwapPlan
from tfswap.report.summary import Report
from tfswap.step.profile import Profile
from tfswap.traces.timeline_file import save_timeline


@pytest.fixture
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


WRITERS: dict[str, Callable[[Path], object]] = {
    "plan": lambda path: SwapPlan().save(path),
    "timeline": lambda path: save_timeline(training_step(blocks=1), path),
    "report": lambda path: Report().to_html(path, what_if=False),
}
every_writer = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)


@every_writer
def test_a_link_under_a_files_name_is_not_followed(
    tmp_path: Path, write: Callable[[Path], object]
) -> None:
    victim, path = tmp_path / "victim", tmp_path / "file"
    victim.write_text("mine")
    path.symlink_to(victim)
    (tmp_path / "file.partial").symlink_to(victim)
    write(path)
    assert victim.read_text() == "mine"
    assert path.is_file() and not path.is_symlink()


@every_writer
@pytest.mark.usefixtures("usual_umask")
def test_files_that_the_user_names_get_the_default_mode(
    tmp_path: Path, write: Callable[[Path], object]
) -> None:
    write(tmp_path / "file")
    assert mode(tmp_path / "file") == 0o644
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_failed_write_leaves_no_partial_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        private_files.write_bytes(tmp_path / "folder", b"data")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(partial: Path, path: Path) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "file"
    path.write_text("before")
    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        private_files.write_bytes(path, b"after")
    assert path.read_text() == "before" and os.listdir(tmp_path) == ["file"]


def test_partial_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    names = (f"{ended.pid}-1", f"{os.getpid()}-2", "1-3")
    unfinished, in_progress, old = (tmp_path / f".tfswap-{name}.partial" for name in names)
    for path in (unfinished, in_progress, old):
        path.write_text("{")
    os.utime(old, (0, 0))
    private_files.remove_unfinished(tmp_path)
    assert not unfinished.exists() and not old.exists() and in_progress.exists()


def test_special_files_are_written_to_directly(tmp_path: Path) -> None:
    private_files.write_bytes("/dev/null", b"data")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.usefixtures("usual_umask")
def test_cached_plans_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "plans"
    fingerprint = "0123456789abcdef"
    profile = Profile(training_step(blocks=1), fingerprint, (), 12, 13)
    plan = FunctionPlan(fingerprint)
    PlanMemory(folder, "context").keep(profile, plan, 1 << 20, FakeMachine(2e9, 3e9))
    assert mode(folder) == mode(folder.parent) == 0o700
    assert [mode(path) for path in folder.iterdir()] == [0o600, 0o600]


@pytest.mark.usefixtures("usual_umask")
def test_cached_speeds_are_private_and_ignored_in_shared_folders(
    tmp_path: Path,
) -> None:
    path = tmp_path / "codecs" / "zvc.json"
    codec_speed.write_cache(path, [1])
    assert mode(path.parent) == 0o700 and mode(path) == 0o600
    assert codec_speed.read_cache(path) == [1]
    path.parent.chmod(0o777)
    assert codec_speed.read_cache(path) is None
    codec_speed.write_cache(path, [2])
    assert json.loads(path.read_text()) == [1]


@pytest.mark.parametrize(
    "invalid", [{"threads": 10**9}, {"out": [1, -1, 1]}, {"in": [1, 1e30, 1]}, {"name": "rot13"}]
)
def test_invalid_speeds_are_rejected(invalid: dict[str, object]) -> None:
    (good,) = json.loads((inputs.CORPUS / "codec_times" / "good").read_text())
    assert codec_speed.speed_from_json(good) is not None
    assert codec_speed.speed_from_json({**good, **invalid}) is None


def test_a_folder_is_private_if_only_the_user_can_write_to_it(tmp_path: Path) -> None:
    folder, link = tmp_path / "folder", tmp_path / "link"
    assert not private_files.is_private_folder(folder)
    assert private_files.make_private_folder(folder) and mode(folder) == 0o700
    link.symlink_to(folder)
    assert not private_files.is_private_folder(link)
    for shared_mode in (0o770, 0o707, 0o722):
        folder.chmod(shared_mode)
        assert not private_files.make_private_folder(folder)


def test_only_regular_files_are_read_from_tfswap_s_folders(tmp_path: Path) -> None:
    path, link, pipe = tmp_path / "file", tmp_path / "link", tmp_path / "pipe"
    path.write_bytes(b"12345")
    assert private_files.read_own_bytes(path, 5) == b"12345"
    with pytest.raises(ValueError, match="has more than 4 bytes"):
        private_files.read_own_bytes(path, 4)
    link.symlink_to(path)
    with pytest.raises(OSError):
        private_files.read_own_bytes(link, 5)
    os.mkfifo(pipe)
    with pytest.raises(ValueError, match="not a regular file"):
        private_files.read_own_bytes(pipe, 5)
    assert private_files.is_own_file(path) and not private_files.is_own_file(link)
    for others_may_write in (0o620, 0o602):
        path.chmod(others_may_write)
        assert not private_files.is_own_file(path)
        with pytest.raises(ValueError, match="only this user can write to"):
            private_files.read_own_bytes(path, 5)
