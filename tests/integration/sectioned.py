"""Compute a function whole and in sections, for comparison."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import tfswap


def numbers(*shape: int, seed: int = 0) -> tf.Tensor:
    return tf.constant(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32))


def filters(*shape: int) -> tf.Tensor:
    return numbers(*shape, seed=1)


def gradient(of: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor], tf.Tensor]:
    def computed(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            made = of(x)
        return tape.gradient(made, x)

    return computed


def in_sections(
    lib: Any, compute: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor, sections: int
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return the results in sections and whole, and the names of the cut graph's nodes."""

    def computed(x: tf.Tensor) -> tf.Tensor:
        return compute(tf.sin(x * 1.5) + tf.cos(x * 2.5))

    plain = tf.function(computed, jit_compile=False)
    cut = tf.function(lambda x: computed(x), jit_compile=False)
    expected = plain(x).numpy()
    known = {record["fingerprint"] for record in tfswap.status()["functions"]}
    with tfswap.Session(budget="1GiB", sections=sections, verbose=0):
        found = cut(x).numpy()
    (record,) = (r for r in tfswap.status()["functions"] if r["fingerprint"] not in known)
    assert record["outcome"] != "refused" and record["sectioned_ops"] > 0, record
    nodes = [line.split("\t")[0] for line in lib.describe(record["fingerprint"]).splitlines()]
    return found, expected, nodes
