"""StepPlanner: profile and plan the step of one graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tfswap.devices.swap_options import AUTO_SECTIONS
from tfswap.machine.devices import device_name
from tfswap.machine.far_tier import COMPRESSED, FILE
from tfswap.machine.machine import Machine
from tfswap.plan.measured_plan import MeasuredPlan
from tfswap.plan.schema import FunctionPlan
from tfswap.planning.least_budget import LeastBudgets, least_budgets, with_sections
from tfswap.planning.plan_function import (
    Planned,
    plan_function,
    reassign_places,
    restore_planned,
)
from tfswap.planning.planners.assignment import FarMemoryTooSmall
from tfswap.planning.planners.decision import BudgetTooSmall
from tfswap.planning.planners.lossy_choice import LossyChoice
from tfswap.planning.planners.portfolio import AUTO
from tfswap.planning.tensor_swaps import tensor_swaps
from tfswap.report.step_story import StepStory
from tfswap.step.graph import StepGraph
from tfswap.step.output_sizes import alike, recorded_output_bytes
from tfswap.step.profile import Profile, profile_step
from tfswap.step.recorded_ops import recorded_sums
from tfswap.step.trace import StepTrace
from tfswap.traces.timeline_file import save_profile
from tfswap.training.context import TrainingContext

# Until addresses are planned, memory is allocated in chunks that are not always filled. Plans leave
# this fraction of the budget to that where they can.
_SPARE = 0.025
# TensorFlow optimises the graph again only for steps that are shorter than this fraction.
_WORTH_A_PUSH = 0.98


class Forgotten(Exception):
    """The pass no longer knows the graph."""


class StepPlanner:
    """The profile of one graph's step, and the plans that were made of it.

    Args:
        context: The training.

    Attributes:
        machine: The link of the planned device, measured within the budget.
        fingerprint: The graph's; "" before there is a profile or a given plan.
        profile: The profile; None before the step was recorded.
        planned_bytes: The budget that the latest plan was made for.
    """

    def __init__(self, context: TrainingContext) -> None:
        self._context = context
        self._library = context.library
        self._options = context.options
        self._devices = context.devices
        self.reset()

    def reset(self) -> None:
        """Forget the step."""
        self._graph: StepGraph | None = None
        self._least: LeastBudgets | None = None
        self._others: dict[int, Profile] = {}  # of further devices
        self._plannings: list[Planned] = []
        self._measured_to_simulated = 1.0
        self._sizes: dict[str, int] = {}  # of ops' outputs, in the profiled step
        self.machine: Machine = self._devices.link.machine()
        self.fingerprint = ""
        self.profile: Profile | None = None
        self.planned_bytes = 0

    def read(self, traces: Mapping[int, StepTrace], min_bytes: int) -> Profile:
        """Profile a recorded step.

        Args:
            traces: The recordings, by device.
            min_bytes: Size below which tensors are not swapped.

        Returns:
            The profile of the planned device.

        Raises:
            Forgotten: The pass no longer knows the graph.
            ValueError: There is nothing to plan in it.
        """
        trace = traces[self._devices.device]
        fingerprint = trace.main_graph()
        if fingerprint is None:
            raise ValueError("no op of the training graph was recorded")
        description = self._library.describe(fingerprint)
        if not description:
            raise Forgotten
        graph = StepGraph.parse(description)
        sums = recorded_sums(trace, graph)
        self._graph = graph.in_order(sums)
        self.fingerprint = fingerprint
        self._plannings.clear()
        leave = self._devices.weights_may_leave
        profile = profile_step(trace, graph, fingerprint, min_bytes, leave, sums)
        self._least = self._found_least(profile)
        self.profile = dataclasses.replace(profile, section_floors=self._least.sections)
        self._sizes = recorded_output_bytes(trace)
        # Only the planned device's plan recomputes: clones are part of the graph.
        self._others = {
            device: profile_step(
                other, graph, fingerprint, min_bytes, leave, sums
            ).without_dataflow()
            for device, other in traces.items()
            if device != self._devices.device and other.main_graph() == fingerprint
        }
        self.save_profile()
        if self._devices.shared is not None:
            self._devices.shared.profiled(self, self.profile.timeline, self._least_bytes())
        return self.profile

    def remember(self, profile: Profile, graph: StepGraph, function: FunctionPlan | None) -> None:
        """Use a step that was recorded in an earlier training.

        Args:
            profile: Its profile.
            graph: Its graph, as it is now.
            function: The plan that was made of it and is installed, if there is one.

        Raises:
            ValueError: The plan is of another step.
        """
        self._graph, self.fingerprint, self.profile = graph, profile.fingerprint, profile
        self._least = least_budgets(
            profile.timeline, self.machine, profile.section_floors, profile.floor
        )
        self.planned_bytes = budget_bytes = self._devices.budget_bytes
        if function is not None and not function.recomputes:
            # With recomputes, only the pass can tell whether they can be applied.
            far, policy = self._devices.far_memory(self.machine), self._options.policy
            planned = restore_planned(profile, function, policy, self.machine, budget_bytes, far)
            self._plannings.append(planned)

    def _least_bytes(self) -> int:
        """Return the least budget, with sections if their number is not given."""
        least = self.least_budgets()
        if self._options.sections == AUTO_SECTIONS and least.sectioned is not None:
            return min(least.swapped.bytes, least.sectioned.bytes)
        return least.swapped.bytes

    def _found_least(self, profile: Profile) -> LeastBudgets:
        """Return the least budgets, with those of sections if the pass has looked for them."""
        least = least_budgets(profile.timeline, self.machine, floor=profile.floor)
        records = self._library.pass_records()
        record = next((r for r in records if r["fingerprint"] == profile.fingerprint), None)
        if record is None or not record["floors"]:
            return least
        floors = with_sections(record["floors"], record["sections"], least.swapped)
        return dataclasses.replace(least, sections=floors)

    def save_profile(self) -> None:
        """Write the profile to the file that the options name."""
        if self._options.save_profile is not None and self.profile is not None:
            save_profile(self.profile, self._options.save_profile)

    def least_budgets(self) -> LeastBudgets:
        """Return the least budgets that the profiled step can run in."""
        assert self._least is not None
        return self._least

    def plan(self) -> Planned:
        """Plan the step. The predicted peak is corrected by earlier measurements.

        Raises:
            BudgetTooSmall: No plan fits the budget.
            FarMemoryTooSmall: Host memory and file have no room for what is swapped out.
        """
        assert self.profile is not None
        self.planned_bytes = self._devices.budget_bytes
        budget_bytes = int(self._devices.budget_bytes / self._measured_to_simulated)
        if self.profile.unswapped_peak_bytes <= budget_bytes:
            planned = self._planned(budget_bytes, AUTO)  # some papers' policies swap what fits, too
        else:
            try:
                planned = self._planned(int((1 - _SPARE) * budget_bytes), self._options.policy)
            except BudgetTooSmall:
                planned = self._planned(budget_bytes, self._options.policy)
        peak_bytes = int(planned.function.predicted_peak_bytes * self._measured_to_simulated)
        function = dataclasses.replace(
            self._with_others(planned),
            predicted_peak_bytes=peak_bytes,
            portable=self._library.portable_fingerprint(self.fingerprint),
        )
        planned = dataclasses.replace(planned, function=function)
        self._plannings.append(planned)
        self._context.lossy.rates = planned.rates
        return planned

    def advised(self, error: BudgetTooSmall | FarMemoryTooSmall, sections: int) -> str:
        """Return why there is no plan, with advice about sections and streamed weights.

        Args:
            error: The reason.
            sections: Number of sections that the batch is split into.
        """
        if not isinstance(error, BudgetTooSmall) or sections > 1 or self._least is None:
            return str(error)
        return self._least.with_advice(error)

    def _with_others(self, planned: Planned) -> FunctionPlan:
        """Return the plan with swaps of the other devices (replicas), each within its own budget.

        The devices share far memory; the planned device uses it first. A device without a plan
        keeps its on-demand swaps.
        """
        function = planned.function
        taken_bytes = int(planned.assignment.result.far_peak_bytes[0])
        for device, profile in sorted(self._others.items()):
            stats = self._library.memory_stats(device)
            budget_bytes = int((1 - _SPARE) * stats["budget_bytes"] / self._measured_to_simulated)
            try:
                other = self._planned(budget_bytes, self._options.policy, profile, taken_bytes)
            except (ValueError, FarMemoryTooSmall):
                continue
            taken_bytes += int(other.assignment.result.far_peak_bytes[0])
            known = set(function.order)
            swaps = (
                dataclasses.replace(s, device=device_name(device)) for s in other.function.swaps
            )
            function = dataclasses.replace(
                function,
                swaps=(*function.swaps, *swaps),
                order=(*function.order, *(e for e in other.function.order if e not in known)),
            )
        return function

    def _planned(
        self,
        budget_bytes: int,
        policy: str,
        profile: Profile | None = None,
        taken_bytes: int = 0,
    ) -> Planned:
        """Plan one device's part of the step.

        Args:
            budget_bytes: Cap on the predicted peak.
            policy: Name of the planner.
            profile: The part's profile; None for the planned device's.
            taken_bytes: Host memory that other devices use.
        """
        profile = self.profile if profile is None else profile
        assert profile is not None
        far = self._devices.far_memory(self.machine)
        capacity_bytes = max(far.host.capacity_bytes - taken_bytes, 0)
        host = dataclasses.replace(far.host, capacity_bytes=capacity_bytes)
        return plan_function(
            profile,
            policy,
            self.machine,
            budget_bytes,
            self._options.planning_time_s,
            self._context.log.say,
            far=dataclasses.replace(far, host=host),
            ratios=self._ratios_now(profile),
            codec=self._options.codec,
            graph=self._graph,
            lossy=self._lossy_choice(profile),
        )

    def correct(self, measured: MeasuredPlan) -> None:
        """Scale later predictions by a measured peak; what runs beside the step differs."""
        predicted_bytes = measured.function.predicted_peak_bytes
        self._measured_to_simulated *= measured.demand_bytes / predicted_bytes

    def reassigned(self, function: FunctionPlan) -> tuple[FunctionPlan | None, str]:
        """Reassign tensors to host memory, codecs and file, if that makes steps shorter.

        Args:
            function: The installed plan.

        Returns:
            The plan with the new assignment, None if the old one is as good; and a note.
        """
        planned = self.planned_as(function)
        if planned is None:
            return None, ""
        profile = planned.profile
        disk = self._devices.observe_file_tier()
        before, now = reassign_places(
            planned,
            self._devices.far_memory(self.machine),
            self._ratios_now(profile),
            self._options.codec,
            lossy=self._lossy_choice(profile),
        )
        if now.cost_ns >= before.cost_ns * _WORTH_A_PUSH:
            return None, f"{disk}: no other assignment makes steps shorter" if disk else ""
        elsewhere = (swap for swap in function.swaps if swap.device)
        swaps = (*tensor_swaps(profile, planned.decision.swaps, now.places), *elsewhere)
        function = dataclasses.replace(function, swaps=swaps, predicted_step_ns=int(now.cost_ns))
        self._plannings.append(dataclasses.replace(planned, function=function, assignment=now))
        encoded, in_file = (sum(swap.tier == tier for swap in swaps) for tier in (COMPRESSED, FILE))
        return function, (
            (f"{disk}: " if disk else "")
            + f"{encoded} of {len(swaps)} tensors are encoded from now on"
            + (f" and {in_file} in the file" if self._options.spill_dir is not None else "")
            + f", for steps of {now.cost_ns / 1e9:.2f} s, not {before.cost_ns / 1e9:.2f} s"
        )

    def is_larger(self, trace: StepTrace) -> bool:
        """Return whether a step of the graph had larger tensors than the profiled one."""
        sizes = recorded_output_bytes(trace)
        if self.profile is None or trace.main_graph() != self.fingerprint:
            return False
        common = sizes.keys() & self._sizes.keys()
        larger = sum(sizes[op] for op in common) > sum(self._sizes[op] for op in common)
        return larger and not alike(sizes, self._sizes)

    def is_like_profiled(self, trace: StepTrace) -> bool:
        """Return whether a step ran the graph with tensors of the same shapes."""
        return trace.main_graph() == self.fingerprint and alike(
            recorded_output_bytes(trace), self._sizes
        )

    def story(self, function: FunctionPlan) -> StepStory | None:
        """Return the profiled step under a plan, for the report; None if there is no profile."""
        if self.profile is None:
            return None
        budget_bytes = self._devices.budget_bytes
        planned = self.planned_as(function)
        if planned is None:
            timeline, links = self.profile.timeline, (self.machine,)
            return StepStory(timeline, (), {}, self.machine, links, budget_bytes)
        return StepStory(
            planned.profile.timeline,
            planned.assignment.swaps,
            planned.assignment.places,
            self.machine,
            planned.links,
            budget_bytes,
            planned.decision.policy,
        )

    def planned_as(self, function: FunctionPlan) -> Planned | None:
        """Return the planning that a plan came from; None for a given plan."""
        known = (function.swaps, function.recomputes)
        return next(
            (p for p in self._plannings if (p.function.swaps, p.function.recomputes) == known), None
        )

    def _ratios_now(self, profile: Profile) -> dict[str, dict[str, float]]:
        tensors = {absence.tensor for absence in profile.timeline.absences}
        return {tensor: self._context.ratios.of(tensor) for tensor in tensors}

    def _lossy_choice(self, profile: Profile) -> LossyChoice | None:
        return self._context.lossy.choice(profile) if self._devices.codecs.lossy else None
