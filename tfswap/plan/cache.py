"""PlanMemory: profiled steps and their plans on disk, for the next training of the same graph.

A folder of this user's alone, two kinds of files::

    GRAPH-CONTEXT.profile         the profiled step (`tfswap.traces.timeline_file`)
    GRAPH-CONTEXT-BUDGET.plan     a plan that was measured to be as foretold, for that many bytes

GRAPH is the graph's fingerprint, which covers the shapes of its tensors; CONTEXT a hash of what
else a plan hangs on: the machine, the releases of TensorFlow and tfswap, options. Files that are
used stay; where all of them take more than the limit, those that were not used longest go. Nothing
in them is trusted: what cannot be read as what it should be is as if it were not there, and goes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tfswap.io import private_files
from tfswap.io.cache_dir import user_cache
from tfswap.io.untrusted_json import MOST_BYTES, Fields, parse_json
from tfswap.machine.link import Link
from tfswap.plan.schema import FunctionPlan, SwapPlan
from tfswap.step.profile import Profile
from tfswap.traces.timeline_file import load_profile, save_profile

FORMAT = "tfswap remembered plan 1"

FOLDER = "TFSWAP_PLAN_CACHE"
"""The environment's variable for the folder; empty or "none": nothing is remembered."""

LIMIT_BYTES = 256 << 20

# A plan for a little less does as well; and for a link that is a little faster or slower.
_LEAST_BUDGET, _OTHER_LINK = 0.97, 0.3

_NOWHERE = ("", "none")
_FINGERPRINT = re.compile(r"[0-9a-f]{16}")
# As a number in a file's name, and as a speed in it.
_MOST_DIGITS, _MOST_BYTES_PER_S = 19, 1e18


@dataclass(frozen=True)
class Remembered:
    """What is known of a graph from an earlier training.

    Attributes:
        profile: Its step.
        function: The plan for the budget in question; None: there is none.
    """

    profile: Profile
    function: FunctionPlan | None = None


def default_folder() -> Path | None:
    """Where plans are remembered unless somebody says otherwise; None: nowhere."""
    named = os.environ.get(FOLDER)
    if named is None:
        return user_cache() / "plans"
    return None if named.lower() in _NOWHERE else Path(named)


def context_of(parts: Mapping[str, object]) -> str:
    """A hash of what plans hang on beside their graph."""
    return hashlib.sha256(json.dumps(dict(sorted(parts.items()))).encode()).hexdigest()[:16]


