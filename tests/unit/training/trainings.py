"""States and events for tests of the state machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from tfswap.plan.measured_plan import MeasuredPlan, MeasuredStep
from tfswap.plan.schema import FunctionPlan, TensorSwap
from tfswap.training.events import Action, Event, StepEnded
from tfswap.training.states import GraphState, Phase, TrainingState
from tfswap.training.transitions import next_state


def plan(fingerprint: str = "first", peak_bytes: int = 100, tensor: str = "a:0") -> FunctionPlan:
    """Return a plan that swaps one tensor of 10 bytes."""
    swap = TensorSwap(tensor, 10, (), ())
    return FunctionPlan(fingerprint, swaps=(swap,), predicted_peak_bytes=peak_bytes)


def step(seconds: float = 1.0, peak_bytes: int = 100, **changes: Any) -> MeasuredStep:
    """Return a step that did as `plan` predicts."""
    measured = MeasuredStep(seconds, peak_bytes, 0, 10, 10, 0)
    return dataclasses.replace(measured, **changes)


def ended(
    seconds: float = 1.0, peak_bytes: int = 100, graph: str | None = None, fits: bool = False
) -> StepEnded:
    measured = step(seconds, peak_bytes)
    return StepEnded(measured, graph, is_like_profiled=graph is not None, fits=fits)


def measured(function: FunctionPlan, seconds: float = 1.0, peak_bytes: int = 100) -> MeasuredPlan:
    return MeasuredPlan.of(function, [step(seconds, peak_bytes)])


def state_of(phase: Phase, **changes: Any) -> TrainingState:
    """Return a training with one graph in a phase; `changes` are of the graph."""
    return TrainingState(graphs=(GraphState(phase=phase, fingerprint="first", **changes),))


def follow(state: TrainingState, *events: Event) -> tuple[TrainingState, tuple[Action, ...]]:
    """Return the state after events, and the actions of the last one."""
    actions: tuple[Action, ...] = ()
    for event in events:
        state, actions = next_state(state, event)
    return state, actions


def kinds(actions: Iterable[Action]) -> list[str]:
    """Return the names of the actions' types."""
    return [type(action).__name__ for action in actions]
