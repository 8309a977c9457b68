"""Further graphs of a training, and larger tensors, get their own plans; losses stay equal."""

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
)

import tfswap
from tfswap.training import graph_watch


@pytest.fixture(autouse=True)
def checks_often(monkeypatch):
    """Look for new graphs every fourth step instead of every 32nd."""
    deterministic()
    monkeypatch.setattr(graph_watch, "FIRST_PAUSE", 4)


def notes_with(report, text: str) -> list[str]:
    return [note for note in report["notes"] if text in note]


class Loop:
    """A step that is traced for each image size, as in a custom loop."""

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
    """Return losses by image size, and the bytes that such a loop holds."""
    deterministic()
    before = others_bytes()
    tfswap.reset_memory_stats()
    losses = {sizes: Loop().losses(sizes) for sizes in (ALTERNATING, LARGER_LATER)}
    return losses, tfswap.memory_stats()["peak_bytes"] - before


@pytest.mark.parametrize("sizes", [ALTERNATING, pytest.param(LARGER_LATER, marks=pytest.mark.slow)])
@pytest.mark.parametrize("slab", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_each_graph_gets_its_own_plan(unswapped_loops, sizes, slab):
    losses, peak = unswapped_loops
    budget = others_bytes() + int(0.6 * peak)
    with tfswap.Session(budget=budget, link_bandwidth=4e9, slab=slab, verbose=0) as session:
        loop = Loop()
        tfswap.reset_memory_stats()
        assert loop.losses(sizes) == losses[sizes]
        assert tfswap.memory_stats()["peak_bytes"] <= budget
        report = session.reports["train_step"]
    # Ops in a fixed order may need so much less that nothing has to leave.
    planned = [f for f in report["plan"].functions if f.swaps or f.recomputes or f.order]
    assert len(planned) == 2, report["notes"]
    assert len(notes_with(report, "2 graphs of this training")) == 1


class Batches(keras.utils.PyDataset):
    """Images of several sizes for one graph, which are not known before the step."""

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
def test_a_graph_for_several_shapes_is_planned_for_the_larger_ones(slab, policy):
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