class PlanMemory:
    """One folder, for plans of one context.

    Args:
        folder: Made when something is kept.
        context: Of `context_of`.
        limit_bytes: Of all files in the folder together.
    """

    def __init__(self, folder: Path, context: str, limit_bytes: int = LIMIT_BYTES) -> None:
        self._folder = folder
        self._context = context
        self._limit_bytes = limit_bytes

    def find(self, fingerprint: str, budget_bytes: int, link: Link) -> Remembered | None:
        """What is known of a graph.

        Args:
            fingerprint: The graph's.
            budget_bytes: What its step may have.
            link: That it will have.
        """
        if not self._may_be_used() or not _FINGERPRINT.fullmatch(fingerprint):
            return None
        path = self._profile_path(fingerprint)
        try:
            profile = load_profile(path)
            if not private_files.is_own_file(path):
                raise ValueError("it is a link, or somebody else's")
            os.utime(path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            path.unlink(missing_ok=True)
            return None
        if profile.fingerprint != fingerprint:
            path.unlink(missing_ok=True)
            return None
        for at_bytes, path in self._plans(fingerprint):
            if _LEAST_BUDGET * budget_bytes <= at_bytes <= budget_bytes:
                function = self._read(path, fingerprint, link)
                if function is not None:
                    return Remembered(profile, function)
        return Remembered(profile)

    def keep(self, profile: Profile, function: FunctionPlan, budget_bytes: int, link: Link) -> None:
        """Remembers a plan of a profiled step, instead of what there was for that budget.

        Raises:
            OSError: It cannot be written, or the folder is not this user's alone.
        """
        if not private_files.make_private_folder(self._folder):
            raise PermissionError(
                f"{self._folder} belongs to another user or others may write to it, so no plans "
                f"are remembered there: chmod 700 {self._folder}, or name another folder"
            )
        plan = SwapPlan(functions=(function,), budget_bytes=budget_bytes)
        text = json.dumps(
            {
                "format": FORMAT,
                "out_bytes_per_s": link.out_bytes_per_s,
                "in_bytes_per_s": link.in_bytes_per_s,
                "plan": json.loads(plan.to_json()),
            }
        )
        for at_bytes, path in self._plans(function.fingerprint):
            if _LEAST_BUDGET * budget_bytes <= at_bytes <= budget_bytes:
                path.unlink(missing_ok=True)
        private_files.remove_unfinished(self._folder)
        save_profile(profile, self._profile_path(function.fingerprint), private_files.PRIVATE)
        path = self._path(function.fingerprint, f"-{budget_bytes}.plan")
        private_files.write_bytes(path, text.encode(), private_files.PRIVATE)
        self._trim()

    def forget(self, fingerprint: str) -> None:
        """A graph's step is not as it was remembered."""
        if self._may_be_used():
            self._profile_path(fingerprint).unlink(missing_ok=True)
            for _, path in self._plans(fingerprint):
                path.unlink(missing_ok=True)

    def _profile_path(self, fingerprint: str) -> Path:
        return self._path(fingerprint, ".profile")

    def _path(self, fingerprint: str, end: str) -> Path:
        return self._folder / f"{fingerprint}-{self._context}{end}"

    def _plans(self, fingerprint: str) -> list[tuple[int, Path]]:
        """By budget, the largest first."""
        paths = self._folder.glob(f"{fingerprint}-{self._context}-*.plan")
        named = ((path.stem.rpartition("-")[2], path) for path in paths)
        numbered = (
            (int(number), path)
            for number, path in named
            if number.isascii() and number.isdecimal() and len(number) <= _MOST_DIGITS
        )
        return sorted(numbered, reverse=True)

    def _read(self, path: Path, fingerprint: str, link: Link) -> FunctionPlan | None:
        try:
            text = private_files.read_own_bytes(path, MOST_BYTES)
            fields = Fields(parse_json(text, "a remembered plan"), "a remembered plan")
            if fields.name("format") != FORMAT:
                raise ValueError("another format")
            speeds = [
                fields.number(f"{way}_bytes_per_s", 0, _MOST_BYTES_PER_S) for way in ("out", "in")
            ]
            function = SwapPlan.from_data(fields.any("plan")).function(fingerprint)
            fields.end()
            os.utime(path)
        except (OSError, ValueError):
            path.unlink(missing_ok=True)
            return None
        now = link.out_bytes_per_s, link.in_bytes_per_s
        same = all(abs(a - b) <= _OTHER_LINK * b for a, b in zip(speeds, now, strict=True))
        return function if same else None

    def _may_be_used(self) -> bool:
        """Whether the folder is there, and nobody else could have put anything into it."""
        return private_files.is_private_folder(self._folder)

    def _trim(self) -> None:
        """Has the files that were not used longest go, down to the limit."""
        files = []
        for path in self._folder.iterdir():
            try:
                found = path.lstat()
            except FileNotFoundError:
                continue  # another process has trimmed
            if stat.S_ISREG(found.st_mode) and path.suffix in (".profile", ".plan", ".partial"):
                files.append((found.st_mtime_ns, found.st_size, path))
        total_bytes = sum(size_bytes for _, size_bytes, _ in files)
        for _, size_bytes, path in sorted(files):
            if total_bytes <= self._limit_bytes:
                return
            path.unlink(missing_ok=True)
            total_bytes -= size_bytes


def parse_folder(folder: object) -> Path | None:
    """What the option says: a folder, None for none, "auto" for `default_folder`.

    Raises:
        ValueError: None of these.
    """
    if folder is None or folder is False:
        return None
    if folder == "auto":
        return default_folder()
    if isinstance(folder, (str, os.PathLike)) and os.fspath(folder):
        return Path(folder)
    raise ValueError(f"plan_cache is {folder!r}; it must be a folder, 'auto', or None")
