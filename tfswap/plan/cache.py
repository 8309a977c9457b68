"""PlanMemory: profiled steps and their plans on disk, for the next training of the same graph.

A folder of this user's alone, two kinds of files::

    GRAPH-CONTEXT.profile              the profiled step (`tfswap.traces.timeline_file`)
    GRAPH-CONTEXT-BUDGET-TEXT.plan     a plan for that many bytes whose measured peak was as
                                       predicted

GRAPH is the graph's fingerprint, which covers the shapes of its tensors. CONTEXT is a hash of what
else a plan depends on: the machine, the releases of TensorFlow and tfswap, options. TEXT is a hash
of the file's content, so that another plan has another path: TensorFlow keeps what it has optimised
as long as the paths in the pushed text stay the same. When all files take more than the limit, the
least recently used ones are deleted. File contents are untrusted input: a file that is not valid is
ignored and deleted.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tfswap.io import private_files
from tfswap.io.cache_dir import user_cache
from tfswap.io.untrusted_json import MAX_BYTES, Fields, parse_json
from tfswap.machine.link import Link
from tfswap.plan.schema import FunctionPlan, SwapPlan
from tfswap.step.profile import Profile
from tfswap.traces.timeline_file import load_profile, save_profile

FORMAT = "tfswap remembered plan 1"

FOLDER = "TFSWAP_PLAN_CACHE"
"""The environment's variable for the folder; empty or "none": nothing is remembered."""

LIMIT_BYTES = 256 << 20

MAX_PLANS = 64
"""Largest number of plans that are offered to a training."""

# A plan for a slightly smaller budget, or for a slightly faster or slower link, is good enough.
_MIN_BUDGET, _OTHER_LINK = 0.97, 0.3

_NOWHERE = ("", "none")
_FINGERPRINT = re.compile(r"[0-9a-f]{16}")
_PLAN_NAME = re.compile(
    r"(?P<graph>[0-9a-f]{16})-[0-9a-z]+-(?P<budget>[0-9]{1,19})-[0-9a-f]{16}\.plan"
)
_MAX_BYTES_PER_S = 1e18


@dataclass(frozen=True)
class RememberedPlan:
    """A plan of a graph in a file.

    Attributes:
        path: The file.
        function: The graph's plan.
        budget_bytes: The budget that it was made for.
    """

    path: Path
    function: FunctionPlan
    budget_bytes: int


@dataclass(frozen=True)
class _PlanFile:
    """What a file's name contains about its plan."""

    path: Path
    fingerprint: str
    budget_bytes: int


def default_folder() -> Path | None:
    """Return the folder that plans are remembered in by default; None: they are not remembered."""
    named = os.environ.get(FOLDER)
    if named is None:
        return user_cache() / "plans"
    return None if named.lower() in _NOWHERE else Path(named)


def context_of(parts: Mapping[str, object]) -> str:
    """Return a hash of what plans depend on beside their graph."""
    return hashlib.sha256(json.dumps(dict(sorted(parts.items()))).encode()).hexdigest()[:16]


