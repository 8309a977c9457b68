"""Whole trainings: equal losses inside a budget, or a clear message about what is not possible."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import MIB, Losses, budget_of, compiled, convolutions, deterministic, images, trained

import tfswap
from tfswap.plan.measured_plan import MeasuredPlan
from tfswap.planning.planners.decision import no_plan_fits
from tfswap.training.step_planner import StepPlanner


@pytest.fixture(autouse=True)
def determinism():
    deterministic()


@pytest.fixture(scope="module")
def unswapped() -> Losses:
    deterministic()
    first = trained(lambda: compiled(convolutions()), epochs=2)
    assert first.losses == trained(lambda: compiled(convolutions()), epochs=2).losses
    return first


@pytest.mark.parametrize("slab", [True, False])
def test_same_losses_inside_a_budget_that_the_model_exceeds(unswapped, capsys, slab):
    budget = budget_of(unswapped, 0.6)
    swap = tfswap.AutoSwap(budget=budget, slab=slab)
    swapped = trained(lambda: compiled(convolutions()), [swap], epochs=2)
    assert swapped.losses == unswapped.losses
    assert max(swapped.peaks) <= budget
    assert swapped.peaks[0] <= budget  # the first step, too
    report = swap.report
    assert report["outcome"] == "swapped"
    assert report["swapped_buffers"] + report["recomputed_buffers"] > 0
    assert report["predicted_peak_bytes"] == pytest.approx(report["measured_peak_bytes"], rel=0.1)
    # Whether the 15 MiB workspaces of two convolutions overlap is up to the executor, in any step.
    work_space = 15 * MIB
    assert abs(report["unswapped_peak_bytes"] - max(unswapped.peaks)) <= work_space + MIB
    printed = [line for line in capsys.readouterr().out.splitlines() if line]
    assert 1 <= len(printed) <= 6
    assert all(line.startswith("tfswap: ") for line in printed)


def test_without_the_callback_the_budget_fails_the_model(unswapped):
    tfswap.set_budget(budget_of(unswapped, 0.6))
    with pytest.raises(tf.errors.ResourceExhaustedError, match="tfswap: the memory budget"):
        trained(lambda: compiled(convolutions()))


@pytest.mark.slow
def test_a_model_can_be_trained_repeatedly(unswapped):
    keras.utils.clear_session()
    keras.utils.set_random_seed(7)
    model = compiled(convolutions())
    x, y = images()
    for _ in range(3):
        swap = tfswap.AutoSwap(budget=budget_of(unswapped, 0.6), verbose=0)
        model.fit(x, y, batch_size=32, epochs=2, verbose=0, shuffle=False, callbacks=[swap])
        assert swap.report["outcome"] == "swapped"
        assert swap.report["swapped_buffers"] + swap.report["recomputed_buffers"] > 0
        assert not any("did not run" in note for note in swap.report["notes"])


def test_a_model_can_be_trained_with_other_batches_and_then_with_the_first(unswapped):
    keras.utils.clear_session()
    model = compiled(convolutions())
    x, y = images()
    for batch_size in (32, 16, 32):
        swap = tfswap.AutoSwap(budget=budget_of(unswapped, 0.55), verbose=0)
        model.fit(x, y, batch_size=batch_size, epochs=3, verbose=0, shuffle=False, callbacks=[swap])
        assert swap.report["outcome"] in ("swapped", "fits")
        assert not any("did not run" in note for note in swap.report["notes"])
        if batch_size == 32:
            assert swap.report["swapped_buffers"] + swap.report["recomputed_buffers"] > 0


@pytest.mark.parametrize("slab", [True, False])
def test_nothing_moves_if_it_fits(unswapped, slab):
    swap = tfswap.AutoSwap(budget="4GiB", slab=slab, verbose=0)
    assert "no training yet" in swap._repr_html_()
    swapped = trained(lambda: compiled(convolutions()), [swap], epochs=2)
    assert swapped.losses == unswapped.losses
    assert swap.report["outcome"] == "fits"
    assert swap.report["plan"] is None
    assert "the model fits" in swap._repr_html_()
    assert tfswap.memory_stats()["copies_out"] == 0
    # Stock TensorFlow's graph ran, and their peak is measured. It varies with which ops run
    # at once, by an activation or two of 5 % each: 88.6, 93.2 or 98.1 MB from run to run.
    measured = swap.report["unswapped_peak_bytes"]
    assert measured <= max(swapped.peaks)
    assert measured == pytest.approx(max(unswapped.peaks), rel=0.12)


def test_a_step_that_is_predicted_to_fit_moves_nothing(unswapped):
    """With a budget near the peak, the order of ops decides whether the step fits."""
    copies = []

    class Copies(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            copies.append(tfswap.memory_stats()["copies_in"])

    swap = tfswap.AutoSwap(budget=budget_of(unswapped, 1.0), verbose=0)
    swapped = trained(lambda: compiled(convolutions()), [swap, Copies()], epochs=4)
    assert swapped.losses[: len(unswapped.losses)] == unswapped.losses
    assert max(swapped.peaks) <= swap.report["budget_bytes"]
    assert swap.report["outcome"] in ("fits", "swapped")
    if swap.report["outcome"] == "fits":
        assert copies[-1] == copies[-6]


def test_verify_finds_a_changed_buffer(unswapped, lib):
    class Corrupt(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 6:
                lib.set_faults("bit-flip")

    swap = tfswap.AutoSwap(budget=budget_of(unswapped, 0.5), verify=True, verbose=0)
    with pytest.raises(tf.errors.DataLossError, match="came back from far memory changed"):
        trained(lambda: compiled(convolutions()), [swap, Corrupt()])


def test_verify_changes_no_number(unswapped):
    swap = tfswap.AutoSwap(budget=budget_of(unswapped, 0.6), verify=True, verbose=0)
    swapped = trained(lambda: compiled(convolutions()), [swap], epochs=2)
    assert swapped.losses == unswapped.losses


@pytest.mark.slow
def test_an_emulated_link_changes_no_number(unswapped):
    swap = tfswap.AutoSwap(budget=budget_of(unswapped, 0.6), link_bandwidth="500MB/s", verbose=0)
    swapped = trained(lambda: compiled(convolutions()), [swap], epochs=2)
    assert swapped.losses == unswapped.losses
    assert swap.report["outcome"] == "swapped"


@pytest.mark.slow
def test_a_plan_that_is_slower_than_on_demand_swaps_is_dropped(unswapped, monkeypatch):
    monkeypatch.setattr(MeasuredPlan, "is_slower_than", lambda attempt, seconds: bool(seconds))
    budget = budget_of(unswapped, 0.6)
    swap = tfswap.AutoSwap(budget=budget)
    found = trained(lambda: compiled(convolutions()), [swap], epochs=5)
    assert found.losses[: len(unswapped.losses)] == unswapped.losses
    assert max(found.peaks) <= budget
    report = swap.report
    assert report["outcome"] == "bootstrap" and report["plan"] is None
    assert report["bytes_out_per_step"] > 0 and report["step_s"] > 0
    assert any("the plan was given up" in note for note in report["notes"])


@pytest.mark.parametrize("sections", [None, pytest.param(2, marks=pytest.mark.slow)])
def test_a_budget_without_a_plan_is_reported_with_advice(unswapped, monkeypatch, sections):
    def plan(planner: StepPlanner) -> None:
        least = planner.least_budgets().swapped
        raise no_plan_fits(planner.profile.timeline, least.bytes - 1, least.bytes, least.op)

    monkeypatch.setattr(StepPlanner, "plan", plan)
    swap = tfswap.AutoSwap(budget=budget_of(unswapped, 0.6), sections=sections, verbose=0)
    with pytest.warns(UserWarning, match="the least that a plan can keep is") as warned:
        trained(lambda: compiled(convolutions()), [swap])
    texts = [str(warning.message) for warning in warned]
    said = next(text for text in texts if "least that a plan" in text)
    report = swap.report
    assert report["outcome"] == "bootstrap"
    least = report["least_budgets"]
    assert least.swapped.bytes < least.unswapped.bytes and least.sections_help
    assert f"While op {least.swapped.op!r} runs" in said
    assert ("Or use AutoSwap(sections=2): the least is then" in said) == (sections is None)
    assert said.endswith("Training goes on under on-demand swaps, which keep the budget but wait.")


def test_tensorboard_shows_each_step_and_a_picture_of_the_plan(unswapped, tmp_path):
    budget = budget_of(unswapped, 0.6)
    swap = tfswap.AutoSwap(budget=budget, policy="greedy", verbose=0, log_dir=tmp_path)
    found = trained(lambda: compiled(convolutions()), [swap], epochs=2)
    assert found.losses == unswapped.losses
    (path,) = tmp_path.iterdir()
    scalars: dict[str, list[float]] = {}
    pictures = []
    for event in tf.compat.v1.train.summary_iterator(str(path)):
        for value in event.summary.value:
            if value.HasField("image"):
                pictures.append((value.tag, value.image.encoded_image_string[:4]))
            elif value.HasField("simple_value"):
                scalars.setdefault(value.tag, []).append(value.simple_value)
    assert {len(values) for values in scalars.values()} == {len(found.losses)}
    assert set(scalars["tfswap/budget_bytes"]) == {float(np.float32(budget))}
    assert 0 < max(scalars["tfswap/peak_bytes"]) <= scalars["tfswap/budget_bytes"][0]
    assert scalars["tfswap/bytes_out"][-1] > 0 and min(scalars["tfswap/step_s"]) > 0
    assert pictures and set(pictures) == {("tfswap/plan", b"\x89PNG")}


def test_a_saved_plan_needs_no_profile(unswapped, tmp_path):
    path = tmp_path / "plan.json"
    budget = budget_of(unswapped, 0.6)
    trained(
        lambda: compiled(convolutions()),
        [tfswap.AutoSwap(budget=budget, save_plan=path, verbose=0)],
        epochs=2,
    )
    assert json.loads(path.read_text())["version"] == 1
    plan = tfswap.SwapPlan.load(path)
    assert plan.functions[-1].swaps or plan.functions[-1].recomputes
    swap = tfswap.AutoSwap(budget=budget, plan=path, verbose=0)
    swapped = trained(lambda: compiled(convolutions()), [swap], epochs=2)
    assert swapped.losses == unswapped.losses
    assert swap.report["outcome"] == "swapped"
    assert max(swapped.peaks) <= budget


def test_a_plan_of_another_model_is_not_applied(unswapped, tmp_path):
    path = tmp_path / "plan.json"
    budget = budget_of(unswapped, 0.6)
    trained(
        lambda: compiled(convolutions(filters=12)),
        [tfswap.AutoSwap(budget=budget_of(unswapped, 0.45), save_plan=path, verbose=0)],
        epochs=2,
    )
    swap = tfswap.AutoSwap(budget=budget, plan=path, verbose=0)
    with pytest.warns(UserWarning, match="fits none of this training's graphs"):
        swapped = trained(lambda: compiled(convolutions()), [swap], epochs=2)
    assert swapped.losses == unswapped.losses


def test_a_budget_that_cannot_be_met_names_the_op_and_its_need(unswapped):
    swap = tfswap.AutoSwap(budget=2 * MIB, verbose=0)
    with pytest.raises(tf.errors.ResourceExhaustedError) as failure:
        trained(lambda: compiled(convolutions()), [swap])
    # The executor decides which op is the first without room.
    said = str(failure.value)
    assert re.search(r"What to do:(\n  - .+){2}", said)
    ending = (swap.report["out_of_memory"] or said[said.index("tfswap: the") :]).splitlines()
    assert ending[0].startswith("tfswap: the memory budget of 2.0 MiB is exceeded")
    assert [line[:4] for line in ending[1:3]] == ["  - ", "  - "]
    assert tfswap.memory_stats()["budget_bytes"] is None


def test_budgets_by_device_must_name_existing_devices(unswapped):
    budget = budget_of(unswapped, 0.6)
    swap = tfswap.AutoSwap(budget={"CPU:0": budget}, verbose=0)
    swapped = trained(lambda: compiled(convolutions()), [swap])
    assert swapped.losses == unswapped.losses[: len(swapped.losses)]
    assert max(swapped.peaks) <= budget
    for named in ({"GPU:0": "6GiB"}, {"CPU:0": "6GiB", "CPU:1": "6GiB"}):
        with pytest.raises(ValueError, match="budget is for .*; there are CPU:0, and each needs"):
            trained(lambda: compiled(convolutions()), [tfswap.AutoSwap(budget=named)])
    assert tfswap.memory_stats()["budget_bytes"] is None


def test_a_disabled_optimizer_is_detected(unswapped):
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        swap = tfswap.AutoSwap(budget="2GiB", verbose=0)
        with pytest.warns(UserWarning, match="did not run tfswap's pass"):
            swapped = trained(lambda: compiled(convolutions()), [swap])
        assert len(swapped.losses) == 8
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


def _resident_threads() -> int:
    return len(os.listdir("/proc/self/task"))


@pytest.mark.slow
def test_nothing_leaks_in_200_steps(unswapped):
    swap = tfswap.AutoSwap(budget=budget_of(unswapped, 0.6), verbose=0)
    counts = []

    class Count(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            stats = tfswap.memory_stats()
            counts.append(
                (
                    stats["host_bytes_in_use"],
                    stats["host_bytes_cached"],
                    stats["far_buffers"],
                    _resident_threads(),
                )
            )

    trained(lambda: compiled(convolutions()), [swap, Count()], epochs=25)
    after_24, after_200 = counts[2], counts[-1]
    assert after_200[0] == after_24[0] == 0
    assert after_200[1] <= after_24[1] * 1.1
    assert after_200[2] == after_24[2] == 0
    assert after_200[3] <= after_24[3] + 1


@pytest.mark.slow
@pytest.mark.skipif("TF_ENABLE_ONEDNN_OPTS" in os.environ, reason="runs in a process of its own")
def test_with_and_without_onednn():
    """Train with and without oneDNN, which TensorFlow enables only on processors with VNNI."""
    from tensorflow.python.util import _pywrap_util_port

    other = "0" if _pywrap_util_port.IsMklEnabled() else "1"
    these = "fused_differently or cannot_be_met or smaller_batches"
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", these]
        + ["test_ways_to_train.py", "test_fit.py", "test_slab.py"],
        cwd=os.path.dirname(__file__),
        env={**os.environ, "TF_ENABLE_ONEDNN_OPTS": other},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout[-3000:]
    assert "3 passed" in ran.stdout
