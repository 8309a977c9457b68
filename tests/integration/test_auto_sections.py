"""sections="auto" chooses the number of sections, and tries more where that helps."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from models import MIB, budget_of, deterministic, others_bytes, trained
from section_models import alike, built, data, known, records_since, straight, uneven, wide
from sectioned import filters, numbers

import tfswap


def test_auto_does_not_cut_a_model_that_fits():
    deterministic()
    fit = {"batch_size": 64, "data": data(), "epochs": 2}
    swap = tfswap.AutoSwap(budget="4GiB", sections="auto", verbose=0)
    before = known()
    found = trained(built(straight), [swap], **fit)
    assert found.losses == trained(built(straight), **fit).losses
    assert swap.report.sections == 1 and swap.report.outcome == "fits"
    floors = [r["floors"] for r in records_since(before) if r["nodes"] > 100][-1]
    assert floors[0]["sections"] == 1
    # One activation that is read and one that is written.
    assert floors[0]["bytes"] == pytest.approx(2 * 64 * 48 * 48 * 16 * 4, rel=0.01)
    assert "conv2d" in floors[0]["op"]


def test_auto_cuts_when_a_single_layer_does_not_fit(tmp_path):
    fit = {"batch_size": 64, "data": data(), "epochs": 3}
    whole = trained(built(wide), **fit)
    before, budget = known(), others_bytes() + 60 * MIB
    path = tmp_path / "plan.json"
    swap = tfswap.AutoSwap(budget=budget, sections="auto", save_plan=path, verbose=0)
    cut = trained(built(wide), [swap], **fit)
    alike(cut, whole)
    assert max(cut.peaks) <= budget
    sections = swap.report.sections
    assert sections in (4, 8)
    (record,) = (r for r in records_since(before) if r["floors"] and r["nodes"] > 100)
    assert record["sections"] == sections and record["examples"] == 64
    floors = [each["bytes"] for each in record["floors"]]
    assert [each["sections"] for each in record["floors"]] == [2**i for i in range(len(floors))]
    assert floors == sorted(floors, reverse=True) and floors[0] > 60 * MIB
    if path.exists():
        assert tfswap.SwapPlan.load(path).sections == sections
        assert tfswap.SwapPlan.load(path).batch == 64


@pytest.mark.slow
def test_auto_cuts_each_batch_size():
    fit = {"batch_size": 48, "data": uneven(), "epochs": 2}
    whole = trained(built(wide), **fit)
    budget = others_bytes() + 60 * MIB
    swap = tfswap.AutoSwap(budget=budget, sections="auto", verbose=0)
    cut = trained(built(wide), [swap], **fit)
    alike(cut, whole)
    assert max(cut.peaks) <= budget
    assert swap.report.sections > 1


@pytest.mark.slow
def test_auto_tries_more_sections_when_steps_would_wait():
    fit = {"batch_size": 64, "data": data(), "epochs": 4}
    whole = trained(built(straight), **fit)
    budget = budget_of(whole, 0.75)
    slow = {"budget": budget, "link_bandwidth": "50MB/s", "policy": "greedy", "verbose": 0}
    swap = tfswap.AutoSwap(sections="auto", **slow)
    cut = trained(built(straight), [swap], **fit)
    alike(cut, whole)
    assert max(cut.peaks) <= budget
    assert swap.report.sections > 1
    assert any("2 sections of the batch are tried" in note for note in swap.report.notes)


@pytest.mark.slow
def test_auto_tries_more_sections_when_there_is_no_plan():
    fit = {"batch_size": 64, "data": data(), "epochs": 4}
    whole = trained(built(straight), **fit)
    budget = budget_of(whole, 0.75)
    swap = tfswap.AutoSwap(budget=budget, sections="auto", policy="vdnn_all", verbose=0)
    cut = trained(built(straight), [swap], **fit)
    alike(cut, whole)
    assert max(cut.peaks) <= budget
    assert swap.report.sections > 1 and swap.report.outcome != "bootstrap"
    assert any("there is no plan for the budget: 2 sec" in note for note in swap.report.notes)


def test_auto_chooses_again_for_validation_with_larger_batches():
    budget = others_bytes() + 60 * MIB
    x, y = data()
    model, before = built(wide)(), known()
    swap = tfswap.AutoSwap(budget=budget, sections="auto", verbose=0)
    small = {"batch_size": 8, "validation_batch_size": 128, "validation_data": (x, y)}
    found = model.fit(x[:64], y[:64], epochs=3, verbose=0, callbacks=[swap], **small)
    assert len(found.history["val_loss"]) == 3
    made = {r["examples"]: r["sections"] for r in records_since(before) if r["examples"]}
    assert made[8] == swap.report.sections == 1
    assert made[128] >= 4
    assert tfswap.memory_stats()["budget_bytes"] is None


def test_auto_works_for_functions():
    @tf.function(jit_compile=False)
    def plain(x):
        for _ in range(4):
            x = tf.nn.relu(tf.nn.conv2d(x, filters(3, 3, 3, 3), 1, "SAME"))
        return tf.reduce_mean(x)

    @tf.function(jit_compile=False)
    def cut(x):
        return plain(x)

    x, before = numbers(64, 96, 96, 3), known()
    expected = plain(x)
    with tfswap.Session(budget=others_bytes() + 16 * MIB, sections="auto", verbose=0):
        np.testing.assert_allclose(cut(x), expected, rtol=1e-5)
    assert max(r["sections"] for r in records_since(before)) > 1