class PlanMemory:
    """The plans of one context in a folder.

    Args:
        folder: Created when the first plan is kept.
        context: From `context_of`.
        limit_bytes: Upper limit of all files in the folder together.
    """

    def __init__(self, folder: Path, context: str, limit_bytes: int = LIMIT_BYTES) -> None:
        self._folder = folder
        self._context = context
        self._limit_bytes = limit_bytes

    def plans(self, budget_bytes: int, link: Link) -> dict[str, RememberedPlan]:
        """Return the plans that fit a budget and a link, by their graph's fingerprint.

        Of plans for the same graph, the one for the largest budget is returned. At most
        `MAX_PLANS` are, those of the most recently used files.
        """
        if not self._may_be_used():
            return {}
        found: dict[str, RememberedPlan] = {}
        for named in _latest(_fitting(self._named("*"), budget_bytes)):
            known = found.get(named.fingerprint)
            if known is None or known.budget_bytes < named.budget_bytes:
                function = self._read(named.path, named.fingerprint, link)
                if function is not None:
                    plan = RememberedPlan(named.path, function, named.budget_bytes)
                    found[named.fingerprint] = plan
        return found

    def profile(self, fingerprint: str) -> Profile | None:
        """Return the remembered profile of a graph's step, and mark its file as used."""
        if not self._may_be_used() or not _FINGERPRINT.fullmatch(fingerprint):
            return None
        path = self._profile_path(fingerprint)
        try:
            profile = load_profile(path)
            if not private_files.is_own_file(path) or profile.fingerprint != fingerprint:
                raise ValueError("it is a link, of another user or of another graph")
            os.utime(path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            path.unlink(missing_ok=True)
            return None
        return profile

    def keep(self, profile: Profile, function: FunctionPlan, budget_bytes: int, link: Link) -> None:
        """Write a plan and its profile, and delete the graph's earlier plans for that budget.

        Raises:
            OSError: They cannot be written, or the folder is not private.
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
        for named in _fitting(self._named(function.fingerprint), budget_bytes):
            named.path.unlink(missing_ok=True)
        private_files.remove_unfinished(self._folder)
        save_profile(profile, self._profile_path(function.fingerprint), private_files.PRIVATE)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        path = self._path(function.fingerprint, f"-{budget_bytes}-{digest}.plan")
        private_files.write_bytes(path, text.encode(), private_files.PRIVATE)
        self._trim()

    def forget(self, fingerprint: str) -> None:
        """Delete the files of a graph."""
        if self._may_be_used():
            self._profile_path(fingerprint).unlink(missing_ok=True)
            for named in self._named(fingerprint):
                named.path.unlink(missing_ok=True)

    def _profile_path(self, fingerprint: str) -> Path:
        return self._path(fingerprint, ".profile")

    def _path(self, fingerprint: str, end: str) -> Path:
        return self._folder / f"{fingerprint}-{self._context}{end}"

    def _named(self, fingerprint: str) -> Iterator[_PlanFile]:
        """Yield the plans' files whose names are valid; "*": of all graphs."""
        for path in self._folder.glob(f"{fingerprint}-{self._context}-*.plan"):
            name = _PLAN_NAME.fullmatch(path.name)
            if name is not None:
                yield _PlanFile(path, name["graph"], int(name["budget"]))

    def _read(self, path: Path, fingerprint: str, link: Link) -> FunctionPlan | None:
        try:
            text = private_files.read_own_bytes(path, MAX_BYTES)
            fields = Fields(parse_json(text, "a remembered plan"), "a remembered plan")
            if fields.name("format") != FORMAT:
                raise ValueError("another format")
            speeds = [
                fields.number(f"{way}_bytes_per_s", 0, _MAX_BYTES_PER_S) for way in ("out", "in")
            ]
            function = SwapPlan.from_data(fields.any("plan")).function(fingerprint)
            fields.end()
            if function is None or not (function.swaps or function.recomputes):
                raise ValueError("no plan of this graph")
        except (OSError, ValueError):
            path.unlink(missing_ok=True)
            return None
        now = link.out_bytes_per_s, link.in_bytes_per_s
        same = all(abs(a - b) <= _OTHER_LINK * b for a, b in zip(speeds, now, strict=True))
        return function if same else None

    def _may_be_used(self) -> bool:
        """Return whether the folder exists and only this user can write to it."""
        return private_files.is_private_folder(self._folder)

    def _trim(self) -> None:
        """Delete the least recently used files, down to the limit."""
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


def _fitting(files: Iterable[_PlanFile], budget_bytes: int) -> list[_PlanFile]:
    """Return the files of plans that are good enough for a budget."""
    return [
        each for each in files if _MIN_BUDGET * budget_bytes <= each.budget_bytes <= budget_bytes
    ]


def _latest(files: Iterable[_PlanFile]) -> list[_PlanFile]:
    """Return the most recently used files, in an order that depends on their names only."""

    def used_ns(file: _PlanFile) -> int:
        try:
            return file.path.lstat().st_mtime_ns
        except FileNotFoundError:
            return 0  # another process has deleted it

    latest = sorted(files, key=used_ns, reverse=True)[:MAX_PLANS]
    return sorted(latest, key=lambda file: file.path.name)


def parse_folder(folder: object) -> Path | None:
    """Return the folder that the option names: None for none, "auto" for `default_folder`.

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
