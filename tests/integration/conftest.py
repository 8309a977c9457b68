"""Fixtures for tests that run TensorFlow."""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest
import tensorflow as tf
from models import emptied_variables

from tfswap.ops import library
from tfswap.plan.measured_plan import MeasuredPlan

MIB = 1 << 20

# No test begins with another test's plan.
os.environ["TFSWAP_PLAN_CACHE"] = "none"


@pytest.fixture(autouse=True)
def clean_device():
    """Begin and end each test with a device without budget, faults, emulation or its variables."""
    lib = library.load()
    assert library.device_is_ours()
    with emptied_variables():
        yield
        lib.set_budget(0, None)
        lib.set_host_limit(None)
        lib.emulate_link(0, None)
        lib.set_verify(0, False)
        lib.set_faults("")
    tf.keras.backend.clear_session()
    gc.collect()
    # Keras and TensorFlow keep much of each model; later collections need not scan it again.
    gc.freeze()
    lib.trim_host()
    lib.reset_memory_stats(0)


@pytest.fixture(autouse=True)
def plans_stay_however_long_steps_take(monkeypatch):
    """Keep plans however slow their steps are: other work on the machine may be the cause.

    A plan that seems slower than on-demand swaps is given up. `test_measured_plan` has the rule,
    `test_fit` and `test_transitions` what follows from it.
    """
    monkeypatch.setattr(MeasuredPlan, "is_slower_than", lambda attempt, seconds: False)


@pytest.fixture
def lib():
    return library.load()


@pytest.fixture
def megabytes():
    """Return a function that makes a float32 tensor of that many MiB, with values in it."""

    def make(mib: int, seed: int = 0) -> tf.Tensor:
        values = np.random.default_rng(seed).random(mib * MIB // 4, dtype=np.float32)
        return tf.identity(tf.constant(values) + 0.0)

    return make
