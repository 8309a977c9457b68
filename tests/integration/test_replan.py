"""Plans that are replaced in the middle of a training: the same losses, within each budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
from models import MIB, Losses, budget_of, compiled, convolutions, deterministic, trained

import tfswap
from tfswap.devices.managed_devices import ManagedDevices
from tfswap.training.run import TrainingRun

EPOCHS = 5


@pytest.fixture(autouse=True)
def determinism():
    deterministic()


@pytest.fixture(scope="module")
def unswapped() -> Losses:
    deterministic()
    return trained(lambda: compiled(convolutions()), epochs=EPOCHS)


class Between(keras.callbacks.Callback):
    """Call a function between two steps, the first time that a plan is settled.

    Attributes:
        phases: The phase after each step.
        peaks: The peak of each step, and the budget in it.
    """

    def __init__(self, swap: tfswap.AutoSwap, act: Callable[[TrainingRun, ManagedDevices], None]):
        super().__init__()
        self._swap = swap
        self._act = act
        self._acted = False
        self.phases: list[str] = []
        self.peaks: list[tuple[int, int]] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        (training,) = tfswap.status()["trainings"]
        self.phases.append(training["phase"])
        stats = tfswap.memory_stats()
        self.peaks.append((stats["peak_bytes"], stats["budget_bytes"]))
        if training["phase"] == "steady" and not self._acted:
            self._acted = True
            run = self._swap._fit.run
            self._act(run, run._context.devices)
            tfswap.reset_memory_stats()


def settled_again(phases: list[str]) -> bool:
    """Return whether a plan settled twice, without a second profile."""
    rest = phases[phases.index("steady") + 1 :]
    return "measure" in rest and "steady" in rest and "profile" not in rest


@pytest.mark.parametrize(
    "before, after, slab",
    [
        (0.75, 0.55, True),
        pytest.param(0.55, 0.75, False, marks=pytest.mark.slow),
        pytest.param(0.75, 0.55, False, marks=pytest.mark.slow),
        pytest.param(0.55, 0.75, True, marks=pytest.mark.slow),
    ],
)
def test_a_plan_is_made_for_another_budget(unswapped, slab, before, after):
    budget = budget_of(unswapped, before)
    other = budget_of(unswapped, after)

    def change(run: TrainingRun, devices: ManagedDevices) -> None:
        assert devices.change_budget(other)
        run.replan("the budget is another one")

    swap = tfswap.AutoSwap(budget=budget, slab=slab, verbose=0)
    between = Between(swap, change)
    swapped = trained(lambda: compiled(convolutions()), [swap, between], epochs=EPOCHS)
    assert swapped.losses == unswapped.losses
    assert all(peak <= limit for peak, limit in between.peaks)
    assert {limit for _, limit in between.peaks} == {budget, other}
    assert settled_again(between.phases), between.phases
    report = swap.report
    assert report["outcome"] == "swapped" and report["budget_bytes"] == other
    assert report["plan"].budget_bytes == other
    assert any("the budget is another one" in note for note in report["notes"])
    assert bool(report["plan"].functions[-1].layouts) == slab


def test_on_demand_swaps_keep_a_budget_without_a_plan(unswapped, monkeypatch):
    from tfswap.planning.planners.decision import no_plan_fits
    from tfswap.training.step_planner import StepPlanner

    plan = StepPlanner.plan
    other = budget_of(unswapped, 0.6)

    def none_for_less(planner: StepPlanner) -> Any:
        if planner._devices.budget_bytes > other:
            return plan(planner)
        least = planner.least_budgets().swapped
        raise no_plan_fits(planner.profile.timeline, least.bytes - 1, least.bytes, least.op)

    def change(run: TrainingRun, devices: ManagedDevices) -> None:
        assert devices.change_budget(other)
        run.replan("less is left")

    monkeypatch.setattr(StepPlanner, "plan", none_for_less)
    swap = tfswap.AutoSwap(budget=budget_of(unswapped, 0.75), verbose=0)
    between = Between(swap, change)
    with pytest.warns(UserWarning, match="Training goes on under on-demand swaps"):
        swapped = trained(lambda: compiled(convolutions()), [swap, between], epochs=EPOCHS)
    assert swapped.losses == unswapped.losses
    assert all(peak <= limit for peak, limit in between.peaks)
    assert swap.report["outcome"] == "bootstrap" and swap.report["plan"] is None
    assert swap.report["bytes_out_per_step"] > 0


def test_a_sufficient_budget_ends_the_swaps(unswapped):
    def change(run: TrainingRun, devices: ManagedDevices) -> None:
        assert devices.change_budget(1 << 32)
        run.replan("more is left")

    swap = tfswap.AutoSwap(budget=budget_of(unswapped, 0.6), verbose=0)
    between = Between(swap, change)
    swapped = trained(lambda: compiled(convolutions()), [swap, between], epochs=EPOCHS)
    assert swapped.losses == unswapped.losses
    assert swap.report["outcome"] == "fits"
    assert tfswap.memory_stats()["copies_out"] == 0


def test_a_smaller_budget_before_the_first_plan_is_planned_for(unswapped):
    class Early(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 0 and self.params["epochs"] and not self.done:
                self.done = True
                run = swap._fit.run
                assert run._context.devices.change_budget(other)
                run.replan("less is left")

        done = False

    budget, other = (budget_of(unswapped, part) for part in (0.75, 0.6))
    swap = tfswap.AutoSwap(budget=budget, verbose=0)
    swapped = trained(lambda: compiled(convolutions()), [swap, Early()], epochs=2)
    assert swapped.losses == unswapped.losses[: len(swapped.losses)]
    assert swap.report["plan"].budget_bytes == other
    assert not any("new plan" in note for note in swap.report["notes"])


@pytest.mark.slow
def test_a_given_plan_is_replaced_by_one_from_its_own_profile(unswapped, tmp_path):
    path = tmp_path / "plan.json"
    budget = budget_of(unswapped, 0.6)
    saved = tfswap.AutoSwap(budget=budget, save_plan=path, verbose=0)
    trained(lambda: compiled(convolutions()), [saved], epochs=2)
    swap = tfswap.AutoSwap(budget=budget, plan=path, verbose=0)
    between = Between(swap, lambda run, devices: run.replan("asked for"))
    swapped = trained(lambda: compiled(convolutions()), [swap, between], epochs=EPOCHS)
    assert swapped.losses == unswapped.losses
    assert "profile" in between.phases
    assert all(peak <= budget for peak, _ in between.peaks)
    assert swap.report["outcome"] == "swapped", swap.report["notes"]
    assert not any("fits none" in note for note in swap.report["notes"])


def test_a_budget_is_positive_and_bytes_that_stay_are_reported(lib, megabytes):
    from tfswap.devices.swap_options import SwapOptions
    from tfswap.devices.swap_session import SwapSession
    from tfswap.report.training_log import TrainingLog

    session = SwapSession(SwapOptions(budget="1GiB"), TrainingLog([], False))
    session.begin()
    try:
        held = megabytes(8)
        assert session.devices.change_budget(512 * MIB)
        assert not session.devices.change_budget(4 * MIB)
        assert tfswap.memory_stats()["budget_bytes"] == 4 * MIB
        with pytest.raises(ValueError, match="above 0 bytes"):
            session.devices.change_budget(0)
        del held
    finally:
        session.end()
