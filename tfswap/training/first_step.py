"""FirstStep: inspect the graphs that the pass met in the first step of a training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfswap.plan.cache import RememberedPlan
from tfswap.planning.planners.assignment import FarMemoryTooSmall
from tfswap.planning.planners.decision import BudgetTooSmall
from tfswap.report.summary import REMEMBERED
from tfswap.step.graph import StepGraph
from tfswap.training.context import TrainingContext
from tfswap.training.events import GraphSeen, Met, Planned
from tfswap.training.installed_plan import InstalledPlan
from tfswap.training.remembered_plans import RememberedPlans
from tfswap.training.step_planner import StepPlanner


class FirstStep:
    """Find out what the first step ran: what trains, and under which plan.

    Args:
        context: The training.
        plan: The installed plan.
        remembered: The plan cache.
        is_given: As the attribute.
        certain: Whether the function trains, even if its graph has no gradients.

    Attributes:
        is_given: Whether the plan is one that the user gave.
    """

    def __init__(
        self,
        context: TrainingContext,
        plan: InstalledPlan,
        remembered: RememberedPlans,
        is_given: bool,
        certain: bool,
    ) -> None:
        self._context = context
        self._plan = plan
        self._remembered = remembered
        self.is_given = is_given
        self._certain = certain

    def inspect(self, planner: StepPlanner, chooses: bool, fits: bool) -> GraphSeen | Planned:
        """Return what the pass met.

        Args:
            planner: Is given the profile of a remembered plan.
            chooses: Whether the pass chooses the number of sections.
            fits: Whether the step clearly fit the budget, so that no plan is needed.
        """
        records = self._records()
        if not records:
            return GraphSeen(Met.NOTHING)
        if not self._certain and not any(record["trains"] for record in records):
            return GraphSeen(Met.INFERENCE)
        self._check_sections(records, chooses)
        found: GraphSeen | Planned | None = None
        if self.is_given:
            found = self._look_for_given_plan(planner, records)
            if found is not None:
                return found
        for record in records:
            found = self._use_remembered(planner, record)
            if found is not None:
                return found
        return self._fitting(records, fits) or GraphSeen(Met.UNPLANNED)

    def _fitting(self, records: list[dict[str, Any]], fits: bool) -> GraphSeen | None:
        """Return what follows for graphs that clearly fit; None if there is one that does not."""
        graphs = [record for record in records if record["trains"]] or records
        largest = max(graphs, key=lambda record: int(record["nodes"]))
        fingerprint = largest["fingerprint"]
        if all(record["outcome"] == "left" for record in graphs):
            return GraphSeen(Met.LEFT, fingerprint=fingerprint)
        if not fits or not self._plan.leaves_unprofiled or any(r["sectioned_ops"] for r in graphs):
            return None
        is_bounded = len(graphs) == 1 and largest["most_bytes"] > 0
        # In TensorFlow's order, it may need more than this step did.
        is_bounded &= self._plan.may_lose_order
        return GraphSeen(Met.FITS if is_bounded else Met.LEFT, fingerprint=fingerprint)

    def training_graphs(self) -> set[str]:
        """Return the fingerprints of the graphs with gradients that may need a plan."""
        return {
            record["fingerprint"]
            for record in self._plan.records()
            if record["trains"] and record["outcome"] not in ("left", "refused")
        }

    def _records(self) -> list[dict[str, Any]]:
        """Return the pass's records; warn and return none if there is nothing to plan."""
        records = self._plan.records()
        for record in records:
            if record["outcome"] == "refused" and self._plan.is_new(record):
                self._context.log.warn(f"the plan was not applied to a graph: {record['reason']}")
        if any(r["outcome"] in ("bootstrapped", "planned", "left") for r in records):
            return records
        if not records:
            self._context.log.warn(
                "TensorFlow's graph optimizer did not run tfswap's pass, so nothing is swapped "
                "(is it disabled with tf.config.optimizer or 'disable_meta_optimizer'?). The "
                "budget is still enforced."
            )
        return []  # all graphs were refused: they have on-demand swaps

    def _check_sections(self, records: list[dict[str, Any]], chooses: bool) -> None:
        """Report the number of sections; warn if a requested one has no effect."""
        split = [record for record in records if record["sectioned_ops"]]
        report = self._context.report.report
        report.sections = max((record["sections"] for record in split), default=1)
        wanted = 1 if chooses else self._plan.plan.sections
        if wanted > 1 and not split:
            self._context.log.warn(
                f"sections={wanted} has no effect: no op was found that can work on a part of the "
                "batch. Its size must be known before the step, and be a multiple of it."
            )

    def _look_for_given_plan(
        self, planner: StepPlanner, records: list[dict[str, Any]]
    ) -> GraphSeen | None:
        """Return the given plan if it is for one of the graphs; warn and return None if not."""
        for record in reversed(records):
            function = self._plan.function(record["fingerprint"])
            if record["outcome"] == "planned" and function is not None:
                planner.fingerprint = function.fingerprint
                return GraphSeen(Met.GIVEN, function)
        if self._plan.rename(records):
            return GraphSeen(Met.RENAMED)
        if all(self._plan.function(record["fingerprint"]) is None for record in records):
            self._context.log.warn(
                "the plan that was given fits none of this training's graphs (another model, "
                "optimizer, shapes or TensorFlow): a new one is made."
            )
        return None

    def _use_remembered(
        self, planner: StepPlanner, record: Mapping[str, Any]
    ) -> GraphSeen | Planned | None:
        """Use the remembered plan or profile of a graph; return None if there is no valid one."""
        fingerprint, outcome = record["fingerprint"], record["outcome"]
        plan = self._remembered.plan(fingerprint)
        if plan is not None and outcome != "planned":  # the pass could not apply it
            self._remembered.forget(fingerprint)
            return None
        try:
            found = self._use(planner, fingerprint, plan)
        except (ValueError, KeyError, IndexError, OverflowError):  # the files are of another step
            self._remembered.forget(fingerprint)
            found = None
        if found is not None:
            self._context.report.report.first_plan = REMEMBERED
            self._context.log.say("this step was profiled before: training begins under its plan")
        elif outcome == "planned":
            self._remembered.decline(fingerprint)
            self._plan.push(self._plan.plan)
        return found

    def _use(
        self, planner: StepPlanner, fingerprint: str, plan: RememberedPlan | None
    ) -> GraphSeen | Planned | None:
        """Go on with the plan that the first step ran under, or make one of the old profile.

        Raises:
            KeyError, IndexError, OverflowError, ValueError: The files are of another step.
        """
        graph = StepGraph.parse(self._context.library.describe(fingerprint))
        profile = self._remembered.profile(fingerprint, graph)
        if profile is None:
            return None
        graph = graph.in_order(profile.order)
        if plan is not None and not self._context.devices.covers(plan.budget_bytes):
            self._remembered.decline(fingerprint)
            plan = None
        planner.remember(profile, graph, None if plan is None else plan.function)
        report = self._context.report
        if plan is None:
            try:
                planned = planner.plan()
            except (BudgetTooSmall, FarMemoryTooSmall):
                planner.reset()
                return None
            if not planned.function.moves:  # it fits, which the profiled steps will confirm
                planner.reset()
                return None
            function = planned.function
        else:
            function = plan.function
        story = planner.story(function)  # before anything changes: files are untrusted
        planner.save_profile()
        report.profiled(profile, planner.least_budgets())
        if plan is None:
            step_ns = function.predicted_step_ns
            return Planned(0, fingerprint, self._plan.plan.sections, function, step_ns=step_ns)
        self._plan.note(functions=self._plan.plan.with_function(function).functions)
        self._plan.install_layouts()
        report.adopted(self._plan.plan, function, story)
        return GraphSeen(Met.REMEMBERED, function)
