"""SettledWatch: whether the plans of a settled training still are the right ones, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tfswap.devices.managed_devices import ManagedDevices
from tfswap.devices.swap_options import SwapOptions
from tfswap.plan.measured_plan import MeasuredStep
from tfswap.step.trace import StepTrace
from tfswap.training.drift_watch import DriftWatch
from tfswap.training.graph_turn import GraphTurn
from tfswap.training.graph_watch import MOST_GRAPHS, OFTEN, GraphWatch
from tfswap.training.installed_plan import InstalledPlan
from tfswap.training.op_times import DRIFT
from tfswap.training.plan_choice import PlanChoice


@dataclass(frozen=True)
class Finding:
    """What there is to be done; one thing, if anything.

    Attributes:
        further: A graph without a plan that is worth one; "": there is none.
        larger: Whose graph has steps for larger tensors than were planned, often.
        drifted: Who goes by other times from now on, and has another plan.
        link: What has become of the link's speed; "": nothing.
    """

    further: str = ""
    larger: PlanChoice | None = None
    drifted: PlanChoice | None = None
    link: str = ""


class SettledWatch:
    """Looks at steps under settled plans: at all of their times, and inside of a few.

    Args:
        options: Of the training.
        devices: That it has.
        plan: In force.
        turn: The graphs that have had theirs.

    Attributes:
        graphs: What has been seen of graphs without plans.
        drift: What has been seen of times.
    """

    def __init__(
        self, options: SwapOptions, devices: ManagedDevices, plan: InstalledPlan, turn: GraphTurn
    ) -> None:
        self._options, self._devices, self._plan, self._turn = options, devices, plan, turn
        self.graphs = GraphWatch()
        self.drift = DriftWatch()
        self._beyond = 0  # steps that needed more than planned

    @property
    def wants(self) -> bool:
        """Whether the next step should be recorded in passing."""
        if self.graphs.wants and self._plans_graphs:
            return True
        return self.drift.wants and any(
            choice.planned_function is not None for choice in self._turn.choices
        )

    def look(
        self,
        step: MeasuredStep,
        trace: StepTrace | None,
        ran: str | None,
        latest: Sequence[MeasuredStep],
        may_plan: bool,
    ) -> Finding:
        """Behind a step.

        Args:
            step: As measured.
            trace: Its recording, if it was recorded in passing.
            ran: The fingerprint of its graph, if that is known.
            latest: Steps that another plan is to be better than.
            may_plan: Whether there may be a plan for other times now.
        """
        self._beyond += step.needed_bytes > 0
        if self._plans_graphs and self.graphs.step_ended():
            beyond, self._beyond = self._beyond, 0
            self.graphs.has_unplanned = beyond >= OFTEN or bool(self._unplanned())
        choice = self._turn.choice_of(ran)
        if self.graphs.has_unplanned and ran is not None and self._plans_graphs:
            is_larger = trace is not None and choice is not None and choice.planner.is_larger(trace)
            self.graphs.ran(ran, step.bytes_out > 0, choice is not None and not is_larger)
            due = self.graphs.due()
            if due is not None and due == ran:
                return Finding(further=due) if choice is None else Finding(larger=choice)
        if trace is None:
            return Finding()
        has_plan = choice is not None and choice.planned_function is not None
        if choice is not None and has_plan and self._has_drifted(choice, trace, latest, may_plan):
            return Finding(drifted=choice)
        return Finding(link=self._link())

    def _has_drifted(
        self,
        choice: PlanChoice,
        trace: StepTrace,
        latest: Sequence[MeasuredStep],
        may_plan: bool,
    ) -> bool:
        """Whether there is another plan, for other times of ops."""
        longer = choice.planner.time_step(trace)
        times = choice.planner.op_times
        if longer is None or times is None:
            return False
        if abs(longer) > DRIFT:
            self.drift.look_on()
        if not times.has_drifted or not self.drift.may_plan or not may_plan:
            return False
        is_another = choice.plan_drifted(() if self._turn.further else latest)
        self.drift.planned()
        return is_another

    def _link(self) -> str:
        """What to say of the link if copies have come to have another speed."""
        choice = self._turn.choice
        if choice.planned_function is None or not self.drift.may_plan:
            return ""
        said = self._devices.link.look(choice.planner.machine)
        if self._devices.link.is_off:
            self.drift.look_on()
        if said:
            self.drift.planned()
        return said

    @property
    def _plans_graphs(self) -> bool:
        """Return whether further graphs get plans: of a training that shares no device."""
        plan = self._plan.plan
        return (
            len(self._turn.choices) < MOST_GRAPHS
            and plan.sections == 1
            and not plan.chooses
            and not self._options.lossy
            and not self._options.stream_weights
            and self._devices.shared is None
            and bool(self._turn.choices[0].fingerprint)
        )

    def _unplanned(self) -> set[str]:
        """Graphs of this training that have gradients and no plan."""
        planned = {choice.fingerprint for choice in self._turn.choices}
        return {f for f in self._turn.choice.training_graphs() if f not in planned}
