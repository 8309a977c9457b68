"""InstalledPlan: the plan of one training, in its session and with its addresses on the device."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from tfswap.devices.managed_devices import ManagedDevices
from tfswap.devices.swap_options import SwapOptions
from tfswap.ops import library
from tfswap.ops.loaded_library import Library
from tfswap.plan.renaming import renamed
from tfswap.plan.schema import FunctionPlan, SwapPlan
from tfswap.plan.slots import slots_to_text
from tfswap.report.training_log import TrainingLog
from tfswap.step.graph import StepGraph
from tfswap.training.lossy import LossyRun
from tfswap.training.pass_session import PassSession


class InstalledPlan:
    """What the pass, the codecs and the allocator go by.

    Args:
        lib: The library.
        options: Of the training.
        devices: Of the training.
        session: Carries the plan to the pass.
        lossy: Is told of lossy codecs.
        voice: Warns.

    Attributes:
        plan: The plan; one that was only noted is in force from the next `push` on.
    """

    def __init__(
        self,
        lib: Library,
        options: SwapOptions,
        devices: ManagedDevices,
        session: PassSession,
        lossy: LossyRun,
        voice: TrainingLog,
    ) -> None:
        self._library = lib
        self._options = options
        self._devices = devices
        self._session = session
        self._lossy = lossy
        self._voice = voice
        self.plan = SwapPlan()

    def begin(self, given: SwapPlan, sections: int, chooses: bool) -> None:
        """Puts a plan that was given in force, or lazy swaps.

        Args:
            given: Without functions: none was.
            sections: Of the batch, where none was.
            chooses: Whether the pass chooses their number for graphs without an entry.
        """
        plan = SwapPlan(
            functions=given.functions,
            budget_bytes=self._devices.budget_bytes,
            policy=self._options.policy,
            unmatched="bootstrap",
            tensorflow=library.tensorflow_version() or "",
            batch=given.batch,
            chooses=chooses,
            stream_weights=self._devices.weights_may_leave,
        )
        self.push(plan.in_sections(given.sections if given.functions else sections))

    def rename(self, records: Iterable[Mapping[str, Any]]) -> bool:
        """Whether the plan is for one of these graphs, under other names; then it is pushed.

        So it is for a function that comes back from a SavedModel.
        """
        for record in records:
            for function in self.plan.functions:
                if not function.portable or function.portable != record["portable"]:
                    continue
                graph = StepGraph.parse(self._library.describe(record["fingerprint"]))
                found = renamed(function, record["fingerprint"], graph.nodes)
                if found is None:
                    continue
                self.push_function(found)
                self.install_layouts()
                return True
        return False

    def note(self, **changes: Any) -> None:
        """Changes fields of the plan, without having graphs optimised again."""
        self.plan = dataclasses.replace(self.plan, **changes)

    def push(self, plan: SwapPlan) -> None:
        """Puts a plan in force."""
        self.plan = plan
        self._lossy.adopt(plan)
        self._session.push(plan)

    def push_function(self, function: FunctionPlan) -> None:
        """Puts it in force with this graph's plan."""
        self.push(self.plan.with_function(function))

    @property
    def label(self) -> str:
        """By which the pass tells the training's graphs from those of others."""
        return self._session.label

    def function(self, fingerprint: str) -> FunctionPlan | None:
        """The plan of a graph, if there is one."""
        return self.plan.function(fingerprint)

    def has_layout(self, fingerprint: str) -> bool:
        """Whether addresses of a graph are planned."""
        function = self.plan.function(fingerprint)
        return function is not None and bool(function.layouts)

    def install_layouts(self) -> None:
        """Has the device's allocator go by the planned addresses."""
        for function in self.plan.functions:
            if not any(function.layouts) or not self._options.slab:
                continue
            try:
                self._library.install_layout(
                    self._devices.device, function.fingerprint, slots_to_text(function.layouts)
                )
            except ValueError as error:
                self._voice.warn(f"addresses are not planned: {error}")

    def forget_layouts(self) -> None:
        """Takes planned addresses back; the plan is not pushed for that."""
        for function in self.plan.functions:
            if function.layouts:
                self._library.remove_layout(self._devices.device, function.fingerprint)
        bare = (dataclasses.replace(function, layouts=()) for function in self.plan.functions)
        self.note(functions=tuple(bare))

    def forget_layout(self, fingerprint: str) -> None:
        """Likewise, of one graph."""
        function = self.plan.function(fingerprint)
        if function is None or not function.layouts:
            return
        self._library.remove_layout(self._devices.device, fingerprint)
        self.note(
            functions=tuple(
                dataclasses.replace(each, layouts=()) if each is function else each
                for each in self.plan.functions
            )
        )

    def save(self) -> None:
        """Writes the plan where the options say so."""
        if self._options.save_plan is not None:
            self.plan.save(self._options.save_plan)
