"""Plans of one training's step: made from its profile, corrected, placed anew while it goes on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from tfswap.attempt import Attempt
from tfswap.far_ratios import RatioSamples
from tfswap.far_tier import COMPRESSED, FILE
from tfswap.grappler.graph import StepGraph
from tfswap.lossy_run import LossyRun
from tfswap.machine import Machine
from tfswap.managed_devices import ManagedDevices
from tfswap.ops.library import Library
from tfswap.plan import FunctionPlan
from tfswap.planners.decision import BudgetTooSmall
from tfswap.planners.lossy_choice import LossyChoice
from tfswap.planners.portfolio import AUTO
from tfswap.planning import Planned, placed_anew, plan_function, tensor_swaps
from tfswap.profile import Profile, profile_step
from tfswap.trace import StepTrace
from tfswap.traces.timeline_file import save_profile

if TYPE_CHECKING:
    from tfswap.auto_swap import AutoSwap

# Until addresses are planned, memory is given out in chunks that are not always filled: plans leave
# this part of the budget to that, where there is a plan that can.
_SPARE = 0.025
# How much shorter other places must make a step.
_WORTH_A_PUSH = 0.98


class Forgotten(Exception):
    """The pass saw the graph too long ago to remember it."""


class StepPlanner:
    """What is known of the step, and the plans that were made for it.

    Args:
        lib: The library.
        options: The callback.
        devices: Of the training.
        ratios: What codecs make of its tensors.
        lossy: What may be kept lossily.
        say: Says something.

    Attributes:
        machine: The link of the planned device.
        fingerprint: The graph's; "" before there is a profile.
        profile: The step's; None before it was recorded.
    """

    def __init__(
        self,
        lib: Library,
        options: AutoSwap,
        devices: ManagedDevices,
        ratios: RatioSamples,
        lossy: LossyRun,
        say: Callable[[str], None],
    ) -> None:
        self._library = lib
        self._options = options
        self._devices = devices
        self._ratios = ratios
        self._lossy = lossy
        self._say = say
        self._graph: StepGraph | None = None
        self._plannings: list[Planned] = []
        self._measured_to_simulated = 1.0
        self.machine: Machine = devices.machine()  # within the budget
        self.fingerprint = ""
        self.profile: Profile | None = None

    @property
    def has_planned(self) -> bool:
        """Whether there is a plan of its own, not one that was given."""
        return bool(self._plannings)

    def read(self, trace: StepTrace, min_bytes: int) -> Profile:
        """Takes a recorded step.

        Args:
            trace: The recording.
            min_bytes: Smaller tensors are not swapped.

        Raises:
            Forgotten: The graph is not known any more.
            ValueError: There is nothing to plan in it.
        """
        fingerprint = trace.main_graph()
        if fingerprint is None:
            raise ValueError("no op of the training graph was recorded")
        description = self._library.describe(fingerprint)
        if not description:
            raise Forgotten
        self.fingerprint = fingerprint
        self._graph = StepGraph.parse(description)
        self.profile = profile_step(trace, self._graph, fingerprint, min_bytes)
        if self._options.save_profile is not None:
            save_profile(self.profile, self._options.save_profile)
        return self.profile

    def plan(self) -> Planned:
        """Plans the step; its predicted peak is that of a measured step.

        Raises:
            BudgetTooSmall: No plan fits the budget.
            FarMemoryTooSmall: What is to leave has room nowhere.
        """
        assert self.profile is not None
        budget_bytes = int(self._devices.budget_bytes / self._measured_to_simulated)
        if self.profile.unswapped_peak_bytes <= budget_bytes:
            planned = self._planned(budget_bytes, AUTO)  # some papers' policies move what fits, too
        else:
            try:
                planned = self._planned(int((1 - _SPARE) * budget_bytes), self._options.policy)
            except BudgetTooSmall:
                planned = self._planned(budget_bytes, self._options.policy)
        peak_bytes = int(planned.function.predicted_peak_bytes * self._measured_to_simulated)
        function = dataclasses.replace(planned.function, predicted_peak_bytes=peak_bytes)
        planned = dataclasses.replace(planned, function=function)
        self._plannings.append(planned)
        self._lossy.rates = planned.rates
        return planned

    def _planned(self, budget_bytes: int, policy: str) -> Planned:
        assert self.profile is not None
        return plan_function(
            self.profile,
            policy,
            self.machine,
            budget_bytes,
            self._options.planning_time_s,
            self._say,
            far=self._devices.far_memory(self.machine),
            ratios=self._ratios_now(),
            codec=self._options.codec,
            graph=self._graph,
            lossy=self._lossy_choice(),
        )

    def correct(self, attempt: Attempt) -> None:
        """What runs beside what differs from the recording: foretells as much more or less."""
        predicted_bytes = attempt.function.predicted_peak_bytes
        self._measured_to_simulated *= attempt.demand_bytes / predicted_bytes

    def placed_anew(self, function: FunctionPlan) -> tuple[FunctionPlan | None, str]:
        """Puts tensors elsewhere if that is worth having the graph optimised again.

        Args:
            function: The plan in force.

        Returns:
            The plan with other places, None if the same ones will do; and what to say of it.
        """
        assert self.profile is not None
        planned = next((p for p in self._plannings if p.function.swaps == function.swaps), None)
        if planned is None:
            return None, ""
        disk = self._devices.look_at_file()
        before, now = placed_anew(
            self.profile,
            planned,
            self._devices.far_memory(self.machine),
            self._ratios_now(),
            self._options.codec,
            lossy=self._lossy_choice(),
        )
        if now.cost_ns >= before.cost_ns * _WORTH_A_PUSH:
            return None, f"{disk}: no other places make steps shorter" if disk else ""
        swaps = tensor_swaps(self.profile, planned.decision.swaps, now.places)
        function = dataclasses.replace(function, swaps=swaps, predicted_step_ns=int(now.cost_ns))
        self._plannings.append(dataclasses.replace(planned, function=function, assignment=now))
        encoded, in_file = (sum(swap.tier == tier for swap in swaps) for tier in (COMPRESSED, FILE))
        return function, (
            (f"{disk}: " if disk else "")
            + f"{encoded} of {len(swaps)} tensors are encoded from now on"
            + (f" and {in_file} in the file" if self._options.spill_dir is not None else "")
            + f", for steps of {now.cost_ns / 1e9:.2f} s, not {before.cost_ns / 1e9:.2f} s"
        )

    def _ratios_now(self) -> dict[str, dict[str, float]]:
        assert self.profile is not None
        tensors = {absence.tensor for absence in self.profile.timeline.absences}
        return {tensor: self._ratios.of(tensor) for tensor in tensors}

    def _lossy_choice(self) -> LossyChoice | None:
        assert self.profile is not None
        return self._lossy.choice(self.profile) if self._devices.lossy_codecs else None
