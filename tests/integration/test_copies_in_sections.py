"""Large buffers move in sections: memory is released and allocated piece by piece."""

from __future__ import annotations

import time

import numpy as np
import pytest
import tensorflow as tf

import tfswap
from tests.copy_ops import copy_from_host, copy_to_host

MIB = 1 << 20
LARGE = 64
"""Of four sections."""


@pytest.fixture(params=["system", "slab"])
def memory(request, lib):
    """Place blocks in their own pages, or in a slab that checks for writes to freed memory."""
    if request.param == "slab":
        lib.always_slab(0, True)
        lib.check_slab(0, True)
    yield lib
    if request.param == "slab":
        assert tfswap.memory_stats()["slab_faults"] == 0
        lib.check_slab(0, False)
        lib.always_slab(0, False)


def load():
    """Return the bytes of all blocks once copy threads have released theirs."""
    deadline = time.monotonic() + 2
    while tfswap.memory_stats()["far_buffers"] and time.monotonic() < deadline:
        time.sleep(0.01)
    return tfswap.memory_stats()["load_bytes"]


def clock():
    """Return an op that reads the time; deterministic ops refuse `tf.timestamp`."""
    return tf.numpy_function(time.time, [], tf.float64)


def unordered(function, x):
    """Wrap a function as a graph in which copies wait only for their edges.

    `tf.function` would order stateful ops.
    """
    return tf.compat.v1.wrap_function(function, [tf.TensorSpec(x.shape, x.dtype)])


