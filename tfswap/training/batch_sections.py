"""BatchSections: into how many sections a training's batch is cut, and whether others are tried."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Generic

from tfswap.devices.swap_options import AUTO_SECTIONS
from tfswap.ops.loaded_library import Library
from tfswap.plan.schema import SwapPlan
from tfswap.report.summary import Report
from tfswap.report.training_log import TrainingLog
from tfswap.training.installed_plan import InstalledPlan
from tfswap.training.section_search import Kept, SectionSearch, sections_of


class BatchSections(Generic[Kept]):
    """Keeps the plan in force to a number of sections.

    Args:
        lib: The library.
        plan: In force.
        report: Is told the number.
        voice: Says things.
        wanted: The number, or that it is to be chosen.
        searches: Whether others are tried, should it be chosen.

    Attributes:
        chooses: Whether the pass chooses the number.
        search: Those that were tried.
    """

    def __init__(
        self,
        lib: Library,
        plan: InstalledPlan,
        report: Report,
        voice: TrainingLog,
        wanted: int | str,
        searches: bool,
    ) -> None:
        self._library = lib
        self._plan = plan
        self._report = report
        self._voice = voice
        self._number = 1 if isinstance(wanted, str) else wanted
        self.chooses = wanted == AUTO_SECTIONS
        self.search = SectionSearch[Kept](self.chooses and searches)

    def begin(self, given: SwapPlan) -> None:
        """Puts lazy swaps, or a plan that was given, in force in them."""
        self._plan.begin(given, self._number, self.chooses)

    def leave_whole(self) -> None:
        """Before the first step: batches cannot be cut."""
        self.chooses = False
        self.search.stop()
        self._plan.push(dataclasses.replace(self._plan.plan.in_sections(1), chooses=False))

    def search_anew(self) -> None:
        """Forgets what was tried: there is another budget or link."""
        self.search = SectionSearch[Kept](self.chooses)
        self.search.examples = self._plan.plan.batch

    def search_no_more(self) -> None:
        """Likewise; and it stays at the number that there is."""
        self.search = SectionSearch[Kept](False)

    def met(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Takes what the pass said of the first step's graphs."""
        cut = [record for record in records if record["sectioned_ops"]]
        self._report.sections = max((record["sections"] for record in cut), default=1)
        wanted = 1 if self.chooses else self._plan.plan.sections
        if wanted > 1 and not cut:
            self._voice.warn(
                f"sections={wanted} has no effect: no op was found that can work on a part of the "
                "batch. Its size must be known before the step, and be a multiple of it."
            )

    def take(self, fingerprint: str | None) -> bool:
        """Keeps the plan to the number that the profiled step was cut into.

        Args:
            fingerprint: Of its graph; None if it has none.

        Returns:
            Whether it is the one that was tried.
        """
        records = {r["fingerprint"]: r for r in self._library.pass_records()}
        record = records.get(fingerprint or "")
        if record is None:
            return True
        made = record["sections"]
        if made == 1 and self.search.is_under_way:
            self.search.stop()
            return False
        self._report.sections = made
        self.search.examples = self.search.examples or record["examples"]
        if self.chooses and not self.search.is_under_way:
            self._plan.plan = self._plan.plan.in_sections(made)
            self._plan.note(batch=record["examples"])
        elif made > 1 and not self._plan.plan.batch:
            self._plan.note(batch=record["examples"])
        return True

    def try_out(self, sections: int) -> None:
        """Begins again with so many: their graph is another one."""
        self._voice.note(f"{self.search.reason()}: {sections_of(sections)} are tried")
        self._cut_into(sections)

    def go_back_to(self, sections: int) -> bool:
        """Has the batch cut into a number that was tried; says whether it was not by now."""
        if sections == self._plan.plan.sections:
            return False
        self._cut_into(sections)
        self._voice.note(f"training goes on with {sections_of(sections)}")
        return True

    def _cut_into(self, sections: int) -> None:
        plan = dataclasses.replace(self._plan.plan, functions=(), chooses=False)
        plan = dataclasses.replace(plan, batch=self.search.examples)
        self._plan.push(plan.in_sections(sections))
        self._report.sections = sections
