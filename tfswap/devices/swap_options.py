"""SwapOptions: the validated options of a training under a budget."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tfswap.jobs.share import Share
from tfswap.jobs.socket_path import parse_path
from tfswap.machine import budget as budgets
from tfswap.machine import codecs
from tfswap.plan import cache
from tfswap.plan.schema import SwapPlan
from tfswap.planning.planners.portfolio import PLANNING_TIME_S, POLICIES

AUTO_SECTIONS = "auto"
"""The number of sections is chosen automatically."""

NO_XLA = "never"
"""Steps are not compiled by XLA."""

_VERBOSE = ("auto", 0, 1)
_XLA = ("auto", NO_XLA)
_STREAM_WEIGHTS = ("auto", True, False)


@dataclass(frozen=True)
class SwapOptions:
    """The arguments of `AutoSwap`, which documents them; amounts are parsed, plans loaded.

    Raises:
        ValueError: A value is invalid, or `lossy` is set and no lossy codec is usable here.
    """

    budget: int | float | str | Mapping[str, int | float | str] = "auto"
    policy: str = "auto"
    plan: SwapPlan | None = None
    save_plan: str | os.PathLike[str] | None = None
    host_limit: int | float | str = "auto"
    link_bandwidth: float | None = None
    verify: bool = False
    verbose: int | str = "auto"
    save_profile: str | os.PathLike[str] | None = None
    planning_time_s: float = PLANNING_TIME_S
    slab: bool | None = None
    xla: str = "auto"
    workspace_limit: int | None = None
    spill_dir: str | os.PathLike[str] | None = None
    spill_limit: int | None = None
    codec: str | None = "auto"
    lossy: bool = False
    stream_weights: bool | str = "auto"
    sections: int | str | None = None
    log_dir: str | os.PathLike[str] | None = None
    broker: bool | str | os.PathLike[str] | None = None
    share: Share | None = None
    plan_cache: str | os.PathLike[str] | None = "auto"
    plan_cache_limit: int = cache.LIMIT_BYTES

    def __post_init__(self) -> None:
        if not isinstance(self.policy, str) or self.policy not in ("auto", *POLICIES):
            allowed = ", ".join(repr(name) for name in ("auto", *POLICIES))
            raise ValueError(f"unknown policy {self.policy!r}: allowed are {allowed}")
        if self.verbose not in _VERBOSE:
            raise ValueError(f"verbose is {self.verbose!r}; allowed: 'auto', 0, 1")
        if self.xla not in _XLA:
            raise ValueError(f"xla is {self.xla!r}; allowed: 'auto', 'never'")
        if self.plan is not None and not isinstance(self.plan, SwapPlan):
            raise ValueError(f"plan is {self.plan!r}; it must be a SwapPlan or its path")
        if self.stream_weights not in _STREAM_WEIGHTS:
            raise ValueError(
                f"stream_weights is {self.stream_weights!r}; allowed: 'auto', True, False"
            )
        if not _is_duration(self.planning_time_s):
            raise ValueError(f"planning_time_s is {self.planning_time_s!r}; it must be 0 or more")
        if not _is_section_count(self.sections):
            raise ValueError(
                f"sections must be a positive integer, 'auto' or None; got {self.sections!r}"
            )
        budgets.check_each(self.budget, "budget")
        budgets.check(self.host_limit, "host_limit")
        codecs.check(self.codec, self.lossy)
        cache.parse_folder(self.plan_cache)
        if self.share is not None and self.broker is None:
            raise ValueError(
                "share is for a broker, and there is none: give broker=..., too. Trainings in "
                "several threads of one process do not share a device any more: run each in a "
                "process of its own beside `tfswap broker`, or call their functions within one "
                "tfswap.Session"
            )
        if self.broker is not None:
            parse_path(self.broker)
            if isinstance(self.budget, Mapping):
                raise ValueError("with a broker, budget must be one amount, not a dict")

    @property
    def prints_progress(self) -> bool:
        """Whether progress is printed."""
        return self.verbose != 0

    @property
    def may_stream_weights(self) -> bool:
        """Whether values of variables may leave the device, if need be."""
        return self.stream_weights is not False

    @property
    def wants_sections(self) -> bool:
        """Whether steps may be split into sections of the batch."""
        plan_sections = 1 if self.plan is None or not self.plan.functions else self.plan.sections
        return self.sections not in (None, 1) or plan_sections != 1


def _is_duration(seconds: float) -> bool:
    try:
        return 0 <= seconds < float("inf")
    except TypeError:
        return False


def _is_section_count(sections: object) -> bool:
    return sections in (None, AUTO_SECTIONS) or (type(sections) is int and sections > 0)


NAMES = tuple(each.name for each in dataclasses.fields(SwapOptions))
"""The names of all options, in order."""

_PARSERS: dict[str, Callable[[Any], Any]] = {
    "plan": lambda plan: SwapPlan.load(plan) if isinstance(plan, (str, os.PathLike)) else plan,
    "link_bandwidth": budgets.parse_bandwidth,
    "workspace_limit": budgets.parse_limit,
    "spill_limit": budgets.parse_amount,
    "plan_cache_limit": budgets.parse_amount,
    "share": Share.parse,
}


def parse_options(**options: Any) -> SwapOptions:
    """Parse options as users write them, such as "12GB/s" or the path of a plan.

    Raises:
        ValueError: A value is invalid or cannot be parsed, or an option does not exist.
        OSError: The plan's file cannot be read.
    """
    unknown = sorted(set(options) - set(NAMES))
    if unknown:
        names = ", ".join(repr(name) for name in unknown)
        raise ValueError(f"tfswap has no option {names}: the options are {', '.join(NAMES)}")
    for name, parse in _PARSERS.items():
        if options.get(name) is not None:
            options[name] = parse(options[name])
    return SwapOptions(**options)
