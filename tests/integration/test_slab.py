"""Trainings whose steps have planned addresses: the same numbers, and nobody else's memory."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
from models import MIB, Losses, compiled, convolutions, deterministic, images, trained

import tfswap


@pytest.fixture(autouse=True)
def determinism():
    deterministic()


@pytest.fixture(scope="module")
def unswapped() -> Losses:
    deterministic()
    return trained(lambda: compiled(convolutions()), epochs=3)


class Slab(keras.callbacks.Callback):
    """Looks for writes to freed addresses, and keeps what is counted after each step."""

    def __init__(self, lib) -> None:
        super().__init__()
        self.lib = lib
        self.stats: list[dict] = []

    def on_train_batch_end(self, batch, logs=None):
        self.lib.check_slab(0, True)
        self.stats.append(self.lib.memory_stats(0))


@pytest.mark.parametrize("part", [None, 0.6])
def test_same_losses_at_planned_addresses(unswapped, lib, part):
    budget = "4GiB" if part is None else int(max(unswapped.peaks) * part)
    swap = tfswap.AutoSwap(budget=budget, slab=True, verbose=0)
    slab = Slab(lib)
    losses = trained(lambda: compiled(convolutions()), [swap, slab], epochs=3)
    assert losses.losses == unswapped.losses
    if part is not None:
        assert max(losses.peaks) <= budget
    last = slab.stats[-1]
    assert last["slab_hits"] > 0 and last["slab_limit_bytes"] > 0
    assert last["slab_faults"] == 0
    assert last["slab_bytes"] <= last["slab_limit_bytes"]
    served = last["slab_hit_bytes"] + last["slab_moved_bytes"]
    assert served > last["slab_missed_bytes"]
    # Afterwards all of it is the system's again.
    assert lib.memory_stats(0)["slab_bytes"] == 0
    assert lib.memory_stats(0)["slab_limit_bytes"] == 0


def test_validation_and_partial_batches_find_other_places(unswapped, lib):
    x, y = images(208)  # the seventh batch has 16 examples
    build = lambda: compiled(convolutions())  # noqa: E731
    plain = trained(build, data=(x, y), epochs=4, validation_data=(x[:48], y[:48]))
    swap = tfswap.AutoSwap(budget=int(max(plain.peaks) * 0.7), slab=True, verbose=0)
    slab = Slab(lib)
    losses = trained(build, [swap, slab], data=(x, y), epochs=4, validation_data=(x[:48], y[:48]))
    assert losses.losses == plain.losses
    assert max(losses.peaks) <= int(max(plain.peaks) * 0.7)
    assert slab.stats[-1]["slab_hits"] > 0 and slab.stats[-1]["slab_faults"] == 0


def test_a_saved_layout_is_used_from_the_first_step_on(unswapped, lib, tmp_path: Path):
    path = tmp_path / "plan.json"
    budget = int(max(unswapped.peaks) * 0.6)
    first = tfswap.AutoSwap(budget=budget, slab=True, save_plan=path, verbose=0)
    trained(lambda: compiled(convolutions()), [first], epochs=3)
    assert any(function.layout for function in tfswap.SwapPlan.load(path).functions)
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
