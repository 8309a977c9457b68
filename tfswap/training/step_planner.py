"""Plans of one training's step: made from its profile, corrected, placed anew while it goes on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from tfswap.devices.managed_devices import ManagedDevices
from tfswap.devices.swap_options import AUTO_SECTIONS, SwapOptions
from tfswap.io.amounts import readable_bytes
from tfswap.machine.devices import device_name
from tfswap.machine.far_tier import COMPRESSED, FILE
from tfswap.machine.machine import Machine
from tfswap.ops.loaded_library import Library
from tfswap.plan.measured_plan import Attempt
from tfswap.plan.schema import FunctionPlan
from tfswap.planning.least_budget import LeastBudgets, least_budgets, with_sections
from tfswap.planning.plan_function import (
    Planned,
    placed_anew,
    placed_as_planned,
    plan_function,
    planned_before,
)
from tfswap.planning.planners.assignment import FarMemoryTooSmall
from tfswap.planning.planners.decision import BudgetTooSmall
from tfswap.planning.planners.lossy_choice import LossyChoice
from tfswap.planning.planners.portfolio import AUTO
from tfswap.planning.tensor_swaps import tensor_swaps
from tfswap.report.step_story import StepStory
from tfswap.step.graph import StepGraph
from tfswap.step.op_durations import op_durations, planned_durations
from tfswap.step.output_sizes import alike, sizes_recorded
from tfswap.step.profile import Profile, profile_step
from tfswap.step.retiming import retimed
from tfswap.step.trace import StepTrace
from tfswap.traces.timeline_file import save_profile
from tfswap.training.lossy import LossyRun
from tfswap.training.op_times import OpTimes
from tfswap.training.sampling import RatioSamples

# Until addresses are planned, memory is given out in chunks that are not always filled: plans leave
# this part of the budget to that, where there is a plan that can.
_SPARE = 0.025
# How much shorter a plan must make a step to be worth having the graph optimised again.
_WORTH_A_PUSH = 0.98
# Of a budget that is too small, so much through the whole step is worth a word.
_MUCH_STAYS = 0.25


class Forgotten(Exception):
    """The pass saw the graph too long ago to remember it."""


class StepPlanner:
    """What is known of the step, and the plans that were made for it.

    Args:
        lib: The library.
        options: Of the training.
        devices: Of the training.
        ratios: What codecs make of its tensors.
        lossy: What may be kept lossily.
        say: Says something.

    Attributes:
        machine: The link of the planned device.
        fingerprint: The graph's; "" before there is a profile.
        profile: The step's; None before it was recorded.
        op_times: What its ops take now; None before.
    """

    def __init__(
        self,
        lib: Library,
        options: SwapOptions,
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
        self._least: LeastBudgets | None = None
        self._others: dict[int, Profile] = {}  # what further devices do in the step
        self._plannings: list[Planned] = []
        self._measured_to_simulated = 1.0
        self._sizes: dict[str, int] = {}  # of ops' outputs, in the profiled step
        self.machine: Machine = devices.link.machine()  # within the budget
        self.fingerprint = ""
        self.profile: Profile | None = None
        self.op_times: OpTimes | None = None

    @property
    def has_planned(self) -> bool:
        """Whether there is a plan of its own, not one that was given."""
        return bool(self._plannings)

    def read(self, traces: Mapping[int, StepTrace], min_bytes: int) -> Profile:
        """Takes a recorded step.

        Args:
            traces: The recordings, by device.
            min_bytes: Smaller tensors are not swapped.

        Returns:
            The profile of the planned device.

        Raises:
            Forgotten: The graph is not known any more.
            ValueError: There is nothing to plan in it.
        """
        trace = traces[self._devices.device]
        fingerprint = trace.main_graph()
        if fingerprint is None:
            raise ValueError("no op of the training graph was recorded")
        description = self._library.describe(fingerprint)
        if not description:
            raise Forgotten
        self._graph = StepGraph.parse(description)
        self.fingerprint = fingerprint
        self._plannings.clear()
        leave = self._devices.weights_may_leave
        profile = profile_step(trace, self._graph, fingerprint, min_bytes, leave)
        self._least = self._found_least(profile)
        self.profile = dataclasses.replace(profile, section_floors=self._least.sections)
        self.op_times = OpTimes(planned_durations(profile.timeline))
        self._sizes = sizes_recorded(trace)
        # One device's plan says what is made again: clones are the graph's.
        self._others = {
            device: profile_step(other, self._graph, fingerprint, min_bytes, leave).only_swaps()
            for device, other in traces.items()
            if device != self._devices.device and other.main_graph() == fingerprint
        }
        self.save_profile()
        if self._devices.shared is not None:
            self._devices.shared.profiled(self, self.profile.timeline, self._least_bytes())
        return self.profile

    def remember(
        self, profile: Profile, graph: StepGraph, function: FunctionPlan | None = None
    ) -> None:
        """Load the profile of a step that was recorded in an earlier training.

        Args:
            profile: The profile.
            graph: The step's graph, as it is now.
            function: The plan that was made of it and is installed, if there is one.

        Raises:
            ValueError: The plan is of another step.
        """
        self._graph, self.fingerprint, self.profile = graph, profile.fingerprint, profile
        self._least = least_budgets(profile.timeline, self.machine, profile.section_floors)
        self.op_times = OpTimes(planned_durations(profile.timeline))
        if function is not None and not function.recomputes:
            # With recomputes, only the pass can tell whether they can be applied.
            far, budget_bytes = self._devices.far_memory(self.machine), self._devices.budget_bytes
            policy = self._options.policy
            planned = planned_before(profile, function, policy, self.machine, budget_bytes, far)
            self._plannings.append(planned)

    def _least_bytes(self) -> int:
        """What the step can run in, with sections if their number is not given."""
        least = self.least_budgets()
        if self._options.sections == AUTO_SECTIONS and least.sectioned is not None:
            return min(least.swapped.bytes, least.sectioned.bytes)
        return least.swapped.bytes

    def _found_least(self, profile: Profile) -> LeastBudgets:
        """With what sections would do, if the pass has looked at that."""
        least = least_budgets(profile.timeline, self.machine)
        records = self._library.pass_records()
        record = next((r for r in records if r["fingerprint"] == profile.fingerprint), None)
        if record is None or not record["floors"]:
            return least
        floors = with_sections(record["floors"], record["sections"], least.swapped)
        return dataclasses.replace(least, sections=floors)

    def save_profile(self) -> None:
        """Writes the profile where the options say so."""
        if self._options.save_profile is not None and self.profile is not None:
            save_profile(self.profile, self._options.save_profile)

    def least_budgets(self) -> LeastBudgets:
        """What the profiled step can run in, at the least."""
        assert self._least is not None
        return self._least

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
        function = dataclasses.replace(
            self._with_others(planned),
            predicted_peak_bytes=peak_bytes,
            portable=self._library.portable_fingerprint(self.fingerprint),
        )
        planned = dataclasses.replace(planned, function=function)
        self._plannings.append(planned)
        self._lossy.rates = planned.rates
        return planned

    def advised(self, error: BudgetTooSmall | FarMemoryTooSmall, sections: int) -> str:
        """Why there is no plan, and what sections or streamed weights would do.

        Args:
            error: Says why.
            sections: That the batch is cut into.
        """
        if not isinstance(error, BudgetTooSmall) or sections > 1 or self._least is None:
            return str(error)
        said = self._least.with_advice(error)
        stays_bytes = 0 if self.profile is None else self.profile.timeline.resident_bytes
        if self._options.stream_weights or stays_bytes < _MUCH_STAYS * error.budget_bytes:
            return said
        return (
            f"{said} With stream_weights=True, weights and optimiser state leave, too, which are "
            f"most of the {readable_bytes(stays_bytes)} that stay."
        )

    def _with_others(self, planned: Planned) -> FunctionPlan:
        """A plan with swaps of the other devices (replicas, say), each within its own budget.

        They share far memory, which the planned device has first. A device for which there is no
        plan keeps its lazy swaps.
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
        """Plans a device's part of the step; None: the planned device's.

        Args:
            budget_bytes: What its load may reach.
            policy: Name of the planner.
            profile: Of that part.
            taken_bytes: Of host memory, by other devices.
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
            self._say,
            far=dataclasses.replace(far, host=host),
            ratios=self._ratios_now(profile),
            codec=self._options.codec,
            graph=self._graph,
            lossy=self._lossy_choice(profile),
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
        planned = self._behind(function)
        if planned is None:
            return None, ""
        profile = planned.profile
        disk = self._devices.look_at_file()
        before, now = placed_anew(
            planned,
            self._devices.far_memory(self.machine),
            self._ratios_now(profile),
            self._options.codec,
            lossy=self._lossy_choice(profile),
        )
        if now.cost_ns >= before.cost_ns * _WORTH_A_PUSH:
            return None, f"{disk}: no other places make steps shorter" if disk else ""
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

    # What drifts.

    def is_larger(self, trace: StepTrace) -> bool:
        """Whether a step of the graph was for larger tensors than the profiled one."""
        sizes = sizes_recorded(trace)
        if self.profile is None or trace.main_graph() != self.fingerprint:
            return False
        common = sizes.keys() & self._sizes.keys()
        larger = sum(sizes[op] for op in common) > sum(self._sizes[op] for op in common)
        return larger and not alike(sizes, self._sizes)

    def is_like_profiled(self, trace: StepTrace) -> bool:
        """Whether a step ran the graph for tensors of the same shapes."""
        return trace.main_graph() == self.fingerprint and alike(sizes_recorded(trace), self._sizes)

    def time_step(self, trace: StepTrace) -> float | None:
        """Takes the times of a step that was recorded in passing into `op_times`.

        Returns:
            How much longer its ops took than planned with, as a part of that; None: it was for
            tensors of other shapes, or is not like the profiled one.
        """
        if self.op_times is None or self._graph is None or not self.is_like_profiled(trace):
            return None
        try:
            return self.op_times.add(op_durations(trace, self._graph))
        except ValueError:
            return None

    def planned_drifted(self, function: FunctionPlan) -> tuple[FunctionPlan, Planned | None]:
        """Goes by what ops take by now.

        Args:
            function: The plan in force.

        Returns:
            The same plan with what it comes to then; and another one, if that is worth it.

        Raises:
            ValueError: As `plan`.
        """
        self._retime()
        known, keeps_budget = self._foretold_anew(function)
        planned = self.plan()
        other = planned.function
        is_same = (other.swaps, other.recomputes) == (known.swaps, known.recomputes)
        shorter = other.predicted_step_ns < known.predicted_step_ns * _WORTH_A_PUSH
        return known, None if is_same or (keeps_budget and not shorter) else planned

    def _retime(self) -> None:
        """Has the profile, and so each plan from now on, go by what ops take by now."""
        assert self.profile is not None and self.op_times is not None
        ratios, other = self.op_times.ratios(), 1 + self.op_times.drift

        def now(profile: Profile) -> Profile:
            return dataclasses.replace(profile, timeline=retimed(profile.timeline, ratios, other))

        self.profile = now(self.profile)
        self._others = {device: now(each) for device, each in self._others.items()}
        self._plannings = [
            dataclasses.replace(each, profile=now(each.profile)) for each in self._plannings
        ]
        self.op_times.plan_with_averages()

    def _foretold_anew(self, function: FunctionPlan) -> tuple[FunctionPlan, bool]:
        """What the plan in force comes to by the profile as it is now.

        Returns:
            The same plan with that, and whether it keeps the budget then.
        """
        planned = self._behind(function)
        assert planned is not None and self.profile is not None
        assignment = placed_as_planned(
            planned,
            self._devices.far_memory(self.machine),
            self._ratios_now(planned.profile),
            lossy=self._lossy_choice(planned.profile),
        )
        peak_bytes = int(assignment.result.peak_bytes * self._measured_to_simulated)
        function = dataclasses.replace(
            function,
            predicted_step_ns=int(assignment.cost_ns),
            unswapped_step_ns=self.profile.timeline.step_ns,
        )
        anew = dataclasses.replace(planned, function=function, assignment=assignment)
        self._plannings = [anew if each is planned else each for each in self._plannings]
        return function, peak_bytes <= self._devices.budget_bytes

    def story(self, function: FunctionPlan) -> StepStory | None:
        """The profiled step under a plan, for pages and pictures; None: it was not made of it."""
        if self.profile is None:
            return None
        budget_bytes = self._devices.budget_bytes
        planned = self._behind(function)
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

    def _behind(self, function: FunctionPlan) -> Planned | None:
        known = (function.swaps, function.recomputes)
        return next(
            (p for p in self._plannings if (p.function.swaps, p.function.recomputes) == known), None
        )

    def _ratios_now(self, profile: Profile) -> dict[str, dict[str, float]]:
        tensors = {absence.tensor for absence in profile.timeline.absences}
        return {tensor: self._ratios.of(tensor) for tensor in tensors}

    def _lossy_choice(self, profile: Profile) -> LossyChoice | None:
        return self._lossy.choice(profile) if self._devices.codecs.lossy else None
