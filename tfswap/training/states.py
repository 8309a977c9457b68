"""GraphState, TrainingState: where a training stands.

`tfswap.training.transitions.next_state` maps a state and an event to the next state and to actions
(`tfswap.training.events`), which `tfswap.training.run.TrainingRun` executes. All of these are
values: they use no library, device or clock.

One graph, from its first step on::

    Compiled ─▶ Bootstrap, once XLA gets no memory

    Bootstrap ─▶ Warm ─▶ Profile ─▶ Settle ─▶ Measure ─▶ Addresses ─▶ Steady
      │  │        ▲         │  ▲       ▲         │  │        │           │
      │  │        │         │  │       └ correct ┘  │        │  BudgetChanged: plan again
      │  │        │         │  └─ other sections    │        │
      │  └ given or remembered plan ────────────────▲        └ "fits" comes here from Profile
      └ no gradients ─▶ Idle
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass, field
from typing import Any

from tfswap.plan.measured_plan import MeasuredPlan, MeasuredStep, best
from tfswap.plan.schema import FunctionPlan
from tfswap.training.graph_watch import GraphWatch
from tfswap.training.section_search import SectionSearch


class Phase(enum.Enum):
    """What the next step of a graph is for."""

    COMPILED = "compiled"  # by XLA, which moves nothing
    BOOTSTRAP = "bootstrap"  # on-demand swaps, from the graph alone
    WARM = "warm"  # the second step is still slow and would be a bad profile
    PROFILE = "profile"
    SETTLE = "settle"  # the first step of a new plan, in which TensorFlow optimises the graph
    MEASURE = "measure"
    ADDRESSES = "addresses"  # steps are recorded until their addresses are planned
    STEADY = "steady"
    IDLE = "idle"  # the graph does not train: on-demand swaps stay

    @property
    def is_settled(self) -> bool:
        """Whether the current plan, or on-demand swaps, will stay."""
        return self in (Phase.ADDRESSES, Phase.STEADY)

    @property
    def has_planned(self) -> bool:
        """Whether the graph has been planned, or had a plan from the beginning."""
        return self.is_settled or self in (Phase.SETTLE, Phase.MEASURE)


class Origin(enum.Enum):
    """Where a plan comes from."""

    PROFILE = "profile"
    GIVEN = "given"  # the option `plan`
    REMEMBERED = "remembered"  # the plan cache


@dataclass(frozen=True)
class GraphState:
    """One graph of a training.

    Attributes:
        phase: What its next step is for.
        fingerprint: "" until it is known.
        function: The installed plan, without addresses; None for on-demand swaps.
        fits: Whether the graph runs unchanged because the model fits.
        origin: Where the plan comes from.
        is_profiled: Whether there is a profile to plan from.
        recorded: Number of steps recorded for the profile.
        steps: Measured steps of this phase; once settled, the latest ones.
        on_demand_s: Times of steps under on-demand swaps.
        trials: The plans that were measured for the current budget.
        sections: The numbers of sections that were tried.
    """

    phase: Phase = Phase.BOOTSTRAP
    fingerprint: str = ""
    function: FunctionPlan | None = None
    fits: bool = False
    origin: Origin = Origin.PROFILE
    is_profiled: bool = False
    recorded: int = 0
    steps: tuple[MeasuredStep, ...] = ()
    on_demand_s: tuple[float, ...] = ()
    trials: tuple[MeasuredPlan, ...] = ()
    sections: SectionSearch = SectionSearch()

    @property
    def moves(self) -> bool:
        """Whether it has a plan that swaps or recomputes tensors."""
        return self.function is not None and self.function.moves

    @property
    def is_proven(self) -> bool:
        """Whether its plan moves tensors, and a measured peak was as predicted."""
        return self.moves and bool(self.trials) and best(self.trials).is_as_predicted


@dataclass(frozen=True)
class Counted:
    """Which steps count while other graphs or shapes run, too.

    Attributes:
        fingerprint: The graph.
        larger: Whether only steps with larger tensors than profiled count.
        others: Number of other steps since the last one that counted.
    """

    fingerprint: str
    larger: bool = False
    others: int = 0


@dataclass(frozen=True)
class TrainingState:
    """A training: its graphs, of which one at a time is profiled, planned and measured.

    Attributes:
        plans_addresses: Whether addresses are planned.
        plans_further: Whether further graphs may get plans of their own.
        reassigns: Whether tensors are reassigned to host memory, codecs and file now and then.
        searches: Whether numbers of sections may be tried.
        leaves_fitting: Whether graphs that clearly fit may be left as they are.
        graphs: The first graph, which has the report, and further ones.
        turn: Index of the graph whose steps are profiled or measured.
        counted: Which steps count; None: all of them.
        watch: Finds further graphs.
        since_reassigned: Number of steps since tensors were reassigned.
        reassigns_next: Whether the next step is sampled to reassign tensors.
    """

    plans_addresses: bool = True
    plans_further: bool = True
    reassigns: bool = False
    searches: bool = False
    leaves_fitting: bool = True
    graphs: tuple[GraphState, ...] = (GraphState(),)
    turn: int = 0
    counted: Counted | None = None
    watch: GraphWatch = field(default_factory=GraphWatch)
    since_reassigned: int = 0
    reassigns_next: bool = False

    @property
    def graph(self) -> GraphState:
        """The graph whose turn it is."""
        return self.graphs[self.turn]

    @property
    def phase(self) -> Phase:
        return self.graph.phase

    @property
    def samples(self) -> bool:
        """Whether the next step's tensors are sampled for codecs."""
        return self.phase is Phase.WARM or self.reassigns_next

    @property
    def records(self) -> bool:
        """Whether the next step must be recorded."""
        return self.phase is Phase.PROFILE or self.counted is not None

    @property
    def observes(self) -> bool:
        """Whether the next step is recorded to see which graph it runs."""
        return self.phase is Phase.STEADY and self.plans_further and self.watch.observes

    def may_reassign(self, due: int) -> bool:
        """Return whether tensors may be reassigned now, if that is due after so many steps."""
        graph = self.graph
        return (
            self.reassigns
            and self.turn == 0
            and graph.phase is Phase.STEADY
            and self.since_reassigned >= due
            and graph.moves
            and graph.is_profiled
        )

    def index(self, fingerprint: str | None) -> int | None:
        """Return the index of a profiled graph, if there is one with this fingerprint."""
        found = (i for i, g in enumerate(self.graphs) if g.fingerprint == fingerprint)
        return next(found, None) if fingerprint else None

    def begun_again(self) -> TrainingState:
        """Return the state whose next step is the first one."""
        begun = GraphState(sections=SectionSearch(self.searches))
        return dataclasses.replace(self, graphs=(begun,), turn=0, counted=None)

    def put(self, graph: int, **changes: Any) -> TrainingState:
        """Return the state with changes of one graph."""
        graphs = list(self.graphs)
        graphs[graph] = dataclasses.replace(graphs[graph], **changes)
        return dataclasses.replace(self, graphs=tuple(graphs))
