"""What changes in the middle of a training leads to other plans, and to no other numbers."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf
from models import (
    Losses,
    budget_of,
    compiled,
    convolutions,
    deterministic,
    images,
    others_bytes,
    trained,
)

import tfswap
from tfswap.devices import device_link
from tfswap.plan import measured_plan
from tfswap.step.op_durations import planned_durations
from tfswap.training import drift_watch, graph_watch, step_planner

EPOCHS = 6


@pytest.fixture(autouse=True)
def looks_often(monkeypatch):
    """Every fourth step, where users wait for the 64th."""
    deterministic()
    monkeypatch.setattr(drift_watch, "FIRST_PAUSE", 4)
    monkeypatch.setattr(drift_watch, "_FIRST_STEPS", 4)
    monkeypatch.setattr(graph_watch, "FIRST_PAUSE", 4)


@pytest.fixture(scope="module")
def unswapped() -> Losses:
    deterministic()
    return trained(lambda: compiled(convolutions()), epochs=EPOCHS)


class OpsTake:
    """Has each recorded step look as if its ops took so many times as long as planned with.

    Attributes:
        factor: Of each, by its name.
        recorded: Steps in passing.
    """

    def __init__(self, monkeypatch, factor=lambda name: 1.0) -> None:
        self.factor = factor
        self.recorded = 0
        read = step_planner.StepPlanner.read
        planned_ns: dict[str, dict[str, int]] = {}  # by graph

        def remembered(planner, traces, min_bytes):
            profile = read(planner, traces, min_bytes)
            planned_ns[profile.fingerprint] = planned_durations(profile.timeline)
            return profile

        def durations(trace, graph):
            self.recorded += 1
            planned = planned_ns[trace.main_graph()]
            return {name: round(ns * self.factor(name)) for name, ns in planned.items()}

        monkeypatch.setattr(step_planner.StepPlanner, "read", remembered)
        monkeypatch.setattr(step_planner, "op_durations", durations)


def notes_with(report, text: str) -> list[str]:
    return [note for note in report["notes"] if text in note]


def test_steady_steps_are_recorded_and_the_plan_stays(unswapped, monkeypatch):
    ops = OpsTake(monkeypatch)
    swap = tfswap.AutoSwap(budget=budget_of(unswapped, 0.6), link_bandwidth=4e9, verbose=0)
    swapped = trained(lambda: compiled(convolutions()), [swap], epochs=EPOCHS)
    assert swapped.losses == unswapped.losses
    assert ops.recorded > 0
    assert not notes_with(swap.report, "ops take")


@pytest.mark.slow
def test_real_recordings_are_taken(unswapped, monkeypatch):
    taken = []
    time_step = step_planner.StepPlanner.time_step

    def watched(planner, trace):
        taken.append(time_step(planner, trace))
        return taken[-1]

    monkeypatch.setattr(step_planner.StepPlanner, "time_step", watched)
    swap = tfswap.AutoSwap(budget=budget_of(unswapped, 0.6), link_bandwidth=4e9, verbose=0)
    swapped = trained(lambda: compiled(convolutions()), [swap], epochs=EPOCHS)
    assert swapped.losses == unswapped.losses
    assert taken and None not in taken


@pytest.mark.parametrize("slab", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_drift_leads_to_one_new_plan(unswapped, monkeypatch, slab):
    # Faster ops leave copies less time to hide in.
    OpsTake(monkeypatch, lambda name: 0.25)
    budget = budget_of(unswapped, 0.55)
    swap = tfswap.AutoSwap(budget=budget, link_bandwidth=1e9, slab=slab, verbose=0)
    swapped = trained(lambda: compiled(convolutions()), [swap], epochs=EPOCHS + 2)
    assert swapped.losses[: len(unswapped.losses)] == unswapped.losses
    assert max(swapped.peaks) <= budget
    assert len(notes_with(swap.report, "ops take")) == 1
    assert swap.report["outcome"] == "swapped"


@pytest.mark.slow
def test_the_plan_stays_where_none_fits_any_more(unswapped, monkeypatch):
    from tfswap.planning.planners.decision import no_plan_fits

    OpsTake(monkeypatch, lambda name: 3.0)
    plan, planned = step_planner.StepPlanner.plan, []

    def once(planner):
        if planned:
            least = planner.least_budgets().swapped
            raise no_plan_fits(planner.profile.timeline, least.bytes - 1, least.bytes, least.op)
        planned.append(plan(planner))
        return planned[-1]

    monkeypatch.setattr(step_planner.StepPlanner, "plan", once)
    monkeypatch.setattr(measured_plan, "TOLERANCE", 1.0)
    swap = tfswap.AutoSwap(budget=budget_of(unswapped, 0.6), link_bandwidth=4e9, verbose=0)
    swapped = trained(lambda: compiled(convolutions()), [swap], epochs=EPOCHS)
    assert swapped.losses == unswapped.losses
    assert len(notes_with(swap.report, "the plan stays")) == 1
    (kept,) = planned
    assert swap.report["plan"].functions[0].swaps == kept.function.swaps


@pytest.mark.slow
def test_another_speed_of_the_link_leads_to_a_new_plan(unswapped, monkeypatch, lib):
    OpsTake(monkeypatch)
    monkeypatch.setattr(device_link, "_MUCH_FASTER", 0.1)  # however busy the machine is

    class Slower(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs=None) -> None:
            if epoch == 3:
                lib.emulate_link(0, 0.1e9)

    budget = budget_of(unswapped, 0.6)
    swap = tfswap.AutoSwap(
        budget=budget,
        link_bandwidth=0.4e9,
        policy="autoswap:swdoa",
        codec=None,
        slab=False,
        verbose=0,
    )
    swapped = trained(lambda: compiled(convolutions()), [swap, Slower()], epochs=EPOCHS + 2)
    assert swapped.losses[: len(unswapped.losses)] == unswapped.losses
    (note,) = notes_with(swap.report, "expected")
    assert max(swapped.peaks) <= budget
    assert "0.4 were expected: a new plan is made" in note
    assert swap.report["outcome"] == "swapped"


class Loop:
    """A step that is traced for each size of images, as custom loops have it."""

    def __init__(self) -> None:
        keras.utils.clear_session()
        keras.utils.set_random_seed(7)
        self.model = convolutions(size=None)
        optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
        optimizer.build(self.model.trainable_variables)
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

        def train_step(x, y):
            with tf.GradientTape() as tape:
                loss = loss_of(y, self.model(x, training=True))
            gradients = tape.gradient(loss, self.model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
            return loss

        self.step = tf.function(train_step)

    def losses(self, sizes: tuple[int, ...]) -> list[float]:
        data = {size: tuple(map(tf.constant, images(32, size))) for size in set(sizes)}
        return [float(self.step(*data[size])) for size in sizes]


ALTERNATING = (48, 40) * 40
LARGER_LATER = (40,) * 16 + (48,) * 44


@pytest.fixture(scope="module")
def unswapped_loops() -> tuple[dict[tuple[int, ...], list[float]], int]:
    """Losses by sizes, and what such a loop holds beside what is there without."""
    deterministic()
    before = others_bytes()
    tfswap.reset_memory_stats()
    losses = {sizes: Loop().losses(sizes) for sizes in (ALTERNATING, LARGER_LATER)}
    return losses, tfswap.memory_stats()["peak_bytes"] - before


@pytest.mark.parametrize("sizes", [ALTERNATING, pytest.param(LARGER_LATER, marks=pytest.mark.slow)])
@pytest.mark.parametrize("slab", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_each_graph_gets_a_plan_of_its_own(unswapped_loops, monkeypatch, sizes, slab):
    OpsTake(monkeypatch)
    losses, peak = unswapped_loops
    budget = others_bytes() + int(0.6 * peak)
    with tfswap.Session(budget=budget, link_bandwidth=4e9, slab=slab, verbose=0) as session:
        loop = Loop()
        tfswap.reset_memory_stats()
        assert loop.losses(sizes) == losses[sizes]
        assert tfswap.memory_stats()["peak_bytes"] <= budget
        report = session.reports["train_step"]
    # Ops that are kept in order may need so much less that nothing need leave.
    planned = [f for f in report["plan"].functions if f.swaps or f.recomputes or f.order]
    assert len(planned) == 2, report["notes"]
    assert len(notes_with(report, "2 graphs of this training")) == 1


class Batches(keras.utils.PyDataset):
    """Images of several sizes, for one graph: their sizes are not known before the step."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self._sizes = sizes
        self._data = {size: images(32, size) for size in set(sizes)}

    def __len__(self) -> int:
        return len(self._sizes)

    def __getitem__(self, place: int):
        return self._data[self._sizes[place]]


def fitted(sizes: list[int], *callbacks) -> Losses:
    losses = Losses()
    keras.utils.set_random_seed(7)
    model = compiled(convolutions(size=None))
    model.fit(Batches(sizes), shuffle=False, verbose=0, callbacks=[*callbacks, losses])
    return losses


@pytest.mark.slow
@pytest.mark.parametrize("slab, policy", [(True, "auto"), (False, "recompute")])
def test_a_graph_for_several_shapes_is_planned_for_the_larger_ones(monkeypatch, slab, policy):
    OpsTake(monkeypatch)
    sizes = [40, 48] + [40] * 18 + [48, 40] * 80
    unswapped = fitted(sizes)
    budget = budget_of(unswapped, 0.6)
    swap = tfswap.AutoSwap(budget=budget, link_bandwidth=4e9, slab=slab, policy=policy, verbose=0)
    swapped = fitted(sizes, swap)
    assert swapped.losses == unswapped.losses
    assert max(swapped.peaks) <= budget
    assert len(notes_with(swap.report, "larger tensors")) == 1
    needed = max(unswapped.peaks) - unswapped.others_bytes
    assert swap.report["unswapped_peak_bytes"] > 0.9 * needed
