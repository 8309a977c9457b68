"""Events that change the state of a training, and the actions that follow.

`TrainingRun` reports events and executes actions. Some actions are answered by another event.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tfswap.plan.measured_plan import MeasuredPlan, MeasuredStep
from tfswap.plan.schema import FunctionPlan

# Events


@dataclass(frozen=True)
class StepEnded:
    """A step has ended.

    Attributes:
        step: Its measurements.
        graph: Fingerprint of the graph that it ran; None if it was not recorded.
        is_like_profiled: Whether its tensors have the shapes of that graph's profile.
        is_larger: Whether its tensors are larger than those of that graph's profile.
        fits: Whether it clearly fit the budget and moved nothing.
    """

    step: MeasuredStep
    graph: str | None = None
    is_like_profiled: bool = False
    is_larger: bool = False
    fits: bool = False


class Met(enum.Enum):
    """What the pass met in the first step."""

    NOTHING = "nothing"  # nothing to plan: the pass did not run, or refused all graphs
    INFERENCE = "inference"  # only graphs without gradients
    UNPLANNED = "unplanned"
    LEFT = "left"  # it clearly fits, and stays as it is: TensorFlow's graph, or on-demand swaps
    FITS = "fits"  # it clearly fits, for batches of this size, so it needs no on-demand swaps
    RENAMED = "renamed"  # a given plan fits under other node names, and was pushed with those
    GIVEN = "given"
    REMEMBERED = "remembered"


@dataclass(frozen=True)
class GraphSeen:
    """The graphs of the first step were inspected.

    Attributes:
        met: What was met.
        function: The plan that a graph ran under, for `GIVEN` and `REMEMBERED`.
        fingerprint: The graph's, for `LEFT` and `FITS`.
    """

    met: Met
    function: FunctionPlan | None = None
    fingerprint: str = ""


@dataclass(frozen=True)
class Planned:
    """A graph was planned.

    Attributes:
        graph: Index of the graph.
        fingerprint: Its fingerprint.
        sections: Number of sections that the batch was split into.
        function: The plan; None if there is none, or the graph fits without one.
        problem: Why there is no plan; "" if there is one or none is needed.
        step_ns, wait_ns: Predicted time of a step, and the part that waits for copies.
        examples: Size of the batch; 0 if unknown.
        is_split: Whether the batch was split as requested.
        is_profiled: Whether the profile could be read.
        varies: Whether steps of other graphs or shapes run, too.
        on_demand_s: Times of the profiled steps, if they ran under on-demand swaps.
    """

    graph: int
    fingerprint: str = ""
    sections: int = 1
    function: FunctionPlan | None = None
    problem: str = ""
    step_ns: int = 0
    wait_ns: int = 0
    examples: int = 0
    is_split: bool = True
    is_profiled: bool = True
    varies: bool = False
    on_demand_s: tuple[float, ...] = ()


@dataclass(frozen=True)
class GraphForgotten:
    """The pass no longer knows the recorded graph; it sees it again in the next step."""


@dataclass(frozen=True)
class AddressesSettled:
    """The first graph has planned addresses, or will have none."""


@dataclass(frozen=True)
class BudgetChanged:
    """The budget or the link changed.

    Attributes:
        reason: What happened, for the log.
    """

    reason: str


@dataclass(frozen=True)
class EpochBegan:
    """An epoch begins.

    Attributes:
        has_new_rate: Whether lossy codecs have another rate in it.
    """

    has_new_rate: bool = False


@dataclass(frozen=True)
class Reassigned:
    """Tensors were reassigned to host memory, codecs and file: a plan to install."""

    function: FunctionPlan


@dataclass(frozen=True)
class GraphsCounted:
    """The graphs of the training were looked at.

    Attributes:
        has_unplanned: Whether one of them trains and has no plan.
    """

    has_unplanned: bool


@dataclass(frozen=True)
class Retraced:
    """The function has a new graph, which may train."""


@dataclass(frozen=True)
class XlaRefused:
    """XLA got no memory for a step, which runs op by op, like all others from now on."""


@dataclass(frozen=True)
class BatchStaysWhole:
    """The batch cannot be split, whatever the options say."""


Event = (
    StepEnded
    | GraphSeen
    | Planned
    | GraphForgotten
    | AddressesSettled
    | BudgetChanged
    | EpochBegan
    | Reassigned
    | GraphsCounted
    | Retraced
    | XlaRefused
    | BatchStaysWhole
)

# Actions. `graph` is the index of a graph.


@dataclass(frozen=True)
class InspectGraphs:
    """Look at the graphs that the pass met; answered by `GraphSeen`.

    Attributes:
        fits: Whether the step clearly fit the budget, so that no plan is needed.
    """

    fits: bool = False


@dataclass(frozen=True)
class PlanRecorded:
    """Plan the steps that were recorded; answered by `Planned` or `GraphForgotten`.

    Attributes:
        searches: Whether other numbers of sections were tried before.
    """

    graph: int
    searches: bool = False


@dataclass(frozen=True)
class PlanAgain:
    """Plan from the profile; answered by `Planned`.

    Attributes:
        corrects: The measured plan whose prediction was wrong; None for a new budget.
    """

    graph: int
    corrects: MeasuredPlan | None = None


@dataclass(frozen=True)
class Install:
    """Install a plan.

    Attributes:
        is_new: Whether it was just made.
    """

    graph: int
    function: FunctionPlan
    is_new: bool = False


@dataclass(frozen=True)
class LeaveUnchanged:
    """Run the graph as TensorFlow made it: the model fits."""

    graph: int


@dataclass(frozen=True)
class Withdraw:
    """Return to on-demand swaps.

    Attributes:
        forgets: Whether the plan cache forgets the plan.
        step_s: Time of a step under on-demand swaps, where the plan was slower; else 0.
    """

    graph: int
    forgets: bool = False
    step_s: float = 0.0


@dataclass(frozen=True)
class BeginAgain:
    """Withdraw all plans: the next step is the first one, under on-demand swaps.

    Attributes:
        leaves_fitting: Whether graphs that clearly fit may be left as they are.
    """

    leaves_fitting: bool = True


@dataclass(frozen=True)
class Split:
    """Split the batch into a number of sections, whose graph is another one."""

    sections: int
    examples: int


@dataclass(frozen=True)
class NoteBudget:
    """Use the budget and link as they are now from the next plan on."""

    graph: int


@dataclass(frozen=True)
class CheckApplied:
    """Warn if the pass refused the installed plan."""

    graph: int


@dataclass(frozen=True)
class Keep:
    """Report and save the plan that stays.

    Attributes:
        measured: How it did; None if it was not measured.
    """

    graph: int
    measured: MeasuredPlan | None


@dataclass(frozen=True)
class Summarize:
    """Print the summary."""


@dataclass(frozen=True)
class Remember:
    """Put the plan into the plan cache."""

    graph: int


@dataclass(frozen=True)
class PlanAddresses:
    """Record steps until addresses are planned; answered by `AddressesSettled`."""


@dataclass(frozen=True)
class DropAddresses:
    """Remove planned addresses.

    Attributes:
        fingerprint: Fingerprint of one graph; "" stops recording and removes those of all graphs.
    """

    fingerprint: str = ""


@dataclass(frozen=True)
class ResumeAddresses:
    """Record steps again: a further graph has lost its addresses."""


@dataclass(frozen=True)
class Reassign:
    """Reassign tensors if that makes steps shorter; answered by `Reassigned`, if it does."""


@dataclass(frozen=True)
class CountGraphs:
    """Look for graphs that train and have no plan; answered by `GraphsCounted`.

    Attributes:
        planned: Fingerprints of the planned graphs.
    """

    planned: frozenset[str]


@dataclass(frozen=True)
class Log:
    """Keep a note in the report and print it.

    Attributes:
        warns: Whether to warn instead of printing.
        keeps: Whether the report keeps it.
    """

    text: str
    warns: bool = False
    keeps: bool = True


Action = (
    InspectGraphs
    | PlanRecorded
    | PlanAgain
    | Install
    | LeaveUnchanged
    | Withdraw
    | BeginAgain
    | Split
    | NoteBudget
    | CheckApplied
    | Keep
    | Summarize
    | Remember
    | PlanAddresses
    | DropAddresses
    | ResumeAddresses
    | Reassign
    | CountGraphs
    | Log
)
