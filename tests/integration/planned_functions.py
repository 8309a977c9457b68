"""Small functions that run under plans, and the pass's report on each."""

from __future__ import annotations

import contextlib

import numpy as np
import tensorflow as tf

import tfswap
from tfswap.hooks.plan_session import PlanSession
from tfswap.plan.schema import FunctionPlan, Return, SwapPlan, TensorSwap
from tfswap.step.graph import StepGraph

SIZE = 64


@contextlib.contextmanager
def session(plan: SwapPlan):
    pushed = PlanSession()
    pushed.push(plan, describe=True)
    try:
        yield pushed
    finally:
        pushed.withdraw()


def records(lib, serial: int):
    return [r for r in lib.pass_records() if r["serial"] > serial]


def newest(lib) -> int:
    return max((r["serial"] for r in lib.pass_records()), default=0)


def run(lib, plan: SwapPlan, function, *arguments):
    """Run a function under a plan; return its result and the pass's record of its graph."""
    serial = newest(lib)
    tfswap.reset_memory_stats()
    with session(plan):
        result = function(*arguments)
    found = records(lib, serial)
    assert len(found) == 1, found
    return result, found[0]


def chain():
    """Return a function that computes a, b, c, d, e in sequence; e reads a again."""

    @tf.function
    def f(x):
        a = tf.matmul(x, x, name="a")
        b = tf.matmul(a, x, name="b")
        c = tf.matmul(b, x, name="c")
        d = tf.matmul(c, x, name="d")
        e = tf.matmul(d, a, name="e")
        return tf.reduce_sum(tf.nn.relu(e)) + tf.reduce_max(d)

    return f


def matrix() -> tf.Tensor:
    return tf.constant(np.random.default_rng(0).random((SIZE, SIZE), dtype=np.float32) / SIZE)


def swap(tensor="a:0", gates=("c",), trigger="d", consumers=("e",), **more) -> TensorSwap:
    return TensorSwap(tensor, 0, gates, (Return(trigger, consumers),), **more)


def plan_of(fingerprint: str, *swaps: TensorSwap, **more) -> SwapPlan:
    return SwapPlan((FunctionPlan(fingerprint, swaps, **more),), min_bytes=0)


def fingerprint(lib, function, *arguments) -> tuple[str, StepGraph]:
    _, record = run(lib, SwapPlan(), function, *arguments)
    assert record["outcome"] == "left"
    return record["fingerprint"], StepGraph.parse(lib.describe(record["fingerprint"]))
