"""Trainings whose steps have planned addresses: equal losses, and no overlapping memory."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import (
    MIB,
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


@pytest.fixture(autouse=True)
def determinism():
    deterministic()


@pytest.fixture(scope="module")
def unswapped() -> Losses:
    deterministic()
    return trained(lambda: compiled(convolutions()), epochs=3)


class Slab(keras.callbacks.Callback):
    """Check for writes to freed addresses, and record the counts after each step."""

    def __init__(self, lib) -> None:
        super().__init__()
        self.lib = lib
        self.stats: list[dict] = []

    def on_train_batch_end(self, batch, logs=None):
        self.lib.check_slab(0, True)
        self.stats.append(self.lib.memory_stats(0))


def test_same_losses_at_planned_addresses(unswapped, lib):
    budget = budget_of(unswapped, 0.6)
    swap = tfswap.AutoSwap(budget=budget, slab=True, verbose=0)
    slab = Slab(lib)
    # Corrections, which are more frequent on a busy machine, come before addresses.
    losses = trained(lambda: compiled(convolutions()), [swap, slab], epochs=4)
    assert losses.losses[: len(unswapped.losses)] == unswapped.losses
    assert max(losses.peaks) <= budget
    last = slab.stats[-1]
    assert last["slab_hits"] > 0 and last["slab_limit_bytes"] > 0
    assert last["slab_faults"] == 0
    # Every planned address was free: the ops run in the order that they need. (Misses: the first
    # steps prefetch batches, which have no addresses.) One of the last steps must show it: a tensor
    # that left in the recorded steps but not in this one, which is up to the executor, blocks a
    # few others.
    steps = [
        {key: after[key] - before[key] for key in after} for before, after in pairwise(slab.stats)
    ][-4:]
    assert all(step["slab_hits"] > 0 for step in steps), steps
    assert any(_all_at_their_places(step) for step in steps), steps
    # Afterwards the system has the slab's memory again.
    assert lib.memory_stats(0)["slab_limit_bytes"] == 0


def _all_at_their_places(step: dict[str, int]) -> bool:
    elsewhere = step["slab_moved_bytes"] + step["slab_missed_bytes"]
    taken = step["slab_taken"] + step["slab_other_size"]
    return taken == 0 and elsewhere <= 0.01 * step["slab_hit_bytes"]


class Shares(keras.callbacks.Callback):
    """Record the share of each call's bytes that were at planned addresses, by call."""

    def __init__(self, lib) -> None:
        super().__init__()
        self.lib = lib
        self.shares: defaultdict[tuple[str, int], list[float]] = defaultdict(list)

    def on_train_batch_begin(self, batch, logs=None):
        self.before = self.lib.memory_stats(0)

    on_test_batch_begin = on_train_batch_begin

    def on_train_batch_end(self, batch, logs=None):
        self.note("train", batch)

    def on_test_batch_end(self, batch, logs=None):
        self.note("test", batch)

    def note(self, kind: str, batch: int) -> None:
        after = self.lib.memory_stats(0)
        hit, moved, missed = (
            after[f"slab_{name}_bytes"] - self.before[f"slab_{name}_bytes"]
            for name in ("hit", "moved", "missed")
        )
        self.shares[kind, batch].append(hit / max(hit + moved + missed, 1))


@pytest.mark.slow
def test_validation_and_smaller_batches_have_their_own_addresses(unswapped, lib):
    x, y = images(112)  # the fourth batch has 16 examples, as does the second of the validation
    build = lambda: compiled(convolutions())  # noqa: E731
    fit = {"data": (x, y), "epochs": 16, "validation_data": (x[:48], y[:48])}
    plain = trained(build, **fit)
    budget = budget_of(plain, 0.7)
    swap = tfswap.AutoSwap(budget=budget, slab=True, verbose=0)
    slab, shares = Slab(lib), Shares(lib)
    losses = trained(build, [shares, swap, slab], **fit)
    assert losses.losses == plain.losses
    assert max(losses.peaks) <= budget
    assert slab.stats[-1]["slab_hits"] > 0 and slab.stats[-1]["slab_faults"] == 0
    assert len(shares.shares) == 6
    # A validation makes little, so the batch, which comes from outside, is a part of it. And a
    # tensor that left in the recorded steps but not in this one, which is up to the executor,
    # blocks a few others. Without its own layout, a batch reaches 0.4 or less.
    assert min(max(each[-3:]) for each in shares.shares.values()) > 0.95, shares.shares
    step, test = swap.report["plan"].functions
    assert len(step.layouts) == len(test.layouts) == 2


