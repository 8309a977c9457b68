"""Progress: where a training stands, from one phase to the next, and which graph's turn it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tfswap.devices.managed_devices import ManagedDevices
from tfswap.devices.swap_options import SwapOptions
from tfswap.ops.loaded_library import Library
from tfswap.plan.measured_plan import MeasuredStep
from tfswap.report.summary import Report
from tfswap.report.training_log import TrainingLog
from tfswap.step.trace import StepTrace
from tfswap.training.graph_turn import GraphTurn
from tfswap.training.installed_plan import InstalledPlan
from tfswap.training.phase import Phase
from tfswap.training.plan_choice import PlanChoice
from tfswap.training.sampling import RatioSamples
from tfswap.training.settled_watch import SettledWatch
from tfswap.training.step_addresses import StepAddresses
from tfswap.training.step_recordings import PROFILED_STEPS, StepRecordings

# Of a plan that another one is to be better than, after something has drifted.
_LATEST = 8
# Steps under a settled plan that are kept, at most; and how many go when there are more.
_MOST_MEASURED, _DROPPED = 64, 32


class Progress:
    """Goes from phase to phase, and gives further graphs their turn.

    Args:
        lib: The library.
        options: Of the training.
        devices: Of the training.
        plan: In force.
        ratios: Whose samples are for the graph whose turn it is.
        addresses: Planned where a plan stays.
        voice: Says things.
        report: Filled in.
        first: Of the training's first graph.
        new_choice: Makes that of one more.
        kind: Of calls that train.

    Attributes:
        phase: What the next step is for.
        turn: Whose turn it is.
        recordings: Of steps, to plan from.
        measured: Steps of this phase, or the last ones under a settled plan.
    """

    def __init__(
        self,
        lib: Library,
        options: SwapOptions,
        devices: ManagedDevices,
        plan: InstalledPlan,
        ratios: RatioSamples,
        addresses: StepAddresses,
        voice: TrainingLog,
        report: Report,
        first: PlanChoice,
        new_choice: Callable[[], PlanChoice],
        kind: str,
    ) -> None:
        self._library = lib
        self._devices = devices
        self._plan = plan
        self._ratios = ratios
        self._addresses = addresses
        self._voice = voice
        self._report = report
        self._new_choice = new_choice
        self._kind = kind
        self.turn = GraphTurn(first)
        self._settled = SettledWatch(options, devices, plan, self.turn)
        self._shapes_vary = False  # of tensors, in steps of one graph
        self.phase = Phase.FIRST
        self.recordings = StepRecordings(lib, devices)
        self.measured: list[MeasuredStep] = []

    @property
    def choice(self) -> PlanChoice:
        """Of the graph whose turn it is."""
        return self.turn.choice

    # Phases.

    def go_to(self, phase: Phase) -> None:
        """Enters a phase; where the plan stays, addresses are planned for it."""
        self.measured = []
        self._settled.drift.begin_anew()
        if phase in (Phase.LAYOUT, Phase.STEADY, Phase.FIRST):
            self.turn.all_count()
        if self.turn.is_further:
            self._go_on_with_further(phase)
            return
        if phase is Phase.LAYOUT and not self._addresses.begin(self.choice.fingerprint):
            phase = Phase.STEADY
        self.phase = phase

    def profiled(self, seconds: float, traces: dict[int, StepTrace]) -> None:
        """Takes a recorded step; makes a plan once there are enough of them."""
        recordings = self.recordings
        if not recordings.add(seconds, traces):
            return
        self.recordings = StepRecordings(self._library, self._devices)
        self._voice.say(f"profiled {PROFILED_STEPS} steps, planning ...")
        self.go_to(self.choice.plan_from(recordings.fastest(), recordings.seconds))
        self._shapes_vary |= recordings.vary
        self.tell_graphs_apart()

    def settled_step(self, step: MeasuredStep, was_watched: bool) -> None:
        """Takes a step under a plan that stays."""
        self.measured.append(step)
        if len(self.measured) > _MOST_MEASURED:
            del self.measured[:_DROPPED]
        drift = self._settled.drift
        drift.step_ended(step.seconds, was_watched and drift.wants)

    def _look_anew(self, phase: Phase) -> None:
        """Enters a phase without what was recorded and measured."""
        self.recordings = StepRecordings(self._library, self._devices)
        self.measured = []
        self.phase = phase

    # What drifts, and further graphs.

    @property
    def wants_to_watch(self) -> bool:
        """Whether the next step is recorded in passing; addresses come first."""
        return (
            self.phase is Phase.STEADY
            and not self._addresses.wants(self._kind)
            and self._settled.wants
        )

    def watch(self, step: MeasuredStep, trace: StepTrace | None) -> str:
        """Behind a step under a settled plan: there may have to be another one, or one more.

        Args:
            step: As measured.
            trace: Its recording, if it was recorded in passing.

        Returns:
            Why all is to be planned anew; "": it is not.
        """
        ran = self._addresses.recorded if trace is None else trace.main_graph()
        latest, may_plan = self.measured[-_LATEST:], self.phase is Phase.STEADY
        found = self._settled.look(step, trace, ran, latest, may_plan)
        if found.further:
            self._plan_further(found.further)
        elif found.larger is not None:
            self._plan_larger(found.larger)
        elif found.drifted is not None:
            self.turn.take(found.drifted, Phase.STEADY)
            if not self.turn.is_further:
                self._addresses.end()
            self.go_to(Phase.SETTLE)
            self.tell_graphs_apart()
        return found.link

    def _plan_further(self, fingerprint: str) -> None:
        """Begins with a graph as with the first one; meanwhile that keeps its plan."""
        self._settled.graphs.begin_anew()
        self._plan.forget_layout(fingerprint)
        self.turn.take(self._new_choice(), self.phase, fingerprint)
        self._look_anew(Phase.WARM)

    def _plan_larger(self, choice: PlanChoice) -> None:
        """Profiles a planned graph anew, in steps for larger tensors: smaller ones fit, too."""
        if choice.planned_function is None or not self.measured:
            return
        self._voice.note(
            "steps for larger tensors than were planned come often: they are profiled, for a plan "
            "that has room for them"
        )
        self._settled.graphs.began_larger(choice.fingerprint)
        choice.profile_anew(self.measured[-_LATEST:])
        self.turn.take(choice, Phase.STEADY, choice.fingerprint, only_larger=True)
        if not self.turn.is_further:
            self._addresses.end()
        self._look_anew(Phase.WARM)

    def _go_on_with_further(self, phase: Phase) -> None:
        """As `go_to`, for a further graph."""
        if phase is Phase.FIRST:  # the pass has forgotten the graph
            phase = Phase.STEADY
        if phase not in (Phase.LAYOUT, Phase.STEADY):
            self.phase = phase
            return
        choice, function = self.choice, self.choice.planned_function
        known = choice.fingerprint in self.turn.further
        if function is None:
            self._settled.graphs.refuse(choice.fingerprint)
        self.leave_further()
        if function is not None and not known:
            self._voice.note(
                f"{len(self.turn.choices)} graphs of this training (for other shapes, say) have "
                f"plans of their own: in the last one {len(function.swaps)} tensors leave and "
                f"{len(function.recomputes)} are made again, for steps of "
                f"{function.predicted_step_ns / 1e9:.3g} s"
            )
        self._report.plan = self._plan.plan
        self._addresses.expect(self._kind)

    def leave_further(self) -> None:
        """Goes back to the first graph; harmless when it is its turn."""
        if not self.turn.leave():
            return
        self._ratios.stop()
        self._settled.drift.begin_anew()
        self._look_anew(self.turn.back_to)

    def counts(self, traces: Mapping[int, StepTrace]) -> bool:
        """Whether a step, recorded on these devices, was one of those that are looked at."""
        trace = traces.get(self._devices.device)
        if not self.turn.only or self.turn.counts(trace, self.phase.has_planned):
            return True
        if self.phase is Phase.WARM:
            self._ratios.stop()
        return False

    def wait_no_longer(self) -> str:
        """Behind a step that did not count: those that do may come no more.

        Returns:
            Why all is to be planned anew; "": it is not.
        """
        if not self.turn.come_no_more(self.phase.has_planned):
            return ""
        were_larger = self.turn.only_larger
        self.turn.only = ""
        self.leave_further()
        if not were_larger:
            return ""
        self.turn.only_larger = False
        self._look_anew(Phase.STEADY)
        return "steps for larger tensors come no more"

    def tell_graphs_apart(self) -> None:
        """Has only steps like the profiled one count where there are others."""
        if self.phase not in (Phase.SETTLE, Phase.MEASURE) or self.turn.only:
            return
        if self._shapes_vary or len(self.choice.training_graphs()) > 1:
            self.turn.tell_apart(self.choice.fingerprint)