def test_memory_is_free_as_soon_as_a_section_has_left(megabytes, memory):
    x = megabytes(LARGE)

    def step(x):
        y = x + 1.0
        handle = copy_to_host(y)
        with tf.control_dependencies([y]):
            small = x[: 12 * MIB // 4] * 2.0
        with tf.control_dependencies([small]):
            got_s = clock()
        with tf.control_dependencies([handle]):
            left_s = clock()
        return got_s, left_s, tf.reduce_sum(small)

    step = unordered(step, x)

    def times():
        begun = time.time()
        return [float(at) - begun for at in step(x)[:2]]

    times()
    base = load()
    tfswap.set_budget(base + (LARGE + 6) * MIB)
    memory.emulate_link(0, LARGE * MIB)  # one second
    tfswap.reset_memory_stats()
    got_s, left_s = times()
    stats = tfswap.memory_stats()
    assert stats["copies_out"] == 1 and stats["waits"] > 0
    assert left_s > 0.95
    assert got_s < left_s - 0.1  # as a whole, it would be free only after the copy
    assert stats["peak_load_bytes"] <= base + (LARGE + 6) * MIB
    assert load() == base


@pytest.mark.parametrize("codec", ["", "zvc"])
def test_a_tensor_returns_into_memory_that_another_one_leaves(megabytes, memory, codec):
    x = megabytes(LARGE)

    def step(x):
        first = x + 1.0
        far = copy_to_host(first, codec=codec)
        with tf.control_dependencies([far]):
            second = x + 2.0
        leaving = copy_to_host(second, codec=codec)
        with tf.control_dependencies([second]):
            back = copy_from_host(tf.identity(far), x.dtype)
        with tf.control_dependencies([back, leaving]):
            total = tf.reduce_sum(back)
        with tf.control_dependencies([total]):
            last = copy_from_host(tf.identity(leaving), x.dtype)
        return total, tf.reduce_sum(last)

    step = unordered(step, x)
    expected = [float(value) for value in step(x)]
    base = load()
    budget = base + (LARGE + 24) * MIB
    tfswap.set_budget(budget)
    memory.emulate_link(0, LARGE * MIB)  # one second per copy
    tfswap.reset_memory_stats()
    begun = time.monotonic()
    values = [float(value) for value in step(x)]
    took_s = time.monotonic() - begun
    assert values == expected
    stats = tfswap.memory_stats()
    assert stats["peak_load_bytes"] <= budget and stats["copies_out"] == stats["copies_in"] == 2
    if not codec:  # as wholes, the copies would run in sequence: 4 s
        assert took_s < 3.8
    assert load() == base


def test_a_swap_in_that_runs_out_of_room_releases_its_sections(megabytes, memory):
    x = megabytes(LARGE)

    def step(x):
        handle = copy_to_host(x + 1.0)
        with tf.control_dependencies([handle]):
            kept = x * 2.0
            # Nothing leaves while the large tensor returns: half of it finds room.
            back = copy_from_host(tf.identity(handle), x.dtype)
        total = tf.reduce_sum(kept)
        return total, tf.reduce_sum(back)

    step = unordered(step, x)
    expected = [float(value) for value in step(x)]
    base = load()
    tfswap.set_budget(base + (LARGE + 34) * MIB)
    tfswap.reset_memory_stats()
    assert [float(value) for value in step(x)] == expected
    assert tfswap.memory_stats()["peak_load_bytes"] <= base + (LARGE + 34) * MIB
    assert load() == base


@pytest.mark.parametrize("codec", ["", "zvc"])
def test_a_tensor_needed_while_it_leaves_in_sections_returns_whole(megabytes, memory, codec):
    x = megabytes(LARGE)

    def step(x):
        y = x + 1.0
        handle = copy_to_host(y, codec=codec)
        with tf.control_dependencies([y]):
            pause = tf.numpy_function(lambda: (time.sleep(0.15), np.float32(0))[1], [], tf.float32)
        with tf.control_dependencies([pause]):
            back = copy_from_host(tf.identity(handle), x.dtype)
        return back

    expected = (x + 1.0).numpy()
    step = unordered(step, x)
    memory.emulate_link(0, 4 * LARGE * MIB)
    memory.set_verify(0, True)
    for _ in range(3):
        assert np.array_equal(step(x).numpy(), expected)


def test_sections_stay_when_far_memory_is_full(megabytes, memory):
    x = megabytes(LARGE)
    trip = tf.function(lambda x: copy_from_host(copy_to_host(x + 1.0), x.dtype))
    expected = trip(x).numpy()
    base = load()
    memory.set_host_limit(36 * MIB)
    tfswap.reset_memory_stats()
    for _ in range(2):
        assert np.array_equal(trip(x).numpy(), expected)
    stats = tfswap.memory_stats()
    assert stats["copies_out"] == 2 and stats["bytes_out"] == stats["bytes_in"] == 2 * 32 * MIB
    assert load() == base
    memory.set_host_limit(8 * MIB)
    tfswap.reset_memory_stats()
    assert np.array_equal(trip(x).numpy(), expected)
    assert tfswap.memory_stats()["copies_declined"] == 1
    assert load() == base
    memory.set_host_limit(None)
    trip(x)  # so that no later error reports full far memory


def test_a_tensor_with_another_reader_stays_whole(megabytes, memory):
    x = megabytes(LARGE)

    def step(x):
        y = x + 1.0
        handle = copy_to_host(y)
        with tf.control_dependencies([handle]):
            still = tf.reduce_sum(y)
        with tf.control_dependencies([still]):
            back = copy_from_host(tf.identity(handle), x.dtype)
        return still, tf.reduce_sum(back)

    step = unordered(step, x)
    for _ in range(3):
        still, back = step(x)
        assert float(still) == float(back) == float(tf.reduce_sum(x + 1.0))


def test_a_changed_section_is_an_error(megabytes, memory):
    x = megabytes(LARGE)
    trip = tf.function(lambda x: copy_from_host(copy_to_host(x + 1.0), x.dtype))
    trip(x)
    base = load()
    memory.set_verify(0, True)
    memory.set_faults("bit-flip")
    with pytest.raises(tf.errors.DataLossError, match="came back from far memory changed"):
        trip(x)
    memory.set_faults("")
    trip(x)
    assert load() == base


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["slab", "system"], indirect=True)
def test_a_training_with_large_activations_keeps_its_losses_and_budget(memory):
    def train(**options):
        tf.keras.utils.set_random_seed(1)
        convolutions = [
            tf.keras.layers.Conv2D(16, 3, padding="same", activation="tanh") for _ in range(6)
        ]
        model = tf.keras.Sequential(
            [*convolutions, tf.keras.layers.GlobalAveragePooling2D(), tf.keras.layers.Dense(1)]
        )
        model.compile("sgd", "mse", jit_compile=False)
        random = np.random.default_rng(1)
        x, y = random.random((4, 400, 400, 2), np.float32), random.random((4, 1), np.float32)
        tfswap.reset_memory_stats()
        swaps = [tfswap.AutoSwap(**options, verbose=0)] if options else []
        fit = model.fit(x, y, batch_size=4, epochs=10, verbose=0, shuffle=False, callbacks=swaps)
        return fit.history["loss"], tfswap.memory_stats()

    losses, unswapped = train()
    budget = round(0.7 * unswapped["peak_load_bytes"])
    # Slow enough that sections of one tensor enter while sections of another leave.
    swapped, stats = train(budget=budget, link_bandwidth=3e8)
    assert swapped == losses
    assert stats["peak_load_bytes"] <= budget and stats["copies_out"] > 0