@pytest.mark.slow
def test_a_model_can_be_evaluated_between_steps(unswapped, lib):
    """Other work on the device meanwhile gets addresses that no step uses."""
    x, y = images(128)

    class Evaluate(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                self.model.evaluate(x[:24], y[:24], verbose=0)
                self.model.predict(x[:8], verbose=0)

    build = lambda: compiled(convolutions(depth=4))  # noqa: E731
    plain = trained(build, [Evaluate()], epochs=16, data=(x, y))
    swap = tfswap.AutoSwap(budget=budget_of(plain, 0.8), slab=True, verbose=0)
    slab = Slab(lib)
    losses = trained(build, [Evaluate(), swap, slab], epochs=16, data=(x, y))
    assert losses.losses == plain.losses
    assert slab.stats[-1]["slab_hits"] > slab.stats[-2]["slab_hits"] > 0
    assert slab.stats[-1]["slab_faults"] == 0


def test_a_saved_layout_is_used_from_the_first_step_on(unswapped, lib, tmp_path: Path):
    path = tmp_path / "plan.json"
    budget = budget_of(unswapped, 0.6)
    first = tfswap.AutoSwap(budget=budget, slab=True, save_plan=path, verbose=0)
    trained(lambda: compiled(convolutions()), [first], epochs=3)
    assert any(function.layouts for function in tfswap.SwapPlan.load(path).functions)
    again = tfswap.AutoSwap(budget=budget, slab=True, plan=path, verbose=0)
    slab = Slab(lib)
    losses = trained(lambda: compiled(convolutions()), [again, slab], epochs=1)
    assert losses.losses == unswapped.losses[: len(losses.losses)]
    assert slab.stats[0]["slab_hits"] > 0


def test_no_growth_over_many_steps_of_two_models(lib):
    x, y = images(64)
    models = [compiled(convolutions(depth=d)) for d in (3, 4)]
    sizes = []
    for _ in range(3):
        for model in models:
            swap = tfswap.AutoSwap(budget="1GiB", slab=True, verbose=0)
            model.fit(x, y, batch_size=8, epochs=2, verbose=0, shuffle=False, callbacks=[swap])
            assert swap.report["outcome"] == "fits"
            assert not any("did not run" in note for note in swap.report["notes"])
            sizes.append(lib.memory_stats(0)["bytes_in_use"])
    assert np.ptp(sizes[2:]) <= 2 * MIB


def test_out_of_memory_shows_the_addresses(unswapped, lib, tmp_path: Path):
    class Shrink(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if lib.memory_stats(0)["slab_hits"] > 0:
                lib.set_budget(0, 20 * MIB)

    swap = tfswap.AutoSwap(budget=budget_of(unswapped, 0.9), slab=True, verbose=0)
    with pytest.raises(tf.errors.ResourceExhaustedError) as error:
        trained(lambda: compiled(convolutions()), [swap, Shrink()], epochs=3)
    assert "budget of 20.0 MiB is exceeded" in str(error.value)
    assert re.search(
        r"Addresses, low to high .*: planned \[[#+. ]{48}\], others \[", str(error.value)
    )
    said = swap.report["out_of_memory"]
    assert said.startswith("tfswap: the memory budget of 20.0 MiB") and said in str(error.value)
    swap.report.to_html(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "Addresses when memory ran out" in page and "Planned addresses over a step" in page


def test_batches_of_many_lengths_and_no_growth(lib, monkeypatch):
    """Train and validate a model of any sequence length in turn: each length is a graph."""
    random = np.random.default_rng(1)
    lengths = (16, 24, 40)

    def batches(count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for i in range(count):
            length = lengths[i % len(lengths)]
            x = random.random((16 if i % 7 else 5, length, 32), dtype=np.float32)
            yield x, x.sum(axis=(1, 2)) > length * 16

    def build() -> keras.Model:
        x = inputs = keras.Input((None, 32))
        for _ in range(3):
            x = keras.layers.Conv1D(64, 3, padding="same", activation="relu")(x)
        x = keras.layers.GlobalAveragePooling1D()(x)
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        return compiled(keras.Model(inputs, keras.layers.Dense(1)(x)), loss=loss)

    spec = (tf.TensorSpec((None, None, 32), tf.float32), tf.TensorSpec((None,), tf.bool))
    data = tf.data.Dataset.from_generator(lambda: batches(250), output_signature=spec)
    # Else it is left alone.
    monkeypatch.setattr("tfswap.devices.managed_devices.CLEARLY_FITS", 0)
    swap = tfswap.AutoSwap(budget="1GiB", slab=True, verbose=0)
    slab = Slab(lib)
    build().fit(data, epochs=2, verbose=0, validation_data=data.take(9), callbacks=[swap, slab])
    assert len(slab.stats) == 500
    last = slab.stats[-1]
    assert last["slab_faults"] == 0 and last["slab_hits"] > 0
    # Blocks without a planned address are counted, and take no more memory with each step.
    assert last["slab_moved"] + last["slab_other_size"] > 0
    early = slab.stats[100]
    for key in ("slab_claimed_bytes", "load_bytes"):
        assert last[key] <= early[key] + MIB // 4
    # Which ops of a step overlap varies: the workspaces of two convolutions, or of one.
    assert last["slab_bytes"] <= 2 * early["slab_bytes"]


def test_memory_of_weights_that_outlive_a_session_is_returned():
    before = others_bytes()
    weights = [tf.Variable(tf.random.stateless_normal([1024, 1024], [1, n])) for n in range(10)]

    @tf.function
    def serve(x):
        for weight in weights:
            x = tf.nn.relu(tf.matmul(x, weight))
        return x

    with tfswap.Session(budget=before + 14 * MIB, verbose=0):
        serve(tf.ones([8, 1024]))
    for weight in weights:
        weight.assign(weight + 0.0)  # in another block
    assert before + 40 * MIB <= others_bytes() <= before + 41 * MIB
