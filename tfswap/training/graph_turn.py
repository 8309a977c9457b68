"""GraphTurn: whose turn it is, of a training's graphs, to be profiled, planned and measured."""

from __future__ import annotations

from tfswap.step.trace import StepTrace
from tfswap.training.phase import Phase
from tfswap.training.plan_choice import PlanChoice

# How many steps of other graphs or shapes one that is looked at is waited for: to be profiled, and
# to be measured, without which a plan holds as well.
_PATIENCE, _PATIENCE_TO_MEASURE = 64, 16


class GraphTurn:
    """The first graph's, mostly; further ones have theirs when it is settled.

    Args:
        first: Of the training's first graph.

    Attributes:
        choice: Of the graph whose turn it is.
        further: Of graphs beside the first one, by fingerprint.
        only: The graph whose steps count until the plan is settled; "": all do.
        only_larger: Of that, those for larger tensors than were planned.
        back_to: The first graph's phase, behind those of a further one.
    """

    def __init__(self, first: PlanChoice) -> None:
        self._first = self.choice = first
        self.further: dict[str, PlanChoice] = {}
        self.only = ""
        self.only_larger = False
        self.back_to = Phase.STEADY
        self._others = 0  # steps of other graphs meanwhile

    @property
    def is_further(self) -> bool:
        """Whether it is a further graph's."""
        return self.choice is not self._first

    @property
    def choices(self) -> tuple[PlanChoice, ...]:
        """Of all graphs that have had their turn, the first one before all others."""
        return (self._first, *self.further.values())

    def choice_of(self, fingerprint: str | None) -> PlanChoice | None:
        """That of a graph, if it has one."""
        return next((each for each in self.choices if each.fingerprint == fingerprint), None)

    def take(
        self, choice: PlanChoice, back_to: Phase, only: str = "", only_larger: bool = False
    ) -> None:
        """Gives a graph its turn.

        Args:
            choice: Of that graph.
            back_to: The first graph's phase afterwards.
            only: Whose steps count.
            only_larger: Whether only those for larger tensors than were planned do.
        """
        self.choice, self.back_to = choice, back_to
        if only:
            self.tell_apart(only)
            self.only_larger = only_larger

    def tell_apart(self, only: str) -> None:
        """Has only steps of that graph count."""
        self.only, self._others = only, 0

    def all_count(self) -> None:
        """Has the steps of all graphs count."""
        self.only, self.only_larger = "", False

    def leave(self) -> bool:
        """Goes back to the first graph; False when it is its turn."""
        if not self.is_further:
            return False
        choice, self.choice = self.choice, self._first
        if choice.has_profile:
            self.further[choice.fingerprint] = choice
        self.only = ""
        return True

    def counts(self, trace: StepTrace | None, has_planned: bool) -> bool:
        """Whether a step counts that has ended.

        Args:
            trace: Its recording.
            has_planned: Whether the graph's plan is there already, and is measured.
        """
        if trace is not None and trace.main_graph() == self.only:
            if has_planned:
                is_it = self.choice.planner.is_like_profiled(trace)
            else:
                is_it = not self.only_larger or self.choice.planner.is_larger(trace)
            if is_it:
                self._others = 0
                return True
        self._others += 1
        return False

    def come_no_more(self, has_planned: bool) -> bool:
        """Whether steps that count have been waited for in vain."""
        return self._others >= (_PATIENCE_TO_MEASURE if has_planned else _PATIENCE)
